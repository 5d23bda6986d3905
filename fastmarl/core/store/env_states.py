"""Global env states, returned by `env.state()` at every env step, for central critics."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError, EnvStateError
from fastmarl.core.spaces.layout import has_own_contains
from fastmarl.core.spaces.values import can_hold, converted, described

FIRST_CAPACITY = 64


class EnvStates:
    """Stores copies of the states of an env in order of arrival, so the env may reuse its array.

    Chunks contain views. Returned rows are never overwritten: `renew()` starts a new array, and growth leaves the old
    one to existing views.

    Args:
        env_index: Index of the env, for error messages.
        space: `state_space` of the env; None if the first state determines dtype and shape.
    """

    def __init__(self, env_index: int, space: gym.Space[Any] | None):
        self._env_index = env_index
        self._dtype = None if space is None else space.dtype
        self._shape = None if space is None else space.shape
        self._any_form = space is not None and has_own_contains(space)
        self._rows: np.ndarray = np.empty(0)
        self._n = 0
        self._n_episode = 0  # number of trailing rows that belong to the running episode
        self._env_t = 0  # env step of the next state

    def begin_episode(self) -> None:
        """Start an episode; the next state belongs to env step 0."""
        self._n_episode = 0
        self._env_t = 0

    def rows_of_batch(self, states: Any, num_envs: int) -> np.ndarray:
        """Return the next states of a batch, one row per env, as an array [num_envs, ...].

        Raises:
            EnvStateError: If there is not exactly one row per env.
        """
        rows = self._as_array(states)
        if rows.shape[:1] != (num_envs,):
            problem = (f"expected states of shape [{num_envs}, ...] from state() of the batch, got {rows.dtype} of "
                       f"shape {rows.shape}; return one row per env")  # fmt: skip
            raise EnvStateError(self._env_index, None, self._env_t, problem)
        return rows

    def add(self, state: Any) -> None:
        """Append a copy of the state at the next env step of the running episode.

        Raises:
            EnvStateError: See `fitting()`.
        """
        state = self.fitting(state)
        if self._n == len(self._rows):
            self._grow(max(2 * self._n, FIRST_CAPACITY))
        self._rows[self._n] = state
        self._n += 1
        self._n_episode += 1
        self._env_t += 1

    def fitting(self, state: Any) -> np.ndarray:
        """Convert the next state to an array and check it, without recording it.

        Raises:
            EnvStateError: If its shape or dtype does not match the state space, or the first state.
        """
        array = self._as_array(state)
        if self._dtype is None or self._shape is None:
            if array.dtype == object:
                raise self._misfit("a numeric array", array)
            self._dtype, self._shape = array.dtype, array.shape
        if self._any_form:
            array = converted(array, self._dtype, self._shape)
        if array.shape != self._shape or not can_hold(self._dtype, array):
            raise self._misfit(f"{self._dtype} of shape {self._shape}", array)
        return array

    def last(self, n: int) -> np.ndarray:
        """Return a view [<= n, ...] of the last n states of the running episode, or of all if fewer are stored."""
        return self._rows[self._n - min(n, self._n_episode) : self._n]

    def renew(self, n_kept: int) -> None:
        """Start a new array with the last `n_kept` states of the running episode."""
        kept = self.last(n_kept)
        self._rows, self._n = np.empty((len(self._rows), *self._rows.shape[1:]), self._rows.dtype), len(kept)
        self._n_episode = len(kept)
        self._rows[: len(kept)] = kept

    def kept(self) -> np.ndarray:
        """Return a view [n, ...] of all stored states of the running episode."""
        return self.last(self._n_episode)

    def check(self, states: Any) -> None:
        """Raise ConfigError if `put()` cannot accept these states."""
        is_array = isinstance(states, np.ndarray) and states.ndim > 0 and states.dtype != object
        if not is_array or (self._shape is not None and (states.dtype, states.shape[1:]) != (self._dtype, self._shape)):
            wanted = "" if self._shape is None else f" of dtype {self._dtype} and shape {self._shape}"
            got = described(states) if isinstance(states, np.ndarray) else type(states).__name__
            raise ConfigError(
                f"the global states of env {self._env_index} must be an array of states{wanted}, got {got}"
            )

    def put(self, states: np.ndarray, env_t: int) -> None:
        """Set the states of the running episode; the last one belongs to env step `env_t`."""
        self._dtype, self._shape = states.dtype, states.shape[1:]
        self._rows, self._n = np.array(states), len(states)
        self._n_episode, self._env_t = len(states), env_t + 1

    def _as_array(self, state: Any) -> np.ndarray:
        try:
            return np.asarray(state)
        except Exception as error:  # user code may raise anything
            problem = f"expected an array from state(), got {type(state).__name__}: {error}"
            raise EnvStateError(self._env_index, None, self._env_t, problem) from error

    def _grow(self, capacity: int) -> None:
        grown = np.empty((capacity, *(self._shape or ())), self._dtype)
        if self._n:
            grown[: self._n] = self._rows[: self._n]
        self._rows = grown

    def _misfit(self, expected: str, state: np.ndarray) -> EnvStateError:
        problem = f"expected {expected}, got {described(state)} from state(); correct state() or state_space"
        return EnvStateError(self._env_index, None, self._env_t, problem)
