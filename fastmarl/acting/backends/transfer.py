"""Batches between the arrays of the store and the tensors of a module: without a copy on the CPU, in one copy each
way per tick on a GPU."""

from collections.abc import Hashable
from typing import Protocol, TypeVar

import numpy as np
import torch

K = TypeVar("K", bound=Hashable)
ALIGNMENT = 16  # bytes; a view as a wider dtype needs it


class Transfer(Protocol):
    """`device` is where the modules' inputs are."""

    device: torch.device

    def to_device(self, arrays: list[np.ndarray]) -> list[torch.Tensor]:
        """float64 comes as float32, everything else as it is; valid until the next call."""

    def to_host(self, tensors: dict[K, torch.Tensor]) -> dict[K, np.ndarray]:
        """Arrays of the same keys; valid until the next call."""


def make_transfer(device: torch.device) -> Transfer:
    """For modules on this device."""
    return SharedMemory() if device.type == "cpu" else StagedCopy(device, pinned=True)


class SharedMemory:
    """Tensors look at the arrays' own memory."""

    device = torch.device("cpu")

    def to_device(self, arrays: list[np.ndarray]) -> list[torch.Tensor]:
        return [torch.from_numpy(as_sent(array)) for array in arrays]

    def to_host(self, tensors: dict[K, torch.Tensor]) -> dict[K, np.ndarray]:
        return {key: tensor.numpy() for key, tensor in tensors.items()}


class StagedCopy:
    """All arrays go through one host buffer each way, so that a tick costs one transfer each way.

    Args:
        device: the modules' device.
        pinned: page-locked host buffers, which copy without the driver's own staging (needs CUDA).
    """

    def __init__(self, device: torch.device, *, pinned: bool):
        self.device = device
        self._pinned = pinned
        self._outgoing = self._buffer(0)
        self._incoming = self._buffer(0)

    def to_device(self, arrays: list[np.ndarray]) -> list[torch.Tensor]:
        arrays = [as_sent(array) for array in arrays]
        starts, total = places([array.nbytes for array in arrays])
        if total > len(self._outgoing):
            self._outgoing = self._buffer(2 * total)
        host = self._outgoing.numpy()
        for array, start in zip(arrays, starts, strict=True):
            np.copyto(host[start : start + array.nbytes].view(array.dtype).reshape(array.shape), array)
        sent = self._outgoing[:total].to(self.device, non_blocking=True)
        tensors = []
        for array, start in zip(arrays, starts, strict=True):
            part = sent[start : start + array.nbytes]
            tensors.append(part.view(torch.from_numpy(array[:0]).dtype).view(array.shape))
        return tensors

    def to_host(self, tensors: dict[K, torch.Tensor]) -> dict[K, np.ndarray]:
        parts = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
        starts, total = places([len(part) for part in parts])
        if total > len(self._incoming):
            self._incoming = self._buffer(2 * total)
        gathered = torch.zeros(total, dtype=torch.uint8, device=self.device)
        for part, start in zip(parts, starts, strict=True):
            gathered[start : start + len(part)] = part
        self._incoming[:total].copy_(gathered, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        host = self._incoming.numpy()
        return {
            key: host[start : start + len(part)].view(_numpy_dtype(tensor.dtype)).reshape(tuple(tensor.shape))
            for (key, tensor), part, start in zip(tensors.items(), parts, starts, strict=True)
        }

    def _buffer(self, n_bytes: int) -> torch.Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=self._pinned)


def places(sizes: list[int]) -> tuple[list[int], int]:
    """Where parts of so many bytes begin in one buffer, and the bytes of it all."""
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, total


def as_sent(array: np.ndarray) -> np.ndarray:
    """float64 as float32, everything else as it is."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
