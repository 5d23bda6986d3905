"""A runner's episodes that are for evaluation: training goes on as if they had not been."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fastmarl.acting.policies import Policies
from fastmarl.connectors.env_to_module import EnvToModule
from fastmarl.episodes.log import EpisodeLog
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.errors import ConfigError, RunnerStoppedError
from fastmarl.native._call_guard import CallGuard
from fastmarl.record.store import RowStore
from fastmarl.runner.envs import Envs
from fastmarl.runner.goals import Goal, episodes_goal
from fastmarl.runner.metrics import RunnerMetrics
from fastmarl.seeds import ResetSeeds, Streams


class RunnerEvaluation:
    """The methods of a runner that evaluate its modules."""

    env_to_module: EnvToModule
    _calls: CallGuard
    _counts: RunnerMetrics
    _envs: Envs
    _evaluated: list[MultiAgentEpisode]
    _generator: torch.Generator
    _goal: Goal
    _has_envs: bool
    _is_whole: bool
    _listeners: dict[str, Any]
    _policies: Policies
    _rng: np.random.Generator
    _seeds: ResetSeeds
    _log: EpisodeLog
    _store: RowStore
    _streams: Streams
    _to_reset: set[int]

    def evaluate(
        self, num_episodes: int, *, seeds: Sequence[int] | None = None, explore: bool = False
    ) -> list[MultiAgentEpisode]:
        """Whole episodes to tell how good the modules are.

        Episode k of n is made by env k % num_envs, so that env i makes n // num_envs of them, and one more if
        i < n % num_envs; none is chosen by its length. What connectors know is used and stays as it is; counters,
        metrics but for failures, and random streams stay, too, and callbacks are not called. Running episodes are
        dropped, and the next `sample()` begins others.

        Args:
            num_episodes: n.
            seeds: n integers, for the resets. None: in a runner with a seed, others than those of training, the same
                in each call; else none.
            explore: sample actions, or take the most likely ones.

        Returns:
            The episodes, in the order of `seeds`; one in which an agent has respawned is in several chunks. If the last
            call has failed, those that had finished in it come before.

        Raises:
            ConfigError: the numbers are none, or the batch that steps in arrays can't be seeded for each episode.
            Else what `sample()` raises. Episodes that had finished are returned by the next call of `evaluate()`.
        """
        self._check_running()
        if isinstance(num_episodes, bool) or not isinstance(num_episodes, (int, np.integer)) or num_episodes < 0:
            raise ConfigError(f"num_episodes must be an integer of at least 0, got {num_episodes!r}")
        given = None if seeds is None else self._checked_seeds(seeds, int(num_episodes))
        arguments = {"num_episodes": int(num_episodes), "seeds": given, "explore": explore}
        return self._calls.run("evaluate()", self._evaluate, arguments)

    def _checked_seeds(self, seeds: Sequence[int], num_episodes: int) -> list[int]:
        if not all(getattr(env, "seeds_each_episode", True) for env in self._envs.all):
            raise ConfigError(f"{type(self._envs.all[0]).__name__} can't be seeded for each episode "
                              "(seeds_each_episode); evaluate without seeds")  # fmt: skip
        numbers = list(seeds)
        are_fit = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and 0 <= n < 2**63 for n in numbers)
        if len(numbers) != num_episodes or not are_fit:
            raise ConfigError(f"seeds must be {num_episodes} integers from 0 to 2**63 - 1, got {seeds!r:.200}")
        return [int(number) for number in numbers]

    def _evaluate(self, num_episodes: int, seeds: list[int] | None, explore: bool) -> list[MultiAgentEpisode]:
        if not self._has_envs:
            raise RunnerStoppedError("make_env() failed, and the envs are closed; call it again")
        was_whole, self._is_whole = self._is_whole, False  # until this call has come to its end
        if not was_whole:
            self._begin_anew()
        n_envs = len(self._seeds)
        goal = episodes_goal(num_episodes, [(num_episodes - i + n_envs - 1) // n_envs for i in range(n_envs)])
        self._goal = goal
        with self._apart(goal, seeds):
            self._drop_begun(set())
            self._log.renew()
            self._store.begin_call(None)
            try:
                with self._policies.sampling():
                    self._reset_envs(goal.begin(range(n_envs)))
                    self._run(goal, explore)
                self._stamp_actions()
                self._evaluated += _in_order(goal.wanted(self._log.end_chunks()), goal, n_envs)
            except BaseException:
                self._keep_evaluated(goal)
                raise
            self._log.sum_up()
            self._log.end_call()
            self._policies.tidy()
        self._is_whole = True
        episodes, self._evaluated = self._evaluated, []
        return episodes

    def _keep_evaluated(self, goal: Goal) -> None:
        """The call has failed: the episodes that have finished are returned by the next one."""
        finished: list[MultiAgentEpisode] = []
        self._rescue_into(finished)
        known = set(map(id, self._evaluated))
        self._evaluated += _in_order([chunk for chunk in finished if id(chunk) not in known], goal, len(self._seeds))

    @contextmanager
    def _apart(self, goal: Goal, seeds: list[int] | None) -> Iterator[None]:
        """Leave what training goes on with as it is."""
        counts, listeners = self._counts, self._listeners
        seconds, reset_seconds = dict(counts.seconds), counts.reset_seconds
        known = self.env_to_module.get_state()
        streams = self._generator.get_state(), self._rng.bit_generator.state
        learning = [
            connector
            for module in self.env_to_module.values()
            for connector in module.connectors
            if getattr(connector, "update_stats", False)
        ]
        try:
            self._listeners = dict.fromkeys(listeners, ())
            for connector in learning:
                connector.update_stats = False  # type: ignore[attr-defined]
            self._generator.manual_seed(self._streams.of_evaluation())
            self._rng.bit_generator.state = np.random.default_rng(self._streams.of_evaluation()).bit_generator.state
            self._seeds.evaluate(goal, seeds)
            yield
        finally:
            self._seeds.evaluate(None, None)
            self._generator.set_state(streams[0])
            self._rng.bit_generator.state = streams[1]
            for connector in learning:
                connector.update_stats = True  # type: ignore[attr-defined]
            self.env_to_module.set_state(known)
            self._listeners = listeners
            counts.seconds.clear()
            counts.seconds.update(seconds)
            counts.reset_seconds = reset_seconds

    # Of the runner.

    def _check_running(self) -> None:
        raise NotImplementedError

    def _begin_anew(self) -> None:
        raise NotImplementedError

    def _drop_begun(self, env_indices: set[int]) -> None:
        raise NotImplementedError

    def _rescue_into(self, kept: list[MultiAgentEpisode]) -> None:
        raise NotImplementedError

    def _reset_envs(self, env_indices: list[int]) -> None:
        raise NotImplementedError

    def _run(self, goal: Goal, explore: bool) -> None:
        raise NotImplementedError

    def _stamp_actions(self) -> None:
        raise NotImplementedError


def _in_order(chunks: list[MultiAgentEpisode], goal: Goal, n_envs: int) -> list[MultiAgentEpisode]:
    """Those of finished episodes, by the episodes' numbers: each env ends its own in the order in which they begin."""
    ended, places = [0] * n_envs, {}
    for id_, env_index in goal.finished_ids.items():
        places[id_] = env_index + n_envs * ended[env_index]
        ended[env_index] += 1
    return sorted((chunk for chunk in chunks if chunk.id_ in places), key=lambda chunk: places[chunk.id_])
