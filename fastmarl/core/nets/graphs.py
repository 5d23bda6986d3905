"""Runs the forward passes of a tick as one unit of work on the device: one transfer in each direction and one launch.

The inputs of all modules that act in a tick share a buffer, as do their outputs. A *program* is this work for a given
set of modules and row counts; it is captured (see graph_device.py) when first needed and then replayed. Batches are
padded so that a few programs serve all ticks.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, Protocol

import numpy as np
import torch

from fastmarl.core.errors import ModuleOutputError
from fastmarl.core.nets.graph_device import CudaGraphs
from fastmarl.core.nets.transfer import Column, Packing, host_buffer, sent_dtype
from fastmarl.core.store.block import Key

MOST_PROGRAMS = 32
LEAST_ROWS = 8


class Member(Protocol):
    """The interface of a module for programs; members are compared by identity."""

    module_id: str
    launched: "Launch | None"

    def on_device(self, tensors: list[torch.Tensor], *, explore: bool) -> dict[Key, torch.Tensor]:
        """Compute outputs and actions, one row per input row, without waiting for the device."""

    def refuse_capture(self, reason: str) -> None:
        """Exclude the module from further launches because it cannot be captured."""


class GraphCall(NamedTuple):
    """A module call in a tick; `arrays` are its inputs, each [n, ...] with n > 0."""

    member: Member
    arrays: list[np.ndarray]


class Sizes:
    """The row counts to which a module's batches are padded.

    These are the largest count recorded, rounded up by at most an eighth (or to `LEAST_ROWS`), and its successive
    halves.
    """

    def __init__(self) -> None:
        self.largest = 0

    def grow(self, n: int) -> bool:
        """Record a batch of `n` rows; return True if it is the largest so far and changes the sizes."""
        if n <= self.largest:
            return False
        step = max(LEAST_ROWS, 1 << max(0, n.bit_length() - 4))
        self.largest = -(-n // step) * step
        return True

    def of(self, n: int) -> int:
        """Return the padded size for a batch of `n` rows, where n is at most the largest count recorded."""
        size = self.largest
        while size // 2 >= max(n, LEAST_ROWS):
            size //= 2
        return size


class TickGraphs:
    """Launches the forward passes of a runner's modules.

    Args:
        capture: CUDA graphs of the device that runs the modules.
    """

    def __init__(self, capture: CudaGraphs):
        self._capture = capture
        self._programs: dict[tuple, Program] = {}
        self._sizes: dict[Member, Sizes] = {}
        self._columns: dict[Member, list[Column]] = {}  # in the last call of each member

    def launch(self, calls: Sequence[GraphCall], *, explore: bool) -> "Launch":
        """Queue the forward passes of these calls and return immediately.

        Raises:
            ModuleOutputError: If the row counts of an output and its batch differ, or a module wrote to its batch.
        """
        parts = self._parts(calls)
        key = (explore, *((part.member, part.rows, *part.columns) for part in parts))
        program = self._programs.get(key) or Program(self._capture, parts, explore)
        launch = program.launch(calls)
        if program.replay is not None:
            self._programs[key] = program
        return launch

    def n_sizes(self, member: Member) -> int:
        """Return the number of batch sizes for which a module has been captured."""
        return len(
            {part.rows for program in self._programs.values() for part in program.parts if part.member is member}
        )

    def forget(self, member: Member) -> None:
        """Drop all programs that contain this module, after it has changed or become idle."""
        self._drop_programs(member)
        self._sizes.pop(member, None)
        self._columns.pop(member, None)

    def _drop_programs(self, member: Member) -> None:
        self._programs = {
            key: program
            for key, program in self._programs.items()
            if all(part.member is not member for part in program.parts)
        }

    def _parts(self, calls: Sequence[GraphCall]) -> list["GraphPart"]:
        """Choose the modules and row counts of the program for these calls.

        Once varying row counts have led to too many programs, all calls use a single program with all modules at their
        largest sizes.
        """
        for member, arrays in calls:
            self._columns[member] = [(sent_dtype(array.dtype), array.shape[1:]) for array in arrays]
            if self._sizes.setdefault(member, Sizes()).grow(len(arrays[0])):
                self._drop_programs(member)
        if len(self._programs) < MOST_PROGRAMS:
            sizes = [(member, self._sizes[member].of(len(arrays[0]))) for member, arrays in calls]
        else:
            sizes = [(member, sizes.largest) for member, sizes in self._sizes.items()]
        return [GraphPart(member, rows, tuple(self._columns[member])) for member, rows in sizes]


class GraphPart(NamedTuple):
    """A module's part of a program: its number of rows, and the dtypes and shapes of a row."""

    member: Member
    rows: int
    columns: tuple[Column, ...]


class Launch:
    """A launch of a program, whose work may still be running on the device.

    Args:
        calls: The calls of the modules.
        program: The launched program.
        slot: The buffers of the launch.
        mark: Event recorded after the launch.
    """

    def __init__(self, calls: Sequence[GraphCall], program: "Program", slot: "Slot", mark: torch.cuda.Event):
        self._n_rows = {member: len(arrays[0]) for member, arrays in calls}
        self._program = program
        self._slot: Slot | None = slot
        self._mark = mark
        self._outputs: dict[Member, dict[Key, np.ndarray]] = {}

    def outputs(self, member: Member) -> dict[Key, np.ndarray]:
        """Wait for the launch; return the outputs [n, ...] of a module, which are valid until the next launch."""
        if self._slot is not None:
            self._mark.synchronize()
            self._outputs = self._program.read(self._slot)
            self._program.free.append(self._slot)
            self._slot = None
        n = self._n_rows[member]
        return {key: array[:n] for key, array in self._outputs[member].items()}


class Slot:
    """Host buffers of a launch: `columns` are the arrays in `outgoing`, `outputs` those in `incoming`."""

    def __init__(self, inputs: Packing, device: torch.device):
        self._device = device
        self.outgoing, self.columns = self._arrays(inputs)
        self.incoming, self.outputs = torch.empty(0), list[np.ndarray]()

    def expect(self, outputs: Packing) -> None:
        """Allocate the incoming buffer on first use."""
        if not self.outputs:
            self.incoming, self.outputs = self._arrays(outputs)

    def _arrays(self, packing: Packing) -> tuple[torch.Tensor, list[np.ndarray]]:
        buffer = host_buffer(packing.n_bytes, self._device)
        return buffer, packing.arrays(buffer)


class Program:
    """The work for a given set of modules and row counts, with fixed memory for inputs and outputs.

    The first launch calls the modules directly and then captures them, as libraries need a warm-up and output sizes are
    only known afterwards.

    Attributes:
        parts: The modules with their row counts.
        replay: Runs the captured work; None before the first launch or if the work cannot be captured.
        free: Buffers of finished launches.
    """

    def __init__(self, capture: CudaGraphs, parts: list[GraphPart], explore: bool):
        self.parts = parts
        self.free: list[Slot] = []
        self.replay: Callable[[], object] | None = None
        self._capture = capture
        self._explore = explore
        columns = [(dtype, (part.rows, *shape)) for part in parts for dtype, shape in part.columns]
        self._inputs = Packing(columns)
        self._sent = torch.zeros(self._inputs.n_bytes, dtype=torch.uint8, device=capture.device)
        views = iter(self._inputs.views(self._sent))
        self._tensors = [[next(views) for _ in part.columns] for part in parts]

    def launch(self, calls: Sequence[GraphCall]) -> Launch:
        slot = self.free.pop() if self.free else Slot(self._inputs, self._capture.device)
        self._stage(slot.columns, dict(calls))
        self._sent.copy_(slot.outgoing, non_blocking=True)
        if self.replay is None:
            self._begin()
        else:
            self.replay()
        slot.expect(self._outputs)
        slot.incoming.copy_(self._made, non_blocking=True)
        return Launch(calls, self, slot, self._capture.mark())

    def read(self, slot: Slot) -> dict[Member, dict[Key, np.ndarray]]:
        """Return all outputs in the slot, including padding rows."""
        arrays = iter(slot.outputs)
        return {
            part.member: {key: next(arrays) for key in keys} for part, keys in zip(self.parts, self._keys, strict=True)
        }

    def _stage(self, columns: list[np.ndarray], inputs: dict[Member, list[np.ndarray]]) -> None:
        """Write the inputs of the members; pad each part by repeating the last row, which is a valid input."""
        targets = iter(columns)
        for part in self.parts:
            arrays = inputs.get(part.member)
            for i in range(len(part.columns)):
                column = next(targets)
                if arrays is not None:
                    column[: len(arrays[i])] = arrays[i]
                    column[len(arrays[i]) :] = arrays[i][-1]

    def _begin(self) -> None:
        """Run the first launch and capture the work."""
        version = self._sent._version
        outputs = self._capture.warm_up(self._forward)
        if self._sent._version != version:
            self._blame_writer()
        self._keys = [list(of_part) for of_part in outputs]
        tensors = [tensor for of_part in outputs for tensor in of_part.values()]
        self._outputs = Packing([(tensor.dtype, tuple(tensor.shape)) for tensor in tensors])
        self._made = torch.zeros(self._outputs.n_bytes, dtype=torch.uint8, device=self._capture.device)
        self._views = self._outputs.views(self._made)
        self._keep(outputs)
        try:
            self.replay = self._capture.capture(lambda: self._keep(self._forward()))
        except Exception as error:
            self._refuse(error)

    def _forward(self) -> list[dict[Key, torch.Tensor]]:
        return [self._outputs_of(i) for i in range(len(self.parts))]

    @torch.no_grad()  # inference mode does not work with captures outside of it: pytorch#166792
    def _outputs_of(self, i: int) -> dict[Key, torch.Tensor]:
        part = self.parts[i]
        outputs = part.member.on_device(self._tensors[i], explore=self._explore)
        for key, tensor in outputs.items():
            if not tensor.dim() or len(tensor) != part.rows:
                raise ModuleOutputError(part.member.module_id, f"expected {part.rows} rows in output {key!r}, one for "
                                        f"each row of its batch, got shape {tuple(tensor.shape)}")  # fmt: skip
        return outputs

    @torch.no_grad()
    def _keep(self, outputs: list[dict[Key, torch.Tensor]]) -> None:
        tensors = [tensor for of_part in outputs for tensor in of_part.values()]
        for view, tensor in zip(self._views, tensors, strict=True):
            view.copy_(tensor)

    def _refuse(self, error: Exception) -> None:
        """Refuse the modules whose capture also fails individually, or all modules if there are none."""
        failures: dict[int, Exception] = {}
        for i in range(len(self.parts)):
            try:
                self._capture.capture(partial(self._outputs_of, i))
            except Exception as own_error:
                failures[i] = own_error
        for i, cause in (failures or dict.fromkeys(range(len(self.parts)), error)).items():
            member, reason = self.parts[i].member, _first_line(cause)
            member.refuse_capture(reason)
            warnings.warn(
                f"module {member.module_id!r} cannot be captured in a CUDA graph and runs without one: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _blame_writer(self) -> NoReturn:
        """Raise a ModuleOutputError that names the module that wrote to its inputs, or all if none does so again."""
        problem = "modified its input batch; use operations that are not in-place"
        for i, part in enumerate(self.parts):
            version = self._sent._version
            self._outputs_of(i)
            if self._sent._version != version:
                raise ModuleOutputError(part.member.module_id, problem)
        raise ModuleOutputError([part.member.module_id for part in self.parts], f"one of these {problem}")


def make_tick_graphs(device: torch.device, generator: torch.Generator) -> TickGraphs | None:
    """Create the launcher for modules on this device; None if modules must be called separately."""
    return TickGraphs(CudaGraphs(device, generator)) if device.type == "cuda" else None


def _first_line(error: BaseException) -> str:
    """Return the first line of the original error; a failed capture raises another error when it ends."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).strip().split("\n")[0] or type(error).__name__
