"""The report of `check_env()` and how it is printed in a terminal."""

from __future__ import annotations

import os
import sysconfig
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LINES_OF_A_KIND = 5
LIBRARIES = (
    *(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *map(sysconfig.get_path, ("purelib", "stdlib")))),
    "<frozen",
)


@dataclass(frozen=True)
class Finding:
    """A finding, with its first occurrence and the number of occurrences.

    Attributes:
        env_t: Env steps since the reset of that episode, or None if not found while playing.
    """

    kind: str
    text: str
    episode: int
    env_t: int | None
    agent_id: Any = None
    times: int = 1

    def __str__(self) -> str:
        where = [] if self.env_t is None else [f"episode {self.episode}, env step {self.env_t}"]
        if self.agent_id is not None:
            where.append(f"agent {self.agent_id!r}")
        times = f" [{self.times} times]" if self.times > 1 else ""
        return f"{', '.join(where)}: {self.text}{times}" if where else f"{self.text}{times}"


class Findings:
    """Collects the first occurrence of each (kind, agent, where) and counts all occurrences.

    Attributes:
        episode, env_t: Current position of the env, kept up to date by the player.
        problems, notes: (kind, agent, where) -> finding, for `Report`.
    """

    def __init__(self) -> None:
        self.episode = 0
        self.env_t: int | None = None
        self.problems: dict[tuple, Finding] = {}
        self.notes: dict[tuple, Finding] = {}

    def problem(self, kind: str, text: str, agent: Any = None, where: Any = None) -> None:
        self._add(self.problems, kind, text, agent, where)

    def note(self, kind: str, text: str, agent: Any = None, where: Any = None) -> None:
        self._add(self.notes, kind, text, agent, where)

    def _add(self, findings: dict[tuple, Finding], kind: str, text: str, agent: Any, where: Any) -> None:
        key = (kind, agent, where)
        first = findings.get(key) or Finding(kind, text, self.episode, self.env_t, agent, times=0)
        findings[key] = replace(first, times=first.times + 1)


@dataclass(frozen=True)
class Report:
    """Result of `check_env()`, truthy if there are no problems. `str()` formats it for a terminal.

    Attributes:
        env: Class name of the env.
        problems: Findings that a runner would reject, or violations of declared env properties.
        notes: Findings that are allowed but often unintended.
        agents: Ids of the observed agents.
        env_steps: Number of env steps.
        agent_steps: Number of actions.
        episodes: Number of finished episodes.
        seeds_each_episode: False for a batch whose envs share a generator.
    """

    env: str
    problems: list[Finding]
    notes: list[Finding]
    agents: tuple[Any, ...]
    env_steps: int
    agent_steps: int
    episodes: int
    seeds_each_episode: bool = True

    @property
    def replayable(self) -> bool:
        """True if, as far as observed, the env reproduces an episode from its seed and actions.

        `EnvRunnerConfig(record_actions=...)` requires this.
        """
        return self.seeds_each_episode and not any(each.kind == "seed" for each in [*self.problems, *self.notes])

    @property
    def ok(self) -> bool:
        """True if there are no problems; there may be notes."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [
            f"{self.env}: {_count(len(self.problems), 'problem')}, {_count(len(self.notes), 'note')}",
            f"  {_count(self.env_steps, 'env step')}, {_count(self.agent_steps, 'action')} of "
            f"{_count(len(self.agents), 'agent')}, {_count(self.episodes, 'episode')} finished",
        ]
        if self.env_steps:
            can = "can" if self.replayable else "cannot"
            lines.append(f"  episodes {can} be replayed from their seeds and actions")
        return "\n".join(lines + _lines("problem", self.problems) + _lines("note", self.notes))


def _lines(label: str, findings: list[Finding]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(finding.kind for finding in findings):
        of_kind = [finding for finding in findings if finding.kind == kind]
        lines += [f"  {label:8} {finding}" for finding in of_kind[:LINES_OF_A_KIND]]
        if len(of_kind) > LINES_OF_A_KIND:
            lines.append(f"  {label:8} ... and {len(of_kind) - LINES_OF_A_KIND} more like this")
    return lines


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def location_of(error: BaseException) -> str:
    """Return the file and line of `own_frame()` as text."""
    frame = own_frame(error)
    return f"{frame.filename}:{frame.lineno}"


def own_frame(error: BaseException) -> traceback.FrameSummary:
    """Return the innermost user-code frame of an exception, which a library may have raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return ([frame for frame in frames if not frame.filename.startswith(LIBRARIES)] or frames)[-1]
