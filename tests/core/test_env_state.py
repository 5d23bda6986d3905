"""The env's global state is recorded at every env step, and follows its chunk wherever that goes."""

import pickle
import random
from collections import defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support.compare import SideBySide, join
from support.random_cases import number_of_cases
from support.real_envs import newest
from support.real_envs import pytestmark as pytestmark
from support.scenario_envs import CLOCK, RESPAWN, Echo, clock_env
from support.scripted import Scripted
from support.worlds import make_world

import fastmarl
from fastmarl.core.store.env_states import EnvStates
from fastmarl.errors import EnvCheckError, EnvStateError, EpisodeError

WORLDS = range(200_000, 200_000 + number_of_cases(15, most=60))


def recording(env: Any, **options: Any) -> fastmarl.MultiAgentEnvRunner:
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, record_env_state=True, seed=0, **options))


def expected_states(id_: tuple[int, int], first: int, last: int) -> list[list[int]]:
    """Return the states of the scripted envs from env step `first` to `last`."""
    return [[*id_, t] for t in range(first, last + 1)]


def assert_states(chunk: Any, id_: tuple[int, int], lookback: int) -> None:
    """Check the states of the chunk, of its lookback, and of every step at which one of its transitions began."""
    assert chunk.get_env_states().tolist() == expected_states(id_, chunk.env_t_started, chunk.env_t)
    acted_at = [int(part.env_ts()[part.lookback]) for part in chunk.agent_episodes.values()]
    first = min([max(chunk.env_t_started - lookback, 0), *acted_at])
    assert chunk.env_states[-(chunk.env_t - first + 1) :].tolist() == expected_states(id_, first, chunk.env_t)
    back = slice(first - chunk.env_t_started, 0)
    assert chunk.get_env_states(back, neg_index_as_lookback=True)[:].tolist() == expected_states(
        id_, first, chunk.env_t_started - 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", WORLDS)
def test_states_are_those_of_the_chunks_env_steps(seed):
    world = make_world(random.Random(seed))
    both = SideBySide(world, record_env_state=True)
    chunks = defaultdict(list)
    for chunk, expected in [*both.run()]:  # looked at when all is sampled: nothing has changed since
        assert_states(chunk, expected.id_, world.lookback)
        middle = chunk[len(chunk) // 2 :]
        middle.validate()
        assert_states(middle, expected.id_, 0)
        restored = fastmarl.MultiAgentEpisode.from_state(middle.get_state())
        for again in (pickle.loads(pickle.dumps(middle)), restored):
            assert again.env_states.tolist() == middle.env_states.tolist()
        chunks[expected.id_].append(chunk)
    for id_, parts in chunks.items():
        if not world.respawn:
            first = parts[0].env_t_started
            whole = join(parts)
            whole.validate()
            assert whole.get_env_states().tolist() == expected_states(id_, first, whole.env_t)


def test_the_states_kept_are_the_last_ones_of_the_running_episode():
    states = EnvStates(0, None)
    for first in (100, 200):
        states.begin_episode()
        for t in range(10):
            states.add(np.array([first + t]))
    states.renew(3)
    assert states.kept().tolist() == [[207], [208], [209]]
    states.add(np.array([210]))
    assert states.kept().tolist() == states.last(9).tolist() == [[207], [208], [209], [210]]


@pytest.mark.needs("mpe2")
def test_a_returned_chunk_pickles_with_all_of_its_data():
    """Though its parts are still to be made when it is returned."""
    runner = recording("mpe2.simple_spread_v3")
    (chunk,) = runner.sample(num_timesteps=5)
    again = pickle.loads(pickle.dumps(chunk))
    assert again.get_return() == chunk.get_return() != 0
    np.testing.assert_array_equal(again.get_env_states(), chunk.get_env_states())


class StateEnv(Scripted):
    """Its state is the clock; `says` has what comes at some env steps instead."""

    def __init__(self, config: Any, script: list = CLOCK):
        super().__init__(script)
        self.says = dict(config)

    def state(self):
        return self.says.get(self.t, np.array([self.t, 0], np.float32))


def test_a_respawns_second_chunk_has_states_too():
    runner = recording(lambda config: StateEnv(config, RESPAWN), respawn=True, policies={"echo": Echo()})
    chunks = runner.sample(num_episodes=1)
    assert [chunk.get_env_states()[:, 0].tolist() for chunk in chunks] == [[*range(7)], [*range(6, 11)]]


def test_indices():
    runner = recording(StateEnv, policies={"echo": Echo()}, episode_lookback_horizon=2)
    runner.sample(num_timesteps=4)
    (chunk,) = runner.sample(num_timesteps=3)
    clock = chunk.get_env_states()[:, 0]
    assert clock.tolist() == [4, 5, 6, 7] and np.shares_memory(clock, chunk.env_states)
    assert chunk.get_env_states(-1).tolist() == [7, 0]
    assert chunk.get_env_states([0, -1])[:, 0].tolist() == [4, 7]
    assert chunk.get_env_states(slice(-2, None), neg_index_as_lookback=True)[:, 0].tolist() == [2, 3, 4, 5, 6, 7]
    assert chunk.get_env_states(slice(None, None, -2))[:, 0].tolist() == [7, 5]
    with pytest.raises(IndexError, match="-3"):
        chunk.get_env_states(-3, neg_index_as_lookback=True)


def test_callbacks_see_the_states_so_far():
    seen = []

    def note(*, episode, **kwargs):
        seen.append([int(state[0]) for state in episode.get_env_states()])

    options = {f"callbacks_on_episode_{event}": note for event in ("created", "start", "step", "end")}
    runner = recording(StateEnv, policies={"echo": Echo()}, **options)
    for _ in range(2):
        seen.clear()
        runner.sample(num_episodes=2)
        assert seen == 2 * [[], [0], *([*range(t + 1)] for t in range(1, 11)), [*range(11)]]


def test_nothing_is_recorded_unless_asked_for():
    (chunk,) = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=StateEnv, policies={"echo": Echo()})).sample(
        num_episodes=1
    )
    assert chunk.env_states is None
    with pytest.raises(EpisodeError, match="record_env_state=True"):
        chunk.get_env_states()
    state = chunk.get_state() | {"env_states": np.zeros((10, 1))}
    with pytest.raises(EpisodeError, match="expected at least 11 env states, got 10"):
        fastmarl.MultiAgentEpisode.from_state(state)
    (other,) = recording(StateEnv, policies={"echo": Echo()}).sample(num_episodes=1)
    other.id_ = chunk.id_
    first = other[:4]
    with pytest.raises(EpisodeError, match="with env states"):
        chunk[:4].concat_episode(other[4:])
    first.concat_episode(other[4:])
    assert first.get_env_states()[:, 0].tolist() == [*range(11)]


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (np.zeros(3, np.float32), r"float32 of shape \(2,\), got float32 of shape \(3,\)"),
        (np.zeros(2, complex), r"got complex128 of shape \(2,\)"),
        (None, r"got object of shape \(\)"),
    ],
)
@pytest.mark.parametrize("env_t", [0, 3])
def test_a_state_that_does_not_fit_is_refused(bad, got, env_t):
    runner = recording(
        StateEnv, env_config={env_t: bad}, num_envs_per_env_runner=2, policies={"echo": Echo()}
    )  # fmt: skip
    for env in runner.env.envs:
        env.state_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    runner.make_module()
    with pytest.raises(EnvStateError, match=got) as caught:
        runner.sample(num_timesteps=20)
    assert caught.value.args[:3] == (0, None, env_t)
    for env in runner.env.envs:
        env.says = {}
    (first, second) = runner.sample(num_timesteps=20)
    assert first.get_env_states()[:, 0].tolist() == second.get_env_states()[:, 0].tolist() == [*range(11)]


def test_without_a_state_space_the_first_state_decides():
    runner = recording(StateEnv, env_config={4: np.zeros(2)}, policies={"echo": Echo()})
    (chunk,) = runner.sample(num_timesteps=5)
    assert chunk.get_env_states().dtype == np.float32
    assert chunk.get_env_states()[:, 0].tolist() == [0, 1, 2, 3, 0, 5]
    (env,) = runner.env.envs
    env.says[6] = env.state()
    env.says[2] = np.zeros(3)
    with pytest.raises(EnvStateError, match="env 0, env step 2: expected float32 of shape"):
        runner.sample(num_timesteps=10)  # in the next episode


@pytest.mark.needs("pettingzoo")
def test_an_env_without_a_state_is_refused_when_the_runner_is_made():
    class DictState(StateEnv):
        state_space = gym.spaces.Dict({"a": gym.spaces.Discrete(2)})

    for env in (clock_env, "pettingzoo.classic.tictactoe_v3", "pettingzoo.classic.rps_v2"):
        with pytest.raises(EnvCheckError, match=r"record_env_state=True needs a method state\(\).*env 0"):
            recording(env)
    with pytest.raises(EnvCheckError, match=r"a single array.*Dict"):
        recording(DictState)


class TupleEnv(gym.Env):
    """Two agents in Tuple spaces, as a Gymnasium env."""

    observation_space = action_space = gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.Discrete(9)])
    t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return (0, 0), {}

    def step(self, action):
        self.t += 1
        return (self.t, self.t), (0.0, 0.0), self.t == 5, False, {}

    def state(self):
        return np.array([self.t])


@pytest.mark.needs("lbforaging")
def test_a_gymnasium_env_may_have_a_state():
    (chunk,) = recording(lambda config: gym.wrappers.TimeLimit(TupleEnv(), 9)).sample(num_episodes=1)
    assert chunk.get_env_states().tolist() == [[t] for t in range(6)]
    with pytest.raises(EnvCheckError, match="Foraging"):
        recording("lbforaging:Foraging-8x8-2p-3f-v3")


def turn_based_spread(env_config):
    from mpe2 import simple_spread_v3

    return simple_spread_v3.env(**env_config)


@pytest.mark.needs("magent2", "mpe2", "pettingzoo")
@pytest.mark.parametrize(
    ("env", "env_config"),
    [
        ("mpe2.simple_spread_v3", {}),
        (turn_based_spread, {}),
        ("magent2.battle_v4", {"map_size": 16, "max_cycles": 12}),
        (newest("pettingzoo.butterfly.knights_archers_zombies"), {}),
    ],
    ids=["simple_spread", "simple_spread in turns", "battle", "knights_archers_zombies"],
)
def test_real_envs(env, env_config):
    """Compare with state() of another env that gets the same actions."""
    runner = recording(env, env_config=env_config)
    plain = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, env_config=env_config, seed=0))
    (asked,) = plain.env.envs
    episodes: list[list[np.ndarray]] = []
    reset, step = asked.reset, asked.step

    def asking_reset(**kwargs):
        result = reset(**kwargs)
        episodes.append([asked.state().copy()])
        return result

    def asking_step(actions):
        result = step(actions)
        episodes[-1].append(asked.state().copy())
        return result

    asked.reset, asked.step = asking_reset, asking_step
    chunks = defaultdict(list)
    for steps in (3, 10, 30):
        plain.sample(num_timesteps=steps)
        for chunk in runner.sample(num_timesteps=steps):
            chunks[chunk.id_].append(chunk)
    for parts, states in zip(chunks.values(), episodes, strict=False):
        got, space = join(parts).get_env_states(), asked.env.state_space
        assert (got.dtype, got.shape[1:]) == (space.dtype, space.shape)
        np.testing.assert_array_equal(got, np.array(states).astype(space.dtype))
    runner.stop()
    plain.stop()
