"""Values of observations, for `fastmarl.batches.add_gae()`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastmarl.columns import Columns
from fastmarl.errors import ConfigError, ModuleOutputError
from fastmarl.learning.tensors import to_tensors
from fastmarl.learning.value_norm import ValueNorm
from fastmarl.modules import RLModule


def value_fn_of(module: RLModule, value_norm: ValueNorm | None = None) -> Callable[[Any], np.ndarray]:
    """A module as the `value_fn` of `add_gae()`: observations [k, ...], nested as the space, -> values float32 [k].

    Args:
        module: puts out "vf_preds"; it is asked when the function is called, with the weights it has then.
        value_norm: if its predictions are normalised.

    Raises:
        ConfigError: the module is recurrent: its values depend on states, which observations don't tell.
    """
    if module.is_stateful():
        raise ConfigError(
            f"value_fn_of() can't ask {type(module).__name__}, which is recurrent; give add_gae() last_values"
        )

    def value_fn(obs: Any) -> np.ndarray:
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        with torch.no_grad():
            outputs = module.forward_train(to_tensors({Columns.OBS: obs}, device=device))
            if Columns.VF_PREDS not in outputs:
                raise ModuleOutputError(type(module).__name__, f"value_fn_of() needs {Columns.VF_PREDS!r} among the "
                                        f"outputs, got {list(outputs)}")  # fmt: skip
            values = outputs[Columns.VF_PREDS]
            return (values if value_norm is None else value_norm.denormalize(values)).cpu().numpy()

    return value_fn
