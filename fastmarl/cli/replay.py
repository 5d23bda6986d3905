"""`fastmarl replay`: list recorded episodes, or replay one."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmarl.cli.arguments import above_zero, existing_folder, json_object, output_file, search_current_folder
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import ConfigError
from fastmarl.report.tables import Table

if TYPE_CHECKING:
    from fastmarl.core.episodes.multi_agent import MultiAgentEpisode

COLUMNS = {
    "number": ("episode", ""), "worker_index": ("worker", ""), "env_index": ("env", ""), "length": ("env\nsteps", ","),
    "end": ("end", ""), "reset_seed": ("seed of\nthe reset", ""), "id_": ("id", ""),
}  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("replay", help="replay an episode from a record of actions, or list all episodes")
    parser.add_argument(
        "folder",
        metavar="RUN",
        type=existing_folder,
        help="folder of a training run with --record-actions, or "
        "the one that EnvRunnerConfig(record_actions=...) named",
    )
    parser.add_argument("episode", metavar="EPISODE", nargs="?", help="its number or id; without it, all are listed")
    parser.add_argument("--video", type=partial(output_file, (".mp4",)), metavar="MP4", help="write a video of it")
    parser.add_argument("--fps", type=above_zero, help="frames per second (default: the environment's own rate, or 30)")
    parser.add_argument("--env", metavar="NAME", help="replacement of the recorded environment; needed if "
                        "that is a class or function of your own")  # fmt: skip
    parser.add_argument("--env-config", type=json_object, default={}, metavar="JSON", help="merged into the recorded "
                        "env_config")  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """List the recorded episodes, or replay one of them and show its returns."""
    from fastmarl.replays import Recording, replay

    if args.video and args.episode is None:
        raise ConfigError(f"--video requires the number or id of an episode: fastmarl replay {args.folder} EPISODE "
                          f"--video {args.video}")  # fmt: skip
    if args.fps and not args.video:
        raise ConfigError("--fps requires --video: add --video FILE.mp4, or leave out --fps")
    recording = Recording(_record_in(args.folder))
    if args.episode is None:
        terminal.show(_listed(recording))
        return 0
    recorded = recording[args.episode]
    search_current_folder(args.env or "")
    with terminal.status("replaying ..."):
        replayed = replay(
            recording, args.episode, env=args.env, env_config=args.env_config, video=args.video, fps=args.fps
        )
    terminal.show(_shown(recorded, replayed if isinstance(replayed, list) else [replayed]))
    if args.video:
        terminal.show(f"video: {args.video}")
    return 0


def _record_in(folder: Path) -> Path:
    """Return the path of the record in the directory of a training run; return other directories unchanged."""
    from fastmarl.training.run_folder import RECORD, RUN_FILE

    if not (folder / RUN_FILE).exists():
        return folder
    if not (folder / RECORD).is_dir():
        raise ConfigError(f"the run in {folder} has no recorded actions: train with --record-actions")
    return folder / RECORD


def _listed(recording: Any) -> Table:
    rows = [
        {**{name: getattr(episode, name, None) for name in COLUMNS}, "worker_index": episode.meta["worker_index"]}
        for episode in recording
    ]
    envs = ", ".join(sorted({str(episode.meta["env"] or episode.meta["env_class"]) for episode in recording}))
    missing = sum(bool(episode.missing) for episode in recording)
    notes = [f"{missing} of them can't be replayed: some of their steps were not recorded"] if missing else []
    return Table.of(f"{recording.folder}: {envs}, {len(rows)} episodes", COLUMNS, rows, notes)


def _shown(recorded: Any, chunks: list[MultiAgentEpisode]) -> Table:
    returns: dict[str, float] = {}
    for agent, part in ((agent, part) for chunk in chunks for agent, part in chunk.agent_episodes.items()):
        returns[str(agent)] = returns.get(str(agent), 0.0) + part.get_return()
    rows = [
        ["env", str(recorded.meta["env"] or recorded.meta["env_class"])],
        ["env steps", f"{sum(map(len, chunks)):,}"],
        ["end", recorded.end],
        ["return", f"{sum(chunk.get_return() for chunk in chunks):.6g}"],
        *([f"  {agent}", f"{total:.6g}"] for agent, total in returns.items()),
    ]
    title = f"episode {recorded.number}: observations, rewards and ends match the record"
    return Table(title, [], rows)
