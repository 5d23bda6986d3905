"""The env of a worker without one: it has the policies' spaces, so that their modules can be made."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from fastmarl.core.envs.base import MultiAgentEnv
from fastmarl.core.errors import ConfigError


class NoEnv(MultiAgentEnv):
    """Names an agent for each policy, and is never reset.

    Args:
        spaces: Policy id -> (observation space, action space).
    """

    def __init__(self, spaces: Mapping[str, tuple[gym.Space, gym.Space]]):
        super().__init__()
        self.agents = self.possible_agents = list(spaces)
        self.observation_spaces = {policy_id: each[0] for policy_id, each in spaces.items()}
        self.action_spaces = {policy_id: each[1] for policy_id, each in spaces.items()}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        raise ConfigError("this worker has no env to sample; set env=..., or input_=... to read batches")

    @classmethod
    def options(cls, spaces: Mapping[str, tuple[gym.Space, gym.Space]]) -> dict[str, Any]:
        """Return the options of a runner with this env."""
        return {
            "env": lambda context: cls(spaces),
            "policy_mapping_fn": lambda agent_id, episode: agent_id,
            "num_envs_per_env_runner": 1,
            "gym_env_vectorize_mode": "sync",
        }
