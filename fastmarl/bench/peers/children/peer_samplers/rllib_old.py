"""RLlib's old API stack: its RolloutWorker, or two of them as remote actors."""

import logging
from functools import partial

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.policy import PolicySpec
from ray.tune.registry import register_env

from peer_samplers.rllib import rllib_env, start_ray
from peer_samplers.work import HIDDENS, TICKS, Sampler, Setting, make_env

DISTRIBUTION = "ray"


def build(setting: Setting) -> Sampler:
    logging.disable(logging.WARNING)
    register_env("work", partial(rllib_env, setting.env))
    model = {"fcnet_hiddens": [*HIDDENS], "fcnet_activation": "tanh", "vf_share_layers": True}
    config = _config(setting, model)
    told = {
        "runner": "RolloutWorker",
        "num_env_runners": setting.num_workers,
        "num_envs_per_env_runner": setting.envs_per_worker,
        "policy": "PPOTorchPolicy",
        "model": model,
    }
    make = partial(rllib_env, setting.env)
    if not setting.num_workers:
        worker = RolloutWorker(env_creator=make, default_policy_class=PPOTorchPolicy, config=config)

        def collect() -> int:
            steps = worker.sample().agent_steps()
            worker.get_metrics()
            return steps

        return Sampler(collect, told, worker.stop)
    start_ray(setting)
    workers = EnvRunnerGroup(
        env_creator=make, default_policy_class=PPOTorchPolicy, config=config, local_env_runner=False
    )

    def collect_remotely() -> int:
        batches = workers.foreach_env_runner("sample", local_env_runner=False)
        return sum(batch.agent_steps() for batch in batches)

    def close() -> None:
        workers.stop()
        ray.shutdown()

    return Sampler(collect_remotely, told, close)


def _config(setting: Setting, model: dict) -> PPOConfig:
    env = make_env(setting.env)
    agent = env.possible_agents[0]
    policy = PolicySpec(PPOTorchPolicy, env.observation_space(agent), env.action_space(agent))
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment("work")
        .framework("torch")
        .training(model=model)
        .multi_agent(policies={"p": policy}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .env_runners(
            num_env_runners=setting.num_workers,
            num_envs_per_env_runner=setting.envs_per_worker,
            rollout_fragment_length=TICKS,
            batch_mode="truncate_episodes",
        )
    )
