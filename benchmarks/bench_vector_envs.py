"""CPU time of vector environments with agents as rows: ours and SuperSuit's, and of Stable-Baselines3's PPO on them.

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

from fastmarl.interop.sb3 import AgentVecEnv  # noqa: E402

STEPS, ROUNDS = 2_400, 5  # agent steps


def with_supersuit(num_envs: int) -> Any:
    rows = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread.parallel_env(continuous_actions=False))
    return supersuit.concat_vec_envs_v1(rows, num_envs, num_cpus=1, base_class="stable_baselines3")


WAYS: dict[str, Callable[[int], Any]] = {
    "SuperSuit": with_supersuit,
    "AgentVecEnv": lambda num_envs: AgentVecEnv("mpe2.simple_spread_v3", num_envs),
    "AgentVecEnv, compiled": lambda num_envs: AgentVecEnv("fastmarl.simple_spread", num_envs),
}


def seconds_of(call: Callable[[], Any]) -> float:
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
    torch.set_num_threads(1)
    for num_envs in (1, 8, 32):
        bare_env = {"bare env": bare}
        show(f"{num_envs} envs", bare_env | {name: stepped(make(num_envs)) for name, make in WAYS.items()}, args.rounds)
        show(f"{num_envs} envs, PPO", {name: learned(make(num_envs)) for name, make in WAYS.items()}, args.rounds)


if __name__ == "__main__":
    main()
