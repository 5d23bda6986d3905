"""An env step of an RLlib episode: corrects the arguments before RLlib records them, and the episode afterwards."""

from collections.abc import Hashable
from typing import Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from fastmarl.core.native._env_values import kept
from fastmarl.rllib.episodes.extras import completed

Episode = Any  # RLlib's MultiAgentEpisode and SingleAgentEpisode, whose annotations are narrower than their contents
AgentEpisode = Any
COMMON = "__common__"
SKIPPED = RLlibEpisode.SKIP_ENV_TS_TAG
IMMUTABLE = frozenset((int, float, bool, str, bytes, type(None), np.float32, np.float64, np.int32, np.int64))


def private_infos(infos: dict[Hashable, Any] | None) -> dict[Hashable, Any] | None:
    """Copy infos, so that the env cannot change them later."""
    return infos and {agent: private_info(info) for agent, info in infos.items()}


def private_info(info: Any) -> Any:
    """Copy an info as deeply as possible; objects that cannot be copied are kept."""
    if type(info) is dict:
        return {key: value if type(value) in IMMUTABLE else kept(value) for key, value in info.items()}
    return kept(info)


class Step:
    """Corrected arguments of `add_env_step()`, copied so that the dicts of the caller are not modified.

    Args:
        episode: The episode, extended by RLlib between `prepare()` and `finish()`.
        observations, actions, rewards, infos, terminateds, truncateds, extra_model_outputs: See `add_env_step()`.
        fixes: Numbers of the enabled corrections.
    """

    def __init__(
        self, episode: Episode, observations: dict, actions: dict, rewards: dict, infos: dict | None,
        terminateds: dict | None, truncateds: dict | None, extra_model_outputs: dict | None, fixes: frozenset[str],
    ):  # fmt: skip
        self.episode, self._fixes = episode, fixes
        self.observations, self.actions, self.rewards = dict(observations), actions, dict(rewards or {})
        self.infos = private_infos(infos) or {}
        self.terminateds, self.truncateds = terminateds or {}, truncateds or {}
        self.extras = dict(extra_model_outputs or {})
        self._ended_before: set[Hashable] = set()  # like the next attribute, filled only if needed by a correction
        self._mapped_before: set[Hashable] = set()
        if "01" in fixes or "45" in fixes:
            self._ended_before = {agent for agent, each in episode.agent_episodes.items() if each.is_done}
        if "14" in fixes:
            self._mapped_before = set(episode.env_t_to_agent_t)
        self._unobserved: list[Hashable] = []
        self._observed_again: list[Hashable] = []

    def prepare(self) -> None:
        """Change the arguments so that RLlib accepts them and loses nothing."""
        hanging = self.episode._hanging_actions_end
        for agent, agent_episode in self.episode.agent_episodes.items():
            acts = self.actions.get(agent) is not None
            observed = agent in self.observations
            if agent_episode.is_done:
                if not observed and not acts:
                    self._pay_ended(agent, agent_episode)
            elif observed and not acts and agent not in hanging:
                self._observe_again(agent, agent_episode)
            elif not observed and (acts or agent in hanging):
                self._end_unobserved(agent, agent_episode)
        self._complete_extras()

    def finish(self) -> None:
        """Correct the episode after RLlib has recorded the step."""
        times = self.episode.env_t_to_agent_t
        for agent in self._unobserved:
            # As in RLlib for agents that terminate unobserved: an entry each for the step and the repeated observation.
            times[agent].data.insert(-1, SKIPPED)
        for agent in self._observed_again:
            self._move_observation(agent)
        if "14" in self._fixes:
            self._correct_new_times()
        if "01" in self._fixes or "45" in self._fixes:
            self._correct_flags()
        if "21" in self._fixes and COMMON in self.infos:
            keep_common_info(self.episode, self.infos[COMMON])

    # Before RLlib records the step.

    def _pay_ended(self, agent: Hashable, agent_episode: AgentEpisode) -> None:
        """Add the reward of an ended agent to its last transition, if that is in this chunk; drop its info."""
        self.infos.pop(agent, None)
        reward = self.rewards.pop(agent, None)
        if reward and len(agent_episode):
            _add_to_last(agent_episode, reward)

    def _observe_again(self, agent: Hashable, agent_episode: AgentEpisode) -> None:
        """Replace the observation of an agent observed again without having acted.

        Its last transition then leads to the later observation and also gets the reward. Without a transition in this
        chunk, the reward is added to the rewards before the first action of the agent.
        """
        observation, info = self.observations.pop(agent), self.infos.pop(agent, None) or {}
        agent_episode.set_observations(new_data=observation, at_indices=-1)
        agent_episode.infos.set(info, at_indices=-1)
        agent_episode._last_added_observation, agent_episode._last_added_infos = observation, info
        reward = self.rewards.pop(agent, None)
        if reward and len(agent_episode):
            _add_to_last(agent_episode, reward)
        elif reward:
            self.episode._hanging_rewards_begin[agent] += reward
        self._observed_again.append(agent)

    def _end_unobserved(self, agent: Hashable, agent_episode: AgentEpisode) -> None:
        """Repeat the last observation of a waiting agent, in case it ends without another one."""
        if agent_episode._last_added_observation is None:
            agent_episode._last_added_observation = agent_episode.get_observations(-1)
            agent_episode._last_added_infos = agent_episode.get_infos(-1)
        if self.truncateds.get(agent) or self.truncateds.get("__all__"):
            self.observations[agent] = agent_episode._last_added_observation
            self.infos[agent] = agent_episode._last_added_infos
            self.rewards.setdefault(agent, 0.0)
            self._unobserved.append(agent)

    def _complete_extras(self) -> None:
        """Complete the outputs of each agent to match its other steps."""
        episode = self.episode
        hanging = episode._hanging_extra_model_outputs_end
        for agent, agent_episode in episode.agent_episodes.items():
            if agent in self.actions:
                if (extras := completed(agent_episode, self.extras.get(agent))) is not None:
                    self.extras[agent] = extras
            elif agent in hanging:
                hanging[agent] = completed(agent_episode, hanging[agent])

    # After RLlib has recorded the step.

    def _move_observation(self, agent: Hashable) -> None:
        """Move the last observation of the agent to this env step, and set its flags."""
        agent_episode, times = self.episode.agent_episodes[agent], self.episode.env_t_to_agent_t[agent].data
        place = max(i for i, step in enumerate(times) if step != SKIPPED)
        times[place], times[-1] = times[-1], times[place]
        agent_episode.is_terminated = bool(self.terminateds.get(agent) or self.episode.is_terminated)
        agent_episode.is_truncated = bool(self.truncateds.get(agent) or self.episode.is_truncated)

    def _correct_new_times(self) -> None:
        """Count env steps before an agent joined from the beginning of the chunk, not of the episode as in RLlib."""
        episode = self.episode
        for agent in episode.env_t_to_agent_t.keys() - self._mapped_before:
            buffer = episode.env_t_to_agent_t[agent]
            buffer.data[:-1] = [SKIPPED] * (len(episode) + episode._len_lookback_buffers)
            buffer.lookback = episode._len_lookback_buffers

    def _correct_flags(self) -> None:
        """Set the flags of ended agents from their entries, or else `__all__`, so that time limits terminate no agent.

        If all agents have ended but the env did not end the episode, the episode gets the flags of the last agents.
        """
        episode = self.episode
        ended = [
            a
            for a, agent_episode in episode.agent_episodes.items()
            if agent_episode.is_done and a not in self._ended_before
        ]
        everybody = bool(self.terminateds.get("__all__")), bool(self.truncateds.get("__all__"))
        own = {a: (bool(self.terminateds.get(a)), bool(self.truncateds.get(a))) for a in ended}
        if any(everybody):
            episode.is_terminated, episode.is_truncated = everybody
        elif episode.is_done and ended:
            episode.is_terminated = any(terminated for terminated, _ in own.values())
            episode.is_truncated = any(truncated for _, truncated in own.values())
        for agent in ended:
            agent_episode = episode.agent_episodes[agent]
            agent_episode.is_terminated, agent_episode.is_truncated = own[agent] if any(own[agent]) else everybody


def keep_common_info(episode: Episode, info: Any) -> None:
    """Store the common info of this env step in the custom data of the episode."""
    episode.custom_data.setdefault(COMMON, {})[episode.env_t] = info


def _add_to_last(agent_episode: AgentEpisode, reward: Any) -> None:
    data = agent_episode.rewards.data
    if agent_episode.rewards.finalized:
        agent_episode.rewards.data = data = data.astype((data[-1:] + reward).dtype, copy=False)
    data[-1] = data[-1] + reward


def is_consistent(agent_episode: SingleAgentEpisode) -> bool:
    """Return True if `agent_episode.validate()` would find no error; if False, call `validate()` to find out.

    Always False for episodes in array form and for episodes that have not started.
    """
    if type(agent_episode) is not SingleAgentEpisode:
        return False
    n = _length(agent_episode.observations)
    if n < 1 or _length(agent_episode.infos) != n:
        return False
    if not _length(agent_episode.rewards) == _length(agent_episode.actions) == n - 1:
        return False
    for column in agent_episode.extra_model_outputs.values():  # noqa: SIM110  a generator costs more than the rest
        if _length(column) != n - 1:
            return False
    return True


def _length(buffer: InfiniteLookbackBuffer) -> int:
    """Return the length of a buffer without its lookback, or -1 if the buffer is in array form."""
    if type(buffer) is not InfiniteLookbackBuffer or buffer.finalized:
        return -1
    return max(len(buffer.data) - buffer.lookback, 0)
