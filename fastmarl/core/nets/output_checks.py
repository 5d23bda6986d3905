"""Checks of module outputs before agents act on them."""

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.errors import ModuleOutputError, shown
from fastmarl.core.modules.distributions.base import Distribution, num_dist_inputs
from fastmarl.core.modules.distributions.nested import choice_slices
from fastmarl.core.native._finite import first_unfit
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.store.block import Key, leaves_of, name_of
from fastmarl.core.store.lanes import LaneTable

# Dtypes that NumPy also supports. Other floats are recorded as float32.
DTYPES = frozenset(
    (
        torch.float32, torch.int64, torch.float64, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8,
        torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
    )
)  # fmt: skip
ACTIONS, LOGP, LOGITS = Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS
LEAST, MOST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


class OutputChecks:
    """Checks the outputs of a module before agents act on them.

    Args:
        module_id, action_space: The module's id and action space.
        kinds: Classes of the action distributions for inference and exploration.
        table: The lane table, for agent names in error messages.
    """

    def __init__(
        self,
        module_id: str,
        action_space: gym.Space | None,
        kinds: tuple[type[Distribution], type[Distribution]],
        table: LaneTable,
    ):
        self._module_id = module_id
        self._space = action_space
        self.n_logits = num_dist_inputs(kinds[0], action_space), num_dist_inputs(kinds[1], action_space)
        self._choices = choice_slices(kinds[0]), choice_slices(kinds[1])
        self._table = table

    def tensors_of(self, outputs: Any) -> dict[Key, torch.Tensor]:
        """Return the leaves of a forward result as dense tensors of dtypes that NumPy supports.

        Raises:
            ModuleOutputError: If `outputs` is not a dict, or a leaf is neither a tensor nor an array of numbers.
        """
        if not isinstance(outputs, dict):
            raise ModuleOutputError(self._module_id, f"expected a dict from forward(), got {type(outputs).__name__}")
        return {
            key: leaf
            if type(leaf) is torch.Tensor and leaf.dtype in DTYPES and leaf.layout is torch.strided
            else self._tensor(key, leaf)
            for key, leaf in leaves_of(outputs).items()
        }

    def _tensor(self, key: Key, leaf: Any) -> torch.Tensor:
        try:
            return plain_tensor(leaf)
        except (TypeError, ValueError, RuntimeError) as error:
            problem = f"expected a tensor or an array of numbers as output {key!r}, got {shown(leaf)}: {error}"
            raise ModuleOutputError(self._module_id, problem) from error

    def check_logits(self, shape: tuple[int, ...] | None, explore: bool) -> None:
        """Raise ModuleOutputError if the number of logits is wrong, which some distributions do not check."""
        expected = self.n_logits[explore]
        if expected is not None and (shape is None or len(shape) != 2 or shape[1] != expected):
            got = "no tensor" if shape is None else f"shape {tuple(shape)}"
            problem = (
                f"expected {expected} 'action_dist_inputs' per row, shape [n, {expected}], for {self._space}, got {got}"
            )
            raise ModuleOutputError(self._module_id, problem)

    def check_finite(
        self, arrays: dict[Key, np.ndarray], lanes: np.ndarray, legal: np.ndarray | None, *, explore: bool, chosen: bool
    ) -> None:
        """Raise ModuleOutputError for NaN or infinite outputs; logits may be -inf, but not for all choices.

        Args:
            arrays: {key: output with n rows}.
            lanes: Lanes of the rows, int32 [n].
            legal: Action masks from the env, bool [n, choices].
            explore: True if the exploration distribution was used.
            chosen: True if actions were chosen from the logits.
        """
        logits, logp, actions = arrays.get(LOGITS), arrays.get(LOGP), arrays.get(ACTIONS)
        if logits is not None and first_unfit(logits, LEAST, MOST) >= 0:
            row = first_unfit(logits, -np.inf, MOST)
            if row >= 0:
                self._blame(row, lanes, "NaN or inf in its 'action_dist_inputs'", logits, logits)
            if chosen and (row := self._first_without_choice(logits, legal, explore)) >= 0:
                self._blame(row, lanes, "-inf as 'action_dist_inputs' of all legal choices", logits, logits)
        if logp is not None and (row := first_unfit(logp, -np.inf, np.inf)) >= 0:
            self._blame(row, lanes, "a NaN log-probability", logp, logits)
        leaves = [leaf for key, leaf in arrays.items() if name_of(key) == ACTIONS] if actions is None else (actions,)
        for leaf in leaves:
            if (row := first_unfit(leaf, LEAST, MOST)) >= 0:
                self._blame(row, lanes, "NaN or inf in its action", leaf, logits)

    def _first_without_choice(self, logits: np.ndarray, legal: np.ndarray | None, explore: bool) -> int:
        if legal is not None:
            logits = np.where(legal, logits, -np.inf)
        without = np.zeros(len(logits), np.bool_)
        for choice in self._choices[explore]:
            without |= logits[:, choice].max(1) == -np.inf
        return int(without.argmax()) if without.any() else -1

    def _blame(self, row: int, lanes: np.ndarray, what: str, values: np.ndarray, logits: np.ndarray | None) -> NoReturn:
        who = self._table.who(int(lanes[row]))
        origin = f", from 'action_dist_inputs' {logits[row]}" if logits is not None and logits is not values else ""
        problem = (
            f"row {row} of its batch, {who}, has {what}: {values[row]}{origin}; check its weights and inputs for NaN"
        )
        raise ModuleOutputError(self._module_id, problem)


def plain_tensor(value: Any) -> torch.Tensor:
    """Convert a tensor, array or number to a dense tensor of a dtype that NumPy supports.

    Raises:
        TypeError, ValueError, RuntimeError: If the value cannot be converted.
    """
    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        value = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.dtype in DTYPES:
        return value
    if not value.is_floating_point():
        raise TypeError(f"there is no NumPy dtype for {value.dtype}")
    return value.float()
