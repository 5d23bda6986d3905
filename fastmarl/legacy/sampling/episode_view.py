"""Episodes and envs in the form in which callbacks for RLlib's old API stack read them."""

from collections.abc import Hashable
from typing import Any

from fastmarl.core.objects.public import public
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay

ONLY_AGENT = "agent0"  # of RLlib's episodes of one agent


class _Flag(int):
    """A flag of an episode, which answers for one of its agents when called with the agent's id.

    Episodes of `fastmarl` have `is_done` as a property of the episode, those of RLlib's old API stack as a method.
    """

    _name: str
    _agents: Any

    @classmethod
    def of(cls, episode: Any, name: str) -> "_Flag":
        flag = cls(getattr(episode, name))
        flag._name, flag._agents = name, episode.agent_episodes
        return flag

    def __call__(self, agent_id: Hashable) -> bool:
        return agent_id in self._agents and bool(getattr(self._agents[agent_id], self._name))

    def __repr__(self) -> str:
        return repr(bool(self))


@public("fastmarl.legacy")
class EpisodeV2:
    """Episode of callbacks and mapping functions: RLlib's `EpisodeV2` over a chunk of a `MultiAgentEpisode`.

    Sums and counts are those of the whole episode. All other attributes are the chunk's.

    Args:
        episode: The chunk.
        worker: The RolloutWorker that samples it.
        env_id: Index of its env; None: unknown.

    Attributes:
        worker: The RolloutWorker.
        env_id: Index of its env.
        episode: The chunk.
    """

    def __init__(self, episode: Any, worker: Any, env_id: int | None = None):
        self.episode, self.worker, self.env_id = episode, worker, env_id

    def __getattr__(self, name: str) -> Any:
        if name in ("episode", "__setstate__", "__deepcopy__"):  # not made yet, as in a copy
            raise AttributeError(name)
        return getattr(self.episode, name)

    def __len__(self) -> int:
        return len(self.episode)

    def __getitem__(self, item: slice) -> Any:
        return self.episode[item]

    def __repr__(self) -> str:
        return f"EpisodeV2({self.episode!r})"

    @property
    def _before(self) -> EpisodeUnderWay:
        """The part of the episode in earlier chunks."""
        env_runner = getattr(self.worker, "env_runner", None)
        known = None if env_runner is None else env_runner.under_way(self.episode.id_)
        return known or EpisodeUnderWay.of(self.episode.id_)

    def _complete(self) -> EpisodeUnderWay:
        """Return the episode so far; while a batch is built, the chunk is already part of it."""
        before, chunk = self._before, self.episode
        if before.env_t is not None and before.env_t >= chunk.env_t > 0:
            return before
        return before.with_chunk(chunk, only_complete=False)

    @property
    def id_(self) -> str:
        return str(self.episode.id_)

    @property
    def episode_id(self) -> int:
        """Number of the episode, its "eps_id" in batches."""
        return self._before.number

    @property
    def callbacks(self) -> Any:
        """The callbacks of the worker."""
        return self.worker.callbacks

    @property
    def policy_map(self) -> Any:
        """The policies of the worker."""
        return self.worker.policy_map

    @property
    def policy_mapping_fn(self) -> Any:
        """The worker's mapping function."""
        return self.worker.policy_mapping_fn

    # Data of callbacks.

    def _data(self, name: str) -> dict[Any, Any]:
        found: dict[Any, Any] = self.episode.custom_data.setdefault(name, {})
        return found

    @property
    def custom_metrics(self) -> dict[str, Any]:
        """Dict of numbers that `get_metrics()` reports."""
        return self._data("custom_metrics")

    @property
    def hist_data(self) -> dict[str, Any]:
        """Dict of lists of numbers that `get_metrics()` reports."""
        return self._data("hist_data")

    @property
    def media(self) -> dict[str, Any]:
        """Dict of media that `get_metrics()` reports."""
        return self._data("media")

    @property
    def user_data(self) -> dict[str, Any]:
        """Dict for values that callbacks share."""
        return self._data("user_data")

    # Sums and counts.

    @property
    def agent_rewards(self) -> dict[tuple[Hashable, str], float]:
        """Sum of rewards by (agent id, policy id)."""
        return self._complete().agent_rewards

    @property
    def total_reward(self) -> float:
        """Sum of all agents' rewards."""
        return float(sum(self.agent_rewards.values()))

    @property
    def total_env_steps(self) -> int:
        """Number of env steps; -1 before the reset."""
        return int(self.episode.env_t) if self.episode.is_reset else -1

    length = total_env_steps

    @property
    def active_env_steps(self) -> int:
        """Number of env steps that are in no batch yet; -1 before the reset."""
        return sum(map(len, self._complete().chunks)) if self.episode.is_reset else -1

    @property
    def total_agent_steps(self) -> int:
        """Number of steps of all agents."""
        return self._complete().agent_steps

    @property
    def active_agent_steps(self) -> int:
        """Number of steps of all agents that are in no batch yet."""
        return sum(chunk.agent_steps() for chunk in self._complete().chunks)

    # Agents.

    def get_agents(self) -> list[Hashable]:
        """Return the ids of all agents that have appeared."""
        return list(self._complete().agent_index)

    def agent_index(self, agent_id: Hashable) -> int:
        """Return the index of `agent_id`, in order of appearance; the next free one if it has not appeared."""
        indices = self._complete().agent_index
        return indices.get(agent_id, len(indices))

    def policy_for(self, agent_id: Hashable = ONLY_AGENT, refresh: bool = False) -> str:
        """Return the policy id of an agent.

        Args:
            agent_id: Id of the agent.
            refresh: Ask the mapping function even if the agent has appeared; the agent's policy stays as it is.
        """
        if agent_id in self._complete().agent_index and not refresh:
            return str(self.episode.module_for(agent_id))
        return str(self.worker.mapped(agent_id, self))

    def has_init_obs(self, agent_id: Hashable | None = None) -> bool:
        """Return true if the agent `agent_id`, or with None any agent, has an observation."""
        agents = self._complete().agent_index
        return bool(agents) if agent_id is None else agent_id in agents

    def last_info_for(self, agent_id: Hashable = ONLY_AGENT) -> dict[str, Any] | None:
        """Return the info that came with the last observation of `agent_id`; None before its first step."""
        steps = self.episode.agent_episodes.get(agent_id)
        if steps is None or not len(steps):
            return None
        info: dict[str, Any] = steps.get_infos(-1)
        return info

    @property
    def is_done(self) -> _Flag:
        """Flag of the episode; call it with an agent id for that agent's."""
        return _Flag.of(self.episode, "is_done")

    @property
    def is_terminated(self) -> _Flag:
        """Flag like `is_done`, of termination alone."""
        return _Flag.of(self.episode, "is_terminated")

    @property
    def is_truncated(self) -> _Flag:
        """Flag like `is_done`, of truncation alone."""
        return _Flag.of(self.episode, "is_truncated")


class SubEnvironments:
    """The vector of a worker's envs, with methods of RLlib's `BaseEnv`; all other attributes are the vector's."""

    def __init__(self, vector: Any):
        self.vector = vector

    def __getattr__(self, name: str) -> Any:
        if name == "vector":
            raise AttributeError(name)
        return getattr(self.vector, name)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the list of envs; if `as_dict`, a dict by index."""
        envs = list(self.vector.envs)
        return dict(enumerate(envs)) if as_dict else envs
