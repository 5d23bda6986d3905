"""Joint observations of a team, and its rewards per env step.

Axes in names: T env step, E chunk, A slot of the agent in its group.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.errors import CheckpointError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct


def with_final_obs(batch: Batch) -> Any:
    """Return a copy of "obs", [T + 1, E, A, ...], that includes last observations in the rows in which they arrived.

    Final observations of terminated agents are omitted; their entries are 0, as for all agents that do not act. The
    last row of a chunk includes the observations of agents that respawn there.

    Args:
        batch: Batch of a group from `aligned()`.
    """
    lasts = [(each, iter(flatten_struct(batch[each.obs]))) for each in last_observations(batch)]

    def extended(leaf: np.ndarray) -> np.ndarray:
        longer = np.concatenate([leaf, np.zeros((1, *leaf.shape[1:]), leaf.dtype)])
        for each, leaves in lasts:
            longer[each.t, each.e, each.a] = next(leaves)[1][each.e, each.a]
        return longer

    return map_struct(extended, batch[Columns.OBS])


class LastObservations(NamedTuple):
    """Observations without a later action of the agent in the batch.

    Attributes:
        t, e, a: Rows, chunks and slots in which they arrived, int64 [n].
        obs, action_mask: Names of their columns [E, A, ...].
        awaited: True for those on which the agent will act, bool [n].
    """

    t: np.ndarray
    e: np.ndarray
    a: np.ndarray
    obs: str
    action_mask: str
    awaited: np.ndarray


def last_observations(batch: Batch) -> list[LastObservations]:
    """Return the last observations of agents that continue after their chunk, and of those that respawn at its end."""
    e, a = np.nonzero(batch[Columns.CONTINUES])
    goes_on = ~batch[Columns.TRUNCATEDS].any(0)[e, a]
    names = Columns.FINAL_OBS, Columns.FINAL_ACTION_MASK
    found = [LastObservations(batch[Columns.FINAL_T][e, a], e, a, *names, goes_on)]
    if Columns.RESPAWNED in batch:
        e, a = np.nonzero(batch[Columns.RESPAWNED])
        names = Columns.RESPAWN_OBS, Columns.RESPAWN_ACTION_MASK
        found.append(LastObservations(batch[Columns.SEQ_LENS][e], e, a, *names, np.ones(len(e), bool)))
    return found


def rewards_by_arrival(batch: Batch) -> np.ndarray:
    """Return the team reward of each row, float64 [T + 1, E]: the sum of the agent rewards completed in that row.

    The reward recorded with an action is the sum of all rewards until the next observation of the agent, so it is
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
    """Replaces rewards with team rewards: each agent receives the sum over all agents.

    For each decision, an agent receives the sum of all rewards completed (see `rewards_by_arrival()`) between that
    decision and its next observation. The sum is undiscounted, since steps are counted per agent. If all agents act at
    every env step, it is the sum of their rewards at that step. The outcome of a decision may arrive in a later call,
    so this object stores the team rewards received since the decisions of waiting agents. Call it once per batch, with
    `groups` given as a dict, so that slots do not change. Rewards of an agent before its first observation count
    towards its first decision; rewards of an agent that is never observed are ignored.

    Save and restore it like a module, with `state_dict()` and `load_state_dict()`.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}  # (episode id, slot) -> reward, of waiting agents

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return team rewards, float64 [T, E, A], 0 where agents are inactive.

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

        A batch may contain several chunks of an episode, in order.
        """
        active, ids = batch[Columns.ACTIVE], batch[Columns.EPS_ID].tolist()
        for chunk, slot in np.ndindex(waits.shape):
            key, acted = (ids[chunk], slot), active[:, chunk, slot]
            earlier = self._since.pop(key, None)
            if earlier is not None:
                if not acted.any():  # it still waits
                    self._since[key] = earlier + float(total_E[chunk])
                    continue
                rewards[acted.argmax(), chunk, slot] += earlier
            if waits[chunk, slot]:
                self._since[key] = float(since_EA[chunk, slot])
        running = set(ids)
        self._since = {key: since for key, since in self._since.items() if key[0] in running}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists, for a checkpoint."""
        keys = list(self._since)
        return {
            "episode_ids": [id_ for id_, _ in keys],
            "slots": [slot for _, slot in keys],
            "sums": [*self._since.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the stored team rewards of waiting agents.

        Args:
            state: Result of `state_dict()`.

        Raises:
            CheckpointError: If `state` is invalid.
        """
        try:
            keys = zip(state["episode_ids"], map(int, state["slots"]), strict=True)
            self._since = dict(zip(keys, map(float, state["sums"]), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"expected the state of TeamRewards, got {state!r:.200}") from error
