"""Options of the default networks."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public

ACTIVATIONS: dict[str, type[torch.nn.Module] | None] = {
    "tanh": torch.nn.Tanh,
    "relu": torch.nn.ReLU,
    "silu": torch.nn.SiLU,
    "swish": torch.nn.SiLU,
    "gelu": torch.nn.GELU,
    "linear": None,
}


@public("fastmarl.modules")
@dataclass(frozen=True, kw_only=True)
class DefaultModelConfig:
    """Options of `DefaultRLModule`; names and defaults are as in RLlib."""

    fcnet_hiddens: Sequence[int] = (256, 256)
    """Sizes of the fully connected layers that process the observation, after any convolutions."""
    fcnet_activation: str = "tanh"
    """Activation of these layers. All activations are "tanh", "relu", "silu" ("swish"), "gelu" or "linear"."""
    conv_filters: Sequence[Sequence[Any]] | None = None
    """Convolutions for images: [out channels, kernel, stride] of each layer, without padding.

    Kernel and stride are a number or a pair (height, width). If None, layers are chosen by image size.
    """
    conv_activation: str = "relu"
    """Activation after each convolution."""
    head_fcnet_hiddens: Sequence[int] = ()
    """Sizes of the hidden layers of the policy head and, separately, of the value head."""
    head_fcnet_activation: str = "relu"
    """Activation of the hidden layers of the heads."""
    vf_share_layers: bool = True
    """If True, the policy and value heads share the layers before them."""
    free_log_std: bool = False
    """For Box actions: if True, log standard deviations are parameters that do not depend on the observation."""
    use_lstm: bool = False
    """If True, put an LSTM between the fully connected layers and the heads."""
    lstm_cell_size: int = 256
    """Size of the LSTM state."""
    use_gru: bool = False
    """If True, put a GRU, instead of an LSTM, between the fully connected layers and the heads."""
    gru_cell_size: int = 256
    """Size of the GRU state."""

    def __post_init__(self) -> None:
        for name in ("fcnet_activation", "conv_activation", "head_fcnet_activation"):
            if getattr(self, name) not in ACTIVATIONS:
                raise ConfigError(f"{name} must be one of {list(ACTIVATIONS)}, got {getattr(self, name)!r}")
        for name in ("fcnet_hiddens", "head_fcnet_hiddens"):
            sizes = getattr(self, name)
            if not isinstance(sizes, (list, tuple)) or not all(is_positive(size) for size in sizes):
                raise ConfigError(f"{name} must be a list of positive integers, got {sizes!r}")
        for layer in self.conv_filters or ():
            if not (_is_list(layer, 3) and is_positive(layer[0]) and all(_is_size(size) for size in layer[1:])):
                raise ConfigError(f"each entry of conv_filters must be [out channels, kernel, stride], got {layer!r}")
        for name in ("lstm_cell_size", "gru_cell_size"):
            if not is_positive(getattr(self, name)):
                raise ConfigError(f"{name} must be a positive integer, got {getattr(self, name)!r}")
        if self.use_lstm and self.use_gru:
            raise ConfigError("use_lstm and use_gru cannot both be True; choose one of them")

    @classmethod
    def of(cls, model_config: Any) -> "DefaultModelConfig":
        """Convert `model_config`, a dict of options, to a config; a config is returned unchanged.

        Raises:
            ConfigError: If an option is unknown or its value invalid.
        """
        if isinstance(model_config, cls):
            return model_config
        if isinstance(model_config, DefaultModelConfig):  # drops options added by a subclass
            return cls(**{field.name: getattr(model_config, field.name) for field in fields(model_config)})
        if not isinstance(model_config, Mapping):
            raise ConfigError(f"model_config must be a dict or a DefaultModelConfig, got {model_config!r}")
        known = [field.name for field in fields(cls)]
        for name in model_config:
            if name not in known:
                close = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"available: {known}"
                raise ConfigError(f"unknown option {name!r} in model_config of a default network; {hint}")
        return cls(**model_config)


def is_positive(value: Any) -> bool:
    """Return True for a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == length


def _is_size(value: Any) -> bool:
    return is_positive(value) or (_is_list(value, 2) and all(is_positive(size) for size in value))


def with_activation(layer: torch.nn.Module, activation: str) -> list[torch.nn.Module]:
    """Return the layer, followed by its activation unless that is linear."""
    make = ACTIVATIONS[activation]
    return [layer] if make is None else [layer, make()]
