"""Configs for `fastmarl rllib-check`, as users have them in their modules."""

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from fastmarl.rllib import MultiAgentEnvRunner


class ReadsRunner(RLlibCallback):
    """Reads what only RLlib's loop has."""

    def on_episode_end(self, *, env_runner: Any, **kwargs: Any) -> None:
        assert env_runner._ongoing_episodes


class CountsArguments(ConnectorV2):
    """Counts the arguments that RLlib's loop alone gives it."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        assert len(kwargs) >= 0
        return batch


def accelerated() -> PPOConfig:
    return (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies=["p0"], policy_mapping_fn=lambda agent_id, *args, **kwargs: "p0")
        .env_runners(env_runner_cls=MultiAgentEnvRunner, num_env_runners=3)
    )


def not_set() -> PPOConfig:
    return accelerated().env_runners(env_runner_cls=None)


def slow() -> PPOConfig:
    config = not_set().callbacks(ReadsRunner)
    return config.env_runners(env_to_module_connector=lambda env, spaces, device: CountsArguments())


def with_options() -> PPOConfig:
    return accelerated().env_runners(env_runner_cls=MultiAgentEnvRunner.options(fixes="all", sampler="fast"))


def single_agent() -> PPOConfig:
    return PPOConfig().environment("CartPole-v1")


def broken_env() -> PPOConfig:
    return accelerated().environment("no_such_env")


def raises() -> PPOConfig:
    raise RuntimeError("two\nlines")


def needs_arguments(lr: float) -> PPOConfig:
    return accelerated().training(lr=lr)


READY = accelerated()
FROZEN = accelerated()
FROZEN.freeze()
NUMBER = 3
