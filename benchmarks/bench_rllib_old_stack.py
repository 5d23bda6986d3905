"""Compare fastmarl's RolloutWorker with that of RLlib's old API stack, in turn: CPU time per agent step.

python benchmarks/bench_rllib_old_stack.py [--rounds 5] [--steps 500] [ROW ...]
"""

import argparse
import logging
import random
import statistics
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.models import ModelCatalog
from ray.rllib.models.torch.fcnet import FullyConnectedNetwork
from ray.rllib.policy.policy import PolicySpec

from fastmarl.rllib import RolloutWorker

N_POLICIES = 2
FREE_STEPS = 200  # per episode


class FreeEnv(MultiAgentEnv):
    """Returns ready-made dicts, which leaves the costs of sampler and network."""

    def __init__(self, num_agents: int):
        super().__init__()
        self.agents = self.possible_agents = list(range(num_agents))
        space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        rng = np.random.default_rng(0)
        self._obs = [{agent: rng.random(4, np.float32) for agent in self.agents} for _ in range(16)]
        self._rewards = dict.fromkeys(self.agents, 1.0)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._t = 0
        return self._obs[0], {}

    def step(self, action_dict: dict) -> tuple[dict, dict, dict, dict, dict]:
        self._t += 1
        over = {"__all__": self._t % FREE_STEPS == 0}
        return self._obs[self._t % len(self._obs)], self._rewards, over, {"__all__": False}, {}


class OwnModel(FullyConnectedNetwork):
    """A model class of a user, whose forward() must be called."""


ROWS = {  # name -> (environment, agents, environments, model options)
    "CartPole 2x1": (MultiAgentCartPole, 2, 1, {}),
    "CartPole 8x8": (MultiAgentCartPole, 8, 8, {}),
    "CartPole 100x1": (MultiAgentCartPole, 100, 1, {}),
    "CartPole 8x8, own model": (MultiAgentCartPole, 8, 8, {"custom_model": "own"}),
    "free 32x16": (FreeEnv, 32, 16, {}),
}


def make_worker(worker_class: type, row: str, steps: int) -> Any:
    env_class, agents, envs, model = ROWS[row]

    def make_env(context: Any) -> MultiAgentEnv:
        return env_class(agents) if env_class is FreeEnv else env_class({"num_agents": agents})

    env = make_env(None)
    spec = PolicySpec(PPOTorchPolicy, env.get_observation_space(0), env.get_action_space(0))
    config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.framework("torch").debugging(seed=0).environment("env")
    config.training(model={"fcnet_hiddens": [256, 256], **model})
    config.multi_agent(
        policies={f"p{i}": spec for i in range(N_POLICIES)},
        policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id % N_POLICIES}",
    )
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=envs, rollout_fragment_length=steps)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - environments without a seed take it from there
    torch.manual_seed(0)
    return worker_class(
        env_creator=make_env, default_policy_class=PPOTorchPolicy, config=config, worker_index=1, num_workers=1
    )


def measure(row: str, rounds: int, steps: int) -> tuple[float, float, float]:
    """Return medians: RLlib's time / ours, and both times in us per agent step."""
    workers = [make_worker(kind, row, steps) for kind in (RLlibWorker, RolloutWorker)]
    for worker in workers:
        worker.sample()
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for worker, of_worker in zip(workers, times, strict=True):
            begin = time.process_time()
            batch = worker.sample()
            worker.get_metrics()
            of_worker.append((time.process_time() - begin) / batch.agent_steps() * 1e6)
    for worker in workers:
        worker.stop()
    theirs, ours = map(statistics.median, times)
    return statistics.median(a / b for a, b in zip(*times, strict=True)), theirs, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500, help="environment steps per call, in each environment")
    parser.add_argument("rows", nargs="*", default=[*ROWS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ModelCatalog.register_custom_model("own", OwnModel)
    for row in arguments.rows:
        ratio, theirs, ours = measure(row, arguments.rounds, arguments.steps)
        print(f"{row}: {ratio:.2f} (RLlib {theirs:.1f} us, fastmarl {ours:.1f} us)", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    main()
