"""RLlib's new API stack: its MultiAgentEnvRunner, or two of them as remote actors."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, CRITIC, ENCODER_OUT
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from peer_samplers.work import MODEL_CONFIG, TICKS, Sampler, Setting, make_env

DISTRIBUTION = "ray"

OBJECT_STORE_BYTES = 500_000_000


class ModuleWithValues(DefaultPPOTorchRLModule):
    """PPO's default module with values: RLlib leaves them to the learner, all other samplers here record them."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        encoded = self.encoder(batch)[ENCODER_OUT]
        values = self.vf(encoded[CRITIC]).squeeze(-1)
        return {Columns.ACTION_DIST_INPUTS: self.pi(encoded[ACTOR]), Columns.VF_PREDS: values}


def build(setting: Setting) -> Sampler:
    return build_with(MultiAgentEnvRunner, setting)


def build_with(runner_class: type[MultiAgentEnvRunner], setting: Setting) -> Sampler:
    config = _with_module(config_of(setting)).env_runners(env_runner_cls=runner_class)
    setup = {
        "runner": f"{runner_class.__module__}.{runner_class.__name__}",
        **runners_of(setting),
        "module": "PPO's default, with values",
        "model_config": MODEL_CONFIG,
    }
    if setting.num_workers:
        return remote_sampler(setting, {"config": config}, _sample, setup)
    runner = runner_class(config=config)

    def collect() -> int:
        episodes = runner.sample(num_timesteps=TICKS * setting.num_envs)
        runner.get_metrics()
        return sum(episode.agent_steps() for episode in episodes)

    return Sampler(collect, setup, runner.stop)


def rllib_env(kind: str, config: dict) -> ParallelPettingZooEnv:
    return ParallelPettingZooEnv(make_env(kind))


def runners_of(setting: Setting) -> dict[str, int]:
    """Return the number of runners, and of envs in each."""
    return {"num_env_runners": setting.num_workers, "num_envs_per_env_runner": setting.envs_per_worker}


def config_of(setting: Setting) -> PPOConfig:
    """Return the config that both API stacks share."""
    logging.disable(logging.WARNING)
    register_env("work", partial(rllib_env, setting.env))
    return PPOConfig().environment("work").env_runners(**runners_of(setting), rollout_fragment_length=TICKS)


def _with_module(config: PPOConfig) -> PPOConfig:
    module = RLModuleSpec(module_class=ModuleWithValues, model_config=DefaultModelConfig(**MODEL_CONFIG))
    return (
        config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
        # A spec for all modules keeps their value heads; a spec for one module is for inference only.
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"p": module}))
    )


def remote_sampler(
    setting: Setting, options: dict[str, Any], sample: Callable[[Any], list], setup: dict[str, Any]
) -> Sampler:
    """Return a sampler of an EnvRunnerGroup in actors; `sample` makes each runner return objects with agent steps."""
    ray.init(
        num_cpus=setting.num_workers + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    runners = EnvRunnerGroup(**options, local_env_runner=False)

    def collect() -> int:
        made = runners.foreach_env_runner(sample, local_env_runner=False)
        return sum(part.agent_steps() for parts in made for part in parts)

    def close() -> None:
        runners.stop()
        ray.shutdown()

    return Sampler(collect, setup, close)


def _sample(runner: Any) -> list:
    """Sample as RLlib's synchronous_parallel_sample() does; without a number, a runner samples one fragment."""
    episodes = runner.sample()
    runner.get_metrics()
    return episodes
