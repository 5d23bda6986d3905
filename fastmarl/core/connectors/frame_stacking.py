"""Concatenates the last observations of an agent."""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.base import EnvToModuleConnector, Rows, are_boxes
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import ConfigError, EpisodeError
from fastmarl.core.errors.checks import is_integer
from fastmarl.core.kernels.frames import as_compiled, gather_frames
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces, with_leaf_spaces


@public("fastmarl.connectors")
class FrameStacking(EnvToModuleConnector):
    """Concatenates the last `num_frames` observations of an agent along the last axis, oldest first.

    Boxes of shape [..., c] become [..., num_frames * c], scalars become [num_frames]. Missing frames before the first
    observation are zeros. Only Boxes other than action masks are stacked. Episodes contain single frames;
    `stack_frames()` converts them to the module input.
    """

    per_agent_state = ()
    records = False
    reads_record = True

    def __init__(self, num_frames: int = 4):
        if not is_integer(num_frames) or num_frames < 1:
            raise ConfigError(f"num_frames must be a positive integer, got {num_frames!r}")
        self.num_frames = int(num_frames)
        self.min_lookback_rows = num_frames - 1

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        leaves = leaf_spaces(input_observation_space)
        self._layout = RowLayout(input_observation_space)
        self._stacked = are_boxes(input_observation_space)
        if not any(self._stacked):
            raise ConfigError(f"FrameStacking found no Box in {input_observation_space}; remove it, or put "
                              f"FlattenObservations before it")  # fmt: skip
        spaces = [
            _stacked_space(leaf, self.num_frames) if is_in else leaf
            for leaf, is_in in zip(leaves, self._stacked, strict=True)
        ]
        return with_leaf_spaces(input_observation_space, spaces)

    def __call__(self, obs: Any, rows: Rows) -> Any:
        frames = rows.with_former(self.num_frames)
        return self._layout.nest([
            _gather(recorded, frames) if is_in else leaf
            for leaf, recorded, is_in in zip(self._layout.leaves_of(obs), rows.block.obs, self._stacked, strict=True)
        ])  # fmt: skip


def stack_frames(part: SingleAgentEpisode, num_frames: int, indices: Any = None) -> Any:
    """Return the observations of an agent as seen by a module behind `FrameStacking(num_frames)`.

    Args:
        part: An agent episode sampled with that connector, or a slice of it.
        num_frames: Number of frames.
        indices: Selects from the n + 1 observations after the lookback: None (all), a slice, or a list or array of
            ints.

    Returns:
        Arrays [n, ...], nested like the observation space: read-only views of the episode if its memory layout allows,
        else copies of the selected observations.

    Raises:
        EpisodeError: If the episode does not reach back far enough, or has no observation space.
    """
    n_before = min(num_frames - 1, part.t_started)
    if part.lookback < n_before:
        raise EpisodeError(f"agent {part.agent_id!r}: {num_frames} frames need a lookback of {n_before}, got "
                           f"{part.lookback}; sample with FrameStacking({num_frames}), or pass "
                           f"len_lookback_buffer={n_before} when slicing")  # fmt: skip
    if part.observation_space is None:
        raise EpisodeError(f"agent {part.agent_id!r}: the episode has no observation_space; pass one to from_state()")
    layout, first = RowLayout(part.observation_space), part.lookback - n_before
    chosen = slice(None) if indices is None else indices
    leaves = layout.leaves_of(part.column("observations").data)
    return layout.nest([
        _windows(leaf[first:], num_frames, n_before, chosen) if is_in else leaf[part.lookback :][chosen]
        for leaf, is_in in zip(leaves, are_boxes(part.observation_space), strict=True)
    ])  # fmt: skip


def _stacked_space(box: Any, num_frames: int) -> gym.Space:
    low, high = np.atleast_1d(box.low), np.atleast_1d(box.high)
    repeats = (1,) * (low.ndim - 1) + (num_frames,)
    return gym.spaces.Box(np.tile(low, repeats), np.tile(high, repeats), dtype=box.dtype)


def _gather(recorded: np.ndarray, rows_NF: np.ndarray) -> np.ndarray:
    """Stack frames of a recorded leaf [rows, ..., channels] into an array [n, ..., frames * channels]."""
    n, num_frames = rows_NF.shape
    shape = recorded.shape[1:] or (1,)
    points, channels = math.prod(shape[:-1]), shape[-1]
    out = np.empty((n, points, num_frames, channels), recorded.dtype)
    gather_frames(as_compiled(recorded.reshape(len(recorded), points, channels)), rows_NF, as_compiled(out))
    return out.reshape(n, *shape[:-1], num_frames * channels)


def _windows(frames: np.ndarray, num_frames: int, n_before: int, chosen: Any) -> np.ndarray:
    """Stack frames [n_before + n, ...] into [n, ..., frames * c], with zeros for missing frames before them."""
    lacking = num_frames - 1 - n_before
    if frames.ndim == 1:
        frames = frames[:, None]
    if lacking:
        frames = np.concatenate([np.zeros((lacking, *frames.shape[1:]), frames.dtype), frames])
    windows = np.lib.stride_tricks.sliding_window_view(frames, num_frames, axis=0, writeable=True)[chosen]
    return np.swapaxes(windows, -1, -2).reshape(len(windows), *frames.shape[1:-1], num_frames * frames.shape[-1])
