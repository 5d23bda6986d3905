"""Change a runner's config, then make its envs or modules: RLlib's runner and the standalone one do the same."""

import dataclasses

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from support.rllib_walk import Walk

import fastmarl

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own


class OfRLlib:
    """Changes the config in place."""

    def __init__(self):
        config = PPOConfig().environment(Walk, env_config={}).env_runners(num_env_runners=0, rollout_fragment_length=8)
        config = config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode: "p")
        config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[4]))
        self.runner = MultiAgentEnvRunner(config=config)

    def change(self, **options):
        for name, value in options.items():
            if name == "hiddens":
                self.runner.config.rl_module(
                    rl_module_spec=RLModuleSpec(model_config=DefaultModelConfig(fcnet_hiddens=value))
                )
            else:
                setattr(self.runner.config, name, value)

    def width(self):
        return next(iter(self.runner.module["p"].parameters())).shape


class Standalone:
    """Changes a copy of the config."""

    def __init__(self):
        config = fastmarl.EnvRunnerConfig(
            env=Walk, policies={"p"}, rollout_fragment_length=8, model_config={"fcnet_hiddens": [4]}
        )
        self.runner = fastmarl.MultiAgentEnvRunner(config)

    def change(self, **options):
        if "hiddens" in options:
            spec = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": options.pop("hiddens")})
            options.update(rl_module_spec=spec, model_config={})
        self.runner.config = dataclasses.replace(self.runner.config, **options)

    def width(self):
        return next(iter(self.runner.module["p"].parameters())).shape


def course(kind):
    """Apply a sequence of changes and return the results."""
    each = kind()
    runner = each.runner
    seen = []

    def look():
        episodes = runner.sample()
        steps = sum(map(len, episodes))
        longest = max(map(len, runner.sample(num_episodes=2)))
        seen.append((steps, longest, runner.num_envs, len(runner.env.envs), tuple(each.width())))

    look()
    each.change(env_config={"length": 3})
    look()
    runner.make_env()
    look()
    runner.config.env_config["length"] = 2
    runner.make_env()
    look()
    each.change(num_envs_per_env_runner=3, rollout_fragment_length=4)
    runner.make_env()
    look()
    each.change(hiddens=[7])
    look()
    runner.make_module()
    look()
    Walk.fails_to_close = True
    try:
        runner.make_env()
    finally:
        Walk.fails_to_close = False
    look()
    runner.assert_healthy()
    each.change(batch_mode="complete_episodes")
    look()
    runner.stop()
    return seen


def test_envs_of_other_spaces():
    """RLlib's new module is for the old spaces: its connectors, which know these, are not made again."""
    widths = {}
    for kind in (Standalone, OfRLlib):
        each = kind()
        each.change(env_config={"shape": (5,)})
        each.runner.make_env()
        each.runner.make_module()
        widths[kind] = each.width()[1]
    assert widths == {Standalone: 5, OfRLlib: 2}


def test_both_runners_follow_a_changed_config():
    assert course(Standalone) == course(OfRLlib)
