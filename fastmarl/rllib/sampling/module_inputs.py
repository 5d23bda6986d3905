"""Builds module input batches from rows of observations."""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.utils.spaces.space_utils import batch as batch_of

from fastmarl.core.spaces.structs import map_struct
from fastmarl.rllib.inference.inference import Batch
from fastmarl.rllib.sampling.parts import Parts

ALIGNMENT = 16  # bytes


class ModuleInputs:
    """Builds the batch of each module from the rows to act next.

    Args:
        parts: Lanes, store, inference and settings of the runner.

    Attributes:
        added: Module id -> columns added by connector pieces.
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self.added: dict[str, dict[str, Any]] = {}

    def batch(self, module: int, *, is_shown: bool = False) -> Batch:
        """Build a module batch like RLlib, with the same alignment, which affects the last bits of matrix products.

        Args:
            module: Index of the module.
            is_shown: True if code outside the module sees the batch and may write to it.
        """
        parts, store = self._parts, self._parts.store
        block, first, end = store.blocks[module], store.acting_from[module], store.rows[module].n
        frames, module_id = parts.connectors.frames, store.module_ids[module]
        added = self.added.get(module_id) if self.added else None
        is_plain = frames is None and not added and not is_shown
        if is_plain and parts.inference.reads(module_id, block.layout, end - first):
            return block.obs[0][first:end]
        shares = not is_shown and parts.inference.leaves_input_untouched(module_id)
        if frames is not None:
            obs: Any = map_struct(self._own_tensor, frames.of(module))
        elif block.layout.is_array:
            obs = self._tensor(block.obs[0], first, end, shares)
        elif block.layout.has_objects:
            obs = map_struct(self._own_tensor, batch_of(list(block.obs[0][first:end])))
        else:
            obs = block.layout.nest([self._tensor(leaf, first, end, shares) for leaf in block.obs])
        batch = {Columns.OBS: obs}
        if parts.states[module] is not None:
            obs = map_struct(lambda leaf: leaf.unsqueeze(1), obs)
            batch = {Columns.OBS: obs, Columns.STATE_IN: self.read_state(module)}
        return {**added, **batch} if added else batch

    def read_state(self, module: int) -> Any:
        """Return the recurrent states for the next forward pass of a module, or None if it is not recurrent."""
        store, state = self._parts.store, self._parts.states[module]
        if state is None:
            return None
        read = state.read(store.blocks[module].lane_R[store.acting_from[module] : store.rows[module].n])
        return state.nest([self._on_device(torch.from_numpy(_as_float(leaf))) for leaf in read])

    def _tensor(self, leaf: np.ndarray, first: int, end: int, shares: bool) -> torch.Tensor:
        """Return rows of a leaf as a tensor, without a copy if possible."""
        if not shares or leaf.dtype == np.float64 or first * leaf.strides[0] % ALIGNMENT:
            return self._own_tensor(leaf[first:end])
        return self._on_device(torch.from_numpy(leaf[first:end]))

    def _own_tensor(self, array: np.ndarray) -> torch.Tensor:
        """Copy an array to a tensor like RLlib's NumpyToTensor, float64 as float32, in memory allocated by NumPy."""
        return self._on_device(torch.from_numpy(_as_float(array, copy=True)))

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._parts.inference.is_on_cpu else tensor.to(self._parts.internals.device)


def _as_float(array: np.ndarray, *, copy: bool = False) -> np.ndarray:
    """Cast a float64 array to float32, and return other arrays unchanged."""
    return array.astype(np.float32 if array.dtype == np.float64 else array.dtype, copy=copy)
