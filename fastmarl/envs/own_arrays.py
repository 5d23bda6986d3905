"""Base class for batches whose entire state is in arrays."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, column_of
from fastmarl.core.kernels import Deferral as Deferral

ANY = None  # no limits: compiled code uses the numbers only in arithmetic
COUNT = 0, 2**62  # limits for a number of steps, so that adding one does not overflow


class EnvOfArrays(ArrayEnv):
    """A batch that can save and restore its state, with a random stream per env.

    Attributes:
        state_arrays: Attribute name -> limits, for all arrays [E, ...] of the mutable state. Limits are (minimum,
            maximum), each a scalar or a broadcastable array, or `ANY`.
    """

    supports_checkpoint = seeds_each_episode = True
    state_arrays: Mapping[str, tuple[Any, Any] | None]

    def get_state(self) -> dict[str, Any]:
        """Return copies of the state arrays, keyed by attribute name."""
        return {name: getattr(self, name).copy() for name in self.state_arrays}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `get_state()`.

        All numbers are checked here, because a state may come from an untrusted file and compiled code uses its numbers
        as unchecked indices.

        Raises:
            ConfigError: If a batch with these options cannot be in this state. The batch is left unchanged.
        """
        what = f"the state of {type(self).__name__}"
        check_keys(what, state, self.state_arrays)
        for name, limits in self.state_arrays.items():
            own = getattr(self, name)
            values = column_of(f"{name} in {what}", state[name], self.num_envs, own.dtype, own.shape[1:])
            if limits is not ANY:
                _check_limits(f"{name} in {what}", values, *limits)
        for rule, is_broken_E in self._rules_of(state):
            if is_broken_E.any():
                raise ConfigError(f"{what} is inconsistent: in env {is_broken_E.argmax()}, {rule}")
        for name in self.state_arrays:
            getattr(self, name)[...] = state[name]

    def _rules_of(self, state: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
        """Check rules that involve several arrays, each of which is within its limits.

        Returns:
            Iterator over (error text, bool [E] that is True for envs that break the rule).
        """
        yield from ()


def _check_limits(what: str, values: np.ndarray, low: Any, high: Any) -> None:
    numbers = values.view(np.uint8) if values.dtype == np.bool_ else values  # in a file, a bool may be any byte
    low, high = np.broadcast_to(low, values.shape), np.broadcast_to(high, values.shape)
    is_outside = (numbers < low) | (numbers > high)
    if is_outside.any():
        at = np.unravel_index(is_outside.argmax(), values.shape)
        raise ConfigError(f"{what} must be from {low[at]} to {high[at]} at {[int(index) for index in at[1:]]} of env "
                          f"{at[0]}, got {numbers[at]}")  # fmt: skip
