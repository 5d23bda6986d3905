"""Evaluation episodes, which leave the training state unchanged."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import check_bool, is_integer
from fastmarl.runner.loop.goals import Goal
from fastmarl.runner.loop.sampling import Sampling


class Evaluator:
    """Runs evaluation episodes with the modules and envs of a runner."""

    def __init__(self, sampling: Sampling):
        self._sampling = sampling
        self._resources = sampling.resources
        self.unreturned: list[MultiAgentEpisode] = []

    def _checked_seeds(self, seeds: Any, num_episodes: int) -> list[int]:
        envs = self._resources.envs.all
        if not all(getattr(env, "seeds_each_episode", True) for env in envs):
            raise ConfigError(f"{type(envs[0]).__name__} can't be seeded per episode "
                              "(seeds_each_episode is False); evaluate without seeds")  # fmt: skip
        numbers: list[Any] = list(seeds) if isinstance(seeds, Iterable) else [None]
        if len(numbers) != num_episodes or not all(is_integer(n) and 0 <= n < 2**63 for n in numbers):
            raise ConfigError(f"seeds must be {num_episodes} integers from 0 to 2**63 - 1, got {seeds!r:.200}")
        return [int(number) for number in numbers]

    def evaluate(self, num_episodes: Any, seeds: Sequence[int] | None, explore: bool) -> None:
        """Run evaluation episodes and append them to `unreturned`, from which `MultiAgentEnvRunner` returns them."""
        if not is_integer(num_episodes) or num_episodes < 0:
            raise ConfigError(f"num_episodes must be an integer >= 0, got {num_episodes!r}")
        num_episodes, explore = int(num_episodes), check_bool("explore", explore)
        given = None if seeds is None else self._checked_seeds(seeds, num_episodes)
        sampling, n_envs = self._sampling, self._resources.num_envs
        sampling.begin_call()
        rollout = sampling.rollout
        of_envs = [(num_episodes - i + n_envs - 1) // n_envs for i in range(n_envs)]
        goal = Goal(num_episodes=num_episodes, left_of_envs=of_envs)
        with self._apart(goal, given):
            rollout.drop_begun(set())
            rollout.store.begin_call(None)
            try:
                chunks = rollout.play(goal, goal.begin(range(n_envs)), explore)
                self.unreturned += _in_order(chunks, goal, n_envs)
            except BaseException:  # the next call returns the finished episodes
                self.unreturned += _in_order(rollout.rescued(self.unreturned), goal, n_envs)
                raise
            rollout.log.sum_up()
            rollout.log.end_call()
            rollout.policies.tidy()
        sampling.is_intact = True

    @contextmanager
    def _apart(self, goal: Goal, seeds: list[int] | None) -> Iterator[None]:
        """Save the training state and restore it on exit."""
        resources, counts = self._resources, self._resources.counts
        generator, rng, env_to_module = resources.generator, resources.rng, resources.env_to_module
        seconds = dict(counts.seconds)
        known = {option: side.get_state() for option, side in env_to_module.sides().items()}
        streams = generator.get_state(), rng.bit_generator.state
        learning: list[Any] = [
            connector
            for module in env_to_module.values()
            for connector in module.connectors
            if getattr(connector, "update_stats", False)
        ]
        listeners = self._sampling.listeners
        by_event = listeners.by_event
        try:
            listeners.by_event = dict.fromkeys(by_event, ())
            for connector in learning:
                connector.update_stats = False
            generator.manual_seed(resources.streams.of_evaluation())
            rng.bit_generator.state = np.random.default_rng(resources.streams.of_evaluation()).bit_generator.state
            resources.seeds.evaluate(goal.left_of_envs, seeds)
            yield
        finally:
            resources.seeds.evaluate(None, None)
            generator.set_state(streams[0])
            rng.bit_generator.state = streams[1]
            for connector in learning:
                connector.update_stats = True
            for option, side in env_to_module.sides().items():
                side.set_state(known[option])
            listeners.by_event = by_event
            counts.seconds.clear()
            counts.seconds.update(seconds)


def _in_order(chunks: list[MultiAgentEpisode], goal: Goal, n_envs: int) -> list[MultiAgentEpisode]:
    """Select the chunks of finished episodes and sort them by episode index.

    Each env finishes its episodes in the order in which they start, so `goal.finished_ids` determines the indices.
    """
    ended, numbers = [0] * n_envs, {}
    for id_, env_index in goal.finished_ids.items():
        numbers[id_] = env_index + n_envs * ended[env_index]
        ended[env_index] += 1
    return sorted((chunk for chunk in chunks if chunk.id_ in numbers), key=lambda chunk: numbers[chunk.id_])
