"""PufferLib's native envs: rows that reset by themselves are recorded without mixing episodes.

`make test-peers` checks PufferLib's own environments in the same way.
"""

import sys
import types
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from support.puffer_rows import Rows, check_replay
from support.sampled import Sampled

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.pufferlib import PufferLibEnv
from fastmarl.errors import ConfigError, EnvCheckError, FinishedAgentError
from fastmarl.testing import check_env

SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
LENGTHS = [3, 1, 5, 100, 8]
NUM_ENVS = len(LENGTHS)


def check_record(part, lengths, *, tells_last):
    """One agent in one episode saw one episode of one row: (which row, which of its episodes)."""
    observed = part.get_observations().reshape(-1, 4).astype(int)
    row, episode = observed[0, :2].tolist()
    times = np.arange(len(part) + 1)
    if part.is_done:
        assert len(part) == lengths[row]
        if not tells_last:
            times[-1] -= 1  # the one before stands in
    assert (observed[:, :2] == (row, episode)).all()
    np.testing.assert_array_equal(observed[:, 2], times)
    np.testing.assert_array_equal(observed[:, 3], np.append(0, part.get_actions())[times])
    np.testing.assert_array_equal(part.get_rewards(), episode + np.arange(1, len(part) + 1) / 8)
    return row, episode


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32])
@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
@pytest.mark.parametrize("agents", [1, 3])
def test_nothing_of_the_next_episode_gets_into_the_one_before(agents, mode, truncates, dtype):
    lengths = np.repeat(LENGTHS, agents)
    rows = Rows(lengths, next_step=mode is NEXT_STEP, truncates=truncates, dtype=dtype)
    sampled = Sampled(lambda config: PufferLibEnv(rows, config.num_envs, autoreset_mode=mode), NUM_ENVS)
    n_ended = 0
    for env_index, episodes in enumerate(sampled.by_env):
        for number, episode in enumerate(episodes):
            if mode is SAME_STEP or episode is not episodes[-1]:  # else it may begin with the next step
                assert list(episode.agent_episodes) == list(range(agents))
            n_ended += episode.is_done
            for agent, part in episode.agent_episodes.items():
                seen = check_record(part, lengths, tells_last=mode is NEXT_STEP)
                assert seen == (env_index * agents + agent, number)
                ends = part.is_done and not truncates, part.is_done and truncates
                assert (part.is_terminated, part.is_truncated) == ends
    assert n_ended > 30
    assert rows.closed and sampled.adapter.infos == [{"n": 1}]


@pytest.mark.parametrize("agents", [1, 3])
def test_episodes_match_a_replay(agents):
    lengths = np.repeat(LENGTHS, agents)
    sampled = Sampled(lambda config: PufferLibEnv(Rows(lengths), config.num_envs), NUM_ENVS)
    assert check_replay(sampled, Rows(lengths), 0) > 30 * agents


class Alone(Rows):
    """Row 0 ends every second step; row 1 in the third, and stays ended until row 2 ends, which ends all."""

    def step(self, actions):
        results = super().step(actions)
        self._flags[1] = self.t[2] >= 3
        if self._flags[2]:
            self._flags[:] = True
        return results


@pytest.mark.parametrize("truncates", [False, True])
def test_rows_that_end_by_themselves_wait_until_their_flag_is_gone(truncates):
    def alone(config):
        return PufferLibEnv(Alone([2, 6, 6], truncates=truncates), config.num_envs)

    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=alone, respawn=True, seed=0))
    acted = {}
    for chunk in runner.sample(num_timesteps=15):
        for agent, part in chunk.agent_episodes.items():
            acted.setdefault((chunk.id_, agent), set()).update(part.env_ts()[:-1].tolist())
            assert not part.is_done or (part.is_terminated, part.is_truncated) == (not truncates, truncates)
            observed = part.get_observations().reshape(-1, 4)
            assert len(set(observed[:, 1].tolist())) == 1, "all of one episode of the row"
    first, second, third = dict.fromkeys(id_ for id_, _ in acted)
    for id_ in (first, second):
        assert [acted[id_, agent] for agent in range(3)] == [{0, 1, 3, 5}, {0, 1, 2}, {0, 1, 2, 3, 4, 5}]
    assert [acted[third, agent] for agent in range(3)] == [{0, 1}, {0, 1, 2}, {0, 1, 2}]
    runner.stop()


def test_rows_that_come_again_are_an_error_unless_they_may():
    with pytest.raises(FinishedAgentError, match=r"agent 0, env step 3: .*option respawn is only for"):
        Sampled(lambda config: PufferLibEnv(Alone([2, 6, 6]), config.num_envs), 1)


class Masked(Rows):
    """Row 0 is there in every third step, row 2 never."""

    def step(self, actions):
        results = super().step(actions)
        self.masks[:] = [self.t[1] % 3 == 0, True, False]
        return results

    def reset(self, seed=None):
        self.masks[:] = [False, True, False]
        return super().reset(seed)


def test_rows_that_are_masked_are_not_there():
    sampled = Sampled(lambda config: PufferLibEnv(Masked([9, 9, 99]), config.num_envs), 1, calls=[13])
    first, second = sampled.by_env[0]
    assert sorted(first.agent_episodes) == [0, 1] and len(first) == 9
    assert [part.env_ts()[:-1].tolist() for part in (first.agent_episodes[0], second.agent_episodes[0])] == [
        [3, 6],
        [0],
    ]


def test_seeds_reach_the_env_as_small_numbers():
    rows = [Rows([5] * 3) for _ in range(3)]
    for env, seed in zip(rows, [7, 7, None], strict=True):
        Sampled(lambda config, env=env: PufferLibEnv(env, config.num_envs), 3, seed=seed)
    seeds = [seed for env in rows for seed in env.seeds]
    assert len(seeds) == 3 and seeds[0] == seeds[1] != seeds[2]
    assert all(0 <= seed * 3 + 2 < 2**31 for seed in seeds)


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
@pytest.mark.parametrize("agents", [1, 2])
def test_where_one_episode_is_dropped_the_next_begins_at_its_end(agents, mode):
    lengths = np.repeat([2, 3, 5], agents)
    rows = Rows(lengths, next_step=mode is NEXT_STEP)

    def make(config):
        return PufferLibEnv(rows, config.num_envs, autoreset_mode=mode)

    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=make, num_envs_per_env_runner=3, seed=0))
    adapter, waiting, seen = runner.env.envs[0], [], []
    reset = adapter.reset

    def noting_who_waits(*args, **options):
        reset(*args, **options)
        waiting.append(adapter._waits.sum())

    adapter.reset = noting_who_waits
    for n_episodes in (4, 9, 1, 6, 7, 1, 8):
        for episode in runner.sample(num_episodes=n_episodes):
            parts = episode.agent_episodes.values()
            records = [check_record(part, lengths, tells_last=mode is NEXT_STEP) for part in parts]
            assert episode.is_done and len(records) == agents
            seen += [(len(rows.seeds), *record) for record in records]
        runner.sample(num_timesteps=6)  # the first env has then just begun, and goes on
    assert len(seen) == len(set(seen)) == 36 * agents and {row for _, row, _ in seen} == set(range(3 * agents))
    assert max(waiting) == 2
    runner.stop()


@pytest.mark.parametrize("lengths", [[40, 70], [3, 3]])
def test_running_envs_are_all_reset_together(lengths):
    rows = Rows(lengths)
    config = fastmarl.EnvRunnerConfig(env=lambda config: PufferLibEnv(rows), num_envs_per_env_runner=2, seed=0)
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=8)
    for episode in runner.sample(num_timesteps=4, force_reset=True):
        assert episode.agent_episodes[0].get_observations()[:, 1, 0].tolist() == [0, 1, 2]
    assert len(set(rows.seeds)) == 2
    runner.stop()


def test_check_env_finds_nothing():
    report = check_env(PufferLibEnv(Rows(np.repeat([3, 4, 5, 6], 2)), 4), steps=40)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: PufferLibEnv(Rows([3] * 5), 2), "5 rows, not divisible by num_envs=2"),
        (lambda: PufferLibEnv(Rows([3] * 5), 0), "not divisible by num_envs=0"),
        (lambda: PufferLibEnv(Rows([3]), autoreset_mode=AutoresetMode.DISABLED), "SAME_STEP or NEXT_STEP"),
        (lambda: PufferLibEnv(types.SimpleNamespace(emulated=True)), "emulates another environment"),
    ],
)
def test_unusable_envs_are_errors(make, problem):
    with pytest.raises(EnvCheckError, match=problem):
        make()


def test_a_bare_one_is_a_batch_of_rows():
    adapter = as_multi_agent_env(Rows([3] * 6))
    assert isinstance(adapter, PufferLibEnv) and (adapter.num_envs, adapter.possible_agents) == (6, [0])
    with pytest.raises(ConfigError, match=r"a batch of 1 envs .*, got PufferLibEnv with 6"):
        fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=lambda config: Rows([3] * 6)))


@pytest.fixture
def ocean(monkeypatch):
    """A package that stands in for PufferLib."""
    package = types.ModuleType("pufferlib")
    package.__spec__ = ModuleSpec("pufferlib", None, is_package=True)
    package.__path__ = []
    module = types.ModuleType("pufferlib.ocean.environment")
    module.MAKE_FUNCTIONS = {"rware": "Rware", "connect4": "Connect4"}
    module.env_creator = lambda name: (
        lambda num_envs, length: Rows([length] * 2 * num_envs, next_step=name == "puffer_connect4")
    )
    for made in (package, types.ModuleType("pufferlib.ocean"), module):
        monkeypatch.setitem(sys.modules, made.__name__, made)


@pytest.mark.usefixtures("ocean")
@pytest.mark.parametrize("name", ["rware", "connect4"])
def test_names_make_as_many_as_the_runner_has(name):
    sampled = Sampled(f"pufferlib.{name}", 3, env_config={"length": 4})
    episode = sampled.by_env[2][0]
    assert list(episode.agent_episodes) == [0, 1]
    for part in episode.agent_episodes.values():
        check_record(part, [4] * 6, tells_last=name == "connect4")


@pytest.mark.usefixtures("ocean")
def test_unknown_names_are_answered_with_close_ones():
    with pytest.raises(EnvCheckError, match=r"no such compiled env; did you mean 'pufferlib.connect4'"):
        fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="pufferlib.conect4"))


class Fails(Rows):
    """Raises in the step after that in which all its episodes ended, once."""

    def step(self, actions):
        if (self.episode == 1).all() and len(self.seeds) == 1:
            raise ValueError("boom")
        return super().step(actions)


def test_all_envs_are_reset_after_an_error():
    rows = Fails([3, 3])
    config = fastmarl.EnvRunnerConfig(env=lambda context: PufferLibEnv(rows), num_envs_per_env_runner=2, seed=0)
    runner = fastmarl.MultiAgentEnvRunner(config)
    with pytest.raises(ValueError, match="boom"):
        runner.sample(num_timesteps=20)
    chunks = [chunk for chunk in runner.sample(num_timesteps=6) if not chunk.is_done or len(rows.seeds) == 2]
    assert len(rows.seeds) == 2
    for chunk in chunks[-2:]:
        observations = chunk.agent_episodes[next(iter(chunk.agent_episodes))].get_observations()
        assert observations[0, 1, 0] == 0  # time in the episode
