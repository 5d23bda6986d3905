"""A policy's actions are those that the envs were sent, with every kind of module, connector and space."""

import gymnasium as gym
import numpy as np
import pytest
from support import exhaustive
from support.compare_actions import close
from support.differences import is_same
from support.optional import params
from support.overheard import Carried, Overheard, asked_again, in_batches, one_by_one
from support.policy_kinds import KINDS, SMALL, overheard_runner, policies_of
from support.real_envs import KINDS as REAL
from support.real_envs import package_of
from support.real_envs import pytestmark as real_envs_marks

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.registry import env_creator

pytestmark = real_envs_marks
CONTINUOUS = (gym.spaces.Box, gym.spaces.Dict, gym.spaces.Tuple)
N = 200
KEPT = (  # each layer, kind of space, mask and connector
    *("default", "default, bytes", "default, doubles kept", "other layers", "any torch module", "own actions", "CNN"),
    *("LSTM, apart", "own memory", "masks of parts in observations", "masks in infos", "bits", "a number", "a tuple"),
    *("normalised, doubles", "filter beside masks", "an indicator", "frames of images", "previous, nested"),
    *("all, and memory", "own connector"),
)
STATES = (
    *("default", "LSTM, apart", "own memory", "filter", "frames", "previous, clipped", "all, and memory"),
    *("own connector", "masks in infos", "an indicator"),
)


def played(runner, env, n):
    """Evaluate until the envs have got n actions."""
    env.clear()
    while env.n_sent < n:
        runner.evaluate(5, seeds=range(env.n_sent, env.n_sent + 5))


def assert_equal(pairs, n, tolerance=0.0):
    """Compare discrete numbers exactly, others with the tolerance."""
    count = 0
    for sent, given in pairs:
        assert type(given) is type(sent)
        assert is_same(sent, given) if not tolerance else close(sent, given, tolerance), (sent, given)
        count += 1
    assert count >= n


@pytest.mark.slow
@pytest.mark.parametrize("kind", exhaustive.params(KINDS, KEPT))
def test_actions_are_those_that_the_env_was_sent(kind, tmp_path):
    """In batches as the runner had them, bit-identical. One by one, torch (which may add a batch up in another order
    than a row) may differ in the last digits of numbers, 1e-5 of them; compiled kernels add up to four rows alike."""
    runner, env = overheard_runner(kind)
    policies = policies_of(runner, kind, tmp_path)
    played(runner, env, N)
    (ticks,) = env.envs
    is_native = runner.inference_backends == {"default_policy": "native"}
    tolerance = 1e-5 if isinstance(KINDS[kind][1], CONTINUOUS) and not is_native else 0.0
    copied, restored = policies["runner"], policies["checkpoint"]
    assert copied.inference_backends == restored.inference_backends == runner.inference_backends
    assert_equal(asked_again(ticks, in_batches(copied), copied.reset), N)
    assert_equal(asked_again(ticks, one_by_one(restored), restored.reset), N, tolerance)


@pytest.mark.parametrize("kind", exhaustive.params(KINDS, STATES))
def test_a_state_that_is_carried_is_as_good_as_one_that_is_kept(kind, tmp_path):
    runner, env = overheard_runner(kind)
    played(runner, env, N)
    for policy in policies_of(runner, kind, tmp_path).values():
        carried = Carried(policy)
        kept = list(asked_again(env.envs[0], one_by_one(policy), policy.reset))
        pairs = asked_again(env.envs[0], carried, carried.states.clear)
        assert_equal(((own, given) for (_, own), (_, given) in zip(kept, pairs, strict=True)), N)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["default", "normalised", "other layers"])
def test_large_batches_are_added_up_in_another_order(kind):
    """More than four rows at once differ from one row in their last bits, with compiled kernels, too."""
    runner, env = overheard_runner(kind, num_envs=8)
    played(runner, env, N)
    policy = fastmarl.Policy.from_runner(runner)
    assert policy.inference_backends == {"default_policy": "native"}
    pairs = [pair for ticks in env.envs for pair in asked_again(ticks, one_by_one(policy), policy.reset)]
    assert_equal(pairs, N, 1e-5)
    if kind == "normalised":
        assert not all(is_same(sent, given) for sent, given in pairs)


REAL_KINDS = ["simple_spread", "simple_spread, continuous", "simple_tag", "connect_four", "tictactoe", "leduc_holdem"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", params(REAL_KINDS, package_of))
def test_actions_in_real_environments(kind, tmp_path):
    """With a module for each agent every row is alone, so that all is bit-identical."""
    make, env_config = REAL[kind]
    env = Overheard(make)
    names = list(as_multi_agent_env(env_creator(make)(env_config)).possible_agents)
    config = fastmarl.EnvRunnerConfig(
        env=env,
        env_config=env_config,
        policies=names,
        policy_mapping_fn=lambda agent_id, episode: agent_id,
        model_config=SMALL,
        seed=3,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=50)
    from_runner = fastmarl.Policy.from_runner(runner)
    restored = fastmarl.Policy.from_checkpoint(
        runner.save_to_path(tmp_path), policy_mapping_fn=config.policy_mapping_fn
    )
    played(runner, env, N)
    for policy in (from_runner, restored):
        assert_equal(asked_again(env.envs[0], in_batches(policy), policy.reset), N)
        assert_equal(asked_again(env.envs[0], one_by_one(policy), policy.reset), N)


def test_a_quick_module_acts_on_complete_observations_only():
    """A mask alone has the dtype and shape of their first leaf."""
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="fastmarl.gridworld", seed=0)) as runner:
        policy = fastmarl.Policy.from_runner(runner)
    (space, _) = runner.get_spaces()["default_policy"]
    assert policy.inference_backends == {"default_policy": "native"}
    with pytest.raises(fastmarl.errors.MultiAgentEnvError, match="observation"):
        policy.act(np.ones(5, np.int8))
    for legal in range(5):
        mask = (np.arange(5) == legal).astype(np.int8)
        assert policy.act({**space.sample(), "action_mask": mask}) == legal
