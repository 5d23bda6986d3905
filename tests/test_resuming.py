"""A runner that is saved and made anew between two calls goes on in the midst of its episodes."""

import os
import pickle
import random
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from mpe2 import simple_spread_v3
from pettingzoo.classic.connect_four.connect_four import raw_env as ConnectFour
from reference.batched import Batched
from reference.compare import SideBySide, assert_same_chunk
from reference.connected import connected_options
from reference.replay import make_config
from reference.trees import assert_same
from reference.worlds import make_world, world_of
from test_connector_properties import SEEDS, Connected, assert_equals_oracle
from test_processes import contents

import fastmarl
from fastmarl.connectors import FrameStacking, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.envs.jit.cart_pole import CartPole
from fastmarl.envs.jit.gridworld import GridWorld
from fastmarl.envs.jit.simple_spread import SimpleSpread

BOX = gym.spaces.Box(-9, 9, (3,), np.float32)
CASES = min(100, int(os.environ.get("FASTMARL_FUZZ_CASES", "30")))  # random worlds


class MadeAnew:
    """The runner of each call but the first is another one, with other envs, that has taken the state of the last."""

    def sample(self, call):
        pairs = super().sample(call)
        config, self.envs = make_config(self.world, **self.options)
        after = fastmarl.MultiAgentEnvRunner(config)
        after.set_state(self.runner.get_state())
        self.runner.stop()
        self.runner = after
        return pairs


class Resumed(MadeAnew, SideBySide):
    def __init__(self, world, **options):
        self.options = options
        super().__init__(world, **options)


@pytest.mark.parametrize("options", [{}, {"batched": True}], ids=["single", "batched"])
def test_chunks_and_actions_equal_the_oracle(options):
    for seed in range(CASES):
        with world_of(seed) as world:
            world = replace(world, declared=True) if options else world
            for n_parts in (1, 2 + seed % 2):
                both = Resumed(replace(world, num_splits=n_parts), **options)
                for chunk, expected in both.run():
                    assert_same_chunk(world, chunk, expected)
                both.assert_same_actions()


class ConnectedAndResumed(MadeAnew, Connected):
    def __init__(self, seed):
        self.options = connected_options(replace(make_world(random.Random(seed)), declared=True))
        super().__init__(seed)


def test_so_they_do_with_connectors():
    for seed in SEEDS[: CASES // 2]:
        assert_equals_oracle(ConnectedAndResumed(seed), metrics=False)


# Networks that explore, in runners that are saved in files.


class Wandering(fastmarl.MultiAgentEnv):
    """Agents come and go and wait; all that is random comes from the env's own generator, which no reset seeds anew."""

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


class Pickled(simple_spread_v3.raw_env):
    """A real env, whose state is all of it."""

    supports_checkpoint = True

    def __init__(self, config):
        super().__init__(max_cycles=13)

    def get_state(self):
        own = {name: part for name, part in vars(self).items() if not type(part).__module__.startswith("pygame")}
        return np.frombuffer(pickle.dumps(own), np.uint8)

    def set_state(self, state):
        vars(self).update(pickle.loads(state.tobytes()))


class Turns(ConnectFour):
    """Agents that move one after the other."""

    supports_checkpoint = True

    def __init__(self, config):
        super().__init__()

    get_state, set_state = Pickled.get_state, Pickled.set_state


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
    "paid after the end": {"env": Wandering, "post_death": "accumulate", "respawn": True},
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
    "mpe2": {"env": Pickled},
    "turns": {"env": Turns, "policies": {"player_0": None, "player_1": None}, "policy_mapping_fn": lambda a, e: a},
    "compiled poles": {"env": lambda config: CartPole(config.num_envs, num_agents=2)},
    "compiled spread": {"env": lambda config: SimpleSpread(config.num_envs)},
    "compiled grid": {"env": lambda config: GridWorld(config.num_envs)},
}  # fmt: skip


def make_runner(kind, **options):
    defaults = {"seed": 3, "num_envs_per_env_runner": 3, "model_config": {"fcnet_hiddens": [8]}}
    if KINDS[kind].get("gym_env_vectorize_mode") == "async":
        defaults["env_worker_start_method"] = "fork"
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **KINDS[kind], **options}))


CLOCKS = ("sample", "_timer", "_ms", "_sec_mean")  # ends of keys


def without_clocks(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith(CLOCKS)}


def assert_same_chunks(got, wanted, names):
    """`names`: ids of the wanted episodes -> those that were got; equal if they had begun before."""
    assert len(got) == len(wanted) > 0
    for one, two in zip(got, wanted, strict=True):
        assert names.setdefault(two.id_, one.id_ if two.env_t_started == 0 else two.id_) == one.id_
        assert one.reset_seed == two.reset_seed
        assert_same(contents(one), contents(two))
        if two.env_states is not None:
            assert_same(one.env_states, two.env_states)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_runner_goes_on_as_the_saved_one(kind, tmp_path):
    options = {"random_actions": kind == "random actions"}
    runner, others = make_runner(kind, metrics_num_episodes_for_smoothing=1), []
    n_resumed = 0
    for n_steps in (31, 1, 90):
        runner.sample(num_timesteps=n_steps, **options)
        runner.save_to_path(tmp_path / "checkpoint")
        others.append(fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path / "checkpoint", runner.config))
        runner.get_metrics()
        names = {}
        for n_more in (25, 150):
            wanted, got = (each.sample(num_timesteps=n_more, **options) for each in (runner, others[-1]))
            n_resumed += sum(chunk.env_t_started > 0 for chunk in wanted)
            assert_same_chunks(got, wanted, names)
        assert without_clocks(others[-1].get_metrics()) == without_clocks(runner.get_metrics())
    assert n_resumed > 10
    for each in (runner, *others):
        each.stop()
