"""What the actors of RLlib's default modules compute, as plain functions: the same operations without the calls around.

Only what is known to be equal to the bit is taken: modules of exactly RLlib's classes, with layers that do the same in
training and in evaluation, without hooks, compiled parts or methods put on the instance.
"""

import operator
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, CRITIC
from ray.rllib.core.models.torch.encoder import (
    TorchActorCriticEncoder,
    TorchCNNEncoder,
    TorchLSTMEncoder,
    TorchMLPEncoder,
    TorchStatefulActorCriticEncoder,
)
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.core.models.torch.primitives import TorchCNN, TorchMLP
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from fastmarl.acting.backends.dense_layers import HOOKS, NotDenseError, is_watched, parts_of
from fastmarl.rllib.acting.lstm_step import LSTMStep

Function = Callable[[Tensor], Tensor]
Actor = Callable[[dict[str, Any]], dict[str, Any]]

IN_PLACE: dict[type, Function] = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_}
ACTIVATIONS = {
    *IN_PLACE,
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU6),
    *(nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign),
}
FIRST_LAYERS = {nn.Linear, nn.Conv2d, nn.ZeroPad2d}  # which write to memory of their own
KNOWN_LAYERS = {nn.LayerNorm, *FIRST_LAYERS, *ACTIVATIONS}
KNOWN_MODELS = {
    *(TorchActorCriticEncoder, TorchStatefulActorCriticEncoder, TorchMLPEncoder, TorchCNNEncoder, TorchLSTMEncoder),
    *(TorchMLPHead, TorchFreeLogStdMLPHead),
}
KNOWN_PARTS = {TorchMLP, TorchCNN, nn.Sequential, nn.Flatten, nn.LSTM}
RLLIB_FORWARDS = {"forward_exploration", "forward_inference", "_forward_exploration", "_forward_inference", "_forward"}
RLLIB_MODULES = (DefaultPPOTorchRLModule, DefaultSACTorchRLModule)
METHODS = {  # as they are before anybody can have replaced them
    (kind, name): getattr(kind, name)
    for kinds, names in (
        (RLLIB_MODULES, RLLIB_FORWARDS),
        (KNOWN_LAYERS | KNOWN_MODELS | KNOWN_PARTS, {"__call__", "forward"}),
        (KNOWN_MODELS, {"_forward"}),
    )
    for kind in kinds
    for name in names
}

_linear = torch._C._nn.linear  # as torch.nn.functional.linear


def actor_function(module: Any) -> Actor | None:
    """The function that exploring and inference both compute, from a batch as the module gets it to its outputs.

    The current parameters are read at each call, and the batch is not written to. To be called without gradients. None
    if `module` isn't known to compute just that.
    """
    try:
        encoder, head = plain_actor(module)
    except NotDenseError:
        return None
    to_logits = _chain([*_layer_steps(head.net.mlp), *_head_steps(head)])
    if type(encoder) is TorchStatefulActorCriticEncoder:
        return _recurrent_actor(encoder, to_logits)
    to_features = _encoder_function(encoder)
    return lambda batch: {Columns.ACTION_DIST_INPUTS: to_logits(to_features(batch[Columns.OBS]))}


def _recurrent_actor(encoder: Any, to_logits: Function) -> Actor:
    config: Any = encoder.config
    if config.shared:
        shared = _lstm_function(encoder.encoder)

        def shared_actor(batch: dict[str, Any]) -> dict[str, Any]:
            features, state_out = shared(batch[Columns.OBS], batch[Columns.STATE_IN])
            return {Columns.STATE_OUT: state_out, Columns.ACTION_DIST_INPUTS: to_logits(features)}

        return shared_actor
    of_actor, of_critic = _lstm_function(encoder.actor_encoder), _lstm_function(encoder.critic_encoder)

    def actor(batch: dict[str, Any]) -> dict[str, Any]:
        obs, state_in = batch[Columns.OBS], batch[Columns.STATE_IN]
        features, actor_state = of_actor(obs, state_in[ACTOR])
        _, critic_state = of_critic(obs, state_in[CRITIC])
        state_out = {ACTOR: actor_state, CRITIC: critic_state}
        return {Columns.STATE_OUT: state_out, Columns.ACTION_DIST_INPUTS: to_logits(features)}

    return actor


def _lstm_function(encoder: Any) -> Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]:
    """From observations [n, 1, ...] and a state to features [n, 1, k] and the state after it."""
    to_tokens = None if encoder.tokenizer is None else _encoder_function(encoder.tokenizer)
    lstm = LSTMStep(encoder.lstm)

    def encode(obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = obs.float() if to_tokens is None else to_tokens(obs.flatten(0, 1)).unsqueeze(1)
        features, h, c = lstm(tokens, state["h"].transpose(0, 1), state["c"].transpose(0, 1))
        return features, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}

    return encode


def parts_run(module: Any) -> list[nn.Module]:
    """The module and all parts of it that `actor_function` may run; none of one that it doesn't know."""
    if type(module) not in RLLIB_MODULES:
        return []
    return [module, *parts_of(_encoder_of(module), module.pi)]


def _encoder_of(module: Any) -> Any:
    return module.encoder if type(module) is DefaultPPOTorchRLModule else module.pi_encoder


def plain_actor(module: Any) -> tuple[Any, Any]:
    """(encoder, head) that observations go through to become action_dist_inputs, and nothing else.

    The encoder is a TorchMLPEncoder, a TorchCNNEncoder or, with recurrent state, a TorchStatefulActorCriticEncoder.

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
    if type(encoder) is TorchStatefulActorCriticEncoder and type(module.pi) is TorchMLPHead:
        return encoder, module.pi
    if type(encoder) not in (TorchMLPEncoder, TorchCNNEncoder):
        raise NotDenseError(f"its encoder is a {type(encoder).__name__}")
    return encoder, module.pi


def _is_plain(part: nn.Module) -> bool:
    """Whether calling this part is no more than the forward() of its class, on float32."""
    kind = type(part)
    return (
        (kind in KNOWN_LAYERS or (kind in KNOWN_MODELS | KNOWN_PARTS and _is_well_formed(part)))
        and not is_watched(part)
        and "_forward" not in vars(part)
        and all(value is None or value.dtype == torch.float32 for value in part._parameters.values())
    )


def _is_well_formed(model: Any) -> bool:
    """Whether the model has the parts that RLlib's catalogs give its class."""
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


def _chain(functions: list[Function]) -> Function:
    """All of them, one after the other."""

    def chained(values: Tensor) -> Tensor:
        for function in functions:
            values = function(values)
        return values

    return chained


def _encoder_function(encoder: Any) -> Function:
    """From observations [n, ...] to features [n, k]."""
    if type(encoder) is TorchMLPEncoder:
        return _chain([*_layer_steps(encoder.net.mlp)])
    cnn, flatten = encoder.net
    return _chain([_channels_first, *_layer_steps(cnn.cnn), _channels_last, flatten.forward])


def _channels_first(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2)


def _channels_last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def _layer_steps(layers: nn.Sequential) -> Iterator[Function]:
    """The layers as functions; those after the first may write into what they are given."""
    for layer in layers:
        if type(layer) is nn.Linear:
            yield _linear_function(layer)
        else:
            yield IN_PLACE.get(type(layer), layer.forward)


def _head_steps(head: Any) -> Iterator[Function]:
    """What a head does after its layers."""
    if type(head) is TorchFreeLogStdMLPHead:
        yield _with_free_log_std(head)
    elif head.clip_log_std:
        yield _with_clipped_log_std(head)


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
