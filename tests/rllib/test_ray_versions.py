"""With a Ray that was not tested, the drop-in is RLlib's own class. `make test-rays` runs this with real ones."""

import importlib
import logging
import random

import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from support.forked import with_new_modules

import fastmarl.rllib
from fastmarl.errors import ConfigError
from fastmarl.rllib import stand_in

pytestmark = pytest.mark.filterwarnings("ignore")  # those of other versions


def sampled(runner_class):
    """Return the full results of two calls without ids and clocks, and the runner."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 3})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id % 2}")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .debugging(seed=1)
    )
    runner = runner_class(config=config)
    episodes = [episode for _ in range(2) for episode in runner.sample(num_timesteps=60)]
    found = [
        (len(episode), agent_id, len(agent), [column.tobytes() for column in columns_of(agent)])
        for episode in episodes
        for agent_id, agent in episode.agent_episodes.items()
    ]
    runner.stop()
    return found, runner


def columns_of(agent):
    extras = agent.extra_model_outputs
    columns = [agent.observations, agent.actions, agent.rewards, *(extras[name] for name in sorted(extras))]
    return [np.asarray(column.data) for column in columns]


def test_the_drop_in_equals_rllibs_class():
    theirs, _ = sampled(RLlibEnvRunner)
    ours, runner = sampled(fastmarl.rllib.MultiAgentEnvRunner)
    assert ours == theirs
    assert runner.is_accelerated == (ray.__version__ in stand_in.TESTED)


def test_an_untested_version_is_a_slow_path_reason(monkeypatch, caplog):
    monkeypatch.setattr(ray, "__version__", "2.99.1")
    with caplog.at_level(logging.WARNING, logger="fastmarl.rllib.stand_in"):
        ours, runner = sampled(stand_in.MultiAgentEnvRunner)
    assert ours == sampled(RLlibEnvRunner)[0]
    (reason,) = runner.slow_path_reasons
    assert "Ray 2.99.1" in reason and "2.60.0" in reason and reason in caplog.text
    assert runner.is_accelerated is False and stand_in.MultiAgentEnvRunner.options(sampler="fast")
    with pytest.raises(ConfigError, match="can't enable fixes: Ray 2"):
        stand_in.MultiAgentEnvRunner.options(fixes="all")


def imported_with_an_untested_version():
    ray.__version__ = "2.99.1"
    ours = importlib.import_module("fastmarl.rllib")
    return {name: str(getattr(ours, name)) for name in ours.__all__}


def test_an_untested_version_is_found_at_import():
    names = with_new_modules("fastmarl.rllib", imported_with_an_untested_version)
    modules = dict.fromkeys(fastmarl.rllib.__all__, "stand_in") | {"FirstReadyPPO": "first_ready"}
    assert names == {name: f"<class 'fastmarl.rllib.{module}.{name}'>" for name, module in modules.items()}
