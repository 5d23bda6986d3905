"""PPOTorchLearner.options(update="fast") against RLlib's learner: equal but for rounding, or equal."""

import copy
import pickle

import pytest
from ray import cloudpickle
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentPendulum
from support.exhaustive import params
from support.ppo_learners import (
    CASES,
    assert_close,
    assert_close_optimizers,
    assert_close_weights,
    assert_same_state,
    computed_directly,
    learner_of,
    sampled,
    update,
    updated,
)
from torch import nn

from fastmarl.errors import ConfigError
from fastmarl.rllib import PPOTorchLearner
from fastmarl.rllib.learner import ppo

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

Fast = PPOTorchLearner.options(update="fast")

ALL_CASES = {
    **CASES,
    "Box actions, free scales": {"env": MultiAgentPendulum, "model": {"free_log_std": True, "vf_share_layers": False}},
    "Box actions, narrow scales": {"env": MultiAgentPendulum, "model": {"log_std_clip_param": 0.02}, "lr": 1e-2},
    "Box actions, narrow free scales": {
        "env": MultiAgentPendulum,
        # No multiple of the rate: after a step of Adam, rounding would decide on which side of the limit a scale is.
        "model": {"log_std_clip_param": 0.013, "free_log_std": True},
        "lr": 1e-2,
    },
}
# They reach each line and branch that all cases reach, and each kind of scale; test_ppo_learner.py has others.
KEPT = (
    *("plain", "own layers for values", "clipped by norm", "clipped by global norm", "much KL, narrow clips"),
    *("ReLU, three layers", "Box actions, free scales", "Box actions, narrow scales"),
)


@pytest.fixture
def computed():
    with computed_directly() as found:
        yield found


@pytest.mark.parametrize("name", params(ALL_CASES, KEPT))
def test_updates_are_close(name, computed):
    options = ALL_CASES[name]
    calls = sampled(options)[:2]
    want = updated(RLlibLearner, options, calls)
    assert not computed
    assert_close(options, want, updated(Fast, options, calls))
    assert len(computed) >= len(calls)
    assert all(computed)


# States.


@pytest.mark.parametrize("kind", [PPOTorchLearner, Fast])
def test_states_go_from_one_to_the_other(kind):
    calls = sampled({})
    for source in (RLlibLearner, kind):
        state = updated(source, {}, calls[:1])[0].get_state()
        theirs, ours = (learner_of(each, {})[0] for each in (RLlibLearner, kind))
        for learner in (theirs, ours):
            learner.set_state(copy.deepcopy(state))
            update(learner, calls[1])
        if kind is Fast:
            assert_close_weights({}, theirs, ours)
            assert_close_optimizers(theirs, ours)
        else:
            assert_same_state(theirs, ours)


def test_a_checkpoint_midway(tmp_path):
    calls = sampled({})
    learner = updated(Fast, {}, calls[:1])[0]
    learner.save_to_path(tmp_path)
    restored, _ = learner_of(Fast, {})
    update(restored, calls[2])  # so that it has steps and moments of its own
    restored.restore_from_path(tmp_path)
    assert_same_state(learner, restored)
    for each in (learner, restored):
        update(each, calls[1])
    assert_same_state(learner, restored)


def test_changes_between_updates_are_noticed(computed):
    def run(kind):
        learner, _ = learner_of(kind, {})
        first, second, third = sampled({})
        update(learner, first)
        (optimizer,) = (each for _, each in learner.get_optimizers_for_module("p0"))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.param_groups[0]["eps"] = 1e-3
        for parameter in learner.module["p1"].parameters():
            parameter.data = 0.9 * parameter.data
        update(learner, second)
        layer = learner.module["p0"].vf.net.mlp[0]
        layer.weight = nn.Parameter(0.9 * layer.weight.detach())  # of which the optimizer does not know
        n_computed = len(computed)
        update(learner, third)
        assert len(computed) == n_computed
        return learner

    theirs, ours = run(RLlibLearner), run(Fast)
    assert_close_weights({}, theirs, ours)
    assert computed


def test_one_batch_after_minibatches(computed):
    def run(kind):
        learner, _ = learner_of(kind, {})
        first, second, _ = sampled({})
        update(learner, first)
        learner.update(episodes=second, num_epochs=1, minibatch_size=None)
        return learner

    theirs, ours = run(RLlibLearner), run(Fast)
    assert_close_weights({}, theirs, ours)
    assert computed


def test_an_update_that_failed_leaves_nothing(computed):
    learner, _ = learner_of(Fast, {})
    learner.get_optimizer = lambda *arguments: 1 / 0
    learner.apply_gradients = lambda gradients: 1 / 0
    with pytest.raises(ZeroDivisionError):
        update(learner, sampled({})[0])
    del learner.apply_gradients, learner.get_optimizer
    other, _ = learner_of(Fast, {})
    for each in (learner, other):
        each._weights_seq_no = 0
        update(each, sampled({})[0])
    assert_same_state(other, learner)


# Options.


def test_options():
    assert (Fast.update_mode, PPOTorchLearner.update_mode) == ("fast", "exact")
    assert PPOTorchLearner.options(update="fast") is Fast
    assert Fast.options().update_mode == "exact"
    assert Fast.options().options(update="fast") is Fast
    with pytest.raises(ValueError, match=r"update must be one of \['exact', 'fast'\], got 'quick'") as caught:
        PPOTorchLearner.options(update="quick")
    assert caught.type is ConfigError
    for name in ("PPOTorchLearner__slow", "PPOTorchLearner__", "x"):
        with pytest.raises(AttributeError, match=name):
            getattr(ppo, name)


class OwnLearner(PPOTorchLearner):
    pass


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_classes_with_options_pickle_by_import(dumps):
    """In another process, test_rllib_episode_fixes.py has them with those of runners."""
    assert pickle.loads(dumps(Fast)) is Fast


def test_learners_of_ones_own_are_sent_by_value():
    cls = OwnLearner.options(update="fast")
    assert cls.options().options(update="fast") is cls
    assert issubclass(type("Own", (Fast,), {}).options(), Fast)
    sent = cloudpickle.loads(cloudpickle.dumps(cls))
    assert issubclass(sent, OwnLearner)
    assert sent.update_mode == "fast"
