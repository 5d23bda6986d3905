"""Targets of a `sample()` call, in steps or episodes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, MultiAgentEnvError
from fastmarl.core.errors.checks import is_integer
from fastmarl.core.store.request import Request

MAX_IDLE_TICKS = 10_000
MAX_DISCARDED = 1000  # consecutive episodes


@dataclass
class Goal:
    """Counts the steps and episodes of a call and reports when the target is reached."""

    num_timesteps: int | None = None  # None: `num_episodes` is the target
    counts_env_steps: bool = False  # otherwise `num_timesteps` is in agent steps
    num_episodes: int = 0
    left: int = 0  # number of episodes still to start, in any env
    left_of_envs: list[int] = field(default_factory=list)  # the same per env, if each env has a separate number
    random_actions: bool = False
    ticks: int = 0
    idle_ticks: int = 0  # latest consecutive ticks without an acting agent
    env_steps: int = 0
    agent_steps: int = 0
    n_discarded: int = 0  # episodes discarded since the call last made progress
    most_env_steps: int = -1  # largest value of env_steps after any discarded episode
    finished_ids: dict[str, int] = field(default_factory=dict)  # id -> env index, in the order in which they finished

    def reached(self) -> bool:
        if self.num_timesteps is None:
            return len(self.finished_ids) >= self.num_episodes
        return (self.env_steps if self.counts_env_steps else self.agent_steps) >= self.num_timesteps

    def add_tick(self, env_steps: int, agent_steps: int) -> None:
        """Count a step of all envs.

        Raises:
            MultiAgentEnvError: If no agent has been observed for MAX_IDLE_TICKS ticks.
        """
        self.ticks += 1
        self.env_steps += env_steps
        self.agent_steps += agent_steps
        self.idle_ticks = 0 if agent_steps else self.idle_ticks + 1
        if self.idle_ticks >= MAX_IDLE_TICKS and not self.counts_env_steps:
            problem = (
                f"no agent was observed in {MAX_IDLE_TICKS} consecutive steps, but the call waits for agent steps or "
                "episodes; set '__all__' in step() when all agents have finished"
            )
            raise MultiAgentEnvError(0, None, self.ticks, problem)

    def take_back(self, env_index: int, env_steps: int, agent_steps: int) -> None:
        """Subtract the steps of a failed env or a discarded episode.

        Raises:
            MultiAgentEnvError: If MAX_DISCARDED episodes were discarded without progress.
        """
        self.env_steps -= env_steps
        self.agent_steps -= agent_steps
        self.n_discarded = 0 if self.env_steps > self.most_env_steps else self.n_discarded + 1
        self.most_env_steps = max(self.env_steps, self.most_env_steps)
        if self.n_discarded >= MAX_DISCARDED:
            problem = (
                f"envs failed {MAX_DISCARDED} times and their episodes were discarded, so the call makes no "
                'progress; make the env fail less often, or set failed_episodes="truncate"'
            )
            raise MultiAgentEnvError(env_index, None, 0, problem)

    @property
    def counts_episodes(self) -> bool:
        return self.num_timesteps is None

    def begin(self, env_indices: Iterable[int]) -> list[int]:
        """Choose the envs that start an episode now, in the given order, until no episodes are left to start."""
        if not self.counts_episodes:
            return list(env_indices)
        if not self.left_of_envs:
            chosen = list(islice(env_indices, self.left))
            self.left -= len(chosen)
            return chosen
        chosen = [env_index for env_index in env_indices if self.left_of_envs[env_index]]
        for env_index in chosen:
            self.left_of_envs[env_index] -= 1
        return chosen

    def begin_another(self, env_index: int) -> None:
        """Allow one more episode, because the episode of this env was discarded."""
        if self.left_of_envs:
            self.left_of_envs[env_index] += 1
        else:
            self.left += 1

    def wanted(self, chunks: list[MultiAgentEpisode]) -> list[MultiAgentEpisode]:
        """Drop the chunks of unfinished episodes if complete episodes were requested."""
        return [chunk for chunk in chunks if chunk.id_ in self.finished_ids] if self.counts_episodes else chunks


def make_goal(config: EnvRunnerConfig, request: Request, num_envs: int) -> Goal:
    """Create the goal of a call. If the request has neither number, use the amount set in the config.

    Raises:
        ConfigError: If both numbers are given, or one is negative or not an integer.
    """
    num_timesteps, num_episodes = request.num_timesteps, request.num_episodes
    if num_timesteps is not None and num_episodes is not None:
        raise ConfigError(f"pass num_timesteps or num_episodes, not both; got {num_timesteps} and {num_episodes}")
    for name, number in (("num_timesteps", num_timesteps), ("num_episodes", num_episodes)):
        if number is not None and (not is_integer(number) or number < 0):
            raise ConfigError(f"{name} must be an integer >= 0, got {number!r}")
    if num_episodes is not None:
        return Goal(num_episodes=int(num_episodes), left=int(num_episodes))  # the first episodes to start count
    if num_timesteps is None and config.batch_mode == "complete_episodes":
        return Goal(num_episodes=num_envs, left_of_envs=[1] * num_envs)
    steps = config.get_rollout_fragment_length() * num_envs if num_timesteps is None else int(num_timesteps)
    return Goal(steps, counts_env_steps=config.count_steps_by == "env_steps")
