"""Learners of one config, updated with the same episodes, and what they come to."""

import contextlib
import copy
import functools
import random

import numpy as np
import pytest
import torch
import tree
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum

import fastmarl.rllib
from fastmarl.rllib.learner.direct_update import DirectUpdate

N_UPDATES = 3
RECURRENT = {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 5}
CLOCKS = ("timer", "throughput", "learner_connector")  # parts of names of what clocks say


def by_number(agent_id, *args, **kwargs):
    return f"p{agent_id % 2}"


def by_one(agent_id, *args, **kwargs):
    return "p0"


CASES = {  # options of make_config()
    "plain": {},
    "not shuffled": {"shuffle_batch_per_epoch": False},
    "minibatches larger than the batch": {"minibatch_size": 500},
    "whole batches": {"minibatch_size": None},
    "one module for all": {"to_train": ["p0"], "mapping": by_one},
    "one of two is trained": {"to_train": ["p1"]},
    "own layers for values": {"model": {"vf_share_layers": False}},
    "no KL": {"use_kl_loss": False},
    "entropy schedule": {"entropy_coeff": [[0, 0.1], [500, 0.0]]},
    "learning rate schedule": {"lr": [[0, 1e-2], [500, 1e-4]]},
    "clipped by value": {"grad_clip": 0.01, "grad_clip_by": "value"},
    "clipped by norm": {"grad_clip": 0.01, "grad_clip_by": "norm"},
    "clipped by global norm": {"grad_clip": 0.01, "grad_clip_by": "global_norm"},
    "much KL, narrow clips": {"kl_coeff": 3.0, "clip_param": 0.01, "vf_clip_param": 0.5, "vf_loss_coeff": 0.1},
    "logged gradients": {"log_gradients": True},
    "ReLU, three layers": {"model": {"fcnet_hiddens": [40, 9, 5], "fcnet_activation": "relu"}},
    "SiLU in heads": {"model": {"head_fcnet_hiddens": [6], "head_fcnet_activation": "silu"}},
    "ELU": {"model": {"fcnet_activation": "elu", "vf_share_layers": False}},
    "GELU": {"model": {"fcnet_activation": "GELU"}},
    "linear": {"model": {"fcnet_activation": "linear"}},
    "Box actions": {"env": MultiAgentPendulum},
}


def make_config(env=MultiAgentCartPole, mapping=by_number, to_train=None, model=None, log_gradients=False, **training):
    return (
        PPOConfig()
        .environment(env, env_config={"num_agents": 3})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=mapping, policies_to_train=to_train)
        .env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner, num_env_runners=0, num_envs_per_env_runner=2)
        .rl_module(model_config=DefaultModelConfig(**{"fcnet_hiddens": [17, 8], **(model or {})}))
        .training(**{"minibatch_size": 32, "num_epochs": 3, **training})
        .reporting(log_gradients=log_gradients)
        .debugging(seed=3)
    )


def learner_of(kind, options):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    config = make_config(**options)
    env = config.env(config.env_config)
    spaces = {name: (env.get_observation_space(0), env.get_action_space(0)) for name in ("p0", "p1")}
    return config.training(learner_class=kind).build_learner(spaces=spaces), config


@functools.cache
def _sampled(env, mapping, has_model):
    options = {"env": env, "mapping": mapping, **({"model": RECURRENT} if has_model else {})}
    runner = fastmarl.rllib.MultiAgentEnvRunner(config=make_config(**options))
    chunks = [runner.sample(num_timesteps=90) for _ in range(N_UPDATES)]
    runner.stop()
    return chunks


def sampled(options):
    """Chunks of several calls with a config's env, mapping and kind of module."""
    is_recurrent = "use_lstm" in options.get("model", {})
    return copy.deepcopy(
        _sampled(options.get("env", MultiAgentCartPole), options.get("mapping", by_number), is_recurrent)
    )


@contextlib.contextmanager
def computed_directly():
    """Minibatches whose gradients are computed without autograd meanwhile: whether they were finite."""
    compute, found = DirectUpdate.compute, []

    def counted(*arguments):
        found.append(compute(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectUpdate, "compute", counted)
        yield found


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


def weights_of(learner):
    state = learner.get_state(components="rl_module")["rl_module"]
    return {(name, part): np.asarray(values) for name in state for part, values in state[name].items()}


def assert_close_weights(options, theirs, ours):
    """Equal but for a thousandth of what weights have moved.

    Rounded gradients differ by some 1e-6 of themselves, and Adam divides by their size: where little but rounding is
    left of a gradient, its weight moves as far as others.
    """
    begin = weights_of(learner_of(RLlibLearner, options)[0])
    want, got = weights_of(theirs), weights_of(ours)
    moved = max(np.abs(want[name] - begin[name]).max() for name in want)
    assert moved > 0
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-3 * moved, err_msg=str(name))


def assert_close_optimizers(theirs, ours):
    """Adam hides a factor that is wrong; its moments and the last gradients tell."""
    for one, other in zip(theirs._params.values(), ours._params.values(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert_close_tensors(other.grad, one.grad)
    want, got = theirs.get_state(components="optimizer"), ours.get_state(components="optimizer")
    for name, state in want["optimizer"].items():
        assert got["optimizer"][name]["state"]["param_groups"] == state["state"]["param_groups"]
        for number, moments in state["state"]["state"].items():
            found = got["optimizer"][name]["state"]["state"][number]
            assert found.keys() == moments.keys()
            assert found["step"] == moments["step"]
            for key in ("exp_avg", "exp_avg_sq"):
                assert_close_tensors(found[key], moments[key])


def assert_close_tensors(got, want):
    want = np.asarray(want)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-3, atol=1e-4 * np.abs(want).max(initial=0))


def assert_close(options, want, got):
    (theirs, their_results, their_draws), (ours, our_results, our_draws) = want, got
    assert our_draws == their_draws
    assert_close_weights(options, theirs, ours)
    assert_close_optimizers(theirs, ours)
    for before, now in zip(their_results, our_results, strict=True):
        assert before.keys() == now.keys()
        for path, (kind, value) in before.items():
            assert now[path][0] is kind
            np.testing.assert_allclose(now[path][1], value, rtol=5e-4, atol=2e-6, err_msg=str(path))
