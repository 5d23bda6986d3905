"""Batches with compiled code for module logits and for the gradient of any loss on the logits."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.masking import LEAST, masked
from fastmarl.core.nets.dense_layers import NotDenseError
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.learning.compiled_batch import SMALLEST, TOLERANCE, CompiledBatch, CompiledGradient, counted, few, taken
from fastmarl.learning.ppo import module_inputs


class CompiledOutputs(CompiledBatch):
    """A batch of module inputs; see `CompiledGradients.outputs()`."""

    MOST_UNSEEN = 32_768  # rows between comparisons; updates make a single pass instead of several epochs
    backend = "compiled"

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any]):
        if gradient.layers.net.log_std is not None:
            raise NotDenseError("its standard deviations are not the outputs of a layer")
        super().__init__(
            gradient, batch, _shape_of(batch, is_sequence=bool(gradient.layers.net.states)), has_values=False
        )
        self._net, self._mask = gradient.net(is_given=True), self._action_mask()

    def outputs(self, *numbers: Tensor) -> Tensor:
        """Return the logits of each row [n, k], with the lowest finite number where the action mask is 0.

        Args:
            numbers: Tensors with indices of rows or sequences, without duplicates; the logits of all other rows are
                zeros. `backward()` applies to the last tensor.
        """
        obs, states = self._inputs
        found = [self._net.outputs(obs, each.numpy(), length=self._length, states=states) for each in numbers]
        logits = torch.from_numpy(sum(found[1:], start=found[0]))
        return logits if self._mask is None else masked(logits, self._mask)

    def backward(self, derivatives: Tensor) -> None:
        """Overwrite the gradient, given the loss derivatives w.r.t. the logits of the last `outputs()`, [n, k]."""
        if self._mask is not None:
            derivatives = derivatives.masked_fill(self._mask == 0, 0.0)
        self._net.backward(derivatives.contiguous().numpy())

    def of(self, gradient: CompiledGradient) -> "CompiledOutputs":
        """Return the same batch for a module with the same layers but different weights."""
        other = copy.copy(self)
        other.gradient, other._net = gradient, gradient.net(is_given=True)
        return other

    def compare_with_autograd(self, most: int) -> None:
        """Raise NotDenseError unless compiled code and autograd compute the same logits and gradients of a few rows."""
        numbers, gradients = self.some(self._batch, most), self.gradient.gradients
        inputs = taken(module_inputs(self._batch), numbers)
        try:
            with torch.enable_grad():
                logits = self.gradient.module.forward_train(inputs)[Columns.ACTION_DIST_INPUTS]
                logits = logits.reshape(-1, logits.shape[-1])
            derivatives = torch.linspace(-1.0, 1.3, logits.numel(), device="cpu").view(logits.shape)
            found = torch.autograd.grad(logits, [*gradients], derivatives, allow_unused=True)
        except Exception as error:  # raised by the module or about its outputs: autograd will raise it again
            raise NotDenseError(f"a pass with few rows fails: {type(error).__name__}: {error}") from None
        some, everything = CompiledOutputs(self.gradient, inputs), torch.arange(len(numbers))
        ours = some.outputs(everything)
        seen = logits.detach().masked_fill(logits == LEAST, 0.0)
        if ours.shape != logits.shape or not (
            (ours - logits).abs().amax() <= TOLERANCE * seen.abs().amax() + SMALLEST  # False for NaN
        ):
            raise NotDenseError("the compiled logits differ from the module's")
        some.backward(derivatives)
        self._check_gradients(found)

    @staticmethod
    def some(batch: Mapping[str, Any], most: int) -> Tensor:
        """Return the indices of a few rows that count, or of sequences with such rows; see `few()`."""
        mask = batch[Columns.LOSS_MASK]
        return few(counted(mask), mask.shape[1:].numel(), most)


def _shape_of(batch: Mapping[str, Any], *, is_sequence: bool) -> torch.Size:
    _, leaf = flatten_struct(batch[Columns.OBS])[0]
    return leaf.shape[: 1 + is_sequence]


class AutogradOutputs:
    """A batch with gradients from autograd; see `CompiledOutputs`.

    Attributes:
        backend: "autograd: " followed by the reason.
        trained: None, because torch tracks which parameters have gradients.
    """

    trained = None

    def __init__(self, module: RLModule, inputs: Mapping[str, Any], backend: str):
        self.backend, self._module, self._inputs = backend, module, inputs
        self._n = _shape_of(inputs, is_sequence=False)[0]
        self._logits: Tensor

    def outputs(self, *numbers: Tensor) -> Tensor:
        """Return the logits as in `CompiledOutputs.outputs()`, computed in a single pass."""
        self._numbers = torch.cat(numbers)
        with torch.enable_grad():
            self._logits = self._module.forward_train(taken(self._inputs, self._numbers))[Columns.ACTION_DIST_INPUTS]
        found = self._logits.new_zeros((self._n, *self._logits.shape[1:]))
        found[self._numbers] = self._logits.detach()
        return found.flatten(0, -2)

    def backward(self, derivatives: Tensor) -> None:
        """Accumulate the gradients; see `CompiledOutputs.backward()`."""
        shape = self._logits.shape
        if self._logits.requires_grad:  # not if everything is frozen
            self._logits.backward(derivatives.view(-1, *shape[1:])[self._numbers].view(shape))
