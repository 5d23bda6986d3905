"""Maps agents to modules with the mapping function that was set when their episode started."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode

from fastmarl.core.errors import RunningEpisodeError
from fastmarl.rllib.episodes.sample_block import is_set
from fastmarl.rllib.sampling.mapping_code import MappingFn, reads_times_only
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.sampling.window import Window
from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.running_episodes import RunningEpisodes

# Observations, actions, rewards, infos, terminateds, truncateds of an env step.
Step = tuple[dict, dict, dict, dict | None, dict, dict]


class AgentToModuleMapping:
    """Calls the mapping functions in the same order as RLlib.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        episodes: Builds running episodes, for functions that may read any of their data.
    """

    def __init__(self, parts: Parts, episodes: RunningEpisodes):
        self._parts = parts
        self._episodes = episodes
        self._known: tuple[MappingFn, bool] | None = None

    def at_reset(self, record: RLlibRecord, obs: dict, infos: dict) -> None:
        """Map the agents in the first observations of an env."""

        def replay(function: MappingFn) -> None:
            episode = self._episodes.empty(record, function)
            episode.add_env_reset(observations=obs, infos=infos)

        self._map(record, obs, 0, replay)

    def in_step(self, record: RLlibRecord, agent_ids: Iterable[Hashable], step: Step) -> None:
        """Map agents that occur in a step for the first time, in the order of the set that RLlib builds.

        Args:
            record: Record of the episode.
            agent_ids: The agents of the step.
            step: Observations, actions, rewards, infos, terminateds, truncateds.
        """

        def replay(function: MappingFn) -> None:
            obs, acting, rewards, infos, terminateds, truncateds = step
            episode = self._episodes.built(self._episodes.chunk_of(record), function)
            acted = {agent_id: _acted(episode, agent_id) for agent_id in acting}
            actions = {agent_id: action for agent_id, (action, _) in acted.items()}
            outputs = {agent_id: extras for agent_id, (_, extras) in acted.items() if extras}
            flags = {"terminateds": terminateds, "truncateds": truncateds}
            episode.add_env_step(obs, actions, rewards, infos, extra_model_outputs=outputs, **flags)

        self._map(record, agent_ids, self._parts.table.envs[record.env_index].env_t + 1, replay)

    def at_cut(self, record: RLlibRecord, window: Window, horizon: int, is_shown: bool) -> None:
        """Call the mapping function for all agents of the next chunk, like RLlib, which ignores the results.

        Args:
            record: Record of the episode.
            window: Lookback window of the next chunk.
            horizon: `episode_lookback_horizon`.
            is_shown: True if callbacks or connectors may read the next chunk.
        """
        env_t = self._parts.table.envs[record.env_index].env_t

        def cut(function: MappingFn) -> Any:
            return self._episodes.built(self._episodes.chunk_of(record), function).cut(horizon)

        self._ask(record, window.order, env_t, env_t, cut, {})
        ended = {}
        if window.ended and (is_shown or not self._reads_times_only(record.policy_mapping_fn)):
            after = cut(lambda agent_id, episode: record.mapping.get(agent_id, ""))
            ended = {
                agent_id: (after.agent_episodes[agent_id], after.env_t_to_agent_t[agent_id])
                for agent_id in window.ended
            }
        record.ended_agent_episodes = ended

    def _map(
        self, record: RLlibRecord, agent_ids: Iterable[Hashable], env_t: int, replay: Callable[[MappingFn], None]
    ) -> None:
        if unknown := [agent_id for agent_id in agent_ids if agent_id not in record.mapping]:
            self._ask(record, unknown, record.env_t_started, env_t, replay, record.mapping)

    def _ask(
        self,
        record: RLlibRecord,
        agent_ids: list[Hashable],
        env_t_started: int,
        env_t: int,
        replay: Callable[[MappingFn], None],
        answers: dict[Hashable, str],
    ) -> None:
        """Call the mapping function for agents missing from `answers`, and add their module ids to it.

        A mapping function may itself query the episode for modules of other agents, which are also added.
        """
        function = record.policy_mapping_fn
        if self._reads_times_only(function):
            replay = _refuse
        making = EpisodeInTheMaking(self._episodes.outline(record, env_t_started, env_t), record.mapping, replay)
        try:
            for agent_id in agent_ids:
                if agent_id not in answers:
                    making.asked = agent_id
                    answers[agent_id] = function(agent_id, making.episode)
                    if making.is_made:
                        making.forget()
        finally:
            making.close()

    def _reads_times_only(self, function: MappingFn) -> bool:
        if self._known is None or self._known[0] is not function:
            self._known = function, reads_times_only(function)
        return self._known[1]


def _acted(episode: Any, agent_id: Hashable) -> tuple[Any, Any]:
    """Pop (action, other outputs) of an agent that has just acted from the hanging data."""
    episode._hanging_rewards_end.pop(agent_id, None)
    return (
        episode._hanging_actions_end.pop(agent_id),
        episode._hanging_extra_model_outputs_end.pop(agent_id, None),
    )


def _refuse(_: MappingFn) -> None:
    raise RunningEpisodeError(
        "policy_mapping_fn reads its episode in a way that its bytecode does not show; move the read to a helper "
        "function that receives the episode, so that the full episode is built"
    )


class _Reached(Exception):
    """Raised when RLlib requests the module of the agent being mapped."""

    def __init__(self, episode: RLlibEpisode):
        self.episode = episode


class EpisodeInTheMaking:
    """Provides a mapping function with its episode as it is in RLlib during a reset, a step or a cut.

    The episode is built only if the function reads an attribute missing from the outline. Then the RLlib method runs on
    a copy of the episode until it requests the module of the agent being mapped.

    Args:
        outline: An episode of the fastmarl class with the known slots filled and the others empty.
        mapping: Agent id -> module id of the agents already mapped.
        replay: Function that takes a mapping function, builds the copy and calls the RLlib method on it.

    Attributes:
        episode: The object passed to the mapping function.
        asked: The agent being mapped; must be set before each call of the mapping function.
        is_made: True if the function has read late attributes, which forget() must remove before the next call.
    """

    def __init__(self, outline: Any, mapping: dict[Hashable, str], replay: Callable[[MappingFn], None]):
        self.episode = outline
        self.asked: Hashable = None
        self.is_made = False
        self._mapping = mapping
        self._replay = replay
        self._late: list[str] = []  # slots filled by late_attributes()
        self._is_over = False
        outline._origin = (self, 0)

    def forget(self) -> None:
        """Clear the slots filled by late_attributes(), whose values are outdated after each call."""
        for name in self._late:
            if is_set(self.episode, name):
                delattr(self.episode, name)
        self._late.clear()
        self.is_made = False

    def close(self) -> None:
        """Forbid further reads of the episode, because unlike in RLlib it will not be updated."""
        self.forget()  # if the mapping function raised an error
        self._is_over = True

    def late_attributes(self, _: int) -> dict[str, Any]:
        """Build and return the current values of the slots missing from the outline."""
        if self._is_over:
            raise RuntimeError("an episode passed to policy_mapping_fn can only be read during that call")
        try:
            self._replay(self._answer)
        except _Reached as reached:
            made, self.is_made = reached.episode, True
            late = [name for name in RLlibEpisode.__slots__ if is_set(made, name) and not is_set(self.episode, name)]
            self._late += late
            return {name: getattr(made, name) for name in late}
        raise AssertionError(f"RLlib did not request the module of agent {self.asked!r}")

    def _answer(self, agent_id: Hashable, episode: RLlibEpisode) -> str:
        if agent_id == self.asked:
            raise _Reached(episode)
        return self._mapping.get(agent_id, "")  # at a cut, RLlib also maps agents whose module it has dropped
