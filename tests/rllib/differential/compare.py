"""Lists what is not bit-identical between two runs: a readable line a difference, with the path to it.

Not compared are the clock and the random ids; but ids must pair up over the whole run, and a time must be set in one
run if it is in the other.

What is stored otherwise than by RLlib must answer alike, see `questions.py`:

- entries of ended agents (`REMNANTS`): all getters, `module_for()`, `print()`, `slice()`, `cut()`, `from_state()`;
- the order of waiting agents (`UNORDERED`), hanging rewards of 0: `get_return(True)`, `get_rewards(env_steps=False)`;
- the order of columns where modules are mixed: `get_extra_model_outputs()`, as dicts without order;
- the mapping function, of which each run makes its own: its results for each agent;
- `_last_added_observation`: `get_observations(-1)`;
- counters that are NaN (19): ours equal RLlib's after a push of 0 steps;
- timers in the wrong place (27): they must be those of the pipeline that is also timed in its place, and nothing else;
- lost rewards (60), which RLlib does not report: `witness.py` adds them up;
- whether and why a runner falls back, which only ours reports: two keys, and the codes that docs/rllib.md lists;
- the order of names in a report of metrics, which is that in which they were logged first. RLlib logs step by step, we
  once a call: an episode that ends or an env that fails in the first step of a run comes before what is usually logged
  earlier, and agents of several envs, or in an order that changes from step to step, come in another order. An
  Algorithm reads reports in the order of a set, see test_the_order_of_names_means_nothing_to_an_algorithm.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import tree
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.metrics.stats import StatsBase
from rllib.differential import questions

from fastmarl.rllib.metrics import RUNNER_COUNTS, SLOW_PATH, RunnerCount
from fastmarl.rllib.sampling.fast_path import CODES

Lines = Iterator[str]

CLOCK_SLOTS = ("_start_time", "_last_step_time")
ID_SLOTS = ("id_", "multi_agent_episode_id")
CLOCK_METRICS = ("timer", "time_between_sampling", "episode_duration_sec", "throughput")
UNORDERED = ("_hanging_actions_end", "_hanging_extra_model_outputs_end")
"""Dicts whose order no getter shows."""
REMNANTS = ("env_t_to_agent_t", "agent_t_started", "_agent_to_module_mapping")
"""Where RLlib keeps entries of agents that ended before the chunk began, or have none (54 and 15)."""
COUNTERS = ("num_env_steps_sampled", "num_agent_steps_sampled", "num_module_steps_sampled", "num_episodes")
STRAYS = ("connector_pipeline_timer", "timers")
"""27: names under which RLlib logs by mistake what belongs to PIPELINE, of resets."""
PIPELINE = "env_to_module_connector"
LOST_REWARD = "unattributed_reward"
READINGS = ("values", "value")
"""Entries of a Stats object's state that hold what was measured."""


class Report(dict):
    """The result of a get_metrics()."""


class Comparison:
    """Compares two runs part by part. It knows which id of the one is which id of the other.

    Args:
        mixes_columns: whether modules with different outputs act together. RLlib then has the columns of all in the
            order of the first module in the batch; elsewhere orders must be equal, too.
        most_asked: how many chunks of a run are asked questions.
    """

    def __init__(self, mixes_columns: bool = False, most_asked: int = 1) -> None:
        self._mixes_columns, self._most_asked = mixes_columns, most_asked
        self._their_id: dict[str, str] = {}
        self._our_id: dict[str, str] = {}
        self._same_spaces: dict[tuple[int, int], tuple[gymnasium.Space, gymnasium.Space]] = {}
        self._hung: dict[str, dict] = {}  # id -> hanging rewards at the end of the last chunk
        self._asks = True  # else what is compared are answers
        self._n_asked = 0
        self._rules: list[tuple[type | tuple[type, ...], Callable[[Any, Any, str], Lines]]] = [
            (MultiAgentEpisode, self._episodes),
            (SingleAgentEpisode, self._slots),
            (InfiniteLookbackBuffer, self._buffers),
            (StatsBase, self._stats),
            (Report, self._reports),
            (dict, self._dicts),
            ((set, frozenset), self._sets),
            ((list, tuple), self._sequences),
            (np.ndarray, self._arrays),
            (gymnasium.Space, self._spaces),
        ]
        self._rule_of: dict[tuple[type, type], Callable[[Any, Any, str], Lines]] = {}

    def __call__(self, want: Any, got: Any, path: str) -> Lines:
        """The differences between two values of any kind that runners hand out."""
        kinds = type(want), type(got)
        if kinds not in self._rule_of:
            rules = (rule for kind, rule in self._rules if all(issubclass(each, kind) for each in kinds))
            self._rule_of[kinds] = next(rules, self._values)
        return self._rule_of[kinds](want, got, path)

    def _episodes(self, want: MultiAgentEpisode, got: MultiAgentEpisode, path: str) -> Lines:
        """Compare two episodes' data and, unless they are answers themselves, their answers."""
        yield from self._slots(want, got, path)
        if not self._asks:
            return
        yield from self._hanging_rewards(want, got, path)
        if self._n_asked < self._most_asked and zlib.crc32(path.encode()) % 3 == 0:
            self._n_asked += 1
            self._asks = False
            yield from questions.differences(want, got, self, path)
            self._asks = True

    def _hanging_rewards(self, want: MultiAgentEpisode, got: MultiAgentEpisode, path: str) -> Lines:
        """Compare the hanging rewards of two returned chunks, regardless of the agents' order, and of zeros."""
        hung = self._hung.get(want.id_, {})
        self._hung[want.id_] = _nonzero(want._hanging_rewards_end)
        end, begin = _nonzero(want._hanging_rewards_end), _nonzero(want._hanging_rewards_begin)
        begin = _only(begin, [agent for agent in begin if agent not in hung])  # 58
        at = f"{path}._hanging_rewards_begin"
        yield from self._dicts(begin, _ordered_like(begin, _nonzero(got._hanging_rewards_begin)), at)
        total = sum([*begin.values(), *end.values()], start=want.get_return())
        # In which order they are added changes the last bits.
        if not math.isclose(total, got.get_return(include_hanging_rewards=True), rel_tol=1e-6, abs_tol=1e-6):
            yield f"{path}.get_return(True): {total} / {got.get_return(True)}"

    def _slots(self, want: Any, got: Any, path: str) -> Lines:
        """Two episodes: all slots that RLlib's class has. Ours may be a subclass with more."""
        for name in _rllib_slots(want):
            theirs, ours, at = getattr(want, name), getattr(got, name), f"{path}.{name}"
            if name in CLOCK_SLOTS:
                if (theirs is None) != (ours is None):
                    yield f"{at}: {theirs} / {ours}"
            elif name in ID_SLOTS:
                yield from self._ids(theirs, ours, at)
            elif name == "_last_added_observation":
                # RLlib keeps the env's own object, which the env may change, and nothing after a cut (08).
                if self._asks and any(self(theirs, ours, at)):
                    yield from self(got.get_observations(-1), ours, at)
            elif name == "_hanging_rewards_end":
                yield from self._dicts(_nonzero(theirs), _ordered_like(theirs, _nonzero(ours)), at)
            elif name == "_hanging_rewards_begin":
                yield from self._values(type(theirs), type(ours), at)
            elif name in REMNANTS:
                yield from self._dicts(*_without_remnants(name, want, got), at)
            elif name in UNORDERED:
                yield from self._dicts(theirs, _ordered_like(theirs, ours), at)
            elif name == "agent_to_module_mapping_fn":
                if getattr(theirs, "__qualname__", theirs) != getattr(ours, "__qualname__", ours):
                    yield f"{at}: {theirs} / {ours}"
            else:
                yield from self(theirs, ours, at)

    def _ids(self, want: Any, got: Any, path: str) -> Lines:
        if type(want) is not str or type(got) is not str:
            yield from self._values(want, got, path)
        elif self._their_id.setdefault(want, got) != got or self._our_id.setdefault(got, want) != want:
            yield f"{path}: {want} / {got}, but before it was {self._their_id[want]} or {self._our_id.get(got)}"

    def _buffers(self, want: Any, got: Any, path: str) -> Lines:
        yield from self._dicts(vars(want), vars(got), path, attributes=True)

    def _stats(self, want: StatsBase, got: StatsBase, path: str) -> Lines:
        """Class, settings, and the readings unless they are of the clock."""
        if type(want) is not type(got):
            yield f"{path}: {type(want).__name__} / {type(got).__name__}"
            return
        if any(f"['{name}']" in path for name in COUNTERS) and np.isnan(want.peek()) and not np.isnan(got.peek()):
            want = want.clone()  # 19: RLlib's counter after a push of 0 steps
            want.push(0)
        theirs, ours = want.get_state(), got.get_state()
        if is_clock(path):
            yield from self._dicts(_settings(theirs), _settings(ours), path)
            yield from self._clocks(want.peek(), got.peek(), f"{path}.peek()")
        else:
            yield from self._dicts(theirs, ours, path)
            yield from self(want.peek(), got.peek(), f"{path}.peek()")

    def _reports(self, want: Report, got: Report, path: str) -> Lines:
        """Names in any order, in the dicts within as well."""
        strays = {name: want[name] for name in STRAYS if name in want and name not in got}
        if strays and PIPELINE in want:
            yield from self._strays(want[PIPELINE], strays, path)
        theirs = {name: part for name, part in want.items() if name not in strays}
        theirs = _without_runner_counts(theirs)  # those of our own runners that stand in for RLlib's
        ours = {name: part for name, part in got.items() if name in want or name != LOST_REWARD}
        ours = _without_runner_counts(ours)
        yield from self._dicts(theirs, _ordered_like(theirs, ours), path)

    def _strays(self, in_place: dict, strays: dict, path: str) -> Lines:
        """27: RLlib's timers of resets must be among those of the pipeline; one added since is not among them."""
        theirs, ours = ({at: type(one) for at, one in tree.flatten_with_path(part)} for part in (in_place, strays))
        if not ours.items() <= theirs.items():
            yield f"{path}: RLlib times {[*ours]} where it should time {[*theirs]}"

    def _clocks(self, want: Any, got: Any, path: str) -> Lines:
        """Two readings of the clock: none is one where the other is none."""
        if np.isnan(want) != np.isnan(got) or got < 0:
            yield f"{path}: {want} / {got}"

    def _dicts(self, want: dict, got: dict, path: str, attributes: bool = False) -> Lines:
        if type(want) is not type(got):
            yield f"{path}: {type(want).__name__} / {type(got).__name__}"
        theirs, ours = (getattr(items, "default_factory", None) for items in (want, got))
        if repr(theirs) != repr(ours):  # RLlib makes a partial for each
            yield f"{path}.default_factory: {theirs} / {ours}"
        if self._mixes_columns and "weights_seq_no" in want:
            got = _ordered_like(want, got)
        if [*map(_key, want)] != [*map(_key, got)]:
            yield f"{path}: keys {[*want]} / {[*got]}"
        for name in want:
            if name in got:
                yield from self(want[name], got[name], f"{path}.{name}" if attributes else f"{path}[{name!r}]")

    def _sets(self, want: Any, got: Any, path: str) -> Lines:
        if type(want) is not type(got) or {*map(_key, want)} != {*map(_key, got)}:
            yield f"{path}: {want} / {got}"

    def _sequences(self, want: Any, got: Any, path: str) -> Lines:
        if type(want) is not type(got) or len(want) != len(got):
            yield f"{path}: {type(want).__name__} of {len(want)} / {type(got).__name__} of {len(got)}"
        for i, (theirs, ours) in enumerate(zip(want, got, strict=False)):
            yield from self(theirs, ours, f"{path}[{i}]")

    def _arrays(self, want: np.ndarray, got: np.ndarray, path: str) -> Lines:
        theirs, ours = _outline(want), _outline(got)
        if theirs != ours:
            yield f"{path}: {theirs} / {ours}"
        elif want.dtype == object:
            yield from self._sequences(want.ravel().tolist(), got.ravel().tolist(), path)
        elif want.tobytes() != got.tobytes():
            yield f"{path}: {_first_difference(want, got)}"

    def _spaces(self, want: gymnasium.Space, got: gymnasium.Space, path: str) -> Lines:
        """Hundreds of episodes hold the same few: a pair is compared once, and kept, so that its ids stay its own."""
        if (id(want), id(got)) in self._same_spaces:
            return
        if type(want) is not type(got) or want != got or want.dtype != got.dtype:
            yield f"{path}: {want} / {got}"
        else:
            self._same_spaces[id(want), id(got)] = want, got

    def _values(self, want: Any, got: Any, path: str) -> Lines:
        # By repr, as nan is nan and 0.0 is not -0.0.
        if type(want) is not type(got) or repr(want) != repr(got):
            yield f"{path}: {_short(want)} / {_short(got)}"


def _without_runner_counts(report: dict) -> dict:
    """Remove the counts of accelerated and other runners, if they are as documented."""
    return {name: part for name, part in report.items() if not _is_runner_count(name, part)}


def _is_runner_count(name: str, part: Any) -> bool:
    if name not in RUNNER_COUNTS:
        return False
    codes, counts = (part.keys(), part.values()) if name == SLOW_PATH else ((), [part])
    return CODES.keys() >= set(codes) and all(type(one) is RunnerCount and one.peek() in (0, 1) for one in counts)


def _without_remnants(name: str, want: Any, got: Any) -> tuple[dict, dict]:
    """Their dict and ours, with the entries that mean something, those of the one in the order of the other."""
    theirs, ours = getattr(want, name), getattr(got, name)
    if name == "env_t_to_agent_t":
        agents = [agent for agent in theirs if agent in ours or agent in want.agent_episodes]
    else:
        agents = [*got.agent_episodes]
    return _only(theirs, agents), (ours if name == "env_t_to_agent_t" else _only(ours, agents))


def _nonzero(rewards: dict) -> dict:
    """Without zeros, which change no sum."""
    return _only(rewards, [agent for agent, reward in rewards.items() if np.any(reward)])


def _only(entries: dict, agents: list) -> dict:
    found = {agent: entries[agent] for agent in agents if agent in entries}
    return found if type(entries) is dict else type(entries)(entries.default_factory, found)  # type: ignore[attr-defined]


def _ordered_like(theirs: dict, ours: dict) -> dict:
    """Ours in their order; so are dicts in it."""
    ours = _only(ours, [*ours])
    for key, value in ours.items():
        if type(value) is dict and type(theirs.get(key)) is dict:
            ours[key] = _ordered_like(theirs[key], value)
    return _only(ours, [*(key for key in theirs if key in ours), *(key for key in ours if key not in theirs)])


def is_clock(path: str) -> bool:
    """Return true if the metric at this path holds times of a clock."""
    return path.endswith("['sample']") or any(word in path for word in CLOCK_METRICS)


def shared_memory(episodes: list[MultiAgentEpisode]) -> Lines:
    """List the columns that overlap in memory, so that writing to one changes the other."""
    ranges = []
    for number, episode in enumerate(episodes):
        for agent, part in episode.agent_episodes.items():
            columns = {"observations": part.observations, "actions": part.actions, "rewards": part.rewards}
            for name, buffer in {**columns, **part.extra_model_outputs}.items():
                for array in _leaves(getattr(buffer, "data", buffer)):
                    begin, end = np.lib.array_utils.byte_bounds(array)
                    ranges.append((begin, end, f"episode {number} [{agent!r}].{name}", array))
    ranges.sort(key=lambda one: one[:2])
    for one, other in pairwise(ranges):
        if other[0] < one[1] and np.shares_memory(one[3], other[3]):
            yield f"{one[2]} and {other[2]} share memory"


def _leaves(data: Any) -> Iterator[np.ndarray]:
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, tuple):
        for part in data:
            yield from _leaves(part)
    elif isinstance(data, np.ndarray) and data.size:
        yield data


def _rllib_slots(episode: Any) -> tuple[str, ...]:
    kind = MultiAgentEpisode if isinstance(episode, MultiAgentEpisode) else SingleAgentEpisode
    return tuple(kind.__slots__)


def _settings(state: dict) -> dict:
    return {name: value for name, value in state.items() if name not in READINGS}


def _key(key: Any) -> tuple[type, Any]:
    return (type(key), key)


def _outline(array: np.ndarray) -> str:
    return f"{type(array).__name__} {array.dtype.str}{[*array.shape]}{'' if array.flags.writeable else ' read-only'}"


def _first_difference(want: np.ndarray, got: np.ndarray) -> str:
    flat = [np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (want, got)]
    where = np.flatnonzero((flat[0] != flat[1]).any(axis=1))
    index = tuple(map(int, np.unravel_index(where[0], want.shape)))
    return f"{len(where)} of {want.size} differ, first at {index}: {want[index]!r} / {got[index]!r}"


def _short(value: Any) -> str:
    name = type(value).__name__
    return name if isinstance(value, (MultiAgentEpisode, SingleAgentEpisode)) else f"{name} {value!r:.200}"
