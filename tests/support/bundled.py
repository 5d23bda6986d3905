"""The bundled compiled envs, with options by which much happens in few steps."""

import numpy as np

from fastmarl.envs.cart_pole import CartPole
from fastmarl.envs.connect_four import ConnectFour
from fastmarl.envs.gridworld import GridWorld
from fastmarl.envs.lbforaging import LevelBasedForaging
from fastmarl.envs.rware import Warehouse
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.envs.simple_tag import SimpleTag

BUNDLED = {
    "cart_pole": lambda num_envs: CartPole(num_envs, 3),
    "simple_spread": SimpleSpread,
    "simple_spread, continuous": lambda num_envs: SimpleSpread(num_envs, continuous_actions=True),
    "simple_tag": SimpleTag,
    "simple_tag, continuous": lambda num_envs: SimpleTag(num_envs, num_good=2, continuous_actions=True),
    "connect_four": lambda num_envs: ConnectFour(num_envs, random_moves=12),
    "gridworld": lambda num_envs: GridWorld(num_envs, size=6, num_hazards=6),
    "lbforaging": lambda num_envs: LevelBasedForaging(num_envs, field_size=(5, 5), max_num_food=1),
    "lbforaging, grids": lambda num_envs: LevelBasedForaging(num_envs, field_size=(4, 4), grid_observation=True),
    "rware": lambda num_envs: Warehouse(num_envs, "rware-tiny-6ag-v2", max_steps=60),
    "rware, messages": lambda num_envs: Warehouse(num_envs, "rware-tiny-6ag-v2", max_steps=60, msg_bits=1),
}


def begun(kind, num_envs=3, seed=0):
    env = BUNDLED[kind](num_envs)
    env.reset(np.arange(num_envs), env.new_arrays(), seeds=range(seed, seed + num_envs))
    return env


def play(env, steps, rng):
    """Step with random actions, and reset what is over."""
    spaces = {name: env.action_spaces[agents[0]] for name, agents in env.groups.items()}
    for space in spaces.values():
        space.seed(int(rng.integers(2**31)))
    for _ in range(steps):
        actions = {
            name: np.array([[space.sample() for _ in env.groups[name]] for _ in range(env.num_envs)])
            for name, space in spaces.items()
        }
        out = env.new_arrays()
        env.step(actions, out)
        over = np.flatnonzero(out.terminated | out.truncated)
        if len(over):
            env.reset(over, env.new_arrays(), seeds=rng.integers(2**62, size=len(over)).tolist())
