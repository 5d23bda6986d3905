"""Advantages, value targets and discounted returns, trajectory by trajectory."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fastmarl.batches.flat import Batch
from fastmarl.columns import Columns
from fastmarl.errors import BatchError
from fastmarl.kernels.returns import gae

ValueFunction = Callable[[Any], Any]
Array = Any  # a NumPy array or a tensor


def add_gae(
    batch: Batch, *, gamma: float, lambda_: float, value_fn: ValueFunction | None = None, last_values: Array = None
) -> None:
    """Add "advantages" and "value_targets", float32 [n], to a module's batch from `columns()`.

    Generalised advantage estimates (Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation") of each trajectory by itself, in float64; the targets are advantages plus values. After a
    trajectory's last step comes 0 if the agent terminated, else, if it was truncated or cut there, the value of its
    last observation. A step is an agent's step, however many env steps it took.

    Args:
        batch: its "vf_preds" [n], if it has them, are the values.
        gamma, lambda_: discount, and how far ahead rewards are trusted more than values; in [0, 1].
        value_fn: observations [k, ...] -> values [k]; asked for "obs" if there are no "vf_preds", and for "final_obs".
        last_values: [s], of "final_obs", instead of `value_fn`'s; those of agents that terminated don't matter.

    Raises:
        BatchError: values are missing, NaN or of another number, or a factor is not in [0, 1].
    """
    values = batch.get(Columns.VF_PREDS)
    if values is None:
        values = _asked(value_fn, batch[Columns.OBS], f"has no {Columns.VF_PREDS!r}, so add_gae() needs value_fn")
    if last_values is None:
        last_values = _asked(value_fn, batch[Columns.FINAL_OBS], "needs value_fn or last_values for 'final_obs'")
    lengths = batch[Columns.SEQ_LENS]
    ended = batch[Columns.TERMINATEDS][np.cumsum(lengths) - 1]
    advantages, targets = _gae(batch[Columns.REWARDS], values, last_values, ended, lengths, gamma, lambda_)
    batch[Columns.ADVANTAGES], batch[Columns.VALUE_TARGETS] = advantages, targets


def add_aligned_gae(batch: Batch, values: Array, *, gamma: float, lambda_: float) -> None:
    """The same for a group's batch from `aligned()`: float32 [T, E, A], 0 where an agent is not active.

    An agent's steps are the env steps at which it acts, so what follows the value of one is that of the next.

    Args:
        values: [T + 1, E] (a central critic's, of "env_state") or [T + 1, E, A], at every env step.
        batch, gamma, lambda_: see add_gae().
    """
    active_EAT = batch[Columns.ACTIVE].transpose(1, 2, 0)
    e, a, t = np.nonzero(active_EAT)
    given = _array(values)
    steps, n_envs, n_agents = batch[Columns.ACTIVE].shape
    if given.shape not in ((steps + 1, n_envs), (steps + 1, n_envs, n_agents)):
        raise BatchError(f"expected values of shape {(steps + 1, n_envs)} or {(steps + 1, n_envs, n_agents)}, one for "
                         f"each row of 'env_state', got {given.shape}")  # fmt: skip
    by_agent = np.broadcast_to(given.reshape(steps + 1, n_envs, -1), (steps + 1, n_envs, n_agents))
    n_steps_EA = active_EAT.sum(2)
    acting = np.nonzero(n_steps_EA)
    last_values = by_agent[batch[Columns.FINAL_T][acting], *acting]
    ended = batch[Columns.TERMINATEDS].any(0)[acting]
    lengths = n_steps_EA[acting]
    found = _gae(batch[Columns.REWARDS][t, e, a], by_agent[t, e, a], last_values, ended, lengths, gamma, lambda_)
    for name, flat in zip((Columns.ADVANTAGES, Columns.VALUE_TARGETS), found, strict=True):
        batch[name] = np.zeros((steps, n_envs, n_agents), np.float32)
        batch[name][t, e, a] = flat


def add_returns(batch: Batch, *, gamma: float, value_fn: ValueFunction | None = None) -> None:
    """Add "returns_to_go", float32 [n], to a module's batch from `columns()`: discounted rewards from each step on.

    Args:
        batch, gamma: see add_gae().
        value_fn: observations [k, ...] -> values [k], for what comes after trajectories that did not terminate. None:
            nothing does.
    """
    lengths = batch[Columns.SEQ_LENS]
    ended = batch[Columns.TERMINATEDS][np.cumsum(lengths) - 1]
    last_values = np.zeros(len(lengths)) if value_fn is None else value_fn(batch[Columns.FINAL_OBS])
    last_values = _last_values(last_values, ended)
    _check_factor("gamma", gamma)
    rewards = batch[Columns.REWARDS]
    found = np.empty(len(rewards), np.float32)
    gae(rewards, np.zeros(len(rewards)), last_values, lengths, float(gamma), 1.0, found)
    batch[Columns.RETURNS_TO_GO] = found


def _gae(
    rewards: np.ndarray,
    values: Array,
    last_values: Array,
    ended: np.ndarray,
    lengths: np.ndarray,
    gamma: float,
    lambda_: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(advantages, value targets), float32 [n]."""
    _check_factor("gamma", gamma)
    _check_factor("lambda_", lambda_)
    value_N = _checked(values, len(rewards))
    advantage_N = np.empty(len(rewards))
    gae(rewards, value_N, _last_values(last_values, ended), lengths, float(gamma), float(lambda_), advantage_N)
    return advantage_N.astype(np.float32), (advantage_N + value_N).astype(np.float32)


def _last_values(values: Array, ended: np.ndarray) -> np.ndarray:
    """Of the last observations, 0 where the trajectory terminated."""
    of_last = _array(values)
    if of_last.shape == ended.shape:
        of_last = np.where(ended, 0.0, of_last)
    return _checked(of_last, len(ended))


def _checked(values: Array, n: int) -> np.ndarray:
    array = _array(values)
    if array.shape != (n,):
        raise BatchError(f"expected {n} values, an array of shape ({n},), got shape {array.shape}")
    if np.isnan(array).any():
        row = int(np.flatnonzero(np.isnan(array))[0])
        raise BatchError(f"value {row} of {n} is NaN; actions chosen at random have no recorded values, so leave "
                         f"'vf_preds' out and give value_fn")  # fmt: skip
    return array


def _asked(value_fn: ValueFunction | None, observations: Any, problem: str) -> Array:
    if value_fn is None:
        raise BatchError(f"this batch {problem}")
    return value_fn(observations)


def _check_factor(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise BatchError(f"expected {name} in [0, 1], got {value}")


def _array(values: Array) -> np.ndarray:
    """float64, of an array or a tensor."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
