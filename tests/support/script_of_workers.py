"""A script with torch at its top that has envs in workers, as users write them; prints what became of each case.

It notes each process that imports it in the file $IMPORTED.
"""

import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import torch  # noqa: F401
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import fastmarl
from support.differences import is_same
from support.process_runners import contents, make_runner
from support.trouble import Lucky, Trouble

IMPORTED = Path(os.environ["IMPORTED"])
with IMPORTED.open("a") as file:
    file.write(f"{os.getpid()} ")
random.seed(0)


class Own(Trouble):
    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {agent: 3 * reward for agent, reward in rewards.items()}, *rest


class Task:
    number = 5


gym.registry["CartPole-v1"].max_episode_steps = 7
gym.register("Text-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=9)
gym.register("Class-v0", CartPoleEnv, max_episode_steps=9)
fastmarl.register_env("lambda", lambda config: Own(config))
fastmarl.register_env("elsewhere", Trouble)
FEW = (  # a way of each kind to name an env; the other cases are left to `make test-exhaustive`
    *("that, registered", "an id of text, limited"),
    *("its class", "its object in env_config"),
)
IN_OPTIONS = "its object in env_config"
WITHOUT_SCRIPT = {
    "mpe2.simple_spread_v3": "mpe2.simple_spread_v3",
    "a class's name": "support.trouble:Trouble",
    "another module's class": Trouble,
    "that, registered": "elsewhere",
    "a changed id": "CartPole-v1",
    "an id of text, limited": fastmarl.envs.time_limited("Text-v0", 5),
}
WITH_SCRIPT = {
    "its class": Own,
    "a registered lambda": "lambda",
    "a name in it": "__main__:Own",
    "an id of a class, limited": fastmarl.envs.time_limited("Class-v0", 5),
    IN_OPTIONS: Trouble,
}


def process_of(runner):
    """Return whether its worker has imported this script, and whether it has imported torch."""
    (worker,) = runner.env._workers
    libraries = Path(f"/proc/{worker.pid}/maps").read_text()
    return [str(worker.pid) in IMPORTED.read_text().split(), "libtorch" in libraries]


def sampled(env, mode="async", env_config=None):
    with make_runner(env, num_envs=2, num_workers=1, mode=mode, env_config=env_config or {}) as runner:
        chunks = [contents(chunk) for n in (1, 60) for chunk in runner.sample(num_timesteps=n)]
        return chunks, process_of(runner) if mode == "async" else None


def compared(name, env):
    env_config = {"task": Task()} if name == IN_OPTIONS else {}
    chunks, process = sampled(env, "async", env_config)
    return [*process, is_same(chunks, sampled(env, "sync", env_config)[0])]


def by_case(names=None):
    return [
        {name: compared(name, env) for name, env in cases.items() if names is None or name in names}
        for cases in (WITHOUT_SCRIPT, WITH_SCRIPT)
    ]


def few_and_message():
    return [*by_case(FEW), message()]


def unguarded():
    return sampled("mpe2.simple_spread_v3")[1]


def message():
    """An object of the script is sent to an env that has nothing of it."""
    want, _ = sampled(Lucky)
    with make_runner(Lucky, num_envs=2, num_workers=1) as runner:
        before, chunks = process_of(runner), runner.sample(num_timesteps=1)
        runner.env.envs[0].call("__setattr__", "task", Task())
        number, again = runner.env.envs[0].call("task").number, runner.sample(num_timesteps=60)
        return before, process_of(runner), number, is_same([*map(contents, [*chunks, *again])], want)


def threads():
    """Runners of both kinds start at the same time."""
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(sampled, [Trouble, Own] * 2))
    return [process for _, process in results], vars(sys.modules["__main__"]) is globals()


if __name__ == "__main__" or "UNGUARDED" in os.environ:
    json.dump(globals()[sys.argv[1]](), sys.stdout)
