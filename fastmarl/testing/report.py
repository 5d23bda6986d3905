"""What `check_env` found, and how it looks on a terminal."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any

LINES_OF_A_KIND = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was found, where it came first and how often.

    Attributes:
        env_t: env steps since the reset of that episode; None: this was not found while playing.
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
    """Of each (kind, agent, where) the first, and how often it came.

    Attributes:
        episode, env_t: where the env is now; the player keeps them up to date.
        problems, notes: those of `Report`, by (kind, agent, where).
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
    """What `check_env` found; true if there are no problems. `str()` of it is for the terminal.

    Attributes:
        env: the name of its class.
        problems: what a runner refuses, or what breaks a promise that the env made.
        notes: what is allowed, but often not meant.
        agents: ids of the agents that were observed.
        agent_steps: actions that were given.
        episodes: those that came to an end.
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
        """Whether the env makes the same episode again from its seed and its actions, as far as was seen: what
        `EnvRunnerConfig(record_actions=...)` needs."""
        return self.seeds_each_episode and not any(each.kind == "seed" for each in [*self.problems, *self.notes])

    @property
    def ok(self) -> bool:
        """No problems; there may be notes."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [
            f"{self.env}: {_count(len(self.problems), 'problem')}, {_count(len(self.notes), 'note')}",
            f"  {_count(self.env_steps, 'env step')}, {_count(self.agent_steps, 'action')} of "
            f"{_count(len(self.agents), 'agent')}, {_count(self.episodes, 'episode')} finished",
            f"  episodes {'can' if self.replayable else 'can not'} be replayed from their seeds and actions",
        ]
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
    """File and line where an exception was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"
