"""Evaluation divided among several runners."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import check_bool, check_integer
from fastmarl.core.vector.seeds import Streams
from fastmarl.distributed.fleet import Fleet, raise_first
from fastmarl.play.arena.evaluation import Evaluation, PartialReturns


def evaluate_in(
    fleet: Fleet, config: EnvRunnerConfig, num_episodes: int, seeds: Sequence[int] | None, explore: bool
) -> Evaluation:
    """Evaluate in all runners; see `EnvRunnerGroup.evaluate()`."""
    check_integer("num_episodes", num_episodes, least=1)
    check_bool("explore", explore)
    if seeds is not None and len(seeds) != num_episodes:
        raise ConfigError(f"expected {num_episodes} seeds, one per episode, got {len(seeds)}")
    numbers = _seeds(fleet, config, num_episodes) if seeds is None else list(seeds)
    shares = _shares(num_episodes, max(1, fleet.num_ready))
    done: dict[range, Evaluation] = {}
    while left := [share for share in shares if share not in done]:  # lost runners did not play their episodes
        calls = {}
        for share, runner in zip(left, fleet.ready(), strict=False):
            of_share = None if numbers is None else [numbers[k] for k in share]
            calls[share] = fleet.call(runner, "evaluate", len(share), of_share, explore)
        fleet.answers(calls.values())
        raise_first(calls.values())
        done |= {share: call.value for share, call in calls.items() if call.is_done}
    return join_evaluations([done[share] for share in shares])


def _seeds(fleet: Fleet, config: EnvRunnerConfig, n: int) -> list[int] | None:
    if config.seed is None or not all(runner.start.seeds_each_episode for runner in fleet.ready()):
        return None
    streams = Streams(config.seed, config.worker_index + 1, config.incarnation)
    return [streams.of_evaluation(k) for k in range(n)]


def _shares(n: int, n_runners: int) -> list[range]:
    """Split 0 .. n - 1 into at most `n_runners` non-empty ranges."""
    size, longer = divmod(n, n_runners)
    begins = [k * size + min(k, longer) for k in range(n_runners + 1)]
    return [range(begin, end) for begin, end in pairwise(begins) if end > begin]


def join_evaluations(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Join the evaluations of different episodes, in this order."""
    return Evaluation(
        returns=np.concatenate([each.returns for each in evaluations]),
        lengths=np.concatenate([each.lengths for each in evaluations]),
        reset_seeds=tuple(seed for each in evaluations for seed in each.reset_seeds),
        by_agent=_joined(evaluations, "by_agent"),
        by_module=_joined(evaluations, "by_module"),
    )


def _joined(evaluations: Sequence[Evaluation], name: str) -> dict[Any, PartialReturns]:
    joined = {}
    for id_ in dict.fromkeys(id_ for each in evaluations for id_ in getattr(each, name)):
        by_episode = np.concatenate([
            getattr(each, name)[id_].by_episode if id_ in getattr(each, name) else np.full(each.num_episodes, np.nan)
            for each in evaluations
        ])  # fmt: skip
        joined[id_] = PartialReturns(returns=by_episode[~np.isnan(by_episode)], by_episode=by_episode)
    return joined
