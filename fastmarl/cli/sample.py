"""`fastmarl sample`: measure the sampling speed, and the fraction of time per stage."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

from fastmarl.cli.arguments import (
    add_env_arguments,
    add_env_workers,
    add_hiddens,
    json_file,
    picture_file,
    positive,
    runner_config,
)
from fastmarl.cli.terminal import Terminal
from fastmarl.report.plots import bars, picture
from fastmarl.report.records import RecordFile
from fastmarl.report.tables import Table

CALLS = 50  # number of sample() calls, within the limits below
LEAST_TICKS = 25  # per call; with fewer, its overhead would show
MOST_TICKS = 1000  # per call; all of its rows are in memory
WARM_TICKS, WARM_SECONDS = 64, 1.0  # limits of the warm-up; the first tick is not timed
ROUNDS, SECONDS = 3, 0.5  # for the comparison with a bare loop
SUMMARY = (  # (key of the figure, name in the table, format)
    ("env_steps", "env steps", ",d"),
    ("agent_steps", "agent steps", ",d"),
    ("episodes", "episodes", ",d"),
    ("episode_return_mean", "mean return", ",.2f"),
    ("episode_len_mean", "mean length", ",.1f"),
    ("agent_steps_per_second", "agent steps/s", ",.0f"),
)
OF_ENVIRONMENT, OF_NETWORK = ("env", "reset"), "forward"  # stage names


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("sample", help="sample an environment; show returns, speed and where the time goes")
    add_env_arguments(parser, num_envs=16)
    add_hiddens(parser)
    parser.add_argument("--steps", type=positive, default=20_000, help="env steps over all envs (default %(default)s)")
    add_env_workers(parser)
    parser.add_argument("--worker-num-splits", type=positive, default=1, metavar="N", help="parts of the environments "
                        "that take turns: with 2, one is stepped while actions are chosen for the other")  # fmt: skip
    parser.add_argument("--out", type=picture_file, metavar="PNG", help="write a picture of the stage profile")
    parser.add_argument("--json", type=json_file, metavar="FILE", help="add a record of this run: figures, commit, "
                        "machine; one JSON object a line")  # fmt: skip
    parser.add_argument("--no-relative-speed", action="store_true", help="do not measure a bare loop")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Sample, compare the speed with a bare loop, then show and save the results.

    Raises:
        KeyboardInterrupt: After Ctrl-C, once the available results have been shown and saved.
    """
    import torch

    from fastmarl.bench.relative_speed import measure_relative_speed
    from fastmarl.runner.runner import MultiAgentEnvRunner

    if args.out:
        import matplotlib  # noqa: F401  fail early if it is missing
    torch.set_num_threads(1)
    config = runner_config(
        args,
        gym_env_vectorize_mode="sync" if args.num_env_workers is None else "async",
        num_env_workers=args.num_env_workers or 0,
        worker_num_splits=args.worker_num_splits,
    )
    file = RecordFile(args.json, "sample")
    figures: dict[str, Any] = {}
    try:
        _sample(MultiAgentEnvRunner(config), args.steps, figures, terminal)
        if not args.no_relative_speed:
            with terminal.status("measuring a bare loop ..."):
                figures["relative_speed"] = measure_relative_speed(config, rounds=ROUNDS, seconds=SECONDS).as_dict()
    finally:
        if figures:
            _report(args, figures, terminal)
            about = {"env": args.env, "env_config": args.env_config, "num_envs": args.num_envs}
            file.write({**about, **figures}, is_final=True)
    return 0


def _sample(runner: Any, steps: int, figures: dict[str, Any], terminal: Terminal) -> None:
    """Sample at least `steps` env steps and stop the runner; `figures` receives the results even after an error."""
    ticks = -(-steps // runner.num_envs)
    per_call = min(ticks, max(LEAST_TICKS, min(ticks // CALLS, MOST_TICKS))) * runner.num_envs
    seconds = 0.0
    try:
        _warm_up(runner)
        with terminal.progress("sampling", steps) as add:
            for _ in range(0, steps, per_call):
                begun = perf_counter()
                try:
                    runner.sample(num_timesteps=per_call)
                finally:
                    seconds += perf_counter() - begun
                add(per_call)
    finally:
        if seconds:
            figures |= _figures(runner, seconds)
        runner.stop()


def _warm_up(runner: Any) -> None:
    """Sample a few ticks to compile the kernels, including those used at the end of episodes."""
    runner.sample(num_timesteps=runner.num_envs)
    begun, ticks = perf_counter(), 1
    while ticks < WARM_TICKS and perf_counter() - begun < WARM_SECONDS:
        runner.sample(num_timesteps=runner.num_envs)
        ticks += 1
    runner.get_metrics()


def _figures(runner: Any, seconds: float) -> dict[str, Any]:
    metrics = runner.get_metrics()
    agent_steps = sum(metrics["num_agent_steps_sampled"].values())
    means = ("episode_return_mean", "episode_len_mean")
    return {
        "env_steps": metrics["num_env_steps_sampled"],
        "agent_steps": agent_steps,
        "episodes": metrics["num_episodes"],
        **{key: metrics[key] for key in means if key in metrics},
        "seconds": seconds,
        "agent_steps_per_second": agent_steps / seconds,
        "stage_time_ms": metrics["stage_time_ms"],
        "inference_backends": runner.inference_backends,
    }


def _report(args: argparse.Namespace, figures: dict[str, Any], terminal: Terminal) -> None:
    title = f"{args.env}, {args.num_envs} envs"
    terminal.show(_summary_table(title, figures), _stage_table(figures["stage_time_ms"]), sentence(figures))
    if args.out:
        _draw_stages(figures["stage_time_ms"], title, args.out)
        terminal.show(f"stage profile: {args.out}")


def _summary_table(title: str, figures: dict[str, Any]) -> Table:
    """Return a table of the figures, including the comparison with a bare loop."""
    rows = [(name, f"{figures[key]:{form}}") for key, name, form in SUMMARY if key in figures]
    if (relative_speed := figures.get("relative_speed")) is not None:
        bare, ours = (f"{1e6 / us:,.0f}" for us in relative_speed["median_round_us"])
        rows += [
            (f"median of {len(relative_speed['rounds'])} rounds, agent steps/s: fastmarl", ours),
            ("... a bare loop in turn with it", bare),
            ("relative speed", f"{relative_speed['relative_speed']:.3f}"),
            ("... with our drawing of actions in the loop", f"{relative_speed['own_relative_speed']:.3f}"),
        ]
    rows += [(f"inference of {module_id}", backend) for module_id, backend in figures["inference_backends"].items()]
    return Table(title, (), rows)


def _stage_table(stage_ms: dict[str, float]) -> Table:
    """Return a table of the milliseconds per tick and the fraction of time spent in each stage."""
    total = sum(stage_ms.values()) or 1.0
    columns = {"stage": ("stage", ""), "ms": ("ms per tick", ".4f"), "share": ("share", ".1%")}
    figures = [{"stage": stage, "ms": ms, "share": ms / total} for stage, ms in stage_ms.items()]
    return Table.of("where the time goes", columns, figures)


def sentence(figures: dict[str, Any]) -> str:
    """Return a sentence with the time fractions of env, network and fastmarl, and the relative speed if measured."""
    stage_ms = figures["stage_time_ms"]
    total = sum(stage_ms.values()) or 1.0
    env = round(100 * sum(stage_ms[stage] for stage in OF_ENVIRONMENT) / total)
    network = round(100 * stage_ms[OF_NETWORK] / total)
    text = f"{env} % of the time is the environment, {network} % the network, {100 - env - network} % fastmarl itself"
    if (relative_speed := figures.get("relative_speed")) is None:
        return f"{text}."
    bare, ours = (f"{1e6 / us:,.0f}" for us in relative_speed["median_round_us"])
    rounds = len(relative_speed["rounds"])
    return (
        f"{text}. In turn with a bare loop over the same environments and network, median of {rounds} rounds: {ours} "
        f"agent steps/s against {bare}, a relative speed of {relative_speed['relative_speed']:.2f}."
    )


def _draw_stages(stage_ms: dict[str, float], title: str, path: Path) -> None:
    total = sum(stage_ms.values()) or 1.0
    with picture(path, 7, 3.2) as figure:
        axes = figure.subplots()
        bars(axes, [*stage_ms], [*stage_ms.values()], [f"{ms / total:.1%}" for ms in stage_ms.values()])
        axes.set_xlabel("milliseconds per tick (one step of all envs)")
        axes.set_title(title)
