"""Base of batches whose whole state is in arrays."""

from typing import Any, ClassVar

from fastmarl.core.envs.arrays import ArrayEnv


class EnvOfArrays(ArrayEnv):
    """A batch that can save and restore its state, and in which each env has its own random stream.

    Attributes:
        state_arrays: Names of the attributes, all arrays, that hold the complete mutable state.
    """

    supports_checkpoint = seeds_each_episode = True
    state_arrays: ClassVar[tuple[str, ...]]

    def get_state(self) -> dict[str, Any]:
        """Return copies of the arrays by name."""
        return {name: getattr(self, name).copy() for name in self.state_arrays}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in self.state_arrays:
            getattr(self, name)[...] = state[name]
