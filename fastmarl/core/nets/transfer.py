"""Copies recorded arrays to tensors for a module, and its outputs to arrays.

A module may keep and modify its inputs, so it receives copies. With a GPU, each tick needs one transfer in each
direction.
"""

import math
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch

from fastmarl.core.errors import ConfigError

K = TypeVar("K", bound=Hashable)
Column = tuple[torch.dtype, tuple[int, ...]]
ALIGNMENT = 16  # bytes, as required for views of wider dtypes


class HostCopy:
    """Copies data for modules on the CPU."""

    device = torch.device("cpu")

    def to_device(self, arrays: list[np.ndarray]) -> list[torch.Tensor]:
        """Copy arrays to tensors; float64 becomes float32."""
        return [torch.from_numpy(array.astype(_sent(array.dtype), "C")) for array in arrays]

    def to_host(self, tensors: dict[K, torch.Tensor]) -> dict[K, np.ndarray]:
        """Convert tensors to arrays, under the same keys."""
        return {key: _array(tensor) for key, tensor in tensors.items()}


class StagedCopy:
    """Copies data for modules on a GPU, through one host buffer per direction.

    Returned arrays are valid until the next call.

    Args:
        device: Device of the modules.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._outgoing = self._incoming = host_buffer(0, device)

    def to_device(self, arrays: list[np.ndarray]) -> list[torch.Tensor]:
        packing = Packing([(sent_dtype(array.dtype), array.shape) for array in arrays])
        if packing.n_bytes > len(self._outgoing):
            self._outgoing = host_buffer(2 * packing.n_bytes, self.device)
        for target, array in zip(packing.arrays(self._outgoing), arrays, strict=True):
            np.copyto(target, array)
        return packing.views(self._outgoing[: packing.n_bytes].to(self.device, non_blocking=True))

    def to_host(self, tensors: dict[K, torch.Tensor]) -> dict[K, np.ndarray]:
        packing = Packing([(tensor.dtype, tensor.shape) for tensor in tensors.values()])
        if packing.n_bytes > len(self._incoming):
            self._incoming = host_buffer(2 * packing.n_bytes, self.device)
        gathered = torch.empty(packing.n_bytes, dtype=torch.uint8, device=self.device)
        for view, tensor in zip(packing.views(gathered), tensors.values(), strict=True):
            view.copy_(tensor.detach())
        self._incoming[: packing.n_bytes].copy_(gathered, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return dict(zip(tensors, packing.arrays(self._incoming), strict=True))


Transfer = HostCopy | StagedCopy


def make_transfer(device: torch.device) -> Transfer:
    """Create the `Transfer` for modules on this device."""
    return HostCopy() if device.type == "cpu" else StagedCopy(device)


class Packing:
    """Layout of arrays with given dtypes and shapes in a single buffer of `n_bytes` bytes."""

    def __init__(self, columns: Sequence[Column]):
        self.n_bytes = 0
        self._spans: list[tuple[int, int, torch.dtype, tuple[int, ...]]] = []
        for dtype, shape in columns:
            end = self.n_bytes + dtype.itemsize * math.prod(shape)
            self._spans.append((self.n_bytes, end, dtype, shape))
            self.n_bytes = -(-end // ALIGNMENT) * ALIGNMENT

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return the arrays in a buffer (uint8 [>= n_bytes]) as tensors that share its memory."""
        return [buffer[start:end].view(dtype).view(shape) for start, end, dtype, shape in self._spans]

    def arrays(self, buffer: torch.Tensor) -> list[np.ndarray]:
        """Return the arrays in a host buffer as NumPy arrays that share its memory."""
        host = buffer.numpy()
        return [np.ndarray(shape, _numpy_dtype(dtype), host, start) for start, _, dtype, shape in self._spans]


def host_buffer(n_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate host memory; for a GPU, it is page-locked, so that the driver copies without a staging buffer."""
    return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


@cache
def sent_dtype(dtype: np.dtype) -> torch.dtype:
    """Return the torch dtype in which arrays of this dtype are sent: float32 for float64, otherwise the same.

    Raises:
        ConfigError: If torch does not support the dtype.
    """
    try:
        return torch.from_numpy(np.empty(0, _sent(dtype))).dtype
    except TypeError as error:
        raise ConfigError(f"torch does not support observations of dtype {dtype}; use a different dtype in their "
                          f"space") from error  # fmt: skip


def _sent(dtype: np.dtype) -> Any:
    return np.float32 if dtype == np.float64 else dtype


def _array(tensor: torch.Tensor) -> np.ndarray:
    try:
        return tensor.numpy()
    except RuntimeError:  # requires grad, conjugated or negated; checking first, or always forcing, is slower
        return tensor.numpy(force=True)


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
