"""Our runner: one policy for all agents, with the default network."""

from functools import partial
from typing import Any

import fastmarl
from peer_samplers.work import MODEL_CONFIG, TICKS, Sampler, Setting, make_env

DISTRIBUTION = "fastmarl"


def build(setting: Setting) -> Sampler:
    options: dict[str, Any] = {
        "num_envs_per_env_runner": setting.num_envs,
        "model_config": MODEL_CONFIG,
    }
    if setting.num_workers:
        options |= {
            "gym_env_vectorize_mode": "async",
            "num_env_workers": setting.num_workers,
            "worker_num_splits": 2 if setting.num_envs >= 16 else 1,
        }
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=partial(make_env, setting.env), seed=0, num_threads=1, **options)
    )

    def collect() -> int:
        runner.sample(num_timesteps=TICKS * setting.num_envs)
        return sum(runner.get_metrics()["num_agent_steps_sampled"].values())

    return Sampler(collect, {"runner": "MultiAgentEnvRunner", **options}, runner.stop)
