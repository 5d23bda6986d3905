"""Flattens nested observations to a single vector."""

from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.base import EnvToModuleConnector, Rows
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces

DISCRETE = (gym.spaces.Discrete, gym.spaces.MultiDiscrete)
NUMERIC = (gym.spaces.Box, gym.spaces.MultiBinary, *DISCRETE)


@public("fastmarl.connectors")
class FlattenObservations(EnvToModuleConnector):
    """Flattens Dict and Tuple observations to a single float32 vector, in the order of `gymnasium.spaces.flatten`.

    Discrete and MultiDiscrete leaves become one-hot; a value out of range is an error. An action mask becomes part of
    the vector and is still applied.
    """

    per_agent_state = ()

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        spaces: list[Any] = leaf_spaces(input_observation_space)
        unfit = [space for space in spaces if not isinstance(space, NUMERIC)]
        if unfit:
            raise ConfigError(f"FlattenObservations does not support {unfit[0]} in {input_observation_space}; "
                              f"drop that leaf in a connector before it")  # fmt: skip
        self._layout = RowLayout(input_observation_space)
        self._leaf_spaces = spaces
        flat: list[Any] = [gym.spaces.flatten_space(space) for space in spaces]
        self._sizes = [box.shape[0] for box in flat]
        low = np.concatenate([box.low.astype(np.float32) for box in flat])
        high = np.concatenate([box.high.astype(np.float32) for box in flat])
        return gym.spaces.Box(low, high, dtype=np.float32)

    def __call__(self, obs: Any, rows: Rows) -> np.ndarray:
        flat = np.empty((len(rows), sum(self._sizes)), np.float32)
        begin = 0
        for values, space, size in zip(self._layout.leaves_of(obs), self._leaf_spaces, self._sizes, strict=True):
            out = flat[:, begin : begin + size]
            if isinstance(space, DISCRETE):
                _one_hot(values, space, out, rows)
            else:
                out[:] = values.reshape(len(rows), size)
            begin += size
        return flat


def _one_hot(values: np.ndarray, space: Any, out: np.ndarray, rows: Rows) -> None:
    """Write values [n, ...] of a Discrete or MultiDiscrete space as one-hot rows to `out` [n, sum of all choices]."""
    sizes = np.ravel(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec).astype(np.int64)
    choices = values.reshape(len(rows), len(sizes)).astype(np.int64) - np.ravel(space.start)
    unfit = ((choices < 0) | (choices >= sizes)).any(1)
    if unfit.any():
        i = int(np.argmax(unfit))
        raise rows.error(i, f"{values[i]} is not in {space}; return observations of the declared space")
    out[:] = 0
    out[np.arange(len(rows))[:, None], choices + np.cumsum(sizes) - sizes] = 1
