"""A runner of each face over the same envs, with the same options."""

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

import fastmarl

OF_METHODS = {  # fields that RLlib's config takes through a method
    "env_to_module_connector": "env_runners",
    "module_to_env_connector": "env_runners",
    "policies_to_train": "multi_agent",
    "model_config": "rl_module",
    "rl_module_spec": "rl_module",
}


class Walk(MultiAgentEnv):
    """Agents are rewarded with 1 and 2; an episode has 5 steps. The config may change that, and `failures` too."""

    failures = 0  # steps that will fail

    def __init__(self, config: Any = None):
        super().__init__()
        self.options = {"length": 5, "longer": 0, "shape": (2,), "action_space": gym.spaces.Discrete(3)} | dict(config)
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, self.options["shape"], np.float32))
        self.action_spaces = dict.fromkeys("ab", self.options["action_space"])
        self.t, self.length = 0, self.options["length"]
        self.seeds: list[int | None] = []
        self.received: list[Any] = []

    def observe(self) -> dict[str, Any]:
        return {agent: np.zeros(self.options["shape"], np.float32) for agent in "ab"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, ...]:
        self.t, self.length = 0, self.length + self.options["longer"]
        self.seeds.append(seed)
        return self.observe(), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        if Walk.failures:
            Walk.failures -= 1
            raise ValueError("broken")
        self.t += 1
        self.received.extend(actions.values())
        over = self.t >= self.length
        flags = dict.fromkeys(("a", "b", "__all__"), int(over) if "is_wrong" in self.options else over)
        return self.observe(), {"a": 1.0, "b": 2.0}, flags, flags, {}


def module_of(agent_id: str, episode: Any, **kwargs: Any) -> str:
    return f"p_{agent_id}"


def theirs(**fields: Any) -> RLlibEnvRunner:
    """Make RLlib's runner with these fields of the config."""
    config = PPOConfig().environment(Walk).env_runners(num_env_runners=0, rollout_fragment_length=10).debugging(seed=1)
    config.multi_agent(policies={"p_a", "p_b"}, policy_mapping_fn=module_of)
    for name, value in fields.items():
        if name in OF_METHODS:
            getattr(config, OF_METHODS[name])(**{name: value})
        else:
            setattr(config, name, value)
    return RLlibEnvRunner(config=config, worker_index=1)


def ours(**fields: Any) -> fastmarl.MultiAgentEnvRunner:
    """Make the standalone runner with these fields of the config."""
    common = {
        "env": Walk,
        "policies": {"p_a", "p_b"},
        "policy_mapping_fn": module_of,
        "seed": 1,
        "rollout_fragment_length": 10,
    }
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**common | fields), worker_index=1)


MAKERS = {"ours": ours, "theirs": theirs}
