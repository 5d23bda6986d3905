"""Wall time of RLlib's PPO and FirstReadyPPO where one runner's episodes are long (ray-project/ray#58681).

python benchmarks/bench_first_ready.py

Each step sleeps for 2 ms, so cores don't matter. Four remote runners sample whole episodes of 20 steps; one in four
episodes of the first runner has 400. Printed are seconds and env steps of 20 iterations, and ms per env step.
"""

import logging
import time
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

import fastmarl.rllib

ITERATIONS, BATCH = 20, 400  # env steps


class Sleepy(MultiAgentEnv):
    possible_agents = agents = ["a", "b"]  # noqa: RUF012  as in RLlib

    def __init__(self, config: Any):
        super().__init__()
        self.is_slow, self.rng = config.worker_index == 1, np.random.default_rng(config.worker_index)
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, (4,), np.float32))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.t, self.length = 0, 400 if self.is_slow and self.rng.random() < 0.25 else 20
        return dict.fromkeys("ab", np.zeros(4, np.float32)), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.t += 1
        time.sleep(0.002)
        obs = dict.fromkeys("ab", np.full(4, self.t / 400, np.float32))
        return obs, dict.fromkeys("ab", 1.0), {"__all__": self.t >= self.length}, {"__all__": False}, {}


def seconds_of(algo_class: type[PPO]) -> tuple[float, int]:
    config = (
        PPOConfig(algo_class=algo_class)
        .environment(Sleepy)
        .multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .env_runners(
            env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner, num_env_runners=4, batch_mode="complete_episodes"
        )
        .training(train_batch_size_per_learner=BATCH, minibatch_size=128, num_epochs=1)
    )
    algorithm = config.build_algo()
    name = "num_env_steps_sampled_lifetime"
    n_before, begun = algorithm.train()["env_runners"][name], time.perf_counter()
    for _ in range(ITERATIONS):
        found = algorithm.train()
    seconds = time.perf_counter() - begun
    algorithm.stop()
    return seconds, int(found["env_runners"][name] - n_before)


if __name__ == "__main__":
    ray.init(num_cpus=5, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for _ in range(3):
        for algo_class in (PPO, fastmarl.rllib.FirstReadyPPO):
            seconds, steps = seconds_of(algo_class)
            print(f"{algo_class.__name__}: {seconds:.1f} s, {steps:,} env steps, {1e3 * seconds / steps:.2f} ms each",
                  flush=True)  # fmt: skip
