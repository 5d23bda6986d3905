"""The chunks of a run joined by episode: for runs that cut them at different steps."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tree
from rllib.standalone.compare import Findings, columns, different_values, drop_documented, flags, unequal
from rllib.standalone.runs import Run
from rllib.standalone.worlds import Who


@dataclass
class Stream:
    """One agent's steps in an episode, as far as they were returned."""

    module_id: str
    rows: dict[str, list[Any]] = field(default_factory=dict)
    is_done: tuple[bool, bool] = (False, False)

    def add(self, part: Any) -> None:
        for name, column in columns(part, back=0).items():
            rows = column if isinstance(column, list) else _rows(column)
            known = self.rows.setdefault(name, [])
            known += rows[1:] if known and name in ("observations", "infos") else rows
        self.is_done = flags(part)


def _rows(column: Any) -> list[Any]:
    n = len(tree.flatten(column)[0])
    return [tree.map_structure(lambda leaf, i=i: leaf[i], column) for i in range(n)]


class Streams:
    """The agents of all episodes of a run."""

    def __init__(self, run: Run):
        self.agents: dict[Who, dict[Any, Stream]] = {}
        self.done: dict[Who, tuple[bool, bool]] = {}
        for returned in run.returned:
            for chunk in returned if isinstance(returned, list) else ():
                self._add(chunk)

    def _add(self, chunk: Any) -> None:
        who = chunk.custom_data["who"]
        streams = self.agents.setdefault(who, {})
        for agent, part in chunk.agent_episodes.items():
            streams.setdefault(agent, Stream(part.module_id)).add(part)
        if chunk.is_done:
            self.done[who] = flags(chunk)

    def compare(self, other: "Streams") -> Findings:
        """The episodes that both have, as far as both have them."""
        for who in sorted(self.agents.keys() & other.agents.keys()):
            want, got = self.agents[who], other.agents[who]
            if who in self.done and who in other.done:
                yield from unequal("flags", f"episode {who}", self.done[who], other.done[who])
                yield from unequal("agents", f"episode {who}", {*want}, {*got})
            for agent in want.keys() & got.keys():
                yield from _different(want[agent], got[agent], f"episode {who}[{agent!r}]")


def _different(want: Stream, got: Stream, path: str) -> Findings:
    yield from unequal("part", path, want.module_id, got.module_id)
    if any(want.is_done) and any(got.is_done):
        yield from unequal("flags", path, want.is_done, got.is_done)
        yield from unequal("counts", path, len(want.rows["rewards"]), len(got.rows["rewards"]))
    n = min(len(want.rows["rewards"]), len(got.rows["rewards"]))
    theirs, ours = ({name: rows[:n] for name, rows in side.rows.items()} for side in (want, got))
    for side in (theirs, ours):
        if "action_logp" in side:
            side["action_logp"] = np.array(side["action_logp"])
    drop_documented(theirs, ours)
    yield from unequal("outputs", path, {*theirs}, {*ours})
    for name in theirs.keys() & ours.keys():
        yield from different_values(name, f"{path}.{name}", theirs[name], ours[name])
