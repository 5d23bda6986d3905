"""One evaluation, of those of several runners."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastmarl.arena import Evaluation
from fastmarl.arena.evaluation import PartialReturns


def join_evaluations(evaluations: Sequence[Evaluation]) -> Evaluation:
    """That of all their episodes, in this order."""
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
