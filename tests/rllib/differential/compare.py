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
from collections.abc import Iterator
from typing import Any

import numpy as np
import tree
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.metrics.stats import StatsBase
from rllib.differential import questions
from support.differences import Differences, Lines

from fastmarl.rllib.metrics import RUNNER_COUNTS, SLOW_PATH, RunnerCount
from fastmarl.rllib.sampling.fast_path import CODES

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


class Comparison(Differences):
    """Compares two runs part by part.

    Args:
        mixes_columns: whether modules with different outputs act together. RLlib then has the columns of all in the
            order of the first module in the batch; elsewhere orders must be equal, too.
        most_asked: how many chunks of a run are asked questions.
    """

    subclassed = (MultiAgentEpisode, SingleAgentEpisode)

    def __init__(self, mixes_columns: bool = False, most_asked: int = 1) -> None:
        super().__init__(
            (MultiAgentEpisode, self._episodes),
            (SingleAgentEpisode, self._slots),
            (InfiniteLookbackBuffer, self.attributes),
            (StatsBase, self._stats),
            (Report, self._reports),
        )
        self._mixes_columns, self._most_asked = mixes_columns, most_asked
        self._hung: dict[str, dict] = {}  # id -> hanging rewards at the end of the last chunk
        self._asks = True  # else what is compared are answers
        self._n_asked = 0

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
        yield from self(begin, _ordered_like(begin, _nonzero(got._hanging_rewards_begin)), at)
        total = sum([*begin.values(), *end.values()], start=want.get_return())
        # In which order they are added changes the last bits.
        if not math.isclose(total, got.get_return(include_hanging_rewards=True), rel_tol=1e-6, abs_tol=1e-6):
            yield f"{path}.get_return(True): {total} / {got.get_return(True)}"

    def _slots(self, want: Any, got: Any, path: str) -> Lines:
        """Two episodes: all slots that RLlib's class has. Ours may be a subclass with more."""
        for name in _rllib_slots(want):
            theirs, ours, at = getattr(want, name), getattr(got, name), f"{path}.{name}"
            if name in CLOCK_SLOTS:
                yield from self.clocks(theirs, ours, at)
            elif name in ID_SLOTS:
                yield from self.ids(theirs, ours, at)
            elif name == "_last_added_observation":
                # RLlib keeps the env's own object, which the env may change, and nothing after a cut (08).
                if self._asks and any(self(theirs, ours, at)):
                    yield from self(got.get_observations(-1), ours, at)
            elif name == "_hanging_rewards_end":
                yield from self(_nonzero(theirs), _ordered_like(theirs, _nonzero(ours)), at)
            elif name == "_hanging_rewards_begin":
                yield from self.values(type(theirs), type(ours), at)
            elif name in REMNANTS:
                yield from self(*_without_remnants(name, want, got), at)
            elif name in UNORDERED:
                yield from self(theirs, _ordered_like(theirs, ours), at)
            elif name == "agent_to_module_mapping_fn":
                if getattr(theirs, "__qualname__", theirs) != getattr(ours, "__qualname__", ours):
                    yield f"{at}: {theirs} / {ours}"
            else:
                yield from self(theirs, ours, at)

    def _stats(self, want: StatsBase, got: StatsBase, path: str) -> Lines:
        """Class, settings, and the readings unless they are of the clock."""
        if any(f"['{name}']" in path for name in COUNTERS) and np.isnan(want.peek()) and not np.isnan(got.peek()):
            want = want.clone()  # 19: RLlib's counter after a push of 0 steps
            want.push(0)
        theirs, ours = want.get_state(), got.get_state()
        if is_clock(path):
            yield from self.dicts(_settings(theirs), _settings(ours), path)
            yield from self.clocks(want.peek(), got.peek(), f"{path}.peek()")
        else:
            yield from self.dicts(theirs, ours, path)
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
        yield from self.dicts(theirs, _ordered_like(theirs, ours), path)

    def _strays(self, in_place: dict, strays: dict, path: str) -> Lines:
        """27: RLlib's timers of resets must be among those of the pipeline; one added since is not among them."""
        theirs, ours = ({at: type(one) for at, one in tree.flatten_with_path(part)} for part in (in_place, strays))
        if not ours.items() <= theirs.items():
            yield f"{path}: RLlib times {[*ours]} where it should time {[*theirs]}"

    def dicts(self, want: dict, got: dict, path: str, *, attributes: bool = False) -> Lines:
        if self._mixes_columns and "weights_seq_no" in want:
            got = _ordered_like(want, got)
        yield from super().dicts(want, got, path, attributes=attributes)

    def short(self, value: Any) -> str:
        is_episode = isinstance(value, (MultiAgentEpisode, SingleAgentEpisode))
        return type(value).__name__ if is_episode else super().short(value)


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


def columns(episodes: list[MultiAgentEpisode]) -> Iterator[tuple[str, np.ndarray]]:
    """All arrays of episodes, with their paths."""
    for number, episode in enumerate(episodes):
        for agent, part in episode.agent_episodes.items():
            named = {"observations": part.observations, "actions": part.actions, "rewards": part.rewards}
            for name, buffer in {**named, **part.extra_model_outputs}.items():
                for array in _leaves(getattr(buffer, "data", buffer)):
                    yield f"episode {number} [{agent!r}].{name}", array


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
