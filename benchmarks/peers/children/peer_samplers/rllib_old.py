"""RLlib's old API stack: its RolloutWorker, or two of them as remote actors."""

from functools import partial
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.policy import PolicySpec

from peer_samplers.rllib import config_of, remote_sampler, rllib_env, runners_of
from peer_samplers.work import MODEL_CONFIG, Sampler, Setting, make_env

DISTRIBUTION = "ray"


def build(setting: Setting) -> Sampler:
    return build_with(RolloutWorker, setting)


def build_with(worker_class: type[RolloutWorker], setting: Setting) -> Sampler:
    options: dict[str, Any] = {
        "env_creator": partial(rllib_env, setting.env),
        "default_policy_class": PPOTorchPolicy,
        "config": _config(setting).env_runners(env_runner_cls=worker_class),
    }
    setup = {
        "runner": f"{worker_class.__module__}.{worker_class.__name__}",
        **runners_of(setting),
        "policy": "PPOTorchPolicy",
        "model": MODEL_CONFIG,
    }
    if setting.num_workers:
        return remote_sampler(setting, options, lambda worker: [worker.sample()], setup)
    worker = worker_class(**options)

    def collect() -> int:
        steps = worker.sample().agent_steps()
        worker.get_metrics()
        return steps

    return Sampler(collect, setup, worker.stop)


def _config(setting: Setting) -> PPOConfig:
    env = make_env(setting.env)
    agent = env.possible_agents[0]
    policy = PolicySpec(PPOTorchPolicy, env.observation_space(agent), env.action_space(agent))
    return (
        config_of(setting)
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .framework("torch")
        .training(model=MODEL_CONFIG)
        .multi_agent(policies={"p": policy}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .env_runners(batch_mode="truncate_episodes")
    )
