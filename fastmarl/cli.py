"""The `fastmarl` command. The only module that prints."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from fastmarl.bench.peers import command as peers_command
from fastmarl.bench.sample_report import draw_stages, stage_table, summary_table
from fastmarl.errors import EnvCheckError, FastmarlError

EXTRA_OF = {
    "rich": "viz",
    "matplotlib": "viz",
    "ray": "rllib",
    "pettingzoo": "pettingzoo",
    "magent2": "pettingzoo",
    "psutil": "bench",
}
CORE_PACKAGES = ("numpy", "numba", "gymnasium", "torch", "safetensors")
LISTED_PACKAGES = (*CORE_PACKAGES, "pettingzoo", "mpe2", "magent2", "rich", "matplotlib", "ray")
ENV_HELP = "such as mpe2.simple_spread_v3, fastmarl.cart_pole (compiled), or my_package.my_module:MyEnv"
CALLS = 50  # of sample(), in one `fastmarl sample`


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for an error that was reported, 2 for wrong arguments."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    args = _parser().parse_args(argv)
    try:
        return args.command(args)
    except FastmarlError as error:
        print(f"fastmarl: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRA_OF:
            raise
        print(f"fastmarl: this needs {package}: pip install 'fastmarl[{EXTRA_OF[package]}]'", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fastmarl", description="Multi-agent experience, close to the limit.")
    commands = parser.add_subparsers(title="commands", required=True)

    sample = commands.add_parser("sample", help="sample an environment; show returns, speed and where the time goes")
    _add_env_arguments(sample, num_envs=16)
    sample.add_argument("--env", required=True, metavar="NAME", help=ENV_HELP)
    sample.add_argument("--steps", type=_positive, default=20_000, help="env steps over all envs (default %(default)s)")
    sample.add_argument("--num-env-workers", type=int, default=0, metavar="N", help="step the environments in N worker "
                        "processes (default: in this one)")  # fmt: skip
    sample.add_argument("--worker-num-splits", type=_positive, default=1, metavar="N", help="parts of the environments "
                        "that take turns: 2 has one stepped while actions are chosen for the other")  # fmt: skip
    sample.add_argument("--out", type=Path, metavar="PNG", help="write a picture of the stage profile")
    sample.add_argument("--no-efficiency", action="store_true", help="do not measure the limit")
    sample.set_defaults(command=_sample)

    bench = commands.add_parser("bench", help="measure").add_subparsers(title="benchmarks", required=True)
    efficiency = bench.add_parser("efficiency", help="the runner against the limit; without --env: a standard table")
    _add_env_arguments(efficiency, num_envs=8)
    efficiency.add_argument("--env", metavar="NAME", help=ENV_HELP)
    efficiency.add_argument("--rounds", type=_positive, default=5, help="default %(default)s")
    efficiency.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default %(default)s)")
    efficiency.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    efficiency.set_defaults(command=_bench_efficiency)
    rllib = bench.add_parser("rllib", help="fastmarl.rllib's runner against RLlib's, after a check that they are equal")
    rllib.add_argument(
        "--cases", nargs="+", metavar="NAME", help="instead of the standard ones; a wrong name lists all"
    )
    rllib.add_argument("--rounds", type=_positive, default=5, help="default %(default)s")
    rllib.add_argument("--quick", action="store_true", help="one round; two small cases if none are named")
    rllib.add_argument(
        "--sampler", choices=("exact", "fast"), default="exact", help="option of the runner (default %(default)s)"
    )
    rllib.add_argument("--ray", action="store_true", help="with Ray, too: the trip from an actor, PPO iterations")
    rllib.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    rllib.add_argument("--plot", type=Path, metavar="PNG", help="draw ratios and growth")
    rllib.set_defaults(command=_bench_rllib)
    scaling = bench.add_parser("scaling", help="speed and efficiency over agents, envs, network size, workers")
    scaling.add_argument("--series", nargs="+", metavar="NAME", help="some of agents, envs, network, workers")
    scaling.add_argument("--rounds", type=_positive, default=3, help="default %(default)s")
    scaling.add_argument("--seconds", type=float, default=0.2, help="of each measurement (default %(default)s)")
    scaling.add_argument("--json", type=Path, metavar="FILE", help="write the figures; series that it has stay there")
    scaling.add_argument("--plot", type=Path, metavar="PNG", help="draw them")
    scaling.set_defaults(command=_bench_scaling)
    peers = bench.add_parser("peers", help="other samplers and ours on the same work, in turn")
    peers_command.add_arguments(peers, _positive)
    peers.set_defaults(command=_bench_peers)

    info = commands.add_parser("info", help="versions, build, device, threads")
    info.set_defaults(command=_info)

    check = commands.add_parser("check-env", help="check an environment; exit code 1 if something is wrong with it")
    check.add_argument("env", metavar="NAME", help=ENV_HELP)
    check.add_argument("--config", type=_json_object, default={}, metavar="JSON", help="env_config")
    check.set_defaults(command=_check_env)
    return parser


def _add_env_arguments(parser: argparse.ArgumentParser, num_envs: int) -> None:
    parser.add_argument("--config", type=_json_object, default={}, metavar="JSON", help="env_config")
    parser.add_argument("--num-envs", type=_positive, default=num_envs, help="default %(default)s")
    parser.add_argument("--hiddens", type=_positive, nargs="+", default=[64, 64], help="layers (default 64 64)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _json_object(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def _env_named(name: str) -> Any:
    """The class or function that "package.module:name" means; other names, Gymnasium's ids too, as they are."""
    module_name, _, attribute = name.partition(":")
    if not attribute.isidentifier():
        return name
    sys.path.insert(0, os.getcwd())  # as with `python -m`: modules lie in the current folder, too; workers look there
    try:
        return getattr(import_module(module_name), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise EnvCheckError(f"no environment {name!r}: {error}") from error


def _runner_config(args: argparse.Namespace, **options: Any) -> Any:
    from fastmarl.config import EnvRunnerConfig

    return EnvRunnerConfig(
        env=_env_named(args.env),
        env_config=args.config,
        num_envs_per_env_runner=args.num_envs,
        model_config={"fcnet_hiddens": args.hiddens},
        device=args.device,
        seed=args.seed,
        **options,
    )


# fastmarl sample


def _sample(args: argparse.Namespace) -> int:
    import torch
    from rich.console import Console

    from fastmarl.bench.efficiency import measure_efficiency
    from fastmarl.runner import MultiAgentEnvRunner

    if args.out:
        import matplotlib  # noqa: F401  before the work, not after it
    torch.set_num_threads(1)
    console = Console()
    workers = {"gym_env_vectorize_mode": "async", "num_env_workers": args.num_env_workers}
    config = _runner_config(args, worker_num_splits=args.worker_num_splits, **workers if args.num_env_workers else {})
    runner = MultiAgentEnvRunner(config)
    try:
        seconds = _sample_with_progress(runner, args.steps, console)
        metrics = runner.get_metrics()
    finally:
        runner.stop()
    efficiency = None
    if not args.no_efficiency:
        with console.status("measuring the limit ..."):
            efficiency = measure_efficiency(config, rounds=3, seconds=0.5)
    title = f"{args.env}, {args.num_envs} envs"
    console.print(summary_table(title, metrics, seconds, efficiency, runner.inference_backends))
    console.print(stage_table(metrics["stage_time_ms"]))
    if args.out:
        draw_stages(metrics["stage_time_ms"], title, args.out)
        console.print(f"stage profile: {args.out}")
    return 0


def _sample_with_progress(runner: Any, steps: int, console: Any) -> float:
    """Make at least `steps` env steps; returns the seconds spent in sample()."""
    from rich.progress import Progress

    per_call = max(1, steps // CALLS // runner.num_envs) * runner.num_envs
    runner.sample(num_timesteps=runner.num_envs)  # warms up
    runner.get_metrics()
    seconds = 0.0
    with Progress(console=console) as progress:
        for _ in progress.track(range(0, steps, per_call), description="sampling"):
            begun = perf_counter()
            runner.sample(num_timesteps=per_call)
            seconds += perf_counter() - begun
    return seconds


# fastmarl bench efficiency


def _bench_efficiency(args: argparse.Namespace) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from fastmarl.bench.efficiency import measure_efficiency
    from fastmarl.bench.efficiency_table import standard_configs

    options = {"model_config": {"fcnet_hiddens": args.hiddens}, "device": args.device, "seed": args.seed}
    configs = [(args.env, _runner_config(args))] if args.env else standard_configs(**options)
    title = f"us per agent step, medians of {args.rounds} rounds, one torch thread; own: with our sampling in the limit"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("environment", no_wrap=True)
    for column in ("agents", "envs", "env", "network", "limit", "runner", "efficiency", "own", "agent steps/s"):
        table.add_column(column, justify="right", no_wrap=True)
    console = Console(width=None if sys.stdout.isatty() else 128)
    figures = []
    for name, config in configs:
        with console.status(f"measuring {name}, {config.num_envs_per_env_runner} envs ..."):
            result = measure_efficiency(config, rounds=args.rounds, seconds=args.seconds)
        figures.append({"environment": name, **result.as_dict()})
        table.add_row(name, *_efficiency_cells(result))
    console.print(table)
    _save(args.json, {"figures": figures})
    return 0


def _save(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"versions": _versions(), **figures}, indent=1) + "\n")


def _efficiency_cells(result: Any) -> list[str]:
    times = (result.env_us, result.network_us, result.limit_us, result.runner_us)
    return [
        f"{result.agents:.1f}",
        str(result.envs),
        *(f"{us:.2f}" for us in times),
        f"{result.efficiency:.3f}",
        f"{result.own_efficiency:.3f}",
        f"{result.agent_steps_per_second:,.0f}",
    ]


# fastmarl bench rllib


def _bench_rllib(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fastmarl.bench.rllib.cases import CASES, QUICK, STANDARD, check_names
    from fastmarl.bench.rllib.extras import local_ray, measure_growth, measure_ppo, measure_transfer, measure_trip
    from fastmarl.bench.rllib.measure import measure_case
    from fastmarl.bench.rllib.report import draw, table_of
    from fastmarl.rllib.runner import MultiAgentEnvRunner

    if args.plot:
        import matplotlib  # noqa: F401  before the work, not after it
    names = args.cases or (QUICK if args.quick else STANDARD)
    check_names(names)
    rounds = 1 if args.quick else args.rounds
    ours = MultiAgentEnvRunner.options(sampler=args.sampler) if args.sampler != "exact" else MultiAgentEnvRunner
    console = Console(width=None if sys.stdout.isatty() else 128)
    report: dict[str, list[dict]] = {"cases": []}
    for name in (name for name in names if name in CASES):
        with console.status(f"measuring {name} ..."):
            report["cases"].append(measure_case(name, rounds=rounds, ours=ours).as_dict())
    with console.status("measuring growth, transfer, trip, PPO ..."):
        if "growth" in names:
            report["growth"] = [row.as_dict() for row in measure_growth(rounds=min(3, rounds), ours=ours)]
        if "transfer" in names:
            report["transfer"] = [row.as_dict() for row in measure_transfer(rounds=rounds, ours=ours)]
        if args.ray:
            with local_ray():
                report["trip"] = [row.as_dict() for row in measure_trip(ours=ours)]
                report["ppo"] = [row.as_dict() for row in measure_ppo(iterations=min(3, rounds), ours=ours)]
    for section, figures in report.items():
        if figures:
            console.print(table_of(section, figures))
    if args.plot:
        draw(report["cases"], report.get("growth", []), args.plot)
    _save(args.json, report)
    return 0


# fastmarl bench scaling, fastmarl bench peers


def _bench_scaling(args: argparse.Namespace) -> int:
    from fastmarl.bench.scaling import run

    run(args, sys.stdout.isatty(), save=lambda series: _save(args.json, {"series": series}))
    return 0


def _bench_peers(args: argparse.Namespace) -> int:
    peers_command.run(args, sys.stdout.isatty(), save=lambda settings: _save(args.json, {"settings": settings}))
    return 0


# fastmarl info


def _info(args: argparse.Namespace) -> int:
    import torch

    from fastmarl.native import _build, _dense

    for name, version in _versions().items():
        print(f"{name:12} {version}")
    checked, sanitized = "checked (bounds, None, initialisation)", "sanitized (addresses, undefined behaviour)"
    print(f"{'build':12} {checked if _build.CHECKED else sanitized if _build.SANITIZED else 'release'}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(f"{'device':12} {device}")
    print(f"{'lean':12} {_dense.BEST} (of {', '.join(_dense.VARIANTS)})")
    cores = len(os.sched_getaffinity(0))
    print(f"{'threads':12} torch {torch.get_num_threads()}, cores {os.cpu_count()}")
    print(f"{'env workers':12} {cores} with num_env_workers=0: the cores that this process may use")
    return 0


def _versions() -> dict[str, str]:
    """Name -> installed version, or "not installed"."""

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    return {
        "fastmarl": version("fastmarl"),
        "python": platform.python_version(),
        **{package: version(package) for package in LISTED_PACKAGES},
    }


# fastmarl check-env


def _check_env(args: argparse.Namespace) -> int:
    from fastmarl.envs.checking.check import check_env

    report = check_env(_env_named(args.env), args.config)
    print(report)
    return 0 if report.ok else 1
