"""Estimates of advantages, value targets and discounted returns, computed per trajectory."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.errors import BatchError, shown
from fastmarl.core.kernels.returns import gae, n_step_returns, vtrace
from fastmarl.core.spaces.columns import Columns

ValueFunction = Callable[[Any], Any]
Array = Any  # a NumPy array or a tensor

NO_VALUES = "; actions chosen at random have no recorded values: remove 'vf_preds' and pass value_fn"
NO_LOGP = "; actions chosen with explore=False have none"
NO_LAST = "; these are the values of 'final_obs'"


def add_gae(
    batch: Batch, *, gamma: float, lambda_: float, value_fn: ValueFunction | None = None, last_values: Array = None
) -> None:
    """Add "advantages" and "value_targets", float32 [n], to the batch of a module from `columns()`.

    These are generalised advantage estimates (Schulman et al. 2016, "High-Dimensional Continuous Control Using
    Generalized Advantage Estimation"), computed for each trajectory in float64. Targets are advantages plus values. The
    value after the last step of a trajectory is 0 if the agent terminated, and otherwise (truncated or cut) the value
    of the last observation. Steps are counted per agent, regardless of the number of env steps between them.

    Args:
        batch: Batch of a module; its "vf_preds" [n] are used as values if present.
        gamma: Discount factor, in [0, 1].
        lambda_: Trace decay, in [0, 1].
        value_fn: Function from observations [k, ...] to values [k], called with "final_obs", and with "obs" if the
            batch has no "vf_preds".
        last_values: Values of "final_obs", [s], used instead of `value_fn`; values of terminated agents are ignored.

    Raises:
        BatchError: If values are missing, NaN, or of the wrong shape; if a factor is not in [0, 1]; if a reward is
            NaN; or if the number of rows is not the sum of "seq_lens".
    """
    rewards, lengths, ended = _trajectories(batch)
    if Columns.VF_PREDS in batch:
        values = _checked(batch[Columns.VF_PREDS], len(rewards), hint=NO_VALUES)
    else:
        values = _asked(value_fn, batch[Columns.OBS], f"has no {Columns.VF_PREDS!r}; pass value_fn to add_gae()")
    if last_values is None:
        last_values = _asked(
            value_fn, batch[Columns.FINAL_OBS], "has no values for 'final_obs'; pass value_fn or last_values"
        )
    advantages, targets = _gae(rewards, values, last_values, ended, lengths, gamma, lambda_)
    batch[Columns.ADVANTAGES], batch[Columns.VALUE_TARGETS] = advantages, targets


def add_aligned_gae(batch: Batch, values: Array, *, gamma: float, lambda_: float) -> None:
    """Add GAE "advantages" and "value_targets", float32 [T, E, A], to the batch of a group from `aligned()`.

    The steps of an agent are the env steps at which it acts, so the next value is the value at its next action. Results
    are 0 where the agent is inactive.

    Args:
        batch: Batch of a group.
        values: Values at every env step, [T + 1, E] (from a central critic of "env_state") or [T + 1, E, A].
        gamma: Discount factor, in [0, 1].
        lambda_: Trace decay, in [0, 1].
    """
    steps = _AlignedSteps(batch, values, batch[Columns.REWARDS])
    found = _gae(steps.rewards, steps.values, steps.last_values, steps.ended, steps.lengths, gamma, lambda_)
    for name, flat in zip((Columns.ADVANTAGES, Columns.VALUE_TARGETS), found, strict=True):
        batch[name] = steps.spread(flat)


def add_aligned_n_step_returns(
    batch: Batch, values: Array, *, n_step: int, gamma: float, rewards: np.ndarray | None = None
) -> None:
    """Add n-step "value_targets" and "advantages" to a batch from `aligned()`: float32 [T, E, A], 0 where inactive.

    As in `add_n_step_returns()`, steps are counted per agent: targets are the discounted sum of the rewards of `n_step`
    decisions and the value at the next decision, regardless of the number of env steps in between.

    Args:
        batch: Batch of a group.
        values: Values at every env step, as in `add_aligned_gae()`.
        n_step: Number of steps, >= 1; fewer are used at the end of a trajectory.
        gamma: Discount factor, in [0, 1].
        rewards: Rewards [T, E, A] to use instead of those in the batch, for example from `TeamRewards`.
    """
    _check_factor("gamma", gamma)
    steps = _AlignedSteps(batch, values, batch[Columns.REWARDS] if rewards is None else rewards)
    last_values = _last_values(steps.last_values, steps.ended)
    found = _n_step_returns(steps.rewards, steps.values, last_values, steps.lengths, n_step, gamma)
    batch[Columns.VALUE_TARGETS] = steps.spread(found)
    batch[Columns.ADVANTAGES] = steps.spread(found - steps.values)


class _AlignedSteps:
    """The steps of an aligned batch, ordered by trajectory, with their values [n] and rewards [n]."""

    def __init__(self, batch: Batch, values: Array, rewards: np.ndarray):
        active_EAT = batch[Columns.ACTIVE].transpose(1, 2, 0)
        self._places = e, a, t = np.nonzero(active_EAT)
        given = _array(values)
        steps, n_envs, n_agents = self._shape = batch[Columns.ACTIVE].shape
        if given.shape not in ((steps + 1, n_envs), (steps + 1, n_envs, n_agents)):
            raise BatchError(f"expected values of shape {(steps + 1, n_envs)} or {(steps + 1, n_envs, n_agents)}, one "
                             f"for each row of 'env_state', got {given.shape}")  # fmt: skip
        by_agent = np.broadcast_to(given.reshape(steps + 1, n_envs, -1), (steps + 1, n_envs, n_agents))
        n_steps_EA = active_EAT.sum(2)
        acting = np.nonzero(n_steps_EA)
        self.values = by_agent[t, e, a]
        self.last_values = by_agent[batch[Columns.FINAL_T][acting], *acting]
        self.ended = batch[Columns.TERMINATEDS].any(0)[acting]
        self.lengths = n_steps_EA[acting]
        self.rewards = _checked(rewards[t, e, a], len(t), "rewards")

    def spread(self, flat: np.ndarray) -> np.ndarray:
        """Scatter numbers [n] into a float32 array [T, E, A], with 0 where agents are inactive."""
        e, a, t = self._places
        column = np.zeros(self._shape, np.float32)
        column[t, e, a] = flat
        return column


def add_vtrace(
    batch: Batch,
    logp: Array,
    *,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
    value_fn: ValueFunction | None = None,
    values: Array = None,
    last_values: Array = None,
) -> None:
    """Add V-trace "advantages" and "value_targets", float32 [n], to the batch of a module from `columns()`.

    V-trace (Espeholt et al. 2018, "IMPALA", equation 1 and section 4.2) corrects for batches sampled with older
    weights. For a batch sampled with the same weights, the result equals that of `add_gae()` with `lambda_=1`.

    Args:
        batch: Batch of a module, including "action_logp" [n], the log-probabilities of its actions when sampled.
        logp: Log-probabilities of the same actions under the latest weights, [n].
        gamma: Discount factor, in [0, 1].
        lambda_: Trace decay, in [0, 1].
        clip_rho: Upper bound on the probability ratio in targets, > 0.
        clip_pg_rho: Upper bound on the probability ratio in advantages, > 0.
        value_fn: Function from observations [k, ...] to values [k], with the latest weights.
        values: Values of "obs", [n], used instead of `value_fn`.
        last_values: Values of "final_obs", [s], used instead of `value_fn`.

    Raises:
        BatchError: If values or log-probabilities are missing, NaN, or of the wrong shape, or a factor is out of range.
    """
    _check_factor("gamma", gamma)
    _check_factor("lambda_", lambda_)
    for name, clip in (("clip_rho", clip_rho), ("clip_pg_rho", clip_pg_rho)):
        if not clip > 0:
            raise BatchError(f"expected {name} > 0, got {clip}")
    if Columns.ACTION_LOGP not in batch:
        raise BatchError(f"add_vtrace() needs the column {Columns.ACTION_LOGP!r}, got columns {list(batch)}")
    rewards, lengths, ended = _trajectories(batch)
    n = len(rewards)
    logps = [_checked(given, n, "log-probabilities", NO_LOGP) for given in (logp, batch[Columns.ACTION_LOGP])]
    if np.isneginf(logps[1]).any():
        raise BatchError(f"row {int(np.flatnonzero(np.isneginf(logps[1]))[0])} of {n} has an action that had "
                         f"probability 0 when it was sampled: its {Columns.ACTION_LOGP!r} is -inf")  # fmt: skip
    with np.errstate(over="ignore"):  # infinite ratios are clipped
        ratio_N = np.exp(logps[0] - logps[1])
    value_N, last_S = _values_and_last(batch, ended, value_fn, values, last_values, "add_vtrace()")
    target_N, advantage_N = np.empty(n, np.float32), np.empty(n, np.float32)
    factors = float(gamma), float(lambda_), float(clip_rho), float(clip_pg_rho)
    vtrace(rewards, value_N, last_S, lengths, ratio_N, *factors, target_N, advantage_N)
    batch[Columns.ADVANTAGES], batch[Columns.VALUE_TARGETS] = advantage_N, target_N


def add_n_step_returns(
    batch: Batch,
    *,
    n_step: int,
    gamma: float,
    value_fn: ValueFunction | None = None,
    values: Array = None,
    last_values: Array = None,
) -> None:
    """Add n-step "value_targets" and "advantages", float32 [n], to the batch of a module from `columns()`.

    Targets are the discounted sum of the next `n_step` rewards and the value after them (Sutton and Barto 2018,
    "Reinforcement Learning", equation 7.1); advantages are targets minus values.

    Args:
        batch: Batch of a module.
        n_step: Number of steps, >= 1; fewer are used at the end of a trajectory.
        gamma: Discount factor, in [0, 1].
        value_fn: Function from observations [k, ...] to values [k].
        values: Values of "obs", [n], used instead of `value_fn`.
        last_values: Values of "final_obs", [s], used instead of `value_fn`.

    Raises:
        BatchError: As in `add_gae()`, or if `n_step` is not a positive integer.
    """
    _check_factor("gamma", gamma)
    rewards, lengths, ended = _trajectories(batch)
    value_N, last_S = _values_and_last(batch, ended, value_fn, values, last_values, "add_n_step_returns()")
    return_N = _n_step_returns(rewards, value_N, last_S, lengths, n_step, gamma)
    batch[Columns.VALUE_TARGETS] = return_N.astype(np.float32)
    batch[Columns.ADVANTAGES] = (return_N - value_N).astype(np.float32)


def _values_and_last(
    batch: Batch, ended: np.ndarray, value_fn: ValueFunction | None, values: Array, last_values: Array, asked_by: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of "obs" [n] and of "final_obs" [s]; the latter are 0 for terminated trajectories."""
    if values is None:
        values = _asked(value_fn, batch[Columns.OBS], f"has no values for 'obs'; pass value_fn or values to {asked_by}")
    if last_values is None:
        last_values = _asked(
            value_fn, batch[Columns.FINAL_OBS], "has no values for 'final_obs'; pass value_fn or last_values"
        )
    return _checked(values, len(batch[Columns.REWARDS])), _last_values(last_values, ended)


def add_returns(batch: Batch, *, gamma: float, value_fn: ValueFunction | None = None) -> None:
    """Add "returns_to_go", float32 [n], to the batch of a module from `columns()`.

    The return of a step is the discounted sum of rewards from that step on.

    Args:
        batch: Batch of a module.
        gamma: Discount factor, in [0, 1].
        value_fn: Function from observations [k, ...] to values [k], used to bootstrap trajectories that did not
            terminate; None means no bootstrapping.
    """
    rewards, lengths, ended = _trajectories(batch)
    last_values = np.zeros(len(lengths)) if value_fn is None else value_fn(batch[Columns.FINAL_OBS])
    last_values = _last_values(last_values, ended)
    _check_factor("gamma", gamma)
    found = np.empty(len(rewards), np.float32)
    gae(rewards, np.zeros(len(rewards)), last_values, lengths, float(gamma), 1.0, found)
    batch[Columns.RETURNS_TO_GO] = found


def _trajectories(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rewards (float64 [n]), trajectory lengths (int64 [s]), and which trajectories terminated (bool [s])."""
    if not isinstance(batch, Mapping) or Columns.SEQ_LENS not in batch:
        found = f"a dict with keys {list(batch)}" if isinstance(batch, Mapping) else f"a {type(batch).__qualname__}"
        raise BatchError(f"expected the batch of a single module, such as columns(episodes)['p0'], got {found}")
    lengths = np.asarray(batch[Columns.SEQ_LENS], np.int64)
    if lengths.ndim != 1 or (lengths < 1).any():
        raise BatchError(f"expected {Columns.SEQ_LENS!r} >= 1, one for each trajectory, got {shown(lengths)}")
    n = int(lengths.sum())
    for name in (Columns.REWARDS, Columns.TERMINATEDS):
        if (shape := np.shape(batch[name])) != (n,):
            raise BatchError(f"expected {n} rows in {name!r}, the sum of {Columns.SEQ_LENS!r}, got an array of shape "
                             f"{shape}; call this before selecting, padding or joining rows")  # fmt: skip
    ended = np.asarray(batch[Columns.TERMINATEDS], bool)[np.cumsum(lengths) - 1]
    return _checked(batch[Columns.REWARDS], n, "rewards"), lengths, ended


def _gae(
    rewards: np.ndarray,
    values: Array,
    last_values: Array,
    ended: np.ndarray,
    lengths: np.ndarray,
    gamma: float,
    lambda_: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (advantages, value targets), float32 [n]."""
    _check_factor("gamma", gamma)
    _check_factor("lambda_", lambda_)
    value_N = _checked(values, len(rewards))
    advantage_N = np.empty(len(rewards))
    gae(rewards, value_N, _last_values(last_values, ended), lengths, float(gamma), float(lambda_), advantage_N)
    return advantage_N.astype(np.float32), (advantage_N + value_N).astype(np.float32)


def _n_step_returns(
    rewards: np.ndarray, values: np.ndarray, last_values: np.ndarray, lengths: np.ndarray, n_step: int, gamma: float
) -> np.ndarray:
    """Return the discounted sum of the next `n_step` rewards and the value after them, float64 [n]."""
    if n_step < 1 or n_step % 1:
        raise BatchError(f"n_step must be a positive integer, got {n_step}")
    found = np.empty(len(values))
    n_step_returns(rewards, values, last_values, lengths, int(n_step), float(gamma), found)
    return found


def _last_values(values: Array, ended: np.ndarray) -> np.ndarray:
    """Return the values of the last observations, with 0 for terminated trajectories."""
    of_last = _array(values)
    if of_last.shape == ended.shape:
        of_last = np.where(ended, 0.0, of_last)
    return _checked(of_last, len(ended), hint=NO_LAST)


def _checked(values: Array, n: int, what: str = "values", hint: str = "") -> np.ndarray:
    array = _array(values)
    if array.shape != (n,):
        raise BatchError(f"expected {n} {what} in an array of shape ({n},), got shape {array.shape}")
    if np.isnan(array).any():
        row = int(np.flatnonzero(np.isnan(array))[0])
        raise BatchError(f"row {row} of {n} {what} is NaN{hint}")
    return array


def _asked(value_fn: ValueFunction | None, observations: Any, problem: str) -> Array:
    if value_fn is None:
        raise BatchError(f"this batch {problem}")
    return value_fn(observations)


def _check_factor(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise BatchError(f"expected {name} in [0, 1], got {value}")


def _array(values: Array) -> np.ndarray:
    """Convert an array or a tensor to float64."""
    return np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values, np.float64)
