"""Batches of envs that step in arrays: what is recorded is what the same envs give one by one."""

import re
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from support.batched import Batched
from support.compare import SideBySide, assert_same_chunk
from support.random_cases import number_of_cases
from support.rooms import Echo, Rooms, make_runner, rooms
from support.worlds import make_world, world_of

import fastmarl
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.spaces.structs import map_struct
from fastmarl.errors import ConfigError, EnvCheckError, FinishedAgentError, RewardError
from fastmarl.testing import DyingAgentsEnv

CASES = number_of_cases(4, most=50)  # of the 50 random worlds of a group


def assert_equals_oracle(world):
    both = SideBySide(world, batched=True)
    for chunk, expected in both.run():
        assert_same_chunk(world, chunk, expected)
    both.assert_same_actions()
    both.assert_same_metrics()


@pytest.mark.slow
@pytest.mark.parametrize("group", range(6))
def test_chunks_actions_and_counters_equal_the_oracle(group):
    for seed in range(50 * group, 50 * group + CASES):
        with world_of(seed) as world:
            assert_equals_oracle(world)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(2))
def test_so_they_do_when_batches_take_turns(group):
    for seed in range(50 * group, 50 * group + CASES):
        with world_of(seed) as world:
            assert_equals_oracle(replace(world, num_splits=2 + seed % 2))


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_small_worlds_equal_the_oracle(rng):
    world = make_world(rng, small=True)
    note(repr(world))
    assert_equals_oracle(world)


@pytest.mark.parametrize("policies", [["p"], ["p", "q"]], ids=["one module for two groups", "a module each"])
def test_every_group_gets_its_own_observations_and_actions(policies):
    received = []
    runner = make_runner(
        env=lambda config: Rooms(config.num_envs, received),
        policies={name: Echo() for name in policies},
        policy_mapping_fn=lambda agent, episode: policies[-1] if agent == "c" else "p",
    )
    for episode in runner.sample(num_timesteps=3 * 20):
        for agent, part in episode.agent_episodes.items():
            times = part.env_ts() + (0.5 if agent == "c" else 0.0)
            np.testing.assert_array_equal(part.get_observations(), np.stack([times, times], 1))
            np.testing.assert_array_equal(part.get_extra_model_outputs("seen"), part.get_observations()[:-1])
            assert part.get_rewards().tolist() == part.env_ts()[1:].tolist()
    lengths = 3 + np.arange(3)
    for t, actions in enumerate(received):
        for array in actions.values():
            np.testing.assert_array_equal(array, np.tile((10 + t % lengths % 4)[:, None], array.shape[1]))
    runner.stop()
    assert runner.env.envs[0].closed


def test_an_agent_that_joins_the_module_of_another_group_takes_none_of_its_rows():
    """While "c" is alone in its module, its observations are written to the module's next rows."""

    class Late(Rooms):
        def _observe(self, out):
            super()._observe(out)
            out.groups["near"].present[:] = (self.t >= 2)[:, None]

    episodes = make_runner(env=lambda config: Late(config.num_envs)).sample(num_timesteps=3 * 4)
    assert episodes[0].agent_episodes.keys() == {"a", "b", "c"}
    for episode in episodes:
        for agent, part in episode.agent_episodes.items():
            times = part.env_ts() + (0.5 if agent == "c" else 0.0)
            np.testing.assert_array_equal(part.get_observations(), np.stack([times, times], 1))


def test_global_states_are_recorded_env_by_env():
    for episode in make_runner(record_env_state=True).sample(num_timesteps=3 * 20):
        t = np.arange(len(episode) + 1)
        np.testing.assert_array_equal(episode.get_env_states(), np.stack([t, 100 + t], 1))


def test_callbacks_see_every_step_of_every_env():
    seen = []

    def note_step(*, episode, env_index, **kwargs):
        seen.append((env_index, episode.env_t, episode.agent_episodes["a"].get_observations(-1).tolist()))

    runner = make_runner(2, callbacks_on_episode_step=note_step)
    runner.sample(num_timesteps=10)
    assert seen == [(i, t % n + 1, [t % n + 1] * 2) for t in range(5) for i, n in enumerate((3, 4))]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("alive", [True, False])
def test_bad_rewards_are_located(bad, alive):
    def spoil(of_batch, out):
        if of_batch.t[1] == 2:
            out.groups["near"].rewards[1, 1] = bad
        out.groups["near"].terminated[1, 1] = of_batch.t[1] == 1 and not alive

    runner = make_runner(env=rooms(after=spoil), late_rewards="drop")
    with pytest.raises(RewardError, match=f"env 1, agent 'b', env step 2.*finite reward, got {bad}"):
        runner.sample(num_timesteps=60)


def test_agents_that_ended_stay_away_unless_they_may_come_again():
    def make(config):
        return Batched([DyingAgentsEnv({"a": [(0, 2), (4, 9)], "b": [(0, 9)]})], ["a", "b"])

    with pytest.raises(FinishedAgentError, match="env 0, agent 'a', env step 4"):
        make_runner(1, make, policies=None).sample(num_timesteps=10)
    chunks = make_runner(1, make, policies=None, respawn=True).sample(num_timesteps=10)
    assert [len(chunk.agent_episodes["a"]) for chunk in chunks] == [2, 5]


def test_errors_of_the_batch_say_where_they_came_from():
    class Unborn(Rooms):
        def reset(self, env_indices, out, *, seeds=None):
            raise ZeroDivisionError("no such room")

    for env, note_ in (
        (rooms(before=lambda of_batch: 1 / 0), r"step\(\) of the batch of the envs \[0, 1, 2\]"),
        (lambda config: Unborn(config.num_envs), r"reset\(\) of the envs \[0, 1, 2\]"),
    ):
        runner = make_runner(env=env)
        with pytest.raises(ZeroDivisionError) as caught:
            runner.sample(num_timesteps=3)
        assert any(re.search(note_, line) for line in caught.value.__notes__)


def test_a_step_that_failed_is_not_counted():
    runner = make_runner(env=rooms(before=lambda of_batch: of_batch.n_steps == 5 and 1 / 0))
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=30)
    assert runner.get_metrics()["num_env_steps_sampled"] == 3 * 4


def test_a_batch_of_another_size_is_refused():
    with pytest.raises(ConfigError, match=r"a batch of 3 envs .*, got Rooms with 5"):
        make_runner(3, lambda config: Rooms(5))


@pytest.mark.parametrize(
    ("groups", "spaces", "text"),
    [
        ({"x": []}, {"x": gym.spaces.Discrete(2)}, "group 'x' needs at least one agent"),
        ({"x": ["a"]}, {}, "group 'x' needs at least one agent, an observation space"),
        ({"x": ["a"], "y": ["a"]}, dict.fromkeys("xy", gym.spaces.Discrete(2)), "must be unique across groups"),
    ],
)
def test_groups_must_make_sense(groups, spaces, text):
    with pytest.raises(EnvCheckError, match=text):
        ArrayEnv(2, groups, spaces, spaces)


class Repeats(ArrayEnv):
    """Writes down the actions it gets. `actions` are the spaces of its groups "g" and "h", of one agent each."""

    def __init__(self, num_envs, actions):
        box = gym.spaces.Box(-1, 1, (3,), np.float32)
        super().__init__(
            num_envs, {"g": ["a"], "h": ["b"]}, dict.fromkeys("gh", box), dict(zip("gh", actions, strict=True))
        )
        self.received: list[dict] = []

    def reset(self, env_indices, out, *, seeds=None):
        for group in out.groups.values():
            group.obs[env_indices] = 0.5

    def step(self, actions, out):
        self.received.append({name: map_struct(np.copy, values) for name, values in actions.items()})
        for group in out.groups.values():
            group.obs.fill(0.5)


def a_policy(actions):
    return fastmarl.RLModuleSpec(observation_space=gym.spaces.Box(-1, 1, (3,), np.float32), action_space=actions)


def sampled_by_two(spaces, policies):
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env=lambda context: Repeats(2, spaces),
            num_envs_per_env_runner=2,
            policies=dict(zip("gh", policies, strict=True)),
            policy_mapping_fn=lambda agent, episode: "g" if agent == "a" else "h",
            seed=0,
            normalize_actions=False,
            clip_actions=False,
        )
    )
    return runner.sample(num_timesteps=10), runner.env.envs[0].received


@pytest.mark.parametrize("dtypes", [(np.float64, np.float32), (np.float32, np.float64)])
def test_actions_get_the_dtype_of_the_envs_space(dtypes):
    of_env, of_module = (gym.spaces.Box(-1, 1, (2,), dtype) for dtype in dtypes)
    chunks, received = sampled_by_two((of_env, of_env), (a_policy(of_module), a_policy(of_module)))
    for env_index, chunk in enumerate(chunks):
        for name, agent in zip("gh", "ab", strict=True):
            recorded = chunk.agent_episodes[agent].get_actions()
            got = np.array([actions[name][env_index, 0] for actions in received])
            np.testing.assert_array_equal(got, np.asarray(recorded, dtypes[0]))


def test_actions_of_groups_may_have_different_parts():
    spaces = (
        gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.Box(-1, 1, (2,), np.float32)}),
        gym.spaces.Discrete(3),
    )
    chunks, received = sampled_by_two(spaces, (None, None))
    for env_index, chunk in enumerate(chunks):
        recorded = chunk.agent_episodes["a"].get_actions()
        np.testing.assert_array_equal(recorded["x"], [actions["g"]["x"][env_index, 0] for actions in received])
        np.testing.assert_array_equal(recorded["y"], [actions["g"]["y"][env_index, 0] for actions in received])
        np.testing.assert_array_equal(
            chunk.agent_episodes["b"].get_actions(), [actions["h"][env_index, 0] for actions in received]
        )


def test_modules_with_other_actions_are_refused():
    of_env, of_module = (gym.spaces.Box(-1, 1, shape, np.float32) for shape in ((2,), (3,)))
    with pytest.raises(ConfigError, match="agent 'a' of env 0 is mapped to module 'g', which has different spaces"):
        sampled_by_two((of_env, of_env), (a_policy(of_module), None))
