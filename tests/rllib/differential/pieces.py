"""Connector pieces such as users write: they put other observations in the place of the newest ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from rllib.differential import tape


class Scaled(SingleAgentObservationPreprocessor):
    """Looks at nothing but the observation and whose it is."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        scale = 0.5 if str(episode.agent_id) < "1" else 2.0
        return tree.map_structure(lambda leaf: (leaf * scale).astype(np.asarray(leaf).dtype), observation)


class WithReward(SingleAgentObservationPreprocessor):
    """Changes the shape, and adds the agent's last action, reward and info, and data kept in its episode."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        longer = {
            agent_id: gym.spaces.Box(-np.inf, np.inf, (space.shape[0] + 5,), np.float32)
            for agent_id, space in input_observation_space.spaces.items()
        }
        return gym.spaces.Dict(longer)

    def preprocess(self, observation: Any, episode: Any) -> Any:
        n = len(episode)
        reward, action = (episode.get_rewards(-1), episode.get_actions(-1)) if n else (0.0, 0)
        seen = episode.custom_data["seen"] = episode.custom_data.get("seen", 0) + 1
        numbers = [float(np.sum(reward)), float(np.sum(action)), n + episode.t, seen, len(episode.get_infos(-1))]
        return np.concatenate([observation, np.array(numbers, np.float32)])


class Joint(MultiAgentObservationPreprocessor):
    """Takes off the mean of all agents' observations; also called for episodes that have none yet."""

    def preprocess(self, observations: Any, episode: Any) -> Any:
        tape.note("pieces", "joint", len(observations), len(episode), episode.is_done)
        mean = np.mean([*observations.values()], axis=0) if observations else 0.0
        return {agent_id: (each - mean).astype(each.dtype) for agent_id, each in observations.items()}


class Curious(SingleAgentObservationPreprocessor):
    """Looks at all there is, and writes it down."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        numbers = episode.is_done, episode.is_terminated, episode.t_started, episode.get_return()
        tape.note("pieces", "curious", repr(episode.agent_id), episode.module_id, tape.freeze(numbers))
        lists = episode.get_observations(), episode.get_rewards(), episode.get_actions(), episode.get_infos()
        tape.note("pieces", "lists", tape.freeze(lists), episode.observation_space == episode.observations.space)
        return (observation * 0.5).astype(observation.dtype)


class Plain(ConnectorV2):
    """No preprocessor, but does the same."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, explore: Any = None, **kwargs: Any) -> Any:
        for each in self.single_agent_episode_iterator(episodes):
            newest = each.get_observations(-1)
            each.set_observations(at_indices=-1, new_data=(newest + (0.25 if explore else 0.5)).astype(newest.dtype))
        return batch
