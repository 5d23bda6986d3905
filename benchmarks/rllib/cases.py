"""Cases of `python -m benchmarks.rllib`: environments, modules, and numbers of steps per call of sample()."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from fastmarl.bench.relative_speed_table import READY_AGENTS_AND_ENVS, ReadyDicts
from fastmarl.core.envs.pettingzoo import ParallelPettingZooEnv
from fastmarl.core.errors import ConfigError

SEED = 1
BATTLE_AGENTS = 162


class ReadyEnv(MultiAgentEnv):
    """An environment without costs: every step returns the same dicts of arrays, and all agents live for 100 steps.

    Args:
        config: "agents": number of agents.
    """

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        ready = ReadyDicts({"agents": config["agents"], "size": 8, "actions": 3})
        self.agents = self.possible_agents = ready.possible_agents
        self.observation_spaces, self.action_spaces = ready.observation_spaces, ready.action_spaces
        # Uses the methods of the ready env directly, since another Python call per step would be a cost.
        self.reset, self.step = ready.reset, ready.step  # type: ignore[method-assign,assignment]


class FlatBattle(MultiAgentEnv):
    """MAgent2's battle_v4 with flat observations, float32 [845]; RLlib has no default network for their real shape."""

    def __init__(self, config: dict[str, Any]):
        from magent2.environments import battle_v4  # type: ignore[import-untyped]

        super().__init__()
        self._env = env = ParallelPettingZooEnv(battle_v4.parallel_env())
        self.agents = self.possible_agents = env.possible_agents
        self.observation_spaces = {
            agent: gym.spaces.flatten_space(env.get_observation_space(agent)) for agent in self.agents
        }
        self.action_spaces = {agent: env.get_action_space(agent) for agent in self.agents}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, infos = self._env.reset(seed=seed, options=options)
        return {agent: image.reshape(-1) for agent, image in obs.items()}, infos

    def step(self, action_dict: dict) -> tuple:
        obs, *rest = self._env.step(action_dict)
        return {agent: image.reshape(-1) for agent, image in obs.items()}, *rest


def one_for_all(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
    return "p0"


def by_number(agent_id: int, episode: Any, **kwargs: Any) -> str:
    """Map even and odd agents to different modules."""
    return f"p{agent_id % 2}"


def by_team(agent_id: str, episode: Any, **kwargs: Any) -> str:
    return agent_id.partition("_")[0]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    env: type[MultiAgentEnv]
    agents: int
    """Number at the start of an episode; in CartPole they fall one by one."""
    envs: int
    steps: int = 1000
    """Env steps per call of sample(), over all envs."""
    hiddens: tuple[int, ...] = (64, 64)
    policies: tuple[str, ...] = ("p0",)
    policy_of: Callable[..., str] = one_for_all
    config_key: str = "agents"
    """Key of the number of agents in the environment's config."""
    rllib_rounds: int | None = None
    """Number of rounds in which RLlib's runner is timed; None means all."""

    def config(self, **env_runner_options: Any) -> PPOConfig:
        """Return PPO's config with its default modules of this size.

        Args:
            env_runner_options: Passed to `config.env_runners()`.
        """
        options = {"num_env_runners": 0, "num_envs_per_env_runner": self.envs, **env_runner_options}
        model = DefaultModelConfig(fcnet_hiddens=[*self.hiddens], fcnet_activation="tanh", vf_share_layers=False)
        return (
            PPOConfig()
            .environment(self.env, env_config={self.config_key: self.agents})
            .multi_agent(policies=list(self.policies), policy_mapping_fn=self.policy_of)
            .rl_module(model_config=model)
            .env_runners(**options)
            .debugging(seed=SEED)
        )


cartpole = partial(
    Case,
    env=MultiAgentCartPole,
    config_key="num_agents",
    hiddens=(256, 256),
    policies=("p0", "p1"),
    policy_of=by_number,
)
CASES: dict[str, Case] = {
    "cartpole-2x1": cartpole(agents=2, envs=1),
    "cartpole-8x8": cartpole(agents=8, envs=8),
    "cartpole-100x1": cartpole(agents=100, envs=1),
    **{
        f"ready-{agents}x{envs}": Case(env=ReadyEnv, agents=agents, envs=envs) for agents, envs in READY_AGENTS_AND_ENVS
    },
    "battle": Case(
        env=FlatBattle, agents=BATTLE_AGENTS, envs=1, steps=200, policies=("red", "blue"), policy_of=by_team
    ),
    # RLlib's time grows with the square of the steps per call, so one round is long enough.
    "cartpole-8x8-32000": cartpole(agents=8, envs=8, steps=32_000, rllib_rounds=1),
}
EXTRAS = ("growth", "transfer")
STANDARD = (*(name for name, case in CASES.items() if case.rllib_rounds is None), *EXTRAS)
QUICK = ("cartpole-8x8", "ready-8x16")


def check_names(names: Sequence[str]) -> None:
    """Check that all names are in CASES or EXTRAS.

    Raises:
        ConfigError: If a name is unknown.
    """
    for name in names:
        if name not in (*CASES, *EXTRAS):
            raise ConfigError(f"there is no case {name!r}; there are {', '.join((*CASES, *EXTRAS))}")
