"""Lanes: a lane tracks an agent in an episode of an env, from its first observation to its last.

Only rare events are handled here, in Python: agents joining and leaving. Per-step work is done by `_scatter` on the
arrays of this table. Lanes of finished agents are kept until `release()`, so that episodes can be built from them; then
their indices are reused.
"""

import uuid
from collections.abc import Callable, Container, Hashable, Iterable
from typing import Annotated, Any
from weakref import WeakSet

import numpy as np

from fastmarl.core.errors import ONLY_RESPAWNING, FinishedAgentError, UnknownAgentError
from fastmarl.core.native import _records
from fastmarl.core.native._env_lanes import EnvLanes
from fastmarl.core.native._records import REMEMBERED, EpisodeRecord, episode_id

# Bits that encode how a step ends a trajectory or an episode; FAILED: the env failed in this step and was recreated.
TERMINATED, TRUNCATED, FAILED = 1, 2, 4


Flags = dict[Any, Any]  # as returned by step()
NO_FLAGS: Flags = {}


class Guest:
    """Id of a `Policy` agent whose state is stored by the caller; unlike plain agent ids, it equals only itself."""

    def __init__(self, agent_id: Hashable):
        self.agent_id = agent_id

    def __repr__(self) -> str:
        return repr(self.agent_id)


class LaneTable:
    """The lanes of all envs.

    Args:
        known_agents: Per env, the ids in `possible_agents`; an empty set allows any id.
        module_for: (agent id, env index) -> index of the agent's module; called once per agent and episode.
        late_rewards: How to treat rewards for finished agents: "error", "accumulate" or "drop".
        respawn: True if a finished agent that is observed again starts a new trajectory.

    Attributes:
        known_agents: As passed.
        spaces: Per env, {agent id: spaces} of all agents with lanes; see `AgentSpaces`.
        on_new_agent: Called with (env index, agent id) before an agent missing from `spaces` joins.
    """

    # Dtype and initial value of each per-lane array.
    row_L: Annotated[np.ndarray, np.int64, -1]  # last row in the block of its module
    final_L: Annotated[np.ndarray, np.int64, -1]  # index of the final observation of an ended lane
    count_L: Annotated[np.ndarray, np.int32, 0]  # rows in the current chunk, including lookback
    end_env_t_L: Annotated[np.ndarray, np.int32, 0]  # env step of the final observation
    module_L: Annotated[np.ndarray, np.int32, 0]
    env_L: Annotated[np.ndarray, np.int32, 0]
    place_L: Annotated[np.ndarray, np.int32, 0]  # position in the last observation dict, or in the arrays of a group
    done_L: Annotated[np.ndarray, np.uint8, 0]  # bits: 1 terminated, 2 truncated
    lookback_L: Annotated[np.ndarray, np.int32, 0]  # rows of count_L that precede the chunk
    t_started_L: Annotated[np.ndarray, np.int64, 0]  # agent steps before the chunk
    return_L: Annotated[np.ndarray, np.float64, 0]  # sum of the rewards of completed steps
    steps_L: Annotated[np.ndarray, np.int64, 0]  # number of completed steps
    actions_L: Annotated[np.ndarray, np.int64, 0]  # number of actions in the current call

    def __init__(
        self,
        known_agents: list[frozenset[Any]],
        module_for: Callable[[Hashable, int], int],
        *,
        late_rewards: str,
        respawn: bool,
    ):
        self.known_agents = known_agents
        self._module_for = module_for
        self._late_rewards = late_rewards
        self._respawn = respawn
        self.records: list[EpisodeRecord | None] = [None] * len(known_agents)
        self.envs = [EnvLanes() for _ in known_agents]
        self.agent_ids: list[Hashable] = []  # per lane
        self.unattributed_reward = 0.0  # rewards of the current call that belong to no transition
        self.respawned: set[int] = set()  # envs whose chunk must be split after this step
        self.readers: WeakSet[Any] = WeakSet()  # objects whose `bind_lanes()` is called when the arrays have moved
        self.spaces: list[dict[Hashable, Any]] = [{} for _ in known_agents]
        self.on_new_agent: Callable[[int, Hashable], None] = lambda env_index, agent_id: None
        self._free: list[int] = []
        for name, (dtype, _) in ARRAYS.items():
            setattr(self, name, np.zeros(0, dtype))
        self._resize(16)

    def join(self, env_index: int, agent_id: Hashable, all_done: int, terminateds: Flags, truncateds: Flags) -> int:
        """Create a lane for an observed agent without one; return its index, or -1 if the agent finishes now."""
        if self.known_agents[env_index]:
            self.check_known(env_index, agent_id)
        record = self.record(env_index)
        if agent_id in record.finished and not self._respawn:
            raise self._finished_error(env_index, agent_id, "an observation")
        if all_done or terminateds.get(agent_id) or truncateds.get(agent_id):
            return -1
        if agent_id not in self.spaces[env_index]:
            self.on_new_agent(env_index, agent_id)
        former = record.finished.pop(agent_id, -1)
        module = record.module_of.get(agent_id)
        if module is None:
            module = record.module_of[agent_id] = self._module_for(agent_id, env_index)
        lane = self._take(agent_id)
        self.module_L[lane] = module
        self.env_L[lane] = env_index
        if former >= 0 and former in record.lanes:
            record.joining = (*record.joining, lane)
            self.respawned.add(env_index)
        else:
            record.lanes.append(lane)
        self.envs[env_index].lane_of[agent_id] = lane
        return lane

    def join_all(self, env_indices: list[int], present: np.ndarray, agents: list[Hashable]) -> tuple[np.ndarray, ...]:
        """Create lanes for all agents present at the start of episodes.

        Args:
            env_indices: Indices of k envs.
            present: bool [k, A], True for each agent that is present.
            agents: Ids of the A agents.

        Returns:
            (lanes, modules): int32, ordered by env, then agent. The caller sets `env_L`, `module_L` and `place_L`.
        """
        while len(self._free) < len(env_indices) * len(agents):
            self._resize(2 * len(self.row_L))
        return _records.join_all(
            self.records,
            self.envs,
            env_indices,
            present.view(np.uint8),
            agents,
            self._free,
            self.agent_ids,
            self._module_for,
        )

    def take_lanes(self, agent_ids: list[Hashable]) -> np.ndarray:
        """Allocate a lane for each of these agents; return int32 indices. The caller fills the arrays of the table."""
        return np.array([self._take(agent_id) for agent_id in agent_ids], np.int32)

    def early_reward(self, env_index: int, lane: int) -> float:
        """Remove and return the reward that the agent of the lane received before its first observation."""
        return self.record(env_index).early_rewards.pop(self.agent_ids[lane], 0.0)

    def lane_for_late_reward(
        self,
        env_index: int,
        agent_id: Hashable,
        reward: float,
        obs: Container[Hashable] = (),
        terminateds: Flags = NO_FLAGS,
        truncateds: Flags = NO_FLAGS,
        /,
    ) -> int:
        """Return the lane to credit with the reward of an agent without a lane, or -1 if no transition gets it now.

        Args:
            obs, terminateds, truncateds: Results of the same step. A respawning agent is treated like a joining one,
                unless it finishes in this step.
        """
        record = self.record(env_index)
        returns = self._respawn and agent_id in obs
        if agent_id in record.finished and not (returns and not _is_over(agent_id, terminateds, truncateds)):
            if self._late_rewards == "error" and not returns:
                raise self._finished_error(env_index, agent_id, f"the reward {reward}")
            lane = record.finished[agent_id]
            if self._late_rewards == "accumulate" and lane >= 0:
                return lane
            self.unattributed_reward += reward
            return -1
        self.check_known(env_index, agent_id)
        record.early_rewards[agent_id] = record.early_rewards.get(agent_id, 0.0) + reward
        if len(record.early_rewards) > REMEMBERED:
            self.unattributed_reward += record.early_rewards.pop(next(iter(record.early_rewards)))
        return -1  # kept until the agent is observed or the episode ends

    def finish(self, env_index: int, lane: int, env_t: int) -> None:
        """Record that the agent of this lane has finished."""
        record = self.record(env_index)
        agent_id = self.agent_ids[lane]
        del self.envs[env_index].lane_of[agent_id]
        record.finished[agent_id] = lane
        record.ended.append(lane)
        self.end_env_t_L[lane] = env_t
        if len(record.finished) > REMEMBERED:
            forgotten = next(iter(record.finished))
            del record.finished[forgotten]
            record.module_of.pop(forgotten, None)

    def finish_all(self, env_indices: np.ndarray, lanes: np.ndarray) -> None:
        """Record that the agents of these lanes (int32) in these envs (int64) finished; does not set `end_env_t_L`."""
        _records.finish_all(self.records, self.envs, self.agent_ids, env_indices, lanes)

    def check_known(self, env_index: int, agent_id: Hashable) -> None:
        known = self.known_agents[env_index]
        if known and agent_id not in known:
            problem = f"is not in possible_agents {sorted(map(str, known))}; add it there or drop it from the results"
            raise UnknownAgentError(env_index, agent_id, self.envs[env_index].env_t, problem)

    def release(self, lanes: list[int]) -> None:
        """Free ended lanes for reuse after their rows were returned or dropped."""
        if not lanes:
            return
        numbers = np.array(lanes)
        for name, (_, fresh) in ARRAYS.items():
            getattr(self, name)[numbers] = fresh
        for lane in lanes:
            self.agent_ids[lane] = None
        self._free.extend(lanes)

    def who(self, lane: int) -> str:
        """Describe the agent of a lane for error messages."""
        env_index = int(self.env_L[lane])
        return f"env {env_index}, agent {self.agent_ids[lane]!r}, env step {self.envs[env_index].env_t}"

    def record(self, env_index: int) -> EpisodeRecord:
        record = self.records[env_index]
        assert record is not None, "an env was stepped before its first reset"
        return record

    def live_lanes(self, env_indices: Iterable[int]) -> np.ndarray:
        """Return the unfinished lanes of these envs, int32."""
        return np.array([lane for i in env_indices for lane in self.envs[i].lane_of.values()], np.int32)

    def _take(self, agent_id: Hashable) -> int:
        if not self._free:
            self._resize(2 * len(self.row_L))
        lane = self._free.pop()
        self.agent_ids[lane] = agent_id
        return lane

    def _resize(self, capacity: int) -> None:
        old, arrays = len(self.row_L), {}
        for name, (dtype, fresh) in ARRAYS.items():
            arrays[name] = np.full(capacity, fresh, dtype)
            arrays[name][:old] = getattr(self, name)
        self.agent_ids.extend([None] * (capacity - old))
        self.__dict__.update(arrays)
        for reader in self.readers:
            reader.bind_lanes()
        self._free.extend(range(capacity - 1, old - 1, -1))  # only after all arrays have grown

    def _finished_error(self, env_index: int, agent_id: Hashable, what: str) -> FinishedAgentError:
        advice = f"leave it out once the agent's flag was set, as every observed agent acts; {ONLY_RESPAWNING}"
        if "reward" in what:
            advice = 'leave it out, or set late_rewards="accumulate" or "drop"'
        problem = f"sent {what} after the agent had finished; {advice}"
        return FinishedAgentError(env_index, agent_id, self.envs[env_index].env_t, problem)


def _is_over(agent_id: Hashable, *flags: Flags) -> bool:
    """Return True if any flag ends the agent; errors from invalid flags are ignored here and reported elsewhere."""
    try:
        return any(each.get(name) for each in flags for name in (agent_id, "__all__"))
    except Exception:  # user code may raise anything
        return False


ARRAYS = {name: array.__metadata__ for name, array in LaneTable.__annotations__.items()}


class EpisodeIds:
    """Generates the episode ids of a run from consecutive numbers.

    As in a UUID, the first digits alone distinguish episodes.

    Attributes:
        run_id: Last digits of every id of the run.
    """

    def __init__(self) -> None:
        digits = uuid.uuid4().hex + uuid.uuid4().hex
        self.run_id = digits[:20]
        self._next = int(digits[-12:], 16)  # a random start, so that first digits differ between runs

    def reserve(self, n: int) -> int:
        """Reserve the next `n` numbers; return the first."""
        first, self._next = self._next, self._next + n
        return first

    def new(self) -> str:
        """Return the next id."""
        return episode_id(self.run_id, self.reserve(1))
