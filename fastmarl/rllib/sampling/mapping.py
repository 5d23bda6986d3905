"""Agents are mapped to modules: by the function of the time when their episode began, which is shown that episode."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from fastmarl.rllib.episodes.in_the_making import EpisodeInTheMaking, MappingFn
from fastmarl.rllib.sampling.core import Core
from fastmarl.rllib.sampling.mapping_code import EpisodeTimes, reads_times_only
from fastmarl.rllib.sampling.window import Window
from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.running_episodes import RunningEpisodes

# Observations, actions, rewards, infos, terminateds, truncateds of an env's step.
Step = tuple[dict, dict, dict, dict | None, dict, dict]


class PolicyMapping:
    """Asks the mapping functions, in RLlib's order.

    Args:
        core: the parts to work with.
        episodes: makes those that functions are given which may read anything of them.
    """

    def __init__(self, core: Core, episodes: RunningEpisodes):
        self._core = core
        self._episodes = episodes
        self._known: tuple[MappingFn, bool] | None = None

    def at_reset(self, record: RLlibRecord, obs: dict, infos: dict) -> None:
        """The agents of an env's first observations."""

        def replay(function: MappingFn) -> None:
            episode = self._episodes.empty(record, function)
            episode.add_env_reset(observations=obs, infos=infos)

        self._map(record, obs, 0, replay)

    def in_step(self, record: RLlibRecord, agent_ids: Iterable[Hashable], step: Step) -> None:
        """Agents that a step names for the first time, in the order of RLlib's set of them.

        Args:
            step: observations, agents that acted, rewards, infos, terminateds, truncateds.
        """

        def replay(function: MappingFn) -> None:
            obs, acting, rewards, infos, terminateds, truncateds = step
            episode = self._episodes.whole(self._episodes.chunk_of(record), function)
            acted = {agent_id: _acted(episode, agent_id) for agent_id in acting}
            actions = {agent_id: action for agent_id, (action, _) in acted.items()}
            outputs = {agent_id: extras for agent_id, (_, extras) in acted.items() if extras}
            flags = {"terminateds": terminateds, "truncateds": truncateds}
            episode.add_env_step(obs, actions, rewards, infos, extra_model_outputs=outputs, **flags)

        self._map(record, agent_ids, self._core.table.envs[record.env_index].env_t + 1, replay)

    def at_cut(self, record: RLlibRecord, window: Window, horizon: int, is_shown: bool) -> None:
        """RLlib asks again for all agents of the next chunk, and does not use the answers.

        Args:
            is_shown: whether callbacks may look at the next chunk.
        """
        env_t = self._core.table.envs[record.env_index].env_t

        def cut(function: MappingFn) -> Any:
            return self._episodes.whole(self._episodes.chunk_of(record), function).cut(horizon)

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
        """Add what the episode's mapping function says of these agents, where there is no answer already: it may ask
        the episode for other agents' modules, too."""
        function = record.policy_mapping_fn
        if self._reads_times_only(function):
            times: Any = EpisodeTimes(record.id_, env_t_started, env_t)
            for agent_id in agent_ids:
                answers[agent_id] = function(agent_id, times)
            return
        making = EpisodeInTheMaking(self._episodes.outline(record, env_t_started, env_t), record.mapping, replay)
        try:
            for agent_id in agent_ids:
                if agent_id not in answers:
                    answers[agent_id] = making.ask(function, agent_id)
        finally:
            making.close()

    def _reads_times_only(self, function: MappingFn) -> bool:
        if self._known is None or self._known[0] is not function:
            self._known = function, reads_times_only(function)
        return self._known[1]


def _acted(episode: Any, agent_id: Hashable) -> tuple[Any, Any]:
    """(action, other outputs) of an agent that has just acted: the record has them as if it waited."""
    episode._hanging_rewards_end.pop(agent_id, None)
    return (
        episode._hanging_actions_end.pop(agent_id),
        episode._hanging_extra_model_outputs_end.pop(agent_id, None),
    )
