"""CPU time of other frameworks on multi-agent environments, with ours and their usual adapters.

Stable-Baselines3's vector environments and PPO, with SuperSuit's adapter; TorchRL's collector, with its own one.

python benchmarks/bench_vector_envs.py

All step simple_spread with 3 agents in this process, in turn: mpe2's, or the compiled one.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

warnings.filterwarnings("ignore")  # of packages that import the old gym
import mpe2.simple_spread_v3 as simple_spread  # noqa: E402
import supersuit  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from tensordict.nn import TensorDictModule  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.envs import SerialEnv  # noqa: E402
from torchrl.envs.libs.pettingzoo import PettingZooWrapper  # noqa: E402
from torchrl.modules import MultiAgentMLP, ProbabilisticActor  # noqa: E402

from fastmarl.interop.sb3 import AgentVecEnv  # noqa: E402
from fastmarl.interop.torchrl import TensorDictEnv  # noqa: E402

STEPS, ROUNDS = 2_400, 5  # agent steps


def with_supersuit(num_envs: int) -> Any:
    rows = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread.parallel_env(continuous_actions=False))
    return supersuit.concat_vec_envs_v1(rows, num_envs, num_cpus=1, base_class="stable_baselines3")


WAYS: dict[str, Callable[[int], Any]] = {
    "SuperSuit": with_supersuit,
    "AgentVecEnv": lambda num_envs: AgentVecEnv("mpe2.simple_spread_v3", num_envs),
    "AgentVecEnv, compiled": lambda num_envs: AgentVecEnv("fastmarl.simple_spread", num_envs),
}
AGENTS = ["agent_0", "agent_1", "agent_2"]


def in_torchrl() -> Any:
    env = simple_spread.parallel_env(continuous_actions=False)
    return PettingZooWrapper(env, group_map={"agents": AGENTS})


IN_TORCHRL: dict[str, Callable[[int], Any]] = {
    "PettingZooWrapper": lambda num_envs: SerialEnv(num_envs, in_torchrl),
    "TensorDictEnv": lambda num_envs: TensorDictEnv("mpe2.simple_spread_v3", num_envs),
    "TensorDictEnv, compiled": lambda num_envs: TensorDictEnv("fastmarl.simple_spread", num_envs),
}


def collected(env: Any) -> Callable[[], Any]:
    """Return a function that collects a batch with a policy of 64-64 units."""
    sizes = {"n_agent_inputs": 18, "n_agent_outputs": 5, "n_agents": 3, "depth": 2, "num_cells": 64}
    net = MultiAgentMLP(**sizes, centralised=False, share_params=True, activation_class=torch.nn.Tanh)
    module = TensorDictModule(net, in_keys=[("agents", "observation")], out_keys=[("agents", "logits")])
    policy = ProbabilisticActor(
        module, in_keys=[("agents", "logits")], out_keys=[env.action_key], return_log_prob=True,
        distribution_class=torch.distributions.Categorical,
    )  # fmt: skip
    batches = iter(Collector(env, policy, frames_per_batch=STEPS // 3, total_frames=-1))
    return lambda: next(batches)


def seconds_of(call: Callable[[], Any]) -> float:
    torch.set_num_threads(1)  # TorchRL sets its own number
    begun = time.process_time()
    call()
    return time.process_time() - begun


def stepped(envs: Any) -> Callable[[], None]:
    envs.reset()
    actions = np.ones(envs.num_envs, np.int64)

    def step() -> None:
        for _ in range(STEPS // envs.num_envs):
            envs.step(actions)

    return step


def bare() -> None:
    env = simple_spread.parallel_env(continuous_actions=False)
    for _ in range(STEPS // 3 // 25):
        env.reset()
        for _ in range(25):
            env.step(dict.fromkeys(env.agents, 1))


def learned(envs: Any) -> Callable[[], Any]:
    model = PPO("MlpPolicy", envs, n_steps=STEPS // envs.num_envs, batch_size=600, n_epochs=4, device="cpu")
    return lambda: model.learn(STEPS, reset_num_timesteps=False)


def show(title: str, ways: dict[str, Callable[[], Any]], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, call in ways.items():
            seconds[name].append(seconds_of(call))
    figures = ", ".join(f"{name} {1e6 * min(each[1:]) / STEPS:.2f}" for name, each in seconds.items())
    print(f"{title}: µs an agent step: {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    for num_envs in (1, 8, 32):
        bare_env = {"bare env": bare}
        show(f"{num_envs} envs", bare_env | {name: stepped(make(num_envs)) for name, make in WAYS.items()}, args.rounds)
        in_torchrl = {name: collected(make(num_envs)) for name, make in IN_TORCHRL.items()}
        show(f"{num_envs} envs, TorchRL's collector", in_torchrl, args.rounds)
        show(f"{num_envs} envs, PPO", {name: learned(make(num_envs)) for name, make in WAYS.items()}, args.rounds)


if __name__ == "__main__":
    main()
