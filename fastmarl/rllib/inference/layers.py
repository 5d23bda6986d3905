"""The actors of default RLlib modules as plain functions: the same operations without the surrounding calls."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, CRITIC
from ray.rllib.core.models.torch.encoder import (
    TorchMLPEncoder,
    TorchStatefulActorCriticEncoder,
)
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from torch import Tensor, nn

from fastmarl.core.nets.dense_layers import NotDenseError
from fastmarl.rllib.inference.lstm_step import LSTMStep
from fastmarl.rllib.inference.plain_modules import plain_actor

Function = Callable[[Tensor], Tensor]
Actor = Callable[[dict[str, Any]], dict[str, Any]]

IN_PLACE: dict[type, Function] = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_}
_linear = torch._C._nn.linear  # torch.nn.functional.linear


def actor_function(module: Any) -> Actor | None:
    """Return a function that maps a batch to the outputs of the module, for both exploration and inference.

    The function reads the current parameters at each call, does not write to the batch, and must be called without
    gradients. Return None if the results might differ from `module`'s.
    """
    try:
        encoder, head = plain_actor(module)
    except NotDenseError:
        return None
    head_steps = [*layer_steps(head.net.mlp), *_head_steps(head)]
    if type(encoder) is TorchStatefulActorCriticEncoder:
        return _recurrent_actor(encoder, chain(head_steps))
    to_logits = chain([*_encoder_steps(encoder), *head_steps])
    return lambda batch: {Columns.ACTION_DIST_INPUTS: to_logits(batch[Columns.OBS])}


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
    """Return a function that maps observations [n, 1, ...] and a state to features [n, 1, k] and the next state."""
    to_tokens = None if encoder.tokenizer is None else chain(_encoder_steps(encoder.tokenizer))
    lstm = LSTMStep(encoder.lstm)

    def encode(obs: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = obs.float() if to_tokens is None else to_tokens(obs.flatten(0, 1)).unsqueeze(1)
        features, h, c = lstm(tokens, state["h"], state["c"])
        return features, {"h": h, "c": c}

    return encode


def chain(functions: list[Function]) -> Function:
    """Compose functions; the first one is called first."""

    def chained(values: Tensor) -> Tensor:
        for function in functions:
            values = function(values)
        return values

    return chained


def _encoder_steps(encoder: Any) -> list[Function]:
    """Return the functions that map observations [n, ...] to features [n, k]."""
    if type(encoder) is TorchMLPEncoder:
        return [*layer_steps(encoder.net.mlp)]
    cnn, flatten = encoder.net
    return [_channels_first, *layer_steps(cnn.cnn), _channels_last, flatten.forward]


def _channels_first(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2)


def _channels_last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def layer_steps(layers: nn.Sequential) -> Iterator[Function]:
    """Yield the layers as functions; all but the first may write to their inputs."""
    for layer in layers:
        if type(layer) is nn.Linear:
            yield _linear_function(layer)
        else:
            yield IN_PLACE.get(type(layer), layer.forward)


def _head_steps(head: Any) -> Iterator[Function]:
    """Yield the functions that a head applies after its layers."""
    if type(head) is TorchFreeLogStdMLPHead:
        yield _with_free_log_std(head)
    elif head.clip_log_std:
        yield _with_clipped_log_std(head)


def _linear_function(layer: nn.Linear) -> Function:
    parameters: dict[str, Any] = layer._parameters  # the dict, because its tensors may be replaced

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
