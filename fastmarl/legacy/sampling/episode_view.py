"""Episodes and envs with the interface expected by callbacks for the old RLlib API stack."""

from collections.abc import Hashable
from typing import Any

from fastmarl.core.objects.public import public
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay

ONLY_AGENT = "agent0"  # agent id in single-agent episodes of RLlib


class _Flag(int):
    """An episode flag that returns the flag of an agent when called with an agent id.

    `is_done` is a property of fastmarl episodes, but a method in the old RLlib API stack.
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
    """View of an episode chunk with the RLlib `EpisodeV2` interface, for callbacks and mapping functions.

    Sums and counts cover the entire episode. All other attributes are delegated to the chunk.

    Args:
        episode: The chunk, a `MultiAgentEpisode`.
        worker: The RolloutWorker that samples the episode.
        env_id: Index of its env, or None if unknown.

    Attributes:
        worker: The RolloutWorker.
        env_id: Index of its env.
        episode: The chunk.
    """

    def __init__(self, episode: Any, worker: Any, env_id: int | None = None):
        self.episode, self.worker, self.env_id = episode, worker, env_id

    def __getattr__(self, name: str) -> Any:
        if name in ("episode", "__setstate__", "__deepcopy__"):  # not set yet, for example in a copy
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
        """Return the episode up to now; while a batch is built, `_before` already includes the chunk."""
        before, chunk = self._before, self.episode
        if before.env_t is not None and before.env_t >= chunk.env_t > 0:
            return before
        return before.with_chunk(chunk, only_complete=False)

    @property
    def id_(self) -> str:
        return str(self.episode.id_)

    @property
    def episode_id(self) -> int:
        """Number of the episode, used as "eps_id" in batches."""
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
        """Mapping function of the worker."""
        return self.worker.policy_mapping_fn

    # Callback data.

    def _data(self, name: str) -> dict[Any, Any]:
        found: dict[Any, Any] = self.episode.custom_data.setdefault(name, {})
        return found

    @property
    def custom_metrics(self) -> dict[str, Any]:
        """Dict of numbers reported by `get_metrics()`."""
        return self._data("custom_metrics")

    @property
    def hist_data(self) -> dict[str, Any]:
        """Dict of lists of numbers reported by `get_metrics()`."""
        return self._data("hist_data")

    @property
    def media(self) -> dict[str, Any]:
        """Dict of media reported by `get_metrics()`."""
        return self._data("media")

    @property
    def user_data(self) -> dict[str, Any]:
        """Dict for values shared by callbacks."""
        return self._data("user_data")

    # Sums and counts.

    @property
    def agent_rewards(self) -> dict[tuple[Hashable, str], float]:
        """(agent id, policy id) -> sum of rewards."""
        return self._complete().agent_rewards

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of all agents."""
        return float(sum(self.agent_rewards.values()))

    @property
    def total_env_steps(self) -> int:
        """Number of env steps, or -1 before the reset."""
        return int(self.episode.env_t) if self.episode.is_reset else -1

    length = total_env_steps

    @property
    def active_env_steps(self) -> int:
        """Number of env steps not yet in a batch, or -1 before the reset."""
        return sum(map(len, self._complete().chunks)) if self.episode.is_reset else -1

    @property
    def total_agent_steps(self) -> int:
        """Number of steps of all agents."""
        return self._complete().agent_steps

    @property
    def active_agent_steps(self) -> int:
        """Number of agent steps not yet in a batch."""
        return sum(chunk.agent_steps() for chunk in self._complete().chunks)

    # Agents.

    def get_agents(self) -> list[Hashable]:
        """Return the ids of all agents that have appeared."""
        return list(self._complete().agent_index)

    def agent_index(self, agent_id: Hashable) -> int:
        """Return the index of `agent_id` in order of appearance, or the next free index if it has not appeared."""
        indices = self._complete().agent_index
        return indices.get(agent_id, len(indices))

    def policy_for(self, agent_id: Hashable = ONLY_AGENT, refresh: bool = False) -> str:
        """Return the policy id of an agent.

        Args:
            agent_id: Id of the agent.
            refresh: Call the mapping function even if the agent has appeared; this does not change its policy.
        """
        if agent_id in self._complete().agent_index and not refresh:
            return str(self.episode.module_for(agent_id))
        return str(self.worker.mapped(agent_id, self))

    def has_init_obs(self, agent_id: Hashable | None = None) -> bool:
        """Return whether the agent `agent_id` (any agent if None) has an observation."""
        agents = self._complete().agent_index
        return bool(agents) if agent_id is None else agent_id in agents

    def last_info_for(self, agent_id: Hashable = ONLY_AGENT) -> dict[str, Any] | None:
        """Return the info received with the last observation of `agent_id`, or None before its first step."""
        steps = self.episode.agent_episodes.get(agent_id)
        if steps is None or not len(steps):
            return None
        info: dict[str, Any] = steps.get_infos(-1)
        return info

    @property
    def is_done(self) -> _Flag:
        """True if the episode is done; call it with an agent id for the flag of that agent."""
        return _Flag.of(self.episode, "is_done")

    @property
    def is_terminated(self) -> _Flag:
        """Like `is_done`, but only for termination."""
        return _Flag.of(self.episode, "is_terminated")

    @property
    def is_truncated(self) -> _Flag:
        """Like `is_done`, but only for truncation."""
        return _Flag.of(self.episode, "is_truncated")


class SubEnvironments:
    """Vector of worker envs, with methods of the RLlib `BaseEnv`; other attributes are delegated to the vector."""

    def __init__(self, vector: Any):
        self.vector = vector

    def __getattr__(self, name: str) -> Any:
        if name == "vector":
            raise AttributeError(name)
        return getattr(self.vector, name)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the envs as a list or, if `as_dict`, as a dict of index -> env."""
        envs = list(self.vector.envs)
        return dict(enumerate(envs)) if as_dict else envs
