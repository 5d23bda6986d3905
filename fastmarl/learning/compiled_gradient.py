"""Compiled gradients of the PPO loss of a module, verified against the module itself."""

import copy
import random
import threading
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._ppo import BEST
from fastmarl.core.nets.dense_layers import NotDenseError, parts_of
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.learning.compiled_batch import CompiledGradient, taken
from fastmarl.learning.compiled_outputs import CompiledOutputs
from fastmarl.learning.compiled_rows import CompiledRows, LossOptions
from fastmarl.learning.dense_nets import MOST_WEIGHTS
from fastmarl.learning.module_layers import ModuleLayers, check_unwatched, is_default, layers_of_module
from fastmarl.learning.ppo import module_inputs
from fastmarl.learning.snapshots import Change, Snapshot

MOST_COMPARED = 256  # rows in the gradient comparison after reading a module
MOST_SEEN = 8  # rows in each later comparison
CHANGES = "its forward pass changes attributes"


class CompiledGradients:
    """Compiled gradients of a module, which is read again after each change.

    Modules of classes other than `DefaultRLModule` are read from a forward pass of a copy, so that the module itself is
    not affected. Before each update, attributes, methods and variables that a pass may use are checked for changes.
    Every few thousand rows, the gradients of a few rows are compared with autograd, which is used instead if they
    differ.

    Args:
        module: The module.
        gradients: Trained parameter -> tensor for its gradient.
    """

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor]):
        self._module, self._gradients = module, gradients
        self._known: CompiledGradient | str | None = None  # a string is the reason why there is no compiled code
        self._snapshot: Snapshot | None = None
        self._form: Any = None  # form of the module inputs
        self._n_unseen = 0

    def rows(self, batch: Mapping[str, Any], options: LossOptions) -> CompiledRows:
        """Prepare a batch for the PPO loss; all columns must have the same number of rows and device.

        Raises:
            BatchError: If `ppo_loss()` would raise it, or actions are out of range.
            NotDenseError: If the module might compute anything other than its layers, or compiled code does not support
                the batch.
        """
        form = _form_of(batch), options.vf_coeff != 0, options.kl_coeff != 0
        return self._prepared(batch, form, CompiledRows, options)

    def outputs(self, batch: Mapping[str, Any]) -> CompiledOutputs:
        """Prepare a batch of module inputs for any other loss on the logits; see `rows()`."""
        return self._prepared(batch, (_form_of(batch),), CompiledOutputs)

    def _prepared(self, batch: Mapping[str, Any], form: Any, kind: Any, *options: Any) -> Any:
        check_unwatched(self._module)
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None or form != self._form or not snapshot.is_same():
            snapshot, self._form = self._read(batch, kind, options), form
            self._n_unseen = kind.MOST_UNSEEN
        if not isinstance(self._known, CompiledGradient):
            self._snapshot = snapshot
            raise NotDenseError(self._known)
        rows = kind(self._known, batch, *options)
        self._n_unseen += len(rows)
        if self._n_unseen >= kind.MOST_UNSEEN:
            rows.compare_with_autograd(MOST_SEEN)
            self._n_unseen = 0
            if not snapshot.is_same():
                raise NotDenseError(CHANGES)
        self._snapshot = snapshot
        return rows

    def _read(self, batch: Mapping[str, Any], kind: Any, options: Any) -> Snapshot:
        """Read the module in its current state; return a snapshot of that state."""
        excluded: set[Change] = set()
        try:
            self._check_parameters()
            layers = (
                layers_of_module(self._module) if is_default(self._module) else self._read_copy(batch, kind, options)
            )
            self._known = CompiledGradient(self._module, self._gradients, layers)
        except RandomError:
            raise  # another thread may have drawn the numbers
        except ChangesError as error:
            self._known, excluded = str(error), error.changes
        except NotDenseError as error:
            self._known = str(error)
        return Snapshot(self._module, excluded)

    def _check_parameters(self) -> None:
        for each in self._gradients.values():
            if each.device.type != "cpu" or each.dtype != torch.float32:
                raise NotDenseError(f"its parameters are {each.dtype} on {each.device}")
        n_weights = sum(each.numel() for each in _parameters_of(self._module))
        if n_weights > MOST_WEIGHTS[BEST]:
            raise NotDenseError(f"torch is faster for {n_weights:,} weights")

    def _read_copy(self, batch: Mapping[str, Any], kind: Any, options: Any) -> ModuleLayers:
        """Read a copy of the module with modified weights, because zero weights would hide gradients."""
        try:
            twin = copy.deepcopy(self._module)
        except Exception as error:  # the module may contain anything
            raise NotDenseError(f"it can't be copied: {type(error).__name__}: {error}") from None
        parameters = _parameters_of(twin)
        _perturb(parameters)
        some = taken(batch, kind.some(batch, MOST_COMPARED))
        snapshot, draws = Snapshot(twin), _Draws()
        layers = reason = None
        try:
            with draws:
                layers = layers_of_module(twin, module_inputs(some))
                gradients = {each: torch.zeros_like(each).detach() for each in parameters if each.requires_grad}
                rows = kind(CompiledGradient(twin, gradients, layers), some, *options)
                rows.compare_with_autograd(MOST_COMPARED)
        except NotDenseError as error:
            reason = str(error)
        if not snapshot.is_same():
            changes = snapshot.changes()
            snapshot.restore()  # objects that the copy shares with others
            raise ChangesError(reason or CHANGES, changes)
        if draws.are_found and layers is not None:
            raise RandomError("its forward pass draws random numbers")
        if layers is None or reason is not None:
            raise NotDenseError(reason)
        return layers.of_other(dict(zip(parameters, _parameters_of(self._module), strict=True)))


class ChangesError(NotDenseError):
    """Raised if a forward pass changes the module, or objects and variables that the module uses."""

    def __init__(self, message: str, changes: set[Change]):
        super().__init__(message)
        self.changes = changes


class RandomError(NotDenseError):
    """Raised if a forward pass samples random numbers."""


def _parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """List the parameters of all submodules, with shared parameters repeated."""
    found = (each for part in parts_of(module) for each in part._parameters.values())
    return [each for each in found if each is not None]


@torch.no_grad()
def _perturb(parameters: list[nn.Parameter]) -> None:
    generator = torch.Generator("cpu").manual_seed(0)
    for each in dict.fromkeys(parameters):
        if each.is_cpu and each.is_floating_point():
            each.add_(torch.randn(each.shape, generator=generator, device="cpu"), alpha=0.1)


def _form_of(batch: Mapping[str, Any]) -> Any:
    """Return the names, dtypes and row shapes of the module inputs, for comparing batches."""
    return [(path, leaf.dtype, leaf.shape[1:]) for path, leaf in flatten_struct(module_inputs(batch))]


class _Draws(TorchDispatchMode):
    """Detects draws from the global random generators, and restores the generators at the end.

    Torch operations of other threads are ignored. NumPy and `random` do not tell which thread draws, so their
    generators are restored only if there is no other thread.

    Attributes:
        are_found: True if numbers were drawn.
    """

    def __enter__(self) -> Self:
        self.are_found = False
        self._of_torch, self._of_others = torch.get_rng_state(), _states_of_others()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.are_found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.are_found:
            torch.set_rng_state(self._of_torch)
        if _states_of_others() != self._of_others:
            self.are_found = True
            if threading.active_count() == 1:
                of_python, (kind, keys, *others) = self._of_others
                random.setstate(of_python)
                np.random.set_state((kind, np.frombuffer(keys, np.uint32), *others))  # noqa: NPY002


def _states_of_others() -> tuple[Any, Any]:
    state: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (state[0], state[1].tobytes(), *state[2:])
