"""Connector pieces on the fast path: which are let in, what they may do. For equality, see test_equality.py."""

import copy
import logging
import pickle
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter
from ray.rllib.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from rllib.differential.batch_pieces import AddsBonus, Sticky
from rllib.differential.pieces import Plain, Scaled

from fastmarl.errors import ConnectorError, RunnerBusyError, RunningEpisodeError
from fastmarl.rllib import MultiAgentEnvRunner
from fastmarl.rllib.connectors.pieces import module_to_env_problems, problems

# Every runner registers its envs under this one name.
pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env")


def make_runner(*pieces, runner_class=MultiAgentEnvRunner, num_envs=2, env=MultiAgentCartPole, **callbacks):
    config = (
        PPOConfig()
        .environment(env, env_config={"num_agents": 2})
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


class ReadsMore(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        kwargs["rewards"]
        return batch


class HandsOn(ConnectorV2):
    def __call__(self, *, batch, **anything):
        return super().__call__(batch=batch, **anything)


class CapturesMore(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return [kwargs["rewards"] for _ in batch]


class Logs(ConnectorV2):
    def __call__(self, *, batch, metrics=None, **kwargs):
        if metrics is not None:
            metrics.log_value("logged", 1)
        return batch


class NeedsMetrics(ConnectorV2):
    def __call__(self, *, batch, metrics, **kwargs):
        return batch


class TakesLocals(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        return locals()["batch"]


REFUSED = {ReadsMore: "kwargs", HandsOn: "anything", CapturesMore: "kwargs", Logs: "metrics",
           NeedsMetrics: "metrics", TakesLocals: "locals"}  # fmt: skip


@pytest.mark.parametrize("piece", REFUSED)
def test_a_piece_that_reads_values_of_rllibs_loop_needs_it(piece):
    default = make_runner()
    to_module, to_env = default._env_to_module.connectors, default._module_to_env.connectors
    assert not [*problems(to_module)] and not [*module_to_env_problems(to_env)]
    text = f"the connector piece {piece.__name__} reads values that only RLlib's loop provides: {REFUSED[piece]}"
    assert [*problems([piece(), *to_module])] == [*problems([*to_module, piece()])] == [("connector_piece", text)]
    assert [*module_to_env_problems([piece(), *to_env])] == [("module_to_env_piece", text)]


def test_a_default_piece_that_is_missing_or_at_another_place_needs_rllibs_loop():
    runner = make_runner()
    to_module, to_env = runner._env_to_module.connectors, runner._module_to_env.connectors
    for found in (
        problems([*to_module[:2], Plain(), *to_module[2:]]),
        problems(to_module[1:]),
        module_to_env_problems(to_env[1:]),
        module_to_env_problems([to_env[1], to_env[0], *to_env[2:]]),
    ):
        assert [code for code, _ in found] == ["connector_pipeline"]


def test_frames_and_batches_of_ones_own_need_rllibs_loop():
    own = [AddsBonus(), FrameStacking(num_frames=2, multi_agent=True)]
    ((code, text),) = problems([*own, *make_runner()._env_to_module.connectors])
    assert code == "connector_piece" and text == "the connector piece FrameStacking is combined with AddsBonus"


def test_one_with_a_call_of_its_own_needs_rllibs_loop():
    piece = Plain()
    piece.__call__ = lambda **kwargs: {}
    assert [code for code, _ in problems([piece, *make_runner()._env_to_module.connectors])] == ["connector_piece"]


class Leaves(ConnectorV2):
    """An agent's action out."""

    def __call__(self, *, batch, **kwargs):
        del batch[Columns.ACTIONS][next(iter(batch[Columns.ACTIONS]))]
        return batch


class ActsForUnknownAgent(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        episode_id, _, module_id = next(iter(batch[Columns.ACTIONS]))
        batch[Columns.ACTIONS][episode_id, "nobody", module_id] = [0]
        return batch


@pytest.mark.parametrize("piece", [Leaves, ActsForUnknownAgent])
def test_actions_of_other_agents_than_those_observed_are_an_error(piece):
    runner = make_runner()
    runner._module_to_env.insert_after("NormalizeAndClipActions", piece())
    with pytest.raises(ConnectorError, match=f"connector {piece.__name__}: expected .* set 'actions_for_env'"):
        runner.sample(num_timesteps=4)


class AddsForOne(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for part in self.single_agent_episode_iterator(episodes):
            if part.agent_id == 1:
                self.add_batch_item(batch, "mine", np.zeros(2), part)
        return batch


def test_a_first_column_that_lacks_agents_is_an_error():
    """RLlib takes the agents from it."""
    with pytest.raises(ConnectorError, match="AddsForOne: expected the first column to have an item for each of"):
        make_runner(AddsForOne).sample(num_timesteps=4)


class Reversed(ConnectorV2):
    """Gives RLlib the agents in another order than their observations have: it takes one's action for the other's."""

    def __call__(self, *, batch, episodes, **kwargs):
        for part in reversed([*self.single_agent_episode_iterator(episodes)]):
            self.add_batch_item(batch, "mine", np.zeros(2), part)
        return batch


def test_columns_in_another_order():
    theirs, ours = [], []
    for kind, taken in ((RLlibEnvRunner, theirs), (MultiAgentEnvRunner, ours)):
        torch.manual_seed(3)
        runner = make_runner(Reversed, runner_class=kind)
        for part in (part for episode in runner.sample(num_timesteps=80) for part in episode.agent_episodes.values()):
            taken.append([part.agent_id, part.get_actions().tolist(), part.get_observations().tolist()])
            taken.append(part.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS).tolist())
    assert runner.is_accelerated and ours == theirs


class Untouched(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch


class FromThree(MultiAgentCartPole):
    """Has actions 3 and 4."""

    received: ClassVar[list[dict]] = []

    def __init__(self, config):
        super().__init__(config)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2, start=3))

    def step(self, actions):
        FromThree.received.append({agent: (type(action), int(action)) for agent, action in actions.items()})
        return super().step({agent: int(action) % 2 for agent, action in actions.items()})


@pytest.mark.parametrize("fixes", [set(), {"28"}])
def test_envs_get_the_same_with_a_piece(fixes):
    received = []
    for pieces in ([], [Untouched()]):
        runner = make_runner(runner_class=MultiAgentEnvRunner.options(fixes=fixes), env=FromThree)
        FromThree.received = []
        torch.manual_seed(3)
        for piece in pieces:
            runner._module_to_env.insert_before("NormalizeAndClipActions", piece)
        runner.sample(num_timesteps=20)
        assert runner.is_accelerated
        received.append([*FromThree.received])
    assert received[0] == received[1]
    assert {number for _, number in received[0][0].values()} <= ({3, 4} if fixes else {0, 1})


class FailsToAct(ConnectorV2):
    calls = 0

    def __call__(self, *, batch, **kwargs):
        self.calls += 1
        if self.calls == 120:
            raise ValueError("broken piece")
        return batch


def test_a_module_to_env_piece_that_fails_loses_nothing_that_had_finished():
    ended = []
    runner = make_runner(on_episode_end=lambda *, episode, **kwargs: ended.append(episode.id_))
    runner._module_to_env.prepend(FailsToAct())
    returned = [episode.id_ for episode in runner.sample(num_timesteps=100)]
    with pytest.raises(ValueError, match="broken piece"):
        runner.sample(num_timesteps=400)
    returned += [episode.id_ for episode in runner.sample(num_timesteps=1)]
    assert ended and {*ended} <= {*returned}


def test_a_random_piece_goes_on_from_its_state():
    runner = make_runner()
    runner._module_to_env.insert_before("NormalizeAndClipActions", Sticky())
    before = runner.get_state()["module_to_env_connector"]
    runner.sample(num_timesteps=20)
    assert before["Sticky"] != runner.get_state()["module_to_env_connector"]["Sticky"]


class Captures(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        def change():
            batch.clear()

        change()
        return batch


class ReturnsAnother(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        return {}


@pytest.mark.parametrize(
    "piece", [Captures, ReturnsAnother, AddsBonus, Plain, Scaled, lambda: FlattenObservations(multi_agent=True)]
)
def test_others_do_not(piece):
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
