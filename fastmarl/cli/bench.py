"""`fastmarl bench`: benchmarks whose results are shown and written even if a later measurement fails."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastmarl.bench import reports
from fastmarl.cli.arguments import (
    Parser,
    add_env_arguments,
    add_hiddens,
    json_file,
    markdown_file,
    picture_file,
    positive,
    runner_config,
    seconds,
)
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import ConfigError
from fastmarl.report.records import Figures, Orders, RecordFile, Row
from fastmarl.report.tables import Table

NUM_ENVS = 8  # default of `bench relative-speed`


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A subcommand of `fastmarl bench`."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Function that adds the options of this benchmark."""
    measure: Callable[[argparse.Namespace, Callable[[str], None]], Iterator[tuple[str, Row]]]
    """Generator function that yields (section, row) after each measurement.

    It passes a status text to its second argument before each measurement, and raises a ConfigError before the first
    one if the arguments are invalid.
    """
    tables: Callable[[Figures], list[Table]]
    draw: Callable[[Figures, Path], None]
    above: str = ""
    """Text above the tables."""
    below: Callable[[Figures], str] = lambda figures: ""
    """Text below the tables in Markdown."""
    orders: Orders = field(default_factory=dict)
    """Section -> sort key, for sections whose plots and Markdown use the latest rows of all runs in the --json file."""

    def add_parser(self, commands: Any) -> None:
        """Add the command to `fastmarl bench`."""
        self._fill(commands.add_parser(self.name, help=self.help))

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the benchmark as a standalone command, `python -m benchmarks.NAME`; return the exit code."""
        parser = Parser(prog=f"python -m benchmarks.{self.name}", description=self.help)
        self._fill(parser)
        return parser.run(argv)

    def _fill(self, parser: argparse.ArgumentParser) -> None:
        self.add_arguments(parser)
        parser.add_argument("--json", type=json_file, metavar="FILE", help="add a record of this run: figures, commit, "
                            "machine; one JSON object a line")  # fmt: skip
        parser.add_argument("--markdown", type=markdown_file, metavar="FILE", help="write the tables")
        parser.add_argument("--plot", type=picture_file, metavar="PNG", help="draw the figures")
        parser.set_defaults(run=self.run)

    def run(self, args: argparse.Namespace, terminal: Terminal) -> int:
        """Measure, then record, show, write and plot the results, which are partial after Ctrl-C or an error."""
        file = RecordFile(args.json, f"bench {self.name}")
        file.merged({}, self.orders)  # fail early if the file is invalid
        if args.plot:
            import matplotlib  # noqa: F401  fail early if it is missing
        figures: Figures = {}
        try:
            with terminal.status("measuring ...") as progress:
                for section, row in self.measure(args, progress):
                    figures.setdefault(section, []).append(row)
                    file.write(figures, is_final=False)
        finally:
            if figures:
                terminal.show(*filter(None, [self.above]), *self.tables(figures))
                file.write(figures, is_final=True)
                self._write(args, file.merged(figures, self.orders))
        return 0

    def _write(self, args: argparse.Namespace, figures: Figures) -> None:
        if args.markdown:
            sections = [self.above, *(table.as_markdown() for table in self.tables(figures)), self.below(figures)]
            args.markdown.write_text("\n\n".join(filter(None, sections)) + "\n")
        if args.plot:
            self.draw(figures, args.plot)


def add_pace(parser: argparse.ArgumentParser, rounds: int, duration: float) -> None:
    """Add --rounds and --seconds, the number and length of measurements."""
    parser.add_argument("--rounds", type=positive, default=rounds, help="default %(default)s")
    parser.add_argument("--seconds", type=seconds, default=duration, help="of each measurement (default %(default)s)")


def _add_relative_speed_arguments(parser: argparse.ArgumentParser) -> None:
    add_env_arguments(parser, num_envs=NUM_ENVS, needs_env=False)
    add_hiddens(parser)
    add_pace(parser, rounds=5, duration=1.0)


def _measure_relative_speed(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
    from fastmarl.bench.relative_speed import measure_relative_speed
    from fastmarl.bench.relative_speed_table import standard_configs

    own = {"env_config": {}, "num_envs": NUM_ENVS, "max_steps": None, "respawn": False, "late_rewards": "error"}
    if not args.env and (given := [name for name, value in own.items() if getattr(args, name) != value]):
        named = " and ".join(f"--{name}" for name in given).replace("_", "-")
        raise ConfigError(f"without --env, a standard set of envs is measured: add --env NAME, or leave out {named}")
    options = {"model_config": {"fcnet_hiddens": args.hiddens}, "device": args.device, "seed": args.seed}
    configs = [(args.env, runner_config(args))] if args.env else standard_configs(**options)
    for name, config in configs:
        progress(f"measuring {name}, {config.num_envs_per_env_runner} envs ...")
        result = measure_relative_speed(config, rounds=args.rounds, seconds=args.seconds)
        yield "figures", {"environment": name, **result.as_dict()}


def _add_scaling_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(reports.TITLES)
    parser.add_argument("--series", nargs="+", metavar="NAME", help=f"some of {names}")
    add_pace(parser, rounds=3, duration=0.2)


def _measure_scaling(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
    from fastmarl.bench.scaling import measure_series

    names = args.series or [*reports.TITLES]
    for name in names:
        if name not in reports.TITLES:
            raise ConfigError(f"unknown series {name!r}; choose from {', '.join(reports.TITLES)}")
    for name in names:
        for row in measure_series(name, rounds=args.rounds, seconds=args.seconds, progress=progress):
            yield "series", row


BENCHMARKS = (
    Benchmark(
        name="relative-speed",
        help="the runner against a bare loop; without --env: a standard table",
        add_arguments=_add_relative_speed_arguments,
        measure=_measure_relative_speed,
        tables=reports.relative_speed_tables,
        draw=reports.draw_relative_speed,
    ),
    Benchmark(
        name="scaling",
        help="speed, absolute and relative, over agents, envs, network size, workers",
        add_arguments=_add_scaling_arguments,
        measure=_measure_scaling,
        tables=reports.scaling_tables,
        draw=reports.draw_scaling,
        orders={"series": reports.order_in_series},
    ),
)
