"""Environments that tell their state, and runners of all kinds with them."""

import pickle

import gymnasium as gym
import numpy as np

import fastmarl
from fastmarl.connectors import FrameStacking, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.envs.cart_pole import CartPole
from fastmarl.envs.connect_four import ConnectFour
from fastmarl.envs.gridworld import GridWorld
from fastmarl.envs.lbforaging import LevelBasedForaging
from fastmarl.envs.rware import Warehouse
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.envs.simple_tag import SimpleTag
from support.batched import Batched
from support.teams import TEAMS

BOX = gym.spaces.Box(-9, 9, (3,), np.float32)


class Wandering(fastmarl.MultiAgentEnv):
    """Agents come, go and wait; all randomness comes from the env's own generator, which no reset seeds."""

    supports_checkpoint = True
    state_space = BOX

    def __init__(self, config):
        self.possible_agents = [f"agent_{i}" for i in range(4)]
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self.rng = np.random.default_rng(config.vector_index)
        self.n_resets = self.t = self.length = 0
        self.live = []

    def reset(self, *, seed=None, options=None):
        self.n_resets += 1
        self.t, self.length = 0, int(self.rng.integers(3, 30))
        self.live = list(self.possible_agents[1:])
        return self._obs(self.live), self._infos()

    def step(self, actions):
        self.t += 1
        rewards = {agent: float(self.rng.normal() + action) for agent, action in actions.items()}
        ended = [agent for agent in self.live if self.rng.random() < 0.03]
        if self.t == 2 and "agent_0" not in self.live:
            self.live = ["agent_0", *self.live]
        seen = [agent for agent in self.live if self.rng.random() < 0.7]
        self.live = [agent for agent in self.live if agent not in ended]
        rewards |= {agent: 1.0 for agent in self.live if agent not in rewards and self.rng.random() < 0.2}
        flags = dict.fromkeys(ended, True) | {"__all__": self.t >= self.length or not self.live}
        return self._obs(seen), rewards, flags, {}, self._infos()

    def state(self):
        return np.full(3, self.t, np.float32)

    def get_state(self):
        own = {name: getattr(self, name) for name in ("t", "length", "live", "n_resets")}
        return {"rng": self.rng.bit_generator.state, **own}

    def set_state(self, state):
        self.rng.bit_generator.state = state["rng"]
        vars(self).update({name: value for name, value in state.items() if name != "rng"})

    def _obs(self, agents):
        return {agent: self.rng.normal(size=3).astype(np.float32) for agent in agents}

    def _infos(self):
        infos = {agent: {"n": self.t} for agent in self.live if self.rng.random() < 0.2}
        return infos | {"__common__": {"t": self.t}} if self.t % 3 == 0 else infos


def make_batch(config):
    return Batched([Wandering(config) for _ in range(config.num_envs)], [f"agent_{i}" for i in range(4)])


class WithPickledState:
    """For real envs, whose state is all of them."""

    supports_checkpoint = True

    def get_state(self):
        own = {name: part for name, part in vars(self).items() if not type(part).__module__.startswith("pygame")}
        return np.frombuffer(pickle.dumps(own), np.uint8)

    def set_state(self, state):
        vars(self).update(pickle.loads(state.tobytes()))


def make_spread(config):
    from mpe2 import simple_spread_v3

    return type("Spread", (WithPickledState, simple_spread_v3.raw_env), {})(max_cycles=13)


def make_turns(config):
    """Agents that move one after the other."""
    from pettingzoo.classic.connect_four.connect_four import raw_env

    return type("Turns", (WithPickledState, raw_env), {})()


def explicit_mapping(agent_id, episode):
    return "odd" if agent_id[-1] in "13" else "even"


TWO = {"policies": {"odd": None, "even": None}, "policy_mapping_fn": explicit_mapping}


LSTM = {"use_lstm": True, "lstm_cell_size": 8, "fcnet_hiddens": [8]}


KINDS = {
    "plain": {"env": Wandering},
    "states, infos, long lookback": {"env": Wandering, "record_env_state": True, "episode_lookback_horizon": 6},
    "two modules": {"env": Wandering, **TWO},
    "recurrent": {"env": Wandering, **TWO, "model_config": LSTM},
    "connectors": {
        "env": Wandering,
        "env_to_module_connector": [MeanStdFilter(), PrevActionsPrevRewards(), FrameStacking(3)],
        "reward_scale": 0.5,
    },
    "rewarded after the end": {"env": Wandering, "late_rewards": "accumulate", "respawn": True},
    "random actions": {"env": Wandering},
    "parts": {"env": Wandering, "worker_num_splits": 2},
    "workers": {"env": Wandering, "gym_env_vectorize_mode": "async", "num_env_workers": 2},
    "workers in parts": {
        "env": Wandering, "gym_env_vectorize_mode": "async", "num_env_workers": 2, "worker_num_splits": 2,
        "record_env_state": True,
    },
    "batch": {"env": make_batch},
    "batches, recurrent": {"env": make_batch, "worker_num_splits": 2, **TWO, "model_config": LSTM},
    "no seed": {"env": Wandering, "seed": None},
    "mpe2": {"env": make_spread},
    "turns": {"env": make_turns, "policies": {"player_0": None, "player_1": None}, "policy_mapping_fn": lambda a, e: a},
    "compiled poles": {"env": lambda config: CartPole(config.num_envs, num_agents=2)},
    "compiled spread": {"env": lambda config: SimpleSpread(config.num_envs)},
    "compiled tag": {"env": lambda config: SimpleTag(config.num_envs), **TEAMS},
    "compiled grid": {"env": lambda config: GridWorld(config.num_envs)},
    "compiled foraging": {"env": lambda config: LevelBasedForaging(config.num_envs, field_size=(4, 4))},
    "compiled turns": {"env": lambda config: ConnectFour(config.num_envs)},
    "compiled warehouse": {"env": lambda config: Warehouse(config.num_envs, n_agents=5, max_steps=30)},
}  # fmt: skip


def make_runner(kind, **options):
    defaults = {"seed": 3, "num_envs_per_env_runner": 3, "model_config": {"fcnet_hiddens": [8]}}
    if KINDS[kind].get("gym_env_vectorize_mode") == "async":
        defaults["env_worker_start_method"] = "fork"
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **KINDS[kind], **options}))
