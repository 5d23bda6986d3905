"""Default networks for agents without a custom module: MLP, CNN, LSTM or GRU, depending on spaces and options."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.distributions.nested import get_action_dist_cls
from fastmarl.core.modules.encoders import make_encoder
from fastmarl.core.modules.layers import Chain, call
from fastmarl.core.modules.masking import masked
from fastmarl.core.modules.model_config import DefaultModelConfig, with_activation
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.masks import mask_key
from fastmarl.core.spaces.structs import flatten_struct, map_struct

FORWARDS = ("_forward", "_forward_exploration", "_forward_inference", "_forward_train", "forward_exploration",
            "forward_inference")  # fmt: skip
OBSERVATION_KEYS = ("observation", "observations", "obs")  # possible keys of the observation next to a mask


@public("fastmarl.modules")
class DefaultRLModule(RLModule):
    """Policy and value network.

    Boxes are flattened; uint8 images (height, width, channels) of at least 16 x 16 pixels pass through convolutions;
    uint8 values with an upper bound of 255 are scaled to [0, 1]; integers of discrete spaces are one-hot encoded; and
    entries of Dict and Tuple spaces are concatenated. "action_mask" or "avail_actions" in a Dict masks the actions of a
    Discrete or MultiDiscrete space: logits are set to the lowest finite number where the mask is 0. If the only other
    entry of such a Dict is "observation", "observations" or "obs", the networks read only that entry.

    Outputs are "action_dist_inputs" [B, k] and, unless `inference_only`, "vf_preds" float32 [B]. With an LSTM or GRU,
    these are [B, T, k] and [B, T], and "state_out" is added.

    Raises:
        ConfigError: If spaces are missing or unsupported, or `model_config` (a `DefaultModelConfig` or a dict of its
            fields) contains an unknown option or an invalid value.
    """

    capturable = True
    config_cls = DefaultModelConfig  # class of `model_config`
    training_attributes = ("vf", "vf_trunk")

    def setup(self) -> None:
        if self.observation_space is None or self.action_space is None:
            raise ConfigError("the default networks need an observation_space and an action_space")
        config = self.config_cls.of(self.model_config)
        self.action_dist_cls = get_action_dist_cls(self.action_space)
        n_logits = self.action_dist_cls.required_input_dim(self.action_space)
        self._mask_key = mask_key(self.observation_space, self.action_space)
        self._observation_key = _key_next_to_mask(self.observation_space, self._mask_key)
        # A subclass may modify the logits after masking.
        is_unchanged = all(getattr(type(self), name) is getattr(DefaultRLModule, name) for name in FORWARDS)
        self.masks_actions = self._mask_key is not None and is_unchanged
        seen: Any = self.observation_space
        if self._observation_key is not None:
            seen = seen[self._observation_key]
        self._state_sizes = _state_sizes(config)
        self.trunk, size = _make_trunk(seen, config)
        self.pi = _make_policy_head(size, n_logits, config, self.action_space)
        self.vf_trunk: nn.Module | None = None
        self.vf: nn.Module | None = None
        if not self.inference_only:
            self.vf = _sequential(_mlp(size, [*config.head_fcnet_hiddens], config.head_fcnet_activation, n_out=1))
            if not config.vf_share_layers:
                self.vf_trunk, _ = _make_trunk(seen, config)
        self.float()  # the dtype of encoded observations, regardless of torch's default dtype

    def get_initial_state(self) -> dict[str, Any]:
        """Return zeros (float32 [size]) under "h" and, with an LSTM, "c"; {} if not recurrent.

        They are nested under "actor" and "critic" if the heads do not share layers.
        """
        if self.vf_trunk is None or not self.is_stateful():
            return self._initial_cell()
        return {"actor": self._initial_cell(), "critic": self._initial_cell()}

    def _initial_cell(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(size, np.float32) for name, size in self._state_sizes.items()}

    def is_stateful(self) -> bool:
        return bool(self._state_sizes)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        obs = batch[Columns.OBS]
        mask = None if self._mask_key is None else obs[self._mask_key]
        if self._observation_key is not None:
            obs = obs[self._observation_key]
        outputs: dict[str, Any] = {}
        if self._state_sizes:
            features, vf_features, outputs[Columns.STATE_OUT] = self._remember(obs, batch[Columns.STATE_IN])
        else:
            features = call(self.trunk, obs)
            vf_features = features if self.vf_trunk is None else call(self.vf_trunk, obs)
        logits = call(self.pi, features)
        outputs[Columns.ACTION_DIST_INPUTS] = logits if mask is None else masked(logits, mask)
        if self.vf is not None:
            outputs[Columns.VF_PREDS] = call(self.vf, vf_features).squeeze(-1)
        return outputs

    def _remember(self, obs: Any, state: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return (policy features, value features, state after the last step)."""
        if self.vf_trunk is None:
            features, state_out = self.trunk(obs, state)
            return features, features, state_out
        features, actor = self.trunk(obs, state["actor"])
        vf_features, critic = self.vf_trunk(obs, state["critic"])
        return features, vf_features, {"actor": actor, "critic": critic}


class RecurrentTrunk(nn.Module):
    """Applies layers to each step, then a recurrent cell: ([B, T, ...], state [B, size]) -> ([B, T, size], state)."""

    def __init__(self, steps: nn.Module):
        super().__init__()
        self.steps = steps

    def _inputs(self, obs: Any) -> Tensor:
        """Return the inputs of the cell, [B, T, n]."""
        _, first = flatten_struct(obs)[0]
        features: Tensor = self.steps(map_struct(lambda leaf: leaf.flatten(0, 1), obs))
        return features.unflatten(0, first.shape[:2])


class LSTMTrunk(RecurrentTrunk):
    """A trunk with an LSTM cell; its state is {"h", "c"}."""

    def __init__(self, steps: nn.Module, n_in: int, size: int):
        super().__init__(steps)
        self.lstm = nn.LSTM(n_in, size, batch_first=True)

    def forward(self, obs: Any, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        features, (h, c) = self.lstm(self._inputs(obs), (state["h"].unsqueeze(0), state["c"].unsqueeze(0)))
        return features, {"h": h.squeeze(0), "c": c.squeeze(0)}


class GRUTrunk(RecurrentTrunk):
    """A trunk with a GRU cell; its state is {"h"}."""

    def __init__(self, steps: nn.Module, n_in: int, size: int):
        super().__init__(steps)
        self.gru = nn.GRU(n_in, size, batch_first=True)

    def forward(self, obs: Any, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        features, h = self.gru(self._inputs(obs), state["h"].unsqueeze(0))
        return features, {"h": h.squeeze(0)}


class FreeLogStd(nn.Module):
    """Appends log standard deviations, parameters that do not depend on the input, to means [B, k]."""

    def __init__(self, n: int):
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(n))

    def forward(self, means: Tensor) -> Tensor:
        return torch.cat([means, self.log_std.expand_as(means)], -1)


def _make_trunk(space: gym.Space, config: DefaultModelConfig) -> tuple[nn.Module, int]:
    """Return the layers before the heads and the size of their output."""
    encoder, size = make_encoder(space, config)
    layers = [] if isinstance(encoder, nn.Identity) else [encoder]
    layers += _mlp(size, config.fcnet_hiddens, config.fcnet_activation)
    size = config.fcnet_hiddens[-1] if config.fcnet_hiddens else size
    if config.use_lstm:
        return LSTMTrunk(Chain(*layers), size, config.lstm_cell_size), config.lstm_cell_size
    if config.use_gru:
        return GRUTrunk(Chain(*layers), size, config.gru_cell_size), config.gru_cell_size
    return Chain(*layers), size


def _state_sizes(config: DefaultModelConfig) -> dict[str, int]:
    """Return the sizes of a trunk's recurrent states by name."""
    if config.use_lstm:
        return {"h": config.lstm_cell_size, "c": config.lstm_cell_size}
    return {"h": config.gru_cell_size} if config.use_gru else {}


def _make_policy_head(size: int, n_logits: int, config: DefaultModelConfig, action_space: gym.Space) -> nn.Module:
    n_out = n_logits
    if config.free_log_std:
        if not isinstance(action_space, gym.spaces.Box):
            raise ConfigError(f"free_log_std=True needs a Box action space, got {action_space}")
        n_out = n_logits // 2
    layers = _mlp(size, config.head_fcnet_hiddens, config.head_fcnet_activation, n_out=n_out)
    return _sequential([*layers, FreeLogStd(n_out)] if config.free_log_std else layers)


def _mlp(n_in: int, hiddens: Any, activation: str, n_out: int | None = None) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for n in hiddens:
        layers += with_activation(nn.Linear(n_in, n), activation)
        n_in = n
    return layers if n_out is None else [*layers, nn.Linear(n_in, n_out)]


def _sequential(layers: list[nn.Module]) -> nn.Module:
    return layers[0] if len(layers) == 1 else Chain(*layers)


def _key_next_to_mask(space: gym.Space, key: str | None) -> str | None:
    """Return the key of the observation proper if it is the only entry besides the mask."""
    if key is None or not isinstance(space, gym.spaces.Dict) or len(space.spaces) != 2:
        return None
    other = next(name for name in space.spaces if name != key)
    return other if other in OBSERVATION_KEYS else None
