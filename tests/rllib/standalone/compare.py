"""Lists what differs between a run of RLlib's runner and one of ours.

Values must be equal; each side has the dtypes that its documentation says. Ids are random, and must pair up.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tree
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibsPart
from rllib.standalone.cases import FRAMES, Case
from support.differences import Differences, Lines


class Finding(NamedTuple):
    """A difference. `kind` is what differs: an exception may be of one kind only."""

    kind: str
    text: str


Findings = Iterator[Finding]
COLUMNS = ("observations", "infos", "actions", "rewards")
COMPUTED = ("action_logp",)
"""Columns that both compute by themselves, from equal inputs in another order of operations."""
NARROW = {"i": np.dtype(np.int32), "f": np.dtype(np.float32)}
"""Dtypes that RLlib gives a module's outputs, by kind; ours stay as they are."""


class Numbers(Differences):
    """Equal structures, shapes and numbers. Dtypes are compared by `wrong_dtypes()`."""

    subclassed = (object,)

    def __init__(self, rtol: float = 0.0) -> None:
        super().__init__((np.ndarray, self.rest))
        self._rtol = rtol

    def rest(self, want: Any, got: Any, path: str) -> Lines:
        if isinstance(want, (str, type(None))) or isinstance(got, (dict, list, tuple)):
            yield from self.values(want, got, path)
            return
        theirs, ours = np.asarray(want), np.asarray(got)
        if not self._are_equal(theirs, ours):
            yield f"{path}: {theirs.tolist()!r:.300} / {ours.tolist()!r:.300}"

    def _are_equal(self, want: np.ndarray, got: np.ndarray) -> bool:
        if self._rtol and want.shape == got.shape and np.allclose(want, got, rtol=self._rtol, atol=self._rtol):
            return True
        is_real = want.dtype.kind == got.dtype.kind == "f"
        same_signs = not is_real or np.array_equal(np.signbit(want), np.signbit(got))  # also of zeros
        return same_signs and np.array_equal(want, got, equal_nan=want.dtype.kind == "f")


EXACT, NUMBERS, CLOSE = Differences(), Numbers(), Numbers(rtol=1e-5)


def unequal(kind: str, path: str, want: Any, got: Any) -> Findings:
    return found(kind, EXACT(want, got, path))


def different_values(kind: str, path: str, want: Any, got: Any) -> Findings:
    return found(kind, (CLOSE if kind in COMPUTED else NUMBERS)(want, got, path))


def found(kind: str, lines: Lines) -> Findings:
    return (Finding(kind, line) for line in lines)


class Chunks:
    """Compares chunks in the order in which they were returned. It knows which id of the one is which of the other."""

    def __init__(self, case: Case):
        self._case, self._differences = case, Differences()

    def compare(self, want: list, got: list, path: str) -> Findings:
        spans = [[(chunk.env_t_started, chunk.env_t) for chunk in side] for side in (want, got)]
        yield from unequal("chunks", path, *spans)
        for i, (theirs, ours) in enumerate(zip(want, got, strict=False)):
            yield from self._chunk(theirs, ours, f"{path}[{i}]")

    def _chunk(self, want: Any, got: Any, path: str) -> Findings:
        yield from found("ids", self._differences.ids(want.id_, got.id_, path))
        yield from unequal("agents", path, {*want.agent_episodes}, {*got.agent_episodes})
        yield from unequal("flags", path, flags(want), flags(got))
        yield from unequal("return", f"{path}.get_return()", float(want.get_return()), got.get_return())
        # Who has just joined has no part in a chunk, and RLlib's forgets such agents.
        acting = [side.get_agents_to_act() & {*side.agent_episodes} for side in (want, got)]
        yield from unequal("acting", path, *acting)
        hanging = float(sum(map(float, want._hanging_rewards_end.values())))
        yield from unequal("hanging", path, hanging, got.get_return(True) - got.get_return())
        for name in ("agent_steps", "env_steps", "__len__"):
            yield from unequal("counts", f"{path}.{name}()", getattr(want, name)(), getattr(got, name)())
        for agent, part in want.agent_episodes.items():
            if agent in got.agent_episodes:
                yield from self._part(want, part, got.agent_episodes[agent], f"{path}[{agent!r}]")

    def _part(self, episode: Any, want: Any, got: Any, path: str) -> Findings:
        yield from unequal("flags", path, flags(want), flags(got))
        names = ("agent_id", "module_id", "t_started", "t")
        yield from unequal("part", path, *([getattr(side, name) for name in names] for side in (want, got)))
        back = want.observations.lookback
        yield from unequal("lookback", path, self._lookback(episode, want), got.lookback)
        back = min(back, got.lookback)
        theirs, ours = columns(want, back), columns(got, back)
        times = env_ts(episode, want, back), got.env_ts()[got.lookback - back :].tolist()
        if want.is_done and stands_in(theirs["infos"], ours["observations"]):
            _leave_out_last(theirs, ours, *times)
            if "previous" in self._case.connectors:
                # RLlib makes it again, of the last action and reward (docs/connectors.md).
                for side in (theirs, ours):
                    side["observations"] = _but_last(side["observations"])
        yield from unequal("env_ts", path, *times)
        drop_documented(theirs, ours)
        yield from unequal("outputs", path, {*theirs}, {*ours})
        for kind in theirs.keys() & ours.keys():
            yield from different_values(kind, f"{path}.{kind}", theirs[kind], ours[kind])
            if kind != "infos":
                yield from wrong_dtypes(kind, path, theirs[kind], ours[kind], got, self._case.keep_float64)

    def _lookback(self, episode: Any, part: Any) -> int:
        """RLlib's, as far as it is within the horizon: where an agent waits, RLlib looks back as far for all of them.
        And FrameStacking wants more here (docs/connectors.md)."""
        begin, observed = episode.env_t_started - self._case.lookback, steps_of(episode, part)
        within = sum(env_t >= begin and t < part.t_started for env_t, t in observed)
        return max(within, min(FRAMES - 1, part.t_started)) if "frames" in self._case.connectors else within


def flags(episode: Any) -> tuple[bool, bool]:
    return bool(episode.is_terminated), bool(episode.is_truncated)


def columns(part: Any, back: int) -> dict[str, Any]:
    """All columns by name, with `back` steps of lookback."""
    if isinstance(part, RLlibsPart):
        named = {name: getattr(part, name) for name in COLUMNS} | part.extra_model_outputs
        return {name: _of_buffer(buffer, back) for name, buffer in named.items()}
    where: dict[str, Any] = {"indices": slice(-back, None), "neg_index_as_lookback": True}
    found = {name: getattr(part, f"get_{name}")(**where) for name in COLUMNS}
    return found | {name: part.get_extra_model_outputs(name, **where) for name in part.extra_model_output_keys}


def drop_documented(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Take out what is in one of them alone.

    "state_in", the state in which a recurrent module acted, is of fastmarl alone. "weights_seq_no" is not in RLlib's
    where the module has no outputs but actions. Without exploration there is no log-probability: RLlib has zeros (39),
    and we have none, or NaN if other steps in the column have one.
    """
    ours.pop("state_in", None)
    if theirs.keys() == {*COLUMNS}:
        ours.pop("weights_seq_no")
    if "action_logp" not in theirs:
        return
    logp = theirs["action_logp"]
    mine = ours.setdefault("action_logp", np.full(logp.shape, np.nan, np.float32))
    if mine.shape == logp.shape[: mine.ndim]:
        drawn = ~np.isnan(mine)
        # Zeros among others, also in a lookback beyond ours, make RLlib's float64.
        theirs["action_logp"] = logp[drawn].astype(np.float32) if logp.dtype == np.float64 else logp[drawn]
        ours["action_logp"] = mine[drawn]
        if logp[~drawn].any():
            ours["action_logp where nothing was drawn"] = logp[~drawn]


def stands_in(infos: list, observations: Any) -> bool:
    """True if an agent has ended unobserved, so that its last observation, and in RLlib the info, are there twice."""
    return len(infos) > 1 and same(infos[-1], infos[-2]) and same(*(_item(observations, i) for i in (-1, -2)))


def _leave_out_last(theirs: dict[str, Any], ours: dict[str, Any], their_times: list[int], our_times: list[int]) -> None:
    """Where an observation stands in, RLlib repeats the info, too; ours is that of the step. And RLlib's map of steps
    has one entry too many."""
    theirs["infos"], ours["infos"] = theirs["infos"][:-1], ours["infos"][:-1]
    if their_times[-1] == our_times[-1] + 1:
        their_times[-1] = our_times[-1]


def _item(column: Any, index: int) -> Any:
    return tree.map_structure(lambda leaf: leaf[index], column)


def _but_last(column: Any) -> Any:
    return tree.map_structure(lambda leaf: leaf[:-1], column)


def same(one: Any, other: Any) -> bool:
    return not any(different_values("", "", one, other))


def _of_buffer(buffer: Any, back: int) -> Any:
    first = buffer.lookback - back
    if isinstance(buffer.data, list):
        return buffer.data[first:]
    return tree.map_structure(lambda leaf: leaf[first:], buffer.data)


def steps_of(episode: Any, part: Any) -> list[tuple[int, int]]:
    """(env step, agent's step) of each observation in RLlib's map of steps."""
    times = episode.env_t_to_agent_t[part.agent_id]
    begin = episode.env_t_started - times.lookback
    return [(begin + i, t) for i, t in enumerate(times.data) if t != "S"]


def env_ts(episode: Any, part: Any, back: int) -> list[int]:
    """The env step of each observation, with `back` steps of lookback."""
    return [env_t for env_t, t in steps_of(episode, part) if part.t_started - back <= t <= part.t]


def wrong_dtypes(kind: str, path: str, want: Any, got: Any, part: Any, keep_float64: bool) -> Findings:
    """Ours are the space's, or the module's; RLlib's of outputs follow from ours."""
    if kind == "rewards":
        yield from unequal(kind, f"{path}, dtype", np.dtype(np.float64), got.dtype)
    elif kind == "weights_seq_no":
        yield from unequal(kind, f"{path}, dtype", [want.dtype, got.dtype], [np.dtype(np.int64)] * 2)
    elif kind == "action_logp" and not len(want):
        return
    elif kind == "observations":
        dtypes = [space.dtype for space in tree.flatten(_leaf_spaces(part.observation_space))]
        expected = [np.dtype(np.float32 if d == np.float64 and not keep_float64 else d) for d in dtypes]
        yield from unequal(kind, f"{path}, dtype", expected, [leaf.dtype for leaf in tree.flatten(got)])
    else:
        sides = [leaf.dtype for leaf in tree.flatten(want)], [leaf.dtype for leaf in tree.flatten(got)]
        yield from unequal(kind, f"{path}, dtype", sides[0], [NARROW.get(d.kind, d) for d in sides[1]])


def _leaf_spaces(space: Any) -> Any:
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {name: _leaf_spaces(each) for name, each in inner.items()}
    return space if inner is None else [*map(_leaf_spaces, inner)]


def sequences(kind: str, want: list, got: list, path: str) -> Findings:
    return found(kind, EXACT.events(want, got, path))


def is_nothing(value: Any) -> bool:
    """RLlib's count of what did not happen (docs/metrics.md)."""
    return isinstance(value, float) and math.isnan(value)
