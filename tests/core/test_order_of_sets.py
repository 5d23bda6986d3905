"""Sets of agents and policies have one order in all processes, or are refused where their order matters."""

import enum

import gymnasium as gym
import numpy as np
import pytest
from support.scripted import Scripted, Step

import fastmarl
from fastmarl.batches import aligned
from fastmarl.connectors import AgentIndicator
from fastmarl.core.envs.form import possible_agents_of
from fastmarl.envs import ArrayEnv
from fastmarl.errors import BatchError, ConfigError, EnvCheckError
from fastmarl.testing import check_env

BOX = gym.spaces.Box(0, 1, (1,), np.float32)
Side = enum.Enum("Side", ["LEFT", "RIGHT"])
NAMES = [f"agent {letter}" for letter in "gbfadec"]


def of_set(config):
    agents = config.get("agents", NAMES)
    env = Scripted([agents, Step(agents, 1, terminated=True)], space=BOX)
    env.possible_agents = set(agents)
    return env


def runner_of(**options):
    config = {"model_config": {"fcnet_hiddens": [4]}, "num_envs_per_env_runner": 2, "seed": 0, **options}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=of_set, **config))


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"gym_env_vectorize_mode": "async", "num_env_workers": 1}, marks=pytest.mark.slow)],
    ids=["sync", "async"],
)
def test_sets_of_names_are_sorted(options):
    """Each set here would be in order by chance in one process of 5,040, or of 6. A spawned one has other hashes."""
    with runner_of(
        policies={f"policy {letter}" for letter in "cab"},
        policy_mapping_fn=lambda agent, episode: "policy " + "abc"[ord(agent[-1]) % 3],
        env_to_module_connector=lambda env, spaces, device: AgentIndicator(set(env.possible_agents)),
        **options,
    ) as runner:
        assert list(runner.module) == ["policy a", "policy b", "policy c"]
        assert runner.env_to_module["policy a"].connectors[0].agents == sorted(NAMES)
        chunks = runner.sample(num_episodes=4)
        assert list(possible_agents_of(runner.env.envs[0])) == sorted(NAMES)
    for arguments in ({"groups": {"all": frozenset(NAMES)}}, {"groups": lambda *args: "all", "agents": set(NAMES)}):
        assert aligned(chunks, **arguments)["all"]["agent_id"][0].tolist() == sorted(NAMES)


@pytest.mark.parametrize(
    "agents",
    [[7, 64, 300], list(Side), [(0, 1), (1, 0)], [1, "a"], [frozenset({"a", "b"}), frozenset({"a", "c"})]],
)
def test_sets_of_other_ids_are_sorted_too(agents):
    assert possible_agents_of(of_set({"agents": agents[::-1]})) == agents
    assert AgentIndicator(set(agents)).agents == agents
    assert check_env(of_set, {"agents": agents}).ok


class Thing:
    """All have the same text but for their addresses."""


@pytest.mark.parametrize("agents", [[Thing(), Thing()], [(1, Thing()), (2, "a")]])
def test_sets_without_an_order_are_refused(agents):
    with pytest.raises(EnvCheckError, match="the order of possible_agents matters, but the order of this set varies"):
        runner_of(env_config={"agents": agents})
    assert not check_env(of_set, {"agents": agents}).ok
    with pytest.raises(ConfigError, match="the order of the agents of AgentIndicator matters"):
        AgentIndicator(set(agents))
    AgentIndicator(agents)
    for arguments in ({"groups": {"all": set(agents)}}, {"agents": set(agents)}):
        with pytest.raises(BatchError, match="matters, but the order of this set varies between processes"):
            aligned([], **arguments)
    with pytest.raises(EnvCheckError, match="are a set, but they must be in the order of its arrays"):
        ArrayEnv(1, {"all": set(agents)}, {"all": BOX}, {"all": BOX})
