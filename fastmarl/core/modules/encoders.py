"""Encoders that convert observations of any space to flat float vectors with as little computation as possible."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.model_config import DefaultModelConfig, with_activation
from fastmarl.core.spaces.layout import leaf_spaces

SMALLEST_IMAGE = 16  # pixels; smaller arrays, such as grids of objects, are flattened
WIDEST_CONV = 64  # channels


def make_encoder(space: gym.Space, config: DefaultModelConfig) -> tuple[nn.Module, int]:
    """Return a network that converts observations [n, ...] of `space` to float32 [n, size], and this size.

    The network is `nn.Identity` if observations already have this form.

    Raises:
        ConfigError: If the default networks do not support this space, or `conv_filters` does not match it.
    """
    encoder, size = _encoder(space, config)
    if config.conv_filters is not None and not any(isinstance(layer, ImageEncoder) for layer in encoder.modules()):
        raise ConfigError(f"conv_filters needs a Box of shape (height, width, channels) in the observation space, got "
                          f"{space}")  # fmt: skip
    return encoder, size


def make_flattener(space: gym.Space) -> nn.Module:
    """Return a module that flattens observations [n, ...] to float32 [n, size], in the order of `gym.spaces.flatten()`.

    Raises:
        ConfigError: If the default networks do not support this space.
    """
    return _encoder(space, None)[0]


def _encoder(space: Any, config: DefaultModelConfig | None) -> tuple[nn.Module, int]:
    if isinstance(space, gym.spaces.Dict):
        return _entries_encoder(list(space.spaces.items()), config)
    if isinstance(space, gym.spaces.Tuple):
        return _entries_encoder(list(enumerate(space.spaces)), config)
    if isinstance(space, gym.spaces.Discrete):
        return OneHot([int(space.n)], [int(space.start)]), int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return OneHot(space.nvec.ravel().tolist(), space.start.ravel().tolist()), int(space.nvec.sum())
    if isinstance(space, gym.spaces.MultiBinary):
        return Flat(space.shape, 1.0), int(np.prod(space.shape))
    if isinstance(space, gym.spaces.Box):
        return _box_encoder(space, config)
    raise ConfigError(f"the default networks do not support {space!r}; set module_class in the RLModuleSpec to your "
                      f"own module")  # fmt: skip


def _entries_encoder(entries: list[tuple[Any, gym.Space]], config: DefaultModelConfig | None) -> tuple[nn.Module, int]:
    entries = [(key, space) for key, space in entries if leaf_spaces(space)]  # skips empty containers
    encoders = [_encoder(space, config) for _, space in entries]
    return Entries([key for key, _ in entries], [encoder for encoder, _ in encoders]), sum(size for _, size in encoders)


def _box_encoder(space: gym.spaces.Box, config: DefaultModelConfig | None) -> tuple[nn.Module, int]:
    if config is None:
        return Flat(space.shape, 1.0), int(np.prod(space.shape))
    scale = 1 / 255 if space.dtype == np.uint8 and (space.high == 255).all() else 1.0
    if len(space.shape) == 3 and (config.conv_filters is not None or _is_image(space)):
        encoder = ImageEncoder(space.shape, config.conv_filters, config.conv_activation, scale)
        return encoder, encoder.size
    size = int(np.prod(space.shape))
    if len(space.shape) == 1 and space.dtype in (np.float32, np.float64):
        return nn.Identity(), size
    return Flat(space.shape, scale), size


def _is_image(space: gym.spaces.Box) -> bool:
    return space.dtype == np.uint8 and min(space.shape[:2]) >= SMALLEST_IMAGE


class Flat(nn.Module):
    """Flattens [n, *shape] of any dtype to float32 [n, size] and multiplies by `scale`."""

    def __init__(self, shape: Sequence[int], scale: float):
        super().__init__()
        self._size = int(np.prod(shape))
        self._scale = scale

    def forward(self, obs: Tensor) -> Tensor:
        numbers = obs.reshape(obs.shape[0], self._size).float()
        return numbers if self._scale == 1.0 else numbers * self._scale


class OneHot(nn.Module):
    """One-hot encodes integers [n, *shape], each of `counts` values from `starts`, as float32 [n, sum(counts)]."""

    values: Tensor
    numbers: Tensor

    def __init__(self, counts: list[int], starts: list[int]):
        super().__init__()
        self._n = len(counts)
        values = torch.cat([torch.arange(start, start + n) for n, start in zip(counts, starts, strict=True)])
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("numbers", torch.arange(self._n).repeat_interleave(torch.tensor(counts)), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        given = obs.reshape(obs.shape[0], self._n)
        if self._n > 1:
            given = given.index_select(1, self.numbers)
        return (given == self.values).float()


class ImageEncoder(nn.Module):
    """Scales images [n, height, width, channels] of any dtype and applies convolutions; returns float32 [n, size].

    Args:
        shape: (height, width, channels).
        filters: [out channels, kernel, stride] of each layer; None for layers that halve the image until it is small.
    """

    def __init__(self, shape: Sequence[int], filters: Any, activation: str, scale: float):
        super().__init__()
        height, width, channels = shape
        self._scale = scale
        layers: list[nn.Module] = []
        filters = _default_filters(height, width) if filters is None else filters
        for i, (out_channels, kernel, stride) in enumerate(filters):
            kernel, stride = _pair(kernel), _pair(stride)
            if kernel[0] > height or kernel[1] > width:
                raise ConfigError(
                    f"conv_filters[{i}] has kernel {kernel}, but its input has only {height} x {width} pixels, for "
                    f"images of shape {tuple(shape)}; remove the layer, or use smaller kernels or strides"
                )
            layers += with_activation(nn.Conv2d(channels, out_channels, kernel, stride), activation)
            height, width = (height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1
            channels = out_channels
        self.convolutions = nn.Sequential(*layers)
        self.size = height * width * channels

    def forward(self, obs: Tensor) -> Tensor:
        images = obs.permute(0, 3, 1, 2)
        images = images.float() if self._scale == 1.0 else images.float() * self._scale
        return self.convolutions(images).flatten(1)


def _default_filters(height: int, width: int) -> list[tuple[int, int, int]]:
    filters = []
    smaller, channels = min(height, width), 16
    while smaller >= 6:
        filters.append((channels, 4, 2))
        smaller, channels = (smaller - 4) // 2 + 1, min(2 * channels, WIDEST_CONV)
    return filters


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class Entries(nn.Module):
    """Encodes the entries of a dict or tuple separately and concatenates the results."""

    def __init__(self, keys: list, encoders: list[nn.Module]):
        super().__init__()
        self._keys = keys
        self.encoders = nn.ModuleList(encoders)

    def forward(self, obs: Any) -> Tensor:
        return torch.cat([encode(obs[key]) for key, encode in zip(self._keys, self.encoders, strict=True)], -1)
