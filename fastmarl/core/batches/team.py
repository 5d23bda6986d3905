"""Joint observations of a team, and its rewards on a common clock.

Axes in names: T env step, E chunk, A agent's slot in its group.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.errors import CheckpointError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct


def with_final_obs(batch: Batch) -> Any:
    """Return "obs" with the last observations in the rows in which they arrived: [T + 1, E, A, ...], copied.

    Those of agents that have terminated are left out: like all others that don't act at an env step, they have zeros.

    Args:
        batch: A group's batch from `aligned()`.
    """
    continues, final_t = batch[Columns.CONTINUES], batch[Columns.FINAL_T]
    e, a = np.nonzero(continues)
    finals = iter(flatten_struct(batch[Columns.FINAL_OBS]))

    def extended(leaf: np.ndarray) -> np.ndarray:
        longer = np.concatenate([leaf, np.zeros((1, *leaf.shape[1:]), leaf.dtype)])
        longer[final_t[e, a], e, a] = next(finals)[1][e, a]
        return longer

    return map_struct(extended, batch[Columns.OBS])


def rewards_by_arrival(batch: Batch) -> np.ndarray:
    """Return the team's rewards by the row in which they were complete, float64 [T + 1, E].

    A reward is recorded with the agent's action and adds up all that it received until its next observation, so it is
    complete when that arrives.

    Args:
        batch: A group's batch from `aligned()`.
    """
    rewards, next_t = batch[Columns.REWARDS], batch[Columns.NEXT_T]
    arrived = np.zeros((len(rewards) + 1, rewards.shape[1]))
    if np.array_equal(next_t, (1 + np.arange(len(next_t)))[:, None, None] * batch[Columns.ACTIVE]):
        arrived[1:] = rewards.sum(-1)  # no agent waits
    else:
        np.add.at(arrived, (next_t, np.arange(rewards.shape[1])[:, None]), rewards)
        arrived[0] = 0.0  # those of inactive agents
    return arrived


@public("fastmarl.batches")
class TeamRewards:
    """Replaces rewards by those of the team, where each agent receives the sum of all agents' rewards.

    An agent's reward for a decision is then all that became complete (see `rewards_by_arrival()`) after it, up to the
    agent's next observation; undiscounted, since a step is one of the agent's own. If all agents act at every env
    step, it is the sum of their rewards at that step. A decision may have its outcome in a later call, so this
    remembers what the team has received since the decisions of waiting agents. Call it once for each batch, with
    groups that are dicts, so that slots don't change.

    It is saved like a module, by `state_dict()` and `load_state_dict()`.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}  # by episode id and slot, of waiting agents

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return rewards, float64 [T, E, A], 0 if inactive.

        Args:
            batch: A group's batch from `aligned()`.
        """
        active, next_t, final_t = batch[Columns.ACTIVE], batch[Columns.NEXT_T], batch[Columns.FINAL_T]
        arrived = rewards_by_arrival(batch)
        total = arrived.cumsum(0)  # [T + 1, E]
        t, e, a = np.nonzero(active)
        until = next_t[t, e, a]
        rewards = np.zeros(active.shape)
        rewards[t, e, a] = np.where(until == t + 1, arrived[until, e], total[until, e] - total[t, e])
        waits = batch[Columns.CONTINUES] & ~batch[Columns.TRUNCATEDS].any(0)
        waits &= final_t < batch[Columns.SEQ_LENS][:, None]
        if self._since or waits.any():
            since_EA = np.where(waits, total[-1, :, None] - np.take_along_axis(total, final_t.T, 0).T, 0.0)
            self._settle(rewards, batch, total[-1], waits, since_EA)
        return rewards

    def _settle(
        self, rewards: np.ndarray, batch: Batch, total_E: np.ndarray, waits: np.ndarray, since_EA: np.ndarray
    ) -> None:
        """Add what the team received in earlier chunks to the decisions of agents that have waited since.

        An episode may have several chunks, which are in order.
        """
        active, ids = batch[Columns.ACTIVE], batch[Columns.EPS_ID].tolist()
        for chunk, slot in np.ndindex(waits.shape):
            key = ids[chunk], slot
            if key in self._since:
                earlier, acted = self._since.pop(key), active[:, chunk, slot]
                if acted.any():
                    rewards[acted.argmax(), chunk, slot] += earlier
                else:
                    self._since[key] = earlier + float(total_E[chunk])
            if waits[chunk, slot]:
                self._since[key] = float(since_EA[chunk, slot])
        running = set(ids)
        self._since = {key: since for key, since in self._since.items() if key[0] in running}

    def state_dict(self) -> dict[str, Any]:
        """Return plain lists for a checkpoint."""
        keys = list(self._since)
        return {
            "episode_ids": [id_ for id_, _ in keys],
            "slots": [slot for _, slot in keys],
            "sums": [*self._since.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Args:
            state: Result of `state_dict()`.

        Raises:
            CheckpointError: If it is something else.
        """
        try:
            keys = zip(state["episode_ids"], map(int, state["slots"]), strict=True)
            self._since = dict(zip(keys, map(float, state["sums"]), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"expected the state of TeamRewards, got {state!r:.200}") from error
