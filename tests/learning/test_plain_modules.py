"""The torch module that was given to a runner, in loops: as good as the RLModule that the runner makes of it."""

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.errors import ConfigError, ModuleOutputError
from fastmarl.learning import PPOLearner, bootstrap_values, make_value_fn, ppo_loss, to_tensors
from fastmarl.modules import as_rl_module

NAMES = ["obs", "actions", "action_logp", "advantages", "value_targets"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logits, self.value = torch.nn.Linear(18, 5), torch.nn.Linear(18, 1)

    def forward(self, batch):
        return {"action_dist_inputs": self.logits(batch["obs"]), "vf_preds": self.value(batch["obs"]).squeeze(-1)}


def sampled(net):
    """A batch of which the runner is gone, and the module that it had."""
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", policies={"all": net}, seed=0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        batch = columns(runner.sample(num_timesteps=50))["all"]
        module = runner.module["all"]
    add_gae(batch, gamma=0.9, lambda_=0.9, value_fn=make_value_fn(net))
    return batch, module


def test_losses_values_and_updates_are_those_of_the_runners_module():
    torch.manual_seed(0)
    net = Net()
    batch, module = sampled(net)
    rows = to_tensors(batch, NAMES)
    assert torch.equal(ppo_loss(net, rows), ppo_loss(module, rows))
    assert np.array_equal(make_value_fn(net)(batch["obs"]), make_value_fn(module)(batch["obs"]))
    assert np.array_equal(bootstrap_values(net, batch), bootstrap_values(module, batch))
    twin = as_rl_module(deepcopy(net), module.observation_space, module.action_space)
    stats = [PPOLearner(each, generator=torch.Generator().manual_seed(1)).update(rows) for each in (net, twin)]
    assert stats[0] == stats[1]
    assert torch.equal(net.logits.weight, twin.logits.weight)


def test_a_copy_has_no_spaces_until_it_is_given_some():
    net = Net()
    batch, module = sampled(net)
    rows, copy = to_tensors(batch, NAMES), deepcopy(net)
    with pytest.raises(ConfigError, match=r"Net needs an action_space .* to fastmarl.modules.as_rl_module\(\)"):
        ppo_loss(copy, rows)
    assert len(make_value_fn(copy)(batch["obs"])) == len(batch["obs"])  # needs none
    given = as_rl_module(copy, module.observation_space, module.action_space)
    assert torch.equal(ppo_loss(given, rows), ppo_loss(net, rows))
    assert torch.equal(ppo_loss(copy, rows), ppo_loss(net, rows))


def test_a_module_of_agents_with_different_actions_is_ambiguous():
    net = Net()
    _, module = sampled(net)
    as_rl_module(net, gym.spaces.Box(-2, 2, (18,), np.float32), module.action_space)  # bounds make no difference
    make_value_fn(net)
    as_rl_module(net, module.observation_space, gym.spaces.Discrete(3))
    with pytest.raises(ConfigError, match=r"this Net acts for agents with different spaces; pass runner.module"):
        make_value_fn(net)


def test_errors_name_the_module_that_was_given():
    net = Net()
    batch, _ = sampled(net)
    net.forward = lambda batch: {"action_dist_inputs": net.logits(batch["obs"])}
    with pytest.raises(ModuleOutputError, match=r"Net"):
        ppo_loss(net, to_tensors(batch, NAMES))
    with pytest.raises(ConfigError, match=r"expected a torch.nn.Module, got 3"):
        ppo_loss(3, {})


def test_all_modules_of_a_runner_are_not_one():
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", policies={"all": Net()}, seed=0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for function in (make_value_fn, PPOLearner, lambda module: ppo_loss(module, {})):
            with pytest.raises(ConfigError, match=r"expected a single module, got \['all'\]; pass one"):
                function(runner.module)
