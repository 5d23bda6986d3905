"""Runners with worker processes, beside the same in this process, and what they have sampled."""

import psutil

import fastmarl
from fastmarl.core.config import OF_WORKERS
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.registry import env_creator
from support.real_envs import KINDS
from support.real_envs import pytestmark as pytestmark

FRAGMENTS = (1, 7, 60, 150)  # env steps in a call


def make_runner(env, *, num_envs=3, num_workers=2, mode="async", **options):
    if mode == "sync":  # in this process, with what else is the same
        num_workers = 0
        options = {name: value for name, value in options.items() if name not in OF_WORKERS}
    config = fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=num_envs,
        gym_env_vectorize_mode=mode,
        num_env_workers=num_workers,
        **{"seed": 1, "model_config": {"fcnet_hiddens": [4]}, **options},
    )
    return fastmarl.MultiAgentEnvRunner(config)


def policy_options(kind):
    """A module for each group of agents with equal spaces."""
    env = as_multi_agent_env(env_creator(KINDS[kind][0])(KINDS[kind][1]))
    groups, policy_of = [], {}
    for agent in env.possible_agents:
        spaces = env_spaces(env, agent)
        if spaces not in groups:
            groups.append(spaces)
        policy_of[agent] = f"p{groups.index(spaces)}"
    env.close()
    return {"policies": sorted(set(policy_of.values())), "policy_mapping_fn": lambda agent, episode: policy_of[agent]}


def contents(chunk):
    """All that a chunk holds."""
    agents = {
        agent: {
            "obs": part.get_observations(),
            "actions": part.get_actions(),
            "rewards": part.get_rewards(),
            "infos": part.get_infos(),
            "extra": part.get_extra_model_outputs(),
            "times": part.env_ts(),
            "ends": (part.is_terminated, part.is_truncated),
        }
        for agent, part in chunk.agent_episodes.items()
    }
    return {
        "agents": agents,
        "order": list(agents),
        "times": (chunk.env_t_started, chunk.env_t),
        "ends": (chunk.is_terminated, chunk.is_truncated),
    }


def sampled(env, **options):
    """Return the chunks and counts of several calls."""
    runner = make_runner(env, **options)
    try:
        chunks = [contents(chunk) for n in FRAGMENTS for chunk in runner.sample(num_timesteps=n)]
        counts = {key: value for key, value in runner.get_metrics().items() if key.startswith(("num_", "episode_r"))}
    finally:
        runner.stop()
    return {"chunks": chunks, "counts": counts}


class RandomModule(fastmarl.RLModule):
    """Acts by itself, regardless of its observations."""

    def _forward(self, batch, **kwargs):
        obs = batch["obs"]["v"] if isinstance(batch["obs"], dict) else batch["obs"]
        shape = self.action_space.shape
        return {"actions": (obs[:, 0].long() % 2).reshape(-1, *[1] * len(shape)).expand(-1, *shape)}


ODD_POLICIES = {
    "policies": ["0", "b", "('c', 1)", "d"],
    "policy_mapping_fn": lambda agent, episode: str(agent),
}


def children():
    """Worker processes of this process. Ray's, which another test may have begun, end with the session."""
    processes = ((child, " ".join(child.cmdline())) for child in psutil.Process().children())
    return [child for child, command in processes if "resource_tracker" not in command and "/ray/" not in command]
