"""A simulator in C as a batch of environments: it steps in threads, without the GIL, into the runner's own arrays.

python examples/c_env/berries.py

berries.c has the simulator. This file compiles it with cc, hands it pointers, and samples it.
"""

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

import fastmarl


class Rules(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("num_envs", "num_agents", "num_berries", "size", "length")]


def compiled(source):
    """Compile a C file, and load it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "simulator.so"
        subprocess.run(["cc", "-O3", "-fopenmp", "-shared", "-fPIC", source, "-o", target], check=True)
        return ctypes.CDLL(str(target))  # its functions run without the GIL


def lent(*arrays):
    """Pointers to arrays; BufferError if one is not contiguous."""
    return [ctypes.byref(ctypes.c_char.from_buffer(array)) for array in arrays]


class Berries(fastmarl.envs.ArrayEnv):
    """Agents walk on a square field and pick berries; each berry picked grows elsewhere."""

    seeds_each_episode = True
    simulator = None

    def __init__(self, num_envs, num_agents=2, num_berries=4, size=10, length=50, num_threads=1):
        Berries.simulator = Berries.simulator or compiled(Path(__file__).with_name("berries.c"))
        agents = [f"picker_{k}" for k in range(num_agents)]
        space = gym.spaces.Box(-1, 1, (2 + 2 * num_berries,), np.float32)
        super().__init__(num_envs, {"pickers": agents}, {"pickers": space}, {"pickers": gym.spaces.Discrete(5)})
        self.rules, self.num_threads = Rules(num_envs, num_agents, num_berries, size, length), num_threads
        cells = [np.zeros((num_envs, n, 2), np.int32) for n in (num_agents, num_berries)]
        self.state = lent(np.zeros(num_envs, np.uint64), np.zeros(num_envs, np.int32), *cells)

    def reset(self, env_indices, out, *, seeds=None):
        seeds = np.random.default_rng().integers(2**63, size=len(env_indices)) if seeds is None else seeds
        of_call = lent(env_indices, np.asarray(seeds, np.uint64))
        obs = lent(out.groups["pickers"].obs)
        self.simulator.reset(ctypes.byref(self.rules), ctypes.c_int64(len(env_indices)), *of_call, *self.state, *obs)

    def step(self, actions, out):
        group = out.groups["pickers"]
        of_call = lent(actions["pickers"], group.obs, group.rewards, out.truncated)
        self.simulator.step(ctypes.byref(self.rules), self.num_threads, *of_call, *self.state)


def main():
    for num_threads in (1, 2):
        config = fastmarl.EnvRunnerConfig(
            env=lambda env_config, num_threads=num_threads: Berries(env_config.num_envs, num_threads=num_threads),
            num_envs_per_env_runner=1024,
            rollout_fragment_length=50,
            seed=0,
        )
        with fastmarl.MultiAgentEnvRunner(config) as runner:
            runner.sample()
            begun = time.perf_counter()
            runner.sample(num_timesteps=200 * 1024, random_actions=True)
            rate = 2 * 200 * 1024 / (time.perf_counter() - begun)
            print(f"{num_threads} threads: {rate:,.0f} agent steps/s with random actions, mean return "
                  f"{runner.get_metrics()['episode_return_mean']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
