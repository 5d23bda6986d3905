"""PPOTorchLearner against RLlib's: weights, optimizers, results and random draws after several updates, to the bit."""

import copy
import random

import numpy as np
import pytest
import torch
import tree
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum
from torch import nn

import fastmarl.rllib
from fastmarl.rllib import PPOTorchLearner
from fastmarl.rllib.learning import adam

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

N_UPDATES = 3
CLOCKS = ("timer", "throughput", "learner_connector")  # parts of names of what clocks say


def by_number(agent_id, *args, **kwargs):
    return f"p{agent_id % 2}"


def by_one(agent_id, *args, **kwargs):
    return "p0"


def make_config(env=MultiAgentCartPole, mapping=by_number, to_train=None, model=None, **training):
    return (
        PPOConfig()
        .environment(env, env_config={"num_agents": 3})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=mapping, policies_to_train=to_train)
        .env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner, num_env_runners=0, num_envs_per_env_runner=2)
        .rl_module(model_config=DefaultModelConfig(**{"fcnet_hiddens": [17, 8], **(model or {})}))
        .training(**{"minibatch_size": 32, "num_epochs": 3, **training})
        .debugging(seed=3)
    )


class OwnLoss:
    """Logs sums, which would miss minibatches that are not heard."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        self.metrics.log_value((module_id, "n_rows"), len(batch), reduce="sum")
        return 0.5 * loss


CASES = {
    "plain": {},
    "one epoch": {"num_epochs": 1},
    "not shuffled": {"shuffle_batch_per_epoch": False},
    "minibatches larger than the batch": {"minibatch_size": 500},
    "whole batches": {"minibatch_size": None},
    "one module for all": {"to_train": ["p0"], "mapping": by_one},
    "one of two is trained": {"to_train": ["p1"]},
    "shared layers": {"model": {"vf_share_layers": True}},
    "no KL": {"use_kl_loss": False},
    "no critic": {"use_critic": False, "use_gae": False},
    "entropy schedule": {"entropy_coeff": [[0, 0.1], [500, 0.0]]},
    "learning rate schedule": {"lr": [[0, 1e-2], [500, 1e-4]]},
    "clipped by value": {"grad_clip": 0.01, "grad_clip_by": "value"},
    "clipped by norm": {"grad_clip": 0.01, "grad_clip_by": "norm"},
    "clipped by global norm": {"grad_clip": 0.01, "grad_clip_by": "global_norm"},
    "Box actions": {"env": MultiAgentPendulum},
    "Box actions, one module": {"env": MultiAgentPendulum, "mapping": by_one, "to_train": ["p0"]},
    "LSTM": {"model": {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 5}},
}


def learner_of(kind, options):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    config = make_config(**options)
    env = config.env(config.env_config)
    spaces = {name: (env.get_observation_space(0), env.get_action_space(0)) for name in ("p0", "p1")}
    return config.training(learner_class=kind).build_learner(spaces=spaces), config


@pytest.fixture(scope="module")
def sampled():
    """By env and mapping, chunks of several calls."""
    known = {}

    def sample(options):
        key = options.get("env", MultiAgentCartPole), options.get("mapping", by_number), "model" in options
        if key not in known:
            runner = fastmarl.rllib.MultiAgentEnvRunner(config=make_config(**options))
            known[key] = [runner.sample(num_timesteps=90) for _ in range(N_UPDATES)]
            runner.stop()
        return copy.deepcopy(known[key])

    return sample


def updated(kind, options, calls):
    """A learner after these updates, and what each has returned."""
    learner, config = learner_of(kind, options)
    results = []
    for i, episodes in enumerate(calls):
        random.seed(i)
        np.random.seed(i)  # noqa: NPY002
        torch.manual_seed(i)
        found = learner.update(
            episodes=copy.deepcopy(episodes),
            timesteps={"num_env_steps_sampled_lifetime": 200 * i},
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=config.shuffle_batch_per_epoch,
        )
        results.append(readings(found))
    return learner, results, (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


def update(learner, episodes):
    np.random.seed(0)  # noqa: NPY002
    learner.update(episodes=copy.deepcopy(episodes), num_epochs=2, minibatch_size=32, shuffle_batch_per_epoch=True)


def readings(found):
    """By path, class and reading of all metrics but those of clocks."""
    return {
        path: (type(stats), np.asarray(stats.peek()).tolist())
        for path, stats in tree.flatten_with_path(found)
        if not any(word in str(path) for word in CLOCKS)
    }


def assert_same_state(want, got):
    theirs, ours = (
        tree.map_structure(as_array, each.get_state(not_components="metrics_logger")) for each in (want, got)
    )
    np.testing.assert_equal(ours, theirs)


def as_array(leaf):
    return leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf


def assert_same(want, got):
    assert_same_state(want[0], got[0])
    np.testing.assert_equal(got[1], want[1])
    assert got[2] == want[2], "other random draws"


@pytest.mark.parametrize("name", CASES)
def test_updates_are_the_same(name, sampled):
    calls = sampled(CASES[name])
    want = updated(RLlibLearner, CASES[name], calls)
    assert_same(want, updated(PPOTorchLearner, CASES[name], calls))


def test_a_loss_of_the_users_own_is_heard(sampled):
    calls = sampled({})
    theirs, ours = (type("Own", (OwnLoss, kind), {}) for kind in (RLlibLearner, PPOTorchLearner))
    want = updated(theirs, {}, calls)
    assert any("n_rows" in path for path in want[1][0])
    assert_same(want, updated(ours, {}, calls))


class Doubling(nn.Module):
    def forward(self, inputs):
        return 2 * inputs


def test_a_module_with_parts_of_the_users_own(sampled):
    """Dropout draws random numbers, in RLlib's order."""

    def changed(kind):
        class Changed(kind):
            def build(self):
                super().build()
                for name in ("p0", "p1"):
                    self.module[name].pi = nn.Sequential(nn.Dropout(0.3), self.module[name].pi, Doubling())

        return Changed

    calls = sampled({})
    assert_same(updated(changed(RLlibLearner), {}, calls), updated(changed(PPOTorchLearner), {}, calls))


def test_a_module_that_was_put_into_evaluation_mode_trains(sampled):
    def changed(kind):
        class Changed(kind):
            def before_gradient_based_update(self, *, timesteps):
                super().before_gradient_based_update(timesteps=timesteps)
                self.module["p1"].pi.eval()

        return Changed

    calls = sampled({})
    ours = updated(changed(PPOTorchLearner), {}, calls)
    assert_same(updated(changed(RLlibLearner), {}, calls), ours)
    assert ours[0].module["p1"].pi.training


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("skips", [False, True])
def test_gradients_that_are_not_finite(bad, skips, sampled):
    def changed(kind):
        class Changed(kind):
            n = 0

            def postprocess_gradients(self, gradients_dict):
                gradients = super().postprocess_gradients(gradients_dict)
                Changed.n += 1
                if Changed.n % 3 == 0:
                    next(iter(gradients.values()))[0, 0] = bad
                return gradients

        return Changed

    calls = sampled({})

    def run(kind):
        learner, _ = learner_of(changed(kind), {})
        learner.config._is_frozen = False
        learner.config.torch_skip_nan_gradients = skips
        for episodes in calls[:2]:
            update(learner, episodes)
        return learner

    assert_same_state(run(RLlibLearner), run(PPOTorchLearner))


def test_states_go_from_one_to_the_other(sampled):
    calls = sampled({})
    state = updated(RLlibLearner, {}, calls[:2])[0].get_state()
    theirs, ours = (learner_of(kind, {})[0] for kind in (RLlibLearner, PPOTorchLearner))
    for learner in (theirs, ours):
        learner.set_state(copy.deepcopy(state))
        update(learner, calls[2])
    assert_same_state(theirs, ours)


def test_an_update_that_failed_leaves_nothing_unheard(sampled):
    (episodes, *_), (learner, _) = sampled({}), learner_of(PPOTorchLearner, {})
    learner.apply_gradients = lambda gradients: 1 / 0
    with pytest.raises(ZeroDivisionError):
        update(learner, episodes)
    del learner.apply_gradients
    found = learner.update(episodes=copy.deepcopy(episodes), num_epochs=1, minibatch_size=None)
    assert "policy_loss" in found["p0"]


# Adam.


def optimizers_of(shapes, **options):
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        found.append(torch.optim.Adam(parameters, lr=0.05, **options))
    return found


def assert_steps_are_the_same(shapes, n_steps=6, change=lambda optimizer, k: None, **options):
    want, got = optimizers_of(shapes, **options)
    for k in range(n_steps):
        for ours, theirs in zip(got.param_groups[0]["params"], want.param_groups[0]["params"], strict=True):
            ours.grad = torch.randn_like(ours) * 10.0 ** (k - 3)
            theirs.grad = ours.grad.clone()
        for optimizer in (want, got):
            change(optimizer, k)
        want.step()
        adam.step(got)
    assert str(want.state_dict()) == str(got.state_dict())
    for ours, theirs in zip(got.param_groups[0]["params"], want.param_groups[0]["params"], strict=True):
        assert torch.equal(ours, theirs)
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(got.state[ours][name], want.state[theirs][name])


def test_this_torch_rounds_as_we_do():
    assert adam.is_exact()


@pytest.mark.parametrize("shapes", [[()], [(1,)], [(0,)], [(3, 5), (7,)], [(256, 256), (33,), (1, 1, 9)]], ids=str)
def test_adam_of_all_sizes(shapes):
    assert_steps_are_the_same(shapes)


@pytest.mark.parametrize(
    "options",
    [{"betas": (0.5, 0.9)}, {"eps": 1e-3}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True},
     {"foreach": True}, {"lr": torch.tensor(0.1)}],
    ids=str,
)  # fmt: skip
def test_adam_with_other_options(options):
    if "lr" in options:
        want, got = optimizers_of([(9,)])
        for optimizer in (want, got):
            optimizer.param_groups[0]["lr"] = options["lr"]
            optimizer.param_groups[0]["params"][0].grad = torch.ones(9)
        want.step()
        adam.step(got)
        assert torch.equal(want.param_groups[0]["params"][0], got.param_groups[0]["params"][0])
    else:
        assert_steps_are_the_same([(9, 4), (5,)], **options)


def test_adam_with_a_learning_rate_that_changes():
    def change(optimizer, k):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)

    assert_steps_are_the_same([(9, 4), (5,)], change=change)


def test_adam_hooks_are_called():
    calls = []

    def change(optimizer, k):
        if k == 2:
            optimizer.register_step_post_hook(lambda *arguments: calls.append(k))

    assert_steps_are_the_same([(4,)], change=change)
    assert len(calls) == 2 * 4


def test_who_reads_a_parameter_in_backward_is_told_that_it_has_changed():
    _, optimizer = optimizers_of([(4,)])
    (parameter,) = optimizer.param_groups[0]["params"]
    for _ in range(2):
        parameter.grad = torch.ones(4)
        adam.step(optimizer)
    product = (parameter * parameter).sum()
    parameter.grad = torch.ones(4)
    adam.step(optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
