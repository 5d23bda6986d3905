"""`fastmarl train`: start, resume and finish training runs."""

from __future__ import annotations

import argparse
import csv
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmarl.cli.arguments import Parser, existing_folder, in_one_line, search_current_folder
from fastmarl.cli.runs import (
    ALGORITHMS,
    check_trust,
    described,
    evaluation_of,
    example,
    note_of_limit,
    policy_of_run,
    policy_of_runner,
    remember_trust,
)
from fastmarl.cli.signals import EndSignals
from fastmarl.cli.terminal import Terminal
from fastmarl.cli.train_options import add_options, check, saved_options, with_saved
from fastmarl.core.checkpoint.sealed_json import read_file
from fastmarl.core.errors import ConfigError, FastmarlError, did_you_mean, similar
from fastmarl.report.plots import OURS, picture

if TYPE_CHECKING:
    from fastmarl.play.arena.evaluation import Evaluation
    from fastmarl.training import Algorithm
    from fastmarl.training.loop import Outcome, Progress
    from fastmarl.training.run_folder import RunFolder

SIGNALLED = 128  # added to the signal number for the exit code, as in shells


def main(algorithm: Algorithm, argv: Sequence[str] | None = None) -> int:
    """Run an example as a separate command; return an exit code like `fastmarl.cli.main()`."""
    with EndSignals() as signals:
        parser = Parser(prog=f"python {sys.argv[0]}", description=algorithm.help)
        _fill(parser, algorithm, signals)
        return parser.run(argv)


def add_parser(commands: Any, argv: Sequence[str], signals: EndSignals) -> None:
    """Add the command, with only the options of the algorithm named in `argv`: loading algorithms imports torch."""
    parser = commands.add_parser(
        "train", help=f"train with {', '.join(ALGORITHMS)}; write curve, picture and checkpoints; resume"
    )
    parser.add_argument("algorithm", choices=ALGORITHMS, metavar="ALGORITHM", help=f"one of {', '.join(ALGORITHMS)}; "
                        "fastmarl train ALGORITHM --help has its options; omitted with --resume FOLDER")  # fmt: skip
    if argv[:1] != ["train"]:
        return
    name = argv[1] if len(argv) > 1 else ""
    if name not in ALGORITHMS and (later := [each for each in argv[2:] if each in ALGORITHMS]):
        parser.error(f"the algorithm comes before its options: fastmarl train {later[0]} ...")
    if name and name[0] != "-" and name not in ALGORITHMS:
        hint = did_you_mean(similar(name, ALGORITHMS)) or f"; choose from {', '.join(ALGORITHMS)}"
        parser.error(f"unknown algorithm {name!r}{hint}")
    try:
        if name.startswith("--") and (folder := _resumed(argv, parser)):
            parser.set_defaults(algorithm=described(folder)["algorithm"])
            parser._actions[-1].nargs, parser._actions[-1].required = "?", False
            name = parser.get_default("algorithm")
            if name not in ALGORITHMS:
                raise ConfigError(f"{folder} is a run of {name}: resume it with the script that started it")
        elif name.startswith("--") and not "--help".startswith(name):
            parser.error(f"put an algorithm before the options, as in fastmarl train ippo {name} ..., or resume a run "
                         "with fastmarl train --resume FOLDER")  # fmt: skip
        if name in ALGORITHMS:
            parser._actions[-1].help = argparse.SUPPRESS  # the usage names this algorithm instead
            _fill(parser, example(name).ALGORITHM, signals)
            parser.prog += f" {name}"
    except FastmarlError as error:
        parser.error(in_one_line(error))


def _resumed(argv: Sequence[str], parser: Parser) -> Path | None:
    """Return the --resume directory, before other options are parsed."""
    alone = argparse.ArgumentParser(add_help=False, prog=parser.prog)
    alone.error = parser.error  # type: ignore[method-assign]
    alone.add_argument("--resume", type=existing_folder)
    return alone.parse_known_args(argv)[0].resume


def _fill(parser: Parser, algorithm: Algorithm, signals: EndSignals) -> None:
    defaults = add_options(parser, algorithm)
    parser.set_defaults(run=partial(_run, algorithm, defaults, f"{parser.prog} --resume", signals))


def _run(
    algorithm: Algorithm,
    defaults: Mapping[str, Any],
    resume_command: str,
    signals: EndSignals,
    parsed: argparse.Namespace,
    terminal: Terminal,
) -> int:
    """Train, then show and plot the results; after a signal, show how to resume the run."""
    from fastmarl.training.run_folder import RunFolder

    given = {name: value for name, value in vars(parsed).items() if name in defaults}
    if "resume" in given:
        folder, args = _reopen(algorithm, defaults, given)
    else:
        args = argparse.Namespace(**{**defaults, **given})
    check(algorithm, args)
    for name in (args.env, *args.module):
        search_current_folder(name)
    if not args.no_plot:
        import matplotlib  # noqa: F401  fail early if it is missing
    if args.wandb:
        import wandb  # noqa: F401
    if not args.resume:
        algorithm.check(args)  # before a directory is created
        name = f"{re.sub(r'[^A-Za-z0-9._]+', '_', args.env)}-{algorithm.name}-seed{args.seed}"
        folder = RunFolder.begin(args.folder, name, overwrite=args.overwrite)
    write_options = partial(folder.write_options, algorithm.name, saved_options(args))
    try:
        if not args.resume:
            write_options()
            remember_trust(args, folder.path)
        terminal.show(f"training {algorithm.name} on {args.env} in {folder.path}")
        outcome = _train(algorithm, args, folder, terminal, signals, write_options)
    except BaseException:
        if not args.resume and not folder.has_progress():
            folder.discard()
        raise
    finally:
        signals.release()
        folder.unlock()
    if outcome.signal is not None:
        wandb_option = f" --wandb {shlex.quote(args.wandb)}" if args.wandb else ""
        print(f"fastmarl: interrupted after {outcome.env_steps:,} env steps; saved in {outcome.checkpoint}; resume "
              f"with: {resume_command} {folder.quoted}{wandb_option}", file=sys.stderr)  # fmt: skip
        return SIGNALLED + outcome.signal
    _finish(algorithm, args, folder, terminal)
    return 0


def _reopen(
    algorithm: Algorithm, defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[RunFolder, argparse.Namespace]:
    """Return the locked directory of the run to resume, and its options."""
    from fastmarl.training.run_folder import RunFolder, run_of

    if "folder" in given or "overwrite" in given:
        raise ConfigError("--resume continues in the folder of the run: leave out --folder and --overwrite")
    path: Path = given["resume"]
    if (run := run_of(path)) is not None and run.path != path.absolute():
        raise ConfigError(f"{path} is part of the run {run.path}, which resumes from its latest checkpoint: use "
                          f"--resume {run.quoted}")  # fmt: skip
    folder, about = RunFolder(path), described(path)
    if about["algorithm"] != algorithm.name:
        raise ConfigError(f"{path} is a run of {about['algorithm']}, not of {algorithm.name}: use fastmarl train "
                          f"--resume {folder.quoted}")  # fmt: skip
    args = with_saved(given, defaults, about)
    check_trust(args, path)
    newest = next(iter(folder.checkpoints()), None)
    if newest is not None and int(newest.name.partition("-")[2] or 0) >= args.steps:
        raise ConfigError(f"the run in {path} has finished {args.steps:,} env steps; raise --steps to continue, or "
                          f"evaluate it: fastmarl evaluate {folder.quoted}")  # fmt: skip
    folder.check_files()
    folder.lock()
    return folder, args


def _train(
    algorithm: Algorithm,
    args: argparse.Namespace,
    folder: RunFolder,
    terminal: Terminal,
    signals: EndSignals,
    on_resumed: Callable[[], None],
) -> Outcome:
    from fastmarl.training.loop import train

    with terminal.status("training ...") as change, _wandb(args, folder) as log:
        return train(
            algorithm,
            args,
            folder,
            resume=args.resume is not None,
            on_resumed=on_resumed,
            signal=lambda: signals.received,
            on_progress=partial(_show_progress, change),
            on_metrics=log,
            evaluate=lambda runner: _metrics_of(evaluation_of(policy_of_runner(runner), args)),
            warn=lambda text: print(f"fastmarl: {text}", file=sys.stderr),
        )


def _metrics_of(found: Evaluation) -> dict[str, float]:
    from fastmarl.training.loop import RETURN

    return {RETURN: found.mean, "standard_error": found.standard_error}


def _show_progress(change: Callable[[str], None], progress: Progress) -> None:
    """Show the progress of the run: in place on a terminal, as a new line elsewhere."""
    minutes, seconds = divmod(round(progress.seconds_left), 60)
    line = (
        f"{progress.env_steps:,} env steps, {progress.env_steps / progress.total:.0%}  mean return "
        f"{progress.mean_return:.2f}  {progress.steps_per_second:,.0f} env steps/s  {minutes}:{seconds:02} left"
    )
    change(line)
    if not sys.stderr.isatty():
        print(line, flush=True)


@contextmanager
def _wandb(args: argparse.Namespace, folder: RunFolder) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Yield a function that sends rows of the learning curve to Weights & Biases, if --wandb is given."""
    if not args.wandb:
        yield lambda step, metrics: None
        return
    import wandb

    name = folder.path.absolute().name
    run = wandb.init(
        project=args.wandb, id=name, name=name, resume="allow", dir=folder.path, config=saved_options(args)
    )
    try:
        yield lambda step, metrics: run.log(dict(metrics), step=step)
    finally:
        run.finish()


def _finish(algorithm: Algorithm, args: argparse.Namespace, folder: RunFolder, terminal: Terminal) -> None:
    """Plot the learning curve, evaluate the last checkpoint, and show its returns."""
    from fastmarl.training.run_folder import CURVE, PICTURE

    if not args.no_plot:
        draw_curve(folder.path / CURVE, args.env, folder.path / PICTURE)
    checkpoint = folder.checkpoints()[0]
    policy = policy_of_run(algorithm, args, checkpoint)
    with terminal.status("playing ..."):
        found = evaluation_of(policy, args)
    play = "sampled" if args.explore else "greedy"
    terminal.show(
        found.table(f"{play} play: mean return {found.mean:.2f} ± {found.standard_error:.2f} over {args.episodes} "
                    f"episodes of {args.env}"),
        *note_of_limit(found.lengths, args),
        f"curve and checkpoints are in {folder.path}; to play with the policy: fastmarl evaluate {folder.quoted}"
    )  # fmt: skip


def draw_curve(curve: Path, title: str, path: Path) -> None:
    """Plot mean returns over env steps: of all agents, of each policy if there are several, and of evaluations."""
    from fastmarl.training.loop import RETURN, RETURNS_OF_POLICIES

    rows = list(csv.DictReader(io.StringIO(read_file(curve).decode(), newline="")))
    with picture(path, 7, 4) as figure:
        axes = figure.subplots()
        prefix = f"{RETURNS_OF_POLICIES}/"
        labels = {name: name.removeprefix(prefix) for name in (rows[0] if rows else ()) if name.startswith(prefix)}
        labels |= {name: "evaluation" for name in (rows[0] if rows else ()) if name == f"evaluation/{RETURN}"}
        for name, label in {RETURN: "all" if labels else "", **labels}.items():
            points = [(float(row["step"]), float(row[name])) for row in rows if row[name]]
            axes.plot(*zip(*points, strict=True), label=label, **({"color": OURS} if name == RETURN else {}))
        if labels:
            axes.legend()
        axes.set_title(title)
        axes.set_xlabel("env steps")
        axes.set_ylabel("mean return of the last 100 episodes")
