"""Checks which default RLlib modules compute only their layers, so that plain functions can replace them.

Only modules with bit-identical results pass: exact instances of RLlib classes, with layers that compute the same in
training and evaluation, and without hooks, compiled parts or methods set on the instance.
"""

import operator
from types import NoneType
from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.models.torch.encoder import (
    TorchActorCriticEncoder,
    TorchCNNEncoder,
    TorchLSTMEncoder,
    TorchMLPEncoder,
    TorchStatefulActorCriticEncoder,
)
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.core.models.torch.primitives import TorchCNN, TorchMLP
from torch import nn
from torch.nn.modules import module as nn_module

from fastmarl.core.nets.dense_layers import HOOKS, NotDenseError, is_watched, parts_of

ACTIVATIONS = {
    *(nn.Tanh, nn.ReLU),
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU6),
    *(nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign),
}
FIRST_LAYERS = {nn.Linear, nn.Conv2d, nn.ZeroPad2d}  # these do not write to their input
KNOWN_LAYERS = {nn.LayerNorm, *FIRST_LAYERS, *ACTIVATIONS}
KNOWN_MODELS = {
    *(TorchActorCriticEncoder, TorchStatefulActorCriticEncoder, TorchMLPEncoder, TorchCNNEncoder, TorchLSTMEncoder),
    *(TorchMLPHead, TorchFreeLogStdMLPHead),
}
KNOWN_PARTS = {TorchMLP, TorchCNN, nn.Sequential, nn.Flatten, nn.LSTM}
RLLIB_FORWARDS = {"forward_exploration", "forward_inference", "_forward_exploration", "_forward_inference", "_forward"}
RLLIB_MODULES = (DefaultPPOTorchRLModule, DefaultSACTorchRLModule)
METHODS = {  # the originals, read before user code can replace them
    (kind, name): getattr(kind, name)
    for kinds, names in (
        (RLLIB_MODULES, RLLIB_FORWARDS),
        (KNOWN_LAYERS | KNOWN_MODELS | KNOWN_PARTS, {"__call__", "forward"}),
        (KNOWN_MODELS, {"_forward"}),
    )
    for kind in kinds
    for name in names
}


def parts_run(module: Any) -> list[nn.Module]:
    """Return the module and all parts that `actor_function()` may run; empty for modules of other classes."""
    if type(module) not in RLLIB_MODULES:
        return []
    return [module, *parts_of(_encoder_of(module), module.pi)]


def _encoder_of(module: Any) -> Any:
    return module.encoder if type(module) is DefaultPPOTorchRLModule else module.pi_encoder


def plain_actor(module: Any) -> tuple[Any, Any]:
    """Return the (encoder, head) that compute action_dist_inputs from observations.

    The encoder is a TorchMLPEncoder, a TorchCNNEncoder or, with recurrent state, a TorchStatefulActorCriticEncoder.

    Raises:
        NotDenseError: If `module` may compute them in another way.
    """
    kind = type(module)
    if kind not in RLLIB_MODULES:
        raise NotDenseError(f"{kind.__name__} is not one of {', '.join(known.__name__ for known in RLLIB_MODULES)}")
    if own := vars(module).keys() & RLLIB_FORWARDS:
        raise NotDenseError(f"the module has a replaced {min(own)}()")
    if any(getattr(nn_module, f"_global{hooks}") for hooks in HOOKS):
        raise NotDenseError("torch has global hooks")
    if changed := [f"{owner.__name__}.{name}" for (owner, name), method in METHODS.items()
                   if getattr(owner, name) is not method]:  # fmt: skip
        raise NotDenseError(f"{changed[0]}() has been replaced")
    encoder = _encoder_of(module)
    for part in (part for model in (encoder, module.pi) for part in model.modules()):
        if not is_plain_part(part):
            raise NotDenseError(f"its {type(part).__name__} is unknown, has hooks or is compiled")
    if type(encoder) is TorchActorCriticEncoder:
        config: Any = encoder.config
        encoder = encoder.encoder if config.shared else encoder.actor_encoder
    if type(encoder) is TorchStatefulActorCriticEncoder and type(module.pi) is TorchMLPHead:
        return encoder, module.pi
    if type(encoder) not in (TorchMLPEncoder, TorchCNNEncoder):
        raise NotDenseError(f"its encoder is a {type(encoder).__name__}")
    return encoder, module.pi


def is_plain_part(part: nn.Module) -> bool:
    """Return True if calling this part only runs the forward() of its class, on float32."""
    kind = type(part)
    return (
        (kind in KNOWN_LAYERS or (kind in KNOWN_MODELS | KNOWN_PARTS and _is_well_formed(part)))
        and not is_watched(part)
        and "_forward" not in vars(part)
        and all(value is None or value.dtype == torch.float32 for value in part._parameters.values())
    )


def _is_well_formed(model: Any) -> bool:
    """Return True if the model has the parts created by RLlib catalogs for its class."""
    kind: type = type(model)
    if kind is nn.Sequential:
        kinds = [type(layer) for layer in model]
        return kinds == [TorchCNN, nn.Flatten] or bool(kinds and kinds[0] in FIRST_LAYERS and {*kinds} <= KNOWN_LAYERS)
    if kind is nn.Flatten:
        return (model.start_dim, model.end_dim) == (1, -1)
    if kind is nn.LSTM:
        is_simple = model.batch_first and model.bias and not model.bidirectional and not model.proj_size
        return (
            is_simple
            and model.num_layers == 1
            and all(map(operator.is_, model._flat_weights, model._parameters.values()))
        )
    if kind in (TorchMLP, TorchCNN):
        return type(model.mlp if kind is TorchMLP else model.cnn) is nn.Sequential
    if kind is TorchMLPHead:
        # chunk() halves even widths only
        return type(model.net) is TorchMLP and not (model.clip_log_std and model.config.output_dims[0] % 2)
    if kind is TorchLSTMEncoder:
        return type(model.lstm) is nn.LSTM and type(model.tokenizer) in (NoneType, TorchMLPEncoder, TorchCNNEncoder)
    if kind is TorchStatefulActorCriticEncoder:
        names = ("encoder",) if model.config.shared else ("actor_encoder", "critic_encoder")
        return all(type(getattr(model, name)) is TorchLSTMEncoder for name in names)
    if kind is TorchCNNEncoder:
        return type(model.net) is nn.Sequential and type(model.net[0]) is TorchCNN
    return kind is TorchActorCriticEncoder or type(model.net) is TorchMLP
