"""Computes the values of observations for `fastmarl.batches.add_gae()`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fastmarl.core.errors import BatchError, ConfigError, ModuleOutputError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.learning.one_module import one_module
from fastmarl.learning.tensors import to_tensors
from fastmarl.learning.value_norm import ValueNorm


def make_value_fn(module: torch.nn.Module, value_norm: ValueNorm | None = None) -> Callable[[Any], np.ndarray]:
    """Return a function that computes values with a module, for the argument `value_fn` of `add_gae()`.

    It maps observations [k, ...], nested like the space, to values float32 [k].

    Args:
        module: Module that outputs "vf_preds". Each call uses its current weights.
        value_norm: Normaliser of the module predictions, if they are normalised.

    Raises:
        ConfigError: If the module is recurrent, as its values depend on states, which observations do not contain.
    """
    module = one_module(module)
    if module.is_stateful():
        raise ConfigError(
            f"make_value_fn() does not support {_name(module)}, which is recurrent; pass last_values to add_gae(), "
            f"see bootstrap_values()"
        )

    def value_fn(obs: Any) -> np.ndarray:
        return _values(module, {Columns.OBS: obs}, value_norm, "make_value_fn()").cpu().numpy()

    return value_fn


def bootstrap_values(
    module: torch.nn.Module, batch: Mapping[str, Any], value_norm: ValueNorm | None = None
) -> np.ndarray:
    """Return the values of "final_obs" of a batch, as `last_values` for `add_gae()` and related functions.

    A recurrent module receives the state and the observation after the last step of each trajectory.

    Args:
        module: Module that outputs "vf_preds"; may be recurrent.
        batch: Result of `columns()`; for a recurrent module, with "state_out".
        value_norm: Normaliser of the module predictions, if they are normalised.

    Returns:
        float32 [s], one value per trajectory.

    Raises:
        BatchError: If the module is recurrent, and the batch has no "state_out".
        ModuleOutputError: If the module does not output values.
    """
    module, inputs = one_module(module), {Columns.OBS: batch[Columns.FINAL_OBS]}
    if not module.is_stateful():
        return _values(module, inputs, value_norm, "bootstrap_values()").cpu().numpy()
    if Columns.STATE_OUT not in batch:
        raise BatchError(
            f"bootstrap_values() needs {Columns.STATE_OUT!r} of {_name(module)}, which is recurrent; build the "
            f"batch with columns(episodes, outputs=[..., {Columns.STATE_OUT!r}])"
        )
    last_S = np.cumsum(batch[Columns.SEQ_LENS]) - 1
    inputs = map_struct(lambda leaf: leaf[:, None], inputs)  # sequences of one step
    inputs[Columns.STATE_IN] = map_struct(lambda leaf: leaf[last_S], batch[Columns.STATE_OUT])
    return _values(module, inputs, value_norm, "bootstrap_values()")[:, 0].cpu().numpy()


def _values(module: RLModule, inputs: dict[str, Any], value_norm: ValueNorm | None, asked_by: str) -> torch.Tensor:
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    with torch.no_grad():
        outputs = module.forward_train(to_tensors(inputs, device=device))
        if Columns.VF_PREDS not in outputs:
            raise ModuleOutputError(_name(module), f"{asked_by} needs {Columns.VF_PREDS!r} among the outputs, "
                                    f"got {list(outputs)}")  # fmt: skip
        values = outputs[Columns.VF_PREDS]
        return values if value_norm is None else value_norm.denormalize(values)


def _name(module: RLModule) -> str:
    return type(module._net()).__name__
