"""Compare fastmarl's RolloutWorker with that of RLlib's old API stack, in turn: CPU time per agent step.

python benchmarks/bench_rllib_old_stack.py [--rounds 5] [--steps 500] [ROW ...]
"""

import argparse
import logging
import random
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

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
from ray.rllib.models.torch.recurrent_net import RecurrentNetwork
from ray.rllib.policy.policy import Policy, PolicySpec
from torch import nn

from fastmarl.rllib import RolloutWorker

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


class GRUModel(RecurrentNetwork, nn.Module):
    """A recurrent model of a user."""

    def __init__(self, obs_space: gym.Space, action_space: gym.Space, num_outputs: int, config: dict, name: str):
        nn.Module.__init__(self)
        super().__init__(obs_space, action_space, num_outputs, config, name)
        self.gru = nn.GRU(obs_space.shape[0], 256, batch_first=True)
        self.policy_head, self.value_head = nn.Linear(256, num_outputs), nn.Linear(256, 1)

    def get_initial_state(self) -> list[torch.Tensor]:
        return [torch.zeros(256)]

    def forward_rnn(self, inputs: Any, state: list, seq_lens: Any) -> tuple[torch.Tensor, list]:
        self._features, hidden = self.gru(inputs, state[0].unsqueeze(0).contiguous())
        return self.policy_head(self._features), [hidden.squeeze(0)]

    def value_function(self) -> torch.Tensor:
        return self.value_head(self._features).flatten()


class RandomPolicy(Policy):
    """A heuristic without a network."""

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> tuple[Any, list, dict]:
        return np.random.randint(0, 2, len(obs_batch)), [], {}  # noqa: NPY002

    def learn_on_batch(self, samples: Any) -> dict:
        return {}

    def get_weights(self) -> dict:
        return {}

    def set_weights(self, weights: dict) -> None:
        pass


class Row(NamedTuple):
    """A setting.

    Attributes:
        env: Class of the environment.
        agents: Number of agents in it.
        envs: Number of environments.
        model: Model options.
        policies: Number of policies, of which agents get one in turn.
        heuristic: True if the last policy is a heuristic.
    """

    env: type
    agents: int
    envs: int
    model: dict[str, Any]
    policies: int = 2
    heuristic: bool = False


ROWS = {
    "CartPole 2x1": Row(MultiAgentCartPole, 2, 1, {}),
    "CartPole 8x8": Row(MultiAgentCartPole, 8, 8, {}),
    "CartPole 100x1": Row(MultiAgentCartPole, 100, 1, {}),
    "CartPole 8x8, own model": Row(MultiAgentCartPole, 8, 8, {"custom_model": "own"}),
    "CartPole 3x1, own model": Row(MultiAgentCartPole, 3, 1, {"custom_model": "own"}, 1),
    "CartPole 3x1, LSTM": Row(MultiAgentCartPole, 3, 1, {"use_lstm": True}, 1),
    "CartPole 8x8, LSTM": Row(MultiAgentCartPole, 8, 8, {"use_lstm": True}, 1),
    "CartPole 3x1, attention": Row(MultiAgentCartPole, 3, 1, {"use_attention": True}, 1),
    "CartPole 8x8, attention": Row(MultiAgentCartPole, 8, 8, {"use_attention": True}, 1),
    "CartPole 3x1, GRU": Row(MultiAgentCartPole, 3, 1, {"custom_model": "gru"}, 1),
    "CartPole 8x8, GRU": Row(MultiAgentCartPole, 8, 8, {"custom_model": "gru"}, 1),
    "CartPole 8x8, beside a heuristic": Row(MultiAgentCartPole, 8, 8, {}, heuristic=True),
    "free 32x16": Row(FreeEnv, 32, 16, {}),
}


def make_worker(worker_class: type, row: str, steps: int, hiddens: Sequence[int] = (256, 256)) -> Any:
    env_class, agents, envs, model, n_policies, has_heuristic = ROWS[row]

    def make_env(context: Any) -> MultiAgentEnv:
        return env_class(agents) if env_class is FreeEnv else env_class({"num_agents": agents})

    env = make_env(None)
    spec = PolicySpec(PPOTorchPolicy, env.get_observation_space(0), env.get_action_space(0))
    policies = {f"p{i}": spec for i in range(n_policies)}
    if has_heuristic:
        policies[f"p{n_policies - 1}"] = PolicySpec(RandomPolicy, spec.observation_space, spec.action_space)
    config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.framework("torch").debugging(seed=0).environment("env")
    config.training(model={"fcnet_hiddens": [*hiddens], **model})
    config.multi_agent(
        policies=policies,
        policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id % n_policies}",
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
    ModelCatalog.register_custom_model("gru", GRUModel)
    for row in arguments.rows:
        ratio, theirs, ours = measure(row, arguments.rounds, arguments.steps)
        print(f"{row}: {ratio:.2f} (RLlib {theirs:.1f} us, fastmarl {ours:.1f} us)", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    main()
