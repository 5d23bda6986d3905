"""Connector pieces on the fast path: which are let in, what they may do. For equality, see test_equality.py."""

import copy
import logging
import pickle

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter
from ray.rllib.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from rllib.differential.pieces import Plain, Scaled

from fastmarl.errors import RunnerBusyError, RunningEpisodeError
from fastmarl.rllib import MultiAgentEnvRunner

# Every runner registers its envs under this one name.
pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env")


def make_runner(*pieces, runner_class=MultiAgentEnvRunner, num_envs=2, **callbacks):
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies=["p0"], policy_mapping_fn=lambda agent_id, episode, **kwargs: "p0")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=num_envs,
            env_to_module_connector=lambda env, spaces, device: [piece() for piece in pieces],
        )
        .callbacks(**callbacks)
        .debugging(seed=1)
    )
    return runner_class(config=config)


class Reads(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        batch.setdefault("mine", [])
        return batch


class Adds(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for each in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, Columns.OBS, each.get_observations(-1), each)
        return batch


class Captures(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        def change():
            batch["mine"] = []

        change()
        return batch


class ReadsMore(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        kwargs["rewards"]
        return batch


class TakesLocals(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        return locals()["batch"]


class ReturnsAnother(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        return {}


@pytest.mark.parametrize("piece", [Reads, Adds, Captures, ReadsMore, TakesLocals, ReturnsAnother])
def test_a_piece_that_does_more_than_rewrite_needs_rllibs_loop(piece):
    from fastmarl.rllib.connectors.pieces import problems

    default = make_runner()._env_to_module.connectors
    assert not [*problems(default)]
    text = f"the connector piece {piece.__name__} does more than put observations in the place of others"
    assert [*problems([piece(), *default])] == [("connector_piece", text)]


@pytest.mark.parametrize("piece", [Plain, Scaled, lambda: FlattenObservations(multi_agent=True)])
def test_a_piece_that_only_rewrites_does_not(piece):
    runner = make_runner(piece)
    runner.sample(num_timesteps=4)
    assert runner.is_accelerated


def test_one_warning_names_a_piece_and_its_share(caplog):
    runner = make_runner(Scaled, lambda: MeanStdFilter(multi_agent=True))
    with caplog.at_level(logging.WARNING, logger="fastmarl"):
        for _ in range(3):
            runner.sample(num_timesteps=9)
    (line,) = [record.getMessage() for record in caplog.records if "runs in Python" in record.getMessage()]
    assert "Scaled" in line and "%" in line


def test_statistics_are_where_rllib_has_them():
    theirs, ours = (
        make_runner(lambda: MeanStdFilter(multi_agent=True), runner_class=each)
        for each in (RLlibEnvRunner, MultiAgentEnvRunner)
    )
    for runner in (theirs, ours):
        np.random.seed(0)  # noqa: NPY002
        runner.sample(num_timesteps=50)
    want, got = (runner._env_to_module.connectors[0].get_state() for runner in (theirs, ours))
    assert {*want} == {*got} and all(state["running_stats"][0]["num_pushes"] > 40 for state in got.values())
    merged = ours._env_to_module.connectors[0].merge_states([copy.deepcopy(want), copy.deepcopy(got)])
    ours._env_to_module.connectors[0].set_state(merged)
    ours.sample(num_timesteps=5)
    after = ours._env_to_module.connectors[0].get_state()
    assert all(
        after[agent]["running_stats"][0]["num_pushes"] > merged[agent]["running_stats"][0]["num_pushes"]
        for agent in merged
    )


class Fails(SingleAgentObservationPreprocessor):
    calls = 0

    def preprocess(self, observation, episode):
        Fails.calls += 1
        if Fails.calls == 200:
            raise ValueError("broken piece")
        return observation


def test_a_piece_that_fails_loses_nothing_that_had_finished():
    Fails.calls, ended, returned = 0, [], []
    runner = make_runner(Fails, on_episode_end=lambda *, episode, **kwargs: ended.append(episode.id_))

    def sample_on():
        while True:
            returned.extend(episode.id_ for episode in runner.sample(num_timesteps=100))

    with pytest.raises(ValueError, match="broken piece"):
        sample_on()
    n_before = len(returned)
    returned += [episode.id_ for episode in runner.sample(num_timesteps=1)]
    lost = {*ended} - {*returned}
    assert lost <= {*ended[-2:]}, "only what ended in the step that failed"
    assert {*ended} & {*returned[n_before:]}, "compared nothing"


class Hostile(SingleAgentObservationPreprocessor):
    """Calls the runner that it runs in, keeps what it is given, and reads it when it may not."""

    runner, kept = None, []

    def preprocess(self, observation, episode):
        if Hostile.kept:
            with pytest.raises(RunnerBusyError):
                Hostile.runner.sample(num_timesteps=1)
        Hostile.kept.append(episode)
        return observation


def test_agents_episodes_that_a_piece_keeps():
    Hostile.kept.clear()
    Hostile.runner = runner = make_runner(Hostile)
    returned = runner.sample(num_timesteps=30)
    assert runner.is_accelerated
    by_id = {part.id_: part for episode in returned for part in episode.agent_episodes.values()}
    for kept in Hostile.kept:
        if kept.id_ in by_id:
            part = by_id[kept.id_]
            assert kept.get_rewards().tolist() == part.get_rewards().tolist()
            assert type(kept) is SingleAgentEpisode
    running = [kept for kept in Hostile.kept if kept.id_ not in by_id]
    for kept in running:  # episodes without a step in this call
        with pytest.raises(RunningEpisodeError):
            kept.get_rewards()


class Copies(SingleAgentObservationPreprocessor):
    def preprocess(self, observation, episode):
        for made in (copy.deepcopy(episode), pickle.loads(pickle.dumps(episode))):
            assert type(made) is SingleAgentEpisode and len(made) == len(episode)
            np.testing.assert_array_equal(made.get_observations(-1), observation)
        assert isinstance(episode.observation_space, gym.Space)
        return observation


def test_agents_episodes_can_be_copied():
    runner = make_runner(Copies)
    runner.sample(num_timesteps=5)
    assert runner.is_accelerated


@pytest.mark.parametrize("change", ["delete", "pop", "popitem", "clear"])
def test_agents_taken_from_an_episode_by_a_callback_are_gone(change):
    def take(*, episode, **kwargs):
        if change == "delete":
            del episode.agent_episodes[0]
        else:
            getattr(episode.agent_episodes, change)(*([0] if change == "pop" else []))

    def left(runner_class):
        episodes = make_runner(runner_class=runner_class, on_episode_end=take).sample(num_episodes=2)
        return [[*episode.agent_episodes] for episode in episodes]

    assert left(RLlibEnvRunner) == left(MultiAgentEnvRunner)
