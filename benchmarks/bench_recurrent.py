"""CPU time of recurrent networks, compiled and in torch, in turn in one process.

python benchmarks/bench_recurrent.py

An LSTM or a GRU behind a layer of the same size samples the compiled simple_spread, and learns from sequences of 25
steps.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.core.spaces.structs import map_struct
from fastmarl.learning import PPOLearner

N_OBS, STEPS, N_SEQUENCES, EPOCHS = 18, 25, 384, 2
WAYS = {"compiled": True, "torch": False}


def least(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the least CPU seconds of each way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, call in ways.items():
            begun = time.process_time()
            call()
            seconds[name].append(time.process_time() - begun)
    return {name: min(each[1:]) for name, each in seconds.items()}


def model_config(kind: str, size: int) -> dict[str, Any]:
    return {"fcnet_hiddens": [size], f"use_{kind}": True, f"{kind}_cell_size": size}


def sampling(kind: str, size: int, num_envs: int, rounds: int) -> dict[str, float]:
    """Return CPU seconds per agent step."""
    runners = {
        name: fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(
                env="fastmarl.simple_spread",
                num_envs_per_env_runner=num_envs,
                rollout_fragment_length=STEPS,
                model_config=model_config(kind, size),
                native_inference=is_native,
                num_threads=1,
                seed=0,
            )
        )
        for name, is_native in WAYS.items()
    }
    seconds = least({name: lambda runner=runner: runner.sample() and None for name, runner in runners.items()}, rounds)
    for runner in runners.values():
        runner.stop()
    return {name: each / (num_envs * STEPS * 3) for name, each in seconds.items()}


def learning(kind: str, size: int, rounds: int) -> dict[str, float]:
    """Return CPU seconds per agent step and epoch."""
    modules = [
        fastmarl.RLModuleSpec(
            observation_space=gym.spaces.Box(-1, 1, (N_OBS,), np.float32),
            action_space=gym.spaces.Discrete(5),
            model_config=model_config(kind, size),
        ).build()
        for _ in WAYS
    ]
    shape = N_SEQUENCES, STEPS
    batch = {
        "obs": torch.rand(*shape, N_OBS),
        "state_in": map_struct(lambda leaf: torch.zeros(N_SEQUENCES, *leaf.shape), modules[0].get_initial_state()),
        "actions": torch.randint(0, 5, shape),
        "action_logp": torch.full(shape, -1.6),
        "advantages": torch.randn(shape),
        "value_targets": torch.randn(shape),
    }
    learners = {
        name: PPOLearner(module, lr=1e-4, epochs=EPOCHS, num_minibatches=4, compiled=is_compiled, num_threads=1)
        for module, (name, is_compiled) in zip(modules, WAYS.items(), strict=True)
    }
    seconds = least({name: lambda each=each: each.update(batch) for name, each in learners.items()}, rounds)
    return {name: each / (N_SEQUENCES * STEPS * EPOCHS) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--envs", type=int, nargs="+", default=[10, 32, 128, 512])
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind in ("lstm", "gru"):
        rows = {f"sampling, {n} envs": sampling(kind, args.size, n, args.rounds) for n in args.envs}
        rows["an update"] = learning(kind, args.size, args.rounds)
        for name, seconds in rows.items():
            times = ", ".join(f"{way} {each * 1e6:6.2f}" for way, each in seconds.items())
            print(f"{kind} of {args.size}, {name:18} {times} µs per agent step", flush=True)


if __name__ == "__main__":
    main()
