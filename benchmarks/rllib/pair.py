"""RLlib's runner and ours, timed in turn in one process, after a check that equal seeds give equal episodes."""

import gc
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from benchmarks.rllib.cases import SEED, Case
from benchmarks.rllib.equality import check_alike, check_equal
from fastmarl.bench.relative_speed import one_torch_thread
from fastmarl.rllib.runner import MultiAgentEnvRunner


@dataclass(frozen=True)
class Timing:
    """Times in seconds of a call of sample(), the first access to all agents' parts, and get_metrics()."""

    sample: float
    look: float
    metrics: float
    env_steps: int
    agent_steps: int

    @property
    def us(self) -> float:
        """Microseconds of sample() per agent step."""
        return 1e6 * self.sample / self.agent_steps


class Pair(AbstractContextManager["Pair"]):
    """RLlib's runner and ours with the same case and seed, for a `with` statement."""

    def __init__(self, case: Case, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner):
        self._case = case
        self.theirs = self._make(RLlibEnvRunner)
        self.ours = self._make(ours)

    def __exit__(self, *exception: object) -> None:
        self.theirs.stop()
        self.ours.stop()

    def check(self, steps: int) -> None:
        """Compare the results of two calls of sample(); the second continues episodes. Also warms up.

        With `sampler="fast"` the actions differ, so only the form of the columns is compared.

        Args:
            steps: Env steps per call.

        Raises:
            UnequalEpisodesError: If they differ; the message names the first difference.
        """
        compare = check_alike if getattr(self.ours, "sampler", "exact") == "fast" else check_equal
        for call in range(2):
            theirs, ours = (self.sample(runner, steps, seed=call)[0] for runner in (self.theirs, self.ours))
            compare(theirs, ours)
        for runner in (self.theirs, self.ours):
            runner.get_metrics()  # releases the episodes

    def sample(self, runner: RLlibEnvRunner, steps: int, seed: int) -> tuple[list[MultiAgentEpisode], float]:
        """Return (episodes, seconds) of one call."""
        seed_everything(seed)
        gc.collect()  # so that neither runner collects the other's garbage
        begun = perf_counter()
        episodes = runner.sample(num_timesteps=steps)
        return episodes, perf_counter() - begun

    def time(self, runner: RLlibEnvRunner, seed: int, steps: int | None = None) -> Timing:
        """Time one call of sample(). After the same seeds both runners do the same work."""
        episodes, seconds = self.sample(runner, steps or self._case.steps, seed)
        begun = perf_counter()
        look(episodes)
        looked = perf_counter()
        runner.get_metrics()
        reported = perf_counter()
        return Timing(
            sample=seconds,
            look=looked - begun,
            metrics=reported - looked,
            env_steps=sum(episode.env_steps() for episode in episodes),
            agent_steps=sum(episode.agent_steps() for episode in episodes),
        )

    def _make(self, runner_class: type[RLlibEnvRunner]) -> RLlibEnvRunner:
        seed_everything(SEED)
        return runner_class(config=self._case.config())


def look(episodes: list[MultiAgentEpisode]) -> None:
    """Build the agent episodes, which ours does only at the first access."""
    for episode in episodes:
        episode.agent_episodes  # noqa: B018


def seed_everything(seed: int) -> None:
    """Seed the global generators that environments, modules and distributions may use."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (the one that RLlib seeds)
    torch.manual_seed(seed)


@contextmanager
def measuring() -> Iterator[None]:
    """Use one torch thread without warnings and logs; torch's global settings are restored afterwards."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with one_torch_thread(), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
        torch.use_deterministic_algorithms(deterministic)  # a seeded runner of RLlib turns them on
