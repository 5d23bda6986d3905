"""Learners of one config, updated with the same episodes, and what they come to."""

import copy
import functools
import random

import numpy as np
import torch
import tree
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

import fastmarl.rllib

N_UPDATES = 3
RECURRENT = {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 5}
CLOCKS = ("timer", "throughput", "learner_connector")  # parts of names of what clocks say


def by_number(agent_id, *args, **kwargs):
    return f"p{agent_id % 2}"


def by_one(agent_id, *args, **kwargs):
    return "p0"


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
