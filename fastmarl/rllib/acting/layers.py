"""What the actors of RLlib's default modules compute, as plain functions: the same operations without the calls around.

Only what is known to be equal to the bit is taken: modules of exactly RLlib's classes, with layers that do the same in
training and in evaluation, without hooks, compiled parts or methods put on the instance.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.models.torch.encoder import TorchActorCriticEncoder, TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.core.models.torch.primitives import TorchMLP
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from fastmarl.acting.backends.dense_layers import HOOKS, NotDenseError, is_watched, parts_of

Function = Callable[[Tensor], Tensor]

IN_PLACE: dict[type, Function] = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_}
ACTIVATIONS = {
    *IN_PLACE,
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU6),
    *(nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign),
}
KNOWN_LAYERS = {nn.Linear, nn.LayerNorm, *ACTIVATIONS}
KNOWN_MODELS = {TorchActorCriticEncoder, TorchMLPEncoder, TorchMLPHead, TorchFreeLogStdMLPHead, TorchMLP, nn.Sequential}
RLLIB_FORWARDS = {"forward_exploration", "forward_inference", "_forward_exploration", "_forward_inference", "_forward"}
RLLIB_MODULES = (DefaultPPOTorchRLModule, DefaultSACTorchRLModule)
METHODS = {  # as they are before anybody can have replaced them
    (kind, name): getattr(kind, name)
    for kinds, names in (
        (RLLIB_MODULES, RLLIB_FORWARDS),
        (KNOWN_LAYERS | KNOWN_MODELS, {"__call__", "forward"}),
        (KNOWN_MODELS - {TorchMLP, nn.Sequential}, {"_forward"}),
    )
    for kind in kinds
    for name in names
}

_linear = torch._C._nn.linear  # as torch.nn.functional.linear


def actor_function(module: Any) -> Function | None:
    """The function from observations, float32 [n, k], to action_dist_inputs that exploring and inference both compute.

    The current parameters are read at each call, and the observations are not written to. To be called without
    gradients. None if `module` isn't known to compute just that.
    """
    try:
        encoder, head = plain_actor(module)
    except NotDenseError:
        return None
    functions = [*_steps(encoder), *_steps(head.net.mlp)]
    if type(head) is TorchFreeLogStdMLPHead:
        functions.append(_with_free_log_std(head))
    elif head.clip_log_std:
        functions.append(_with_clipped_log_std(head))

    def actor(values: Tensor) -> Tensor:
        for function in functions:
            values = function(values)
        return values

    return actor


def parts_run(module: Any) -> list[nn.Module]:
    """The module and all parts of it that `actor_function` may run; none of one that it doesn't know."""
    if type(module) not in RLLIB_MODULES:
        return []
    return [module, *parts_of(_encoder_of(module), module.pi)]


def _encoder_of(module: Any) -> Any:
    return module.encoder if type(module) is DefaultPPOTorchRLModule else module.pi_encoder


def plain_actor(module: Any) -> tuple[nn.Sequential, Any]:
    """(layers of the encoder, head) that observations go through to become action_dist_inputs, and nothing else.

    Raises:
        NotDenseError: `module` isn't known to compute just that.
    """
    kind = type(module)
    if kind not in RLLIB_MODULES:
        raise NotDenseError(f"{kind.__name__} is not one of {', '.join(known.__name__ for known in RLLIB_MODULES)}")
    if own := vars(module).keys() & RLLIB_FORWARDS:
        raise NotDenseError(f"the module has a {min(own)}() of its own")
    if any(getattr(nn_module, f"_global{hooks}") for hooks in HOOKS):
        raise NotDenseError("torch has global hooks")
    if changed := [f"{owner.__name__}.{name}" for (owner, name), method in METHODS.items()
                   if getattr(owner, name) is not method]:  # fmt: skip
        raise NotDenseError(f"{changed[0]}() has been replaced")
    encoder = _encoder_of(module)
    for part in (part for model in (encoder, module.pi) for part in model.modules()):
        if not _is_plain(part):
            raise NotDenseError(f"a {type(part).__name__} in it is not known, or has hooks, or is compiled")
    if type(encoder) is TorchActorCriticEncoder:
        config: Any = encoder.config
        encoder = encoder.encoder if config.shared else encoder.actor_encoder
    if type(encoder) is not TorchMLPEncoder:
        raise NotDenseError(f"its encoder is a {type(encoder).__name__}")
    return encoder.net.mlp, module.pi


def _is_plain(part: nn.Module) -> bool:
    """Whether calling this part is no more than the forward() of its class, on float32."""
    kind = type(part)
    return (
        (kind in KNOWN_LAYERS or (kind in KNOWN_MODELS and _is_well_formed(part)))
        and not is_watched(part)
        and "_forward" not in vars(part)
        and all(value is None or value.dtype == torch.float32 for value in part._parameters.values())
    )


def _is_well_formed(model: Any) -> bool:
    """Whether the model has the parts that RLlib's catalogs give its class."""
    kind: type = type(model)
    if kind is nn.Sequential:
        return len(model) > 0 and type(model[0]) is nn.Linear and all(type(layer) in KNOWN_LAYERS for layer in model)
    if kind is TorchMLP:
        return type(model.mlp) is nn.Sequential
    if kind is TorchMLPHead:
        # chunk() halves even widths only
        return type(model.net) is TorchMLP and not (model.clip_log_std and model.config.output_dims[0] % 2)
    return kind is TorchActorCriticEncoder or type(model.net) is TorchMLP


def _steps(layers: nn.Sequential) -> Iterator[Function]:
    """The layers as functions; the first is a Linear, so those after it may write into what they are given."""
    for layer in layers:
        if type(layer) is nn.Linear:
            yield _linear_function(layer)
        else:
            yield IN_PLACE.get(type(layer), layer.forward)


def _linear_function(layer: nn.Linear) -> Function:
    parameters: dict[str, Any] = layer._parameters  # not the tensors: those can be replaced

    def linear(inputs: Tensor) -> Tensor:
        return _linear(inputs, parameters["weight"], parameters["bias"])

    return linear


def _with_clipped_log_std(head: TorchMLPHead) -> Function:
    buffers: dict[str, Any] = head._buffers

    def clipped(outputs: Tensor) -> Tensor:
        bound = buffers["log_std_clip_param_const"]
        outputs[..., outputs.shape[-1] // 2 :].clamp_(-bound, bound)
        return outputs

    return clipped


def _with_free_log_std(head: TorchFreeLogStdMLPHead) -> Function:
    parameters: dict[str, Any] = head._parameters
    buffers: dict[str, Any] = head._buffers

    def with_log_std(mean: Tensor) -> Tensor:
        log_std = parameters["log_std"]
        if head.clip_log_std:
            bound = buffers["log_std_clip_param_const"]
            log_std = log_std.clamp(-bound, bound)
        return torch.cat((mean, log_std.expand(len(mean), -1)), 1)

    return with_log_std
