"""Runs on record, and whether what is replayed is bit-identical to what was sampled."""

import itertools

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import env_creator
from support.compare import join
from support.differences import assert_same

FRAGMENTS = (1, 2, 7, 40, 250)  # env steps in a call, over and over


def by_spaces(env, env_config):
    """(policies, policy_mapping_fn) by which agents with equal spaces share a module."""
    probe = as_multi_agent_env(env_creator(env)(EnvContext(env_config, 0)))
    groups, policy_of = [], {}
    for agent in probe.possible_agents:
        spaces = env_spaces(probe, agent)
        if spaces not in groups:
            groups.append(spaces)
        policy_of[agent] = f"p{groups.index(spaces)}"
    if hasattr(probe, "close"):
        probe.close()
    return sorted(set(policy_of.values())), lambda agent, episode: policy_of[agent]


def record(folder, env, env_config=None, *, steps=None, episodes=None, runs=None, **options):
    """Sample with random actions until there are enough env steps, or finished episodes; returns all chunks by episode
    id, in the order in which these began to end."""
    env_config = env_config or {}
    policies, mapping = by_spaces(env, env_config)
    defaults = {"policies": policies, "policy_mapping_fn": mapping, "num_envs_per_env_runner": 2, "seed": 0,
                "model_config": {"fcnet_hiddens": [8]}}  # fmt: skip
    config = fastmarl.EnvRunnerConfig(env=env, env_config=env_config, record_actions=folder, **{**defaults, **options})
    chunks = {}
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for n in itertools.cycle(FRAGMENTS):
            for chunk in runner.sample(num_timesteps=n, random_actions=True):
                chunks.setdefault(chunk.id_, []).append(chunk)
            n_done = sum(parts[-1].is_done for parts in chunks.values())
            n_steps = sum(len(chunk) for parts in chunks.values() for chunk in parts)
            if n_done >= (episodes or 0) and n_steps >= (steps or 0):
                return chunks


def assert_same_episode(sampled, replayed, *, infos=True, actions=True):
    """All that the env said, and who acted when."""
    assert (len(replayed), replayed.env_t_started, replayed.env_t) == (len(sampled), 0, sampled.env_t)
    assert (replayed.is_terminated, replayed.is_truncated) == (sampled.is_terminated, sampled.is_truncated)
    assert replayed.reset_seed == sampled.reset_seed
    assert replayed.agent_episodes.keys() == sampled.agent_episodes.keys()
    for agent, part in sampled.agent_episodes.items():
        other = replayed.agent_episodes[agent]
        assert other.module_id == part.module_id
        assert other.env_ts().tolist() == part.env_ts().tolist(), agent
        for t in range(len(part) + 1):
            assert_same(other.get_observations(t), part.get_observations(t), (agent, t))
        assert other.get_rewards().tolist() == part.get_rewards().tolist(), agent
        assert (other.is_terminated, other.is_truncated) == (part.is_terminated, part.is_truncated), agent
        if actions:
            for t in range(len(part)):
                assert_same(other.get_actions(t), part.get_actions(t), (agent, t))
        if infos:
            assert_same(other.get_infos(), part.get_infos(), agent)


def whole(parts):
    """The episode of all of its chunks; these stay as they are."""
    return join([fastmarl.MultiAgentEpisode.from_state(part.get_state()) for part in parts])
