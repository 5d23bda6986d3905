"""`fastmarl sample`."""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

from fastmarl.cli.arguments import ENV_HELP, add_env_arguments, json_file, natural, picture, positive, runner_config
from fastmarl.cli.terminal import Terminal
from fastmarl.report.records import RecordFile
from fastmarl.report.sample_report import draw_stages, sentence, stage_table, summary_table

CALLS = 50  # of sample()
WARM_TICKS, WARM_SECONDS = 64, 1.0  # before them, at most; the seconds without those of the first tick
ROUNDS, SECONDS = 3, 0.5  # of the comparison with a bare loop


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("sample", help="sample an environment; show returns, speed and where the time goes")
    add_env_arguments(parser, num_envs=16)
    parser.add_argument("--env", required=True, metavar="NAME", help=ENV_HELP)
    parser.add_argument("--steps", type=positive, default=20_000, help="env steps over all envs (default %(default)s)")
    parser.add_argument("--num-env-workers", type=natural, metavar="N", help="step the environments in N worker "
                        "processes; 0: one for each core (default: in this process)")  # fmt: skip
    parser.add_argument("--worker-num-splits", type=positive, default=1, metavar="N", help="splits of the environments "
                        "that take turns: 2 has one stepped while actions are chosen for the other")  # fmt: skip
    parser.add_argument("--out", type=picture, metavar="PNG", help="write a picture of the stage profile")
    parser.add_argument("--json", type=json_file, metavar="FILE", help="add a record of this run: figures, commit, "
                        "machine; one JSON object a line")  # fmt: skip
    parser.add_argument("--no-efficiency", action="store_true", help="do not measure a bare loop")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Sample, then measure against a bare loop, show and save.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when what was sampled and measured until then has been shown and saved.
    """
    import torch

    from fastmarl.bench.efficiency import measure_efficiency
    from fastmarl.core.runner.runner import MultiAgentEnvRunner

    if args.out:
        import matplotlib  # noqa: F401  before the work, not after it
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
        if not args.no_efficiency:
            with terminal.status("measuring a bare loop ..."):
                figures["efficiency"] = measure_efficiency(config, rounds=ROUNDS, seconds=SECONDS).as_dict()
    finally:
        if figures:
            _report(args, figures, terminal)
            about = {"env": args.env, "env_config": args.config, "num_envs": args.num_envs}
            file.write({**about, **figures}, is_final=True)
    return 0


def _sample(runner: Any, steps: int, figures: dict[str, Any], terminal: Terminal) -> None:
    """Make at least `steps` env steps, and stop the runner; `figures` get what was sampled, however this ends."""
    per_call = max(1, steps // CALLS // runner.num_envs) * runner.num_envs
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
    """Have kernels compiled that a fresh installation has not used yet: the first episodes' ends use others."""
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
    terminal.show(summary_table(title, figures), stage_table(figures["stage_time_ms"]), sentence(figures))
    if args.out:
        draw_stages(figures["stage_time_ms"], title, args.out)
        terminal.show(f"stage profile: {args.out}")
