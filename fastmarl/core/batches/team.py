"""Joint observations of a team, and its rewards on a common clock.

Axes in names: T env step, E chunk, A slot of the agent in its group.
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

    Observations of terminated agents are omitted: they are zeros, as for all agents not acting at an env step.

    Args:
        batch: Batch of a group from `aligned()`.
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
    """Return the rewards of the team by the row in which they were complete, float64 [T + 1, E].

    A reward is recorded with the action of the agent and sums everything received until its next observation, so it is
    complete when that observation arrives.

    Args:
        batch: Batch of a group from `aligned()`.
    """
    rewards, next_t = batch[Columns.REWARDS], batch[Columns.NEXT_T]
    arrived = np.zeros((len(rewards) + 1, rewards.shape[1]))
    if np.array_equal(next_t, (1 + np.arange(len(next_t)))[:, None, None] * batch[Columns.ACTIVE]):
        arrived[1:] = rewards.sum(-1)  # no agent waits
    else:
        np.add.at(arrived, (next_t, np.arange(rewards.shape[1])[:, None]), rewards)
        arrived[0] = 0.0  # rewards of inactive agents
    return arrived


@public("fastmarl.batches")
class TeamRewards:
    """Replaces rewards by team rewards, where each agent receives the sum over all agents.

    The reward of an agent for a decision is then everything completed (see `rewards_by_arrival()`) after it, up to the
    next observation of the agent; undiscounted, since steps are counted per agent. If all agents act at every env step,
    it is the sum of their rewards at that step. The outcome of a decision may arrive in a later call, so this object
    remembers the team rewards received since the decisions of waiting agents. Call it once per batch, with groups given
    as dicts, so that slots do not change. Rewards of an agent before its first observation count with its first
    decision, and rewards of an agent that is never observed do not count.

    It is saved like a module, by `state_dict()` and `load_state_dict()`.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}  # (episode id, slot) -> reward, of waiting agents

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return rewards, float64 [T, E, A], 0 if inactive.

        Args:
            batch: Batch of a group from `aligned()`.
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
        """Add the team rewards of earlier chunks to the decisions of agents waiting since then.

        An episode may have several chunks, in order.
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
            CheckpointError: If it is anything else.
        """
        try:
            keys = zip(state["episode_ids"], map(int, state["slots"]), strict=True)
            self._since = dict(zip(keys, map(float, state["sums"]), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"expected the state of TeamRewards, got {state!r:.200}") from error
