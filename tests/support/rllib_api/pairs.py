"""A runner of each face over the same envs, with the same options."""

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

import fastmarl
from support.rllib_walk import Walk

OF_METHODS = {  # fields that RLlib's config takes through a method
    "env_to_module_connector": "env_runners",
    "module_to_env_connector": "env_runners",
    "policies_to_train": "multi_agent",
    "model_config": "rl_module",
    "rl_module_spec": "rl_module",
}


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
