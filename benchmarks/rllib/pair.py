"""RLlib's runner and ours, timed in turn in one process, after both have returned equal episodes for equal seeds."""

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
from fastmarl.bench.efficiency import one_torch_thread
from fastmarl.rllib.runner import MultiAgentEnvRunner


@dataclass(frozen=True)
class Timing:
    """One call of sample(), a first look at all agents' parts, and get_metrics(). Times in seconds."""

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
    """RLlib's runner and ours, of the same case and from the same seed. Use it in a `with` statement."""

    def __init__(self, case: Case, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner):
        self._case = case
        self.theirs = self._make(RLlibEnvRunner)
        self.ours = self._make(ours)

    def __exit__(self, *exception: object) -> None:
        self.theirs.stop()
        self.ours.stop()

    def check(self, steps: int) -> None:
        """Compare what two calls of sample() return, the second of which goes on with episodes. Also warms up.

        With `sampler="fast"`, actions differ, so what is compared is the form of the columns.

        Args:
            steps: env steps in each.

        Raises:
            UnequalEpisodesError: names the first difference.
        """
        compare = check_alike if getattr(self.ours, "sampler", "exact") == "fast" else check_equal
        for call in range(2):
            theirs, ours = (self.sample(runner, steps, seed=call)[0] for runner in (self.theirs, self.ours))
            compare(theirs, ours)
        for runner in (self.theirs, self.ours):
            runner.get_metrics()  # lets go of the episodes

    def sample(self, runner: RLlibEnvRunner, steps: int, seed: int) -> tuple[list[MultiAgentEpisode], float]:
        """(episodes, seconds) of one call."""
        seed_everything(seed)
        gc.collect()  # so that nobody pays for the other's garbage
        begun = perf_counter()
        episodes = runner.sample(num_timesteps=steps)
        return episodes, perf_counter() - begun

    def time(self, runner: RLlibEnvRunner, seed: int, steps: int | None = None) -> Timing:
        """One call of sample(). After the same seeds both runners do the same work."""
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
    """Make what ours makes late."""
    for episode in episodes:
        episode.agent_episodes  # noqa: B018


def seed_everything(seed: int) -> None:
    """The global generators that environments, modules and distributions may draw from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (the one that RLlib seeds)
    torch.manual_seed(seed)


@contextmanager
def measuring() -> Iterator[None]:
    """One torch thread, no warnings and no log; afterwards torch's global settings are what they were."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with one_torch_thread(), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
        torch.use_deterministic_algorithms(deterministic)  # a seeded runner of RLlib's switches them on
