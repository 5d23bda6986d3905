"""Normalises observations to mean 0 and standard deviation 1."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import count
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.base import EnvToModuleConnector, Rows, are_boxes
from fastmarl.core.connectors.moments import RunningMeanStd
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces, with_leaf_spaces


class Moments(NamedTuple):
    """Statistics of a Box, all replaced at the same time, so that interrupts cannot leave them inconsistent."""

    stats: RunningMeanStd
    base: RunningMeanStd
    delta: RunningMeanStd


@public("fastmarl.connectors")
class MeanStdFilter(EnvToModuleConnector):
    """Normalises observations by the running mean and standard deviation over all agents of its module.

    Every observation sent by an env is counted once, including final ones, and then normalised by statistics that
    include it. Boxes become float32 and are normalised element by element; discrete leaves and action masks remain
    unchanged. The agents of a module share its statistics, as they share its weights.

    Args:
        de_mean_to_zero: Subtract the mean.
        de_std_to_one: Divide by the standard deviation.
        clip_by_value: Clip results to [-clip_by_value, clip_by_value]; None disables clipping.
        update_stats: Update the statistics; pass False to freeze them, for evaluation. The attribute of the same name
            may be changed at any time.
    """

    per_agent_state = ()

    def __init__(
        self,
        *,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
    ):
        if clip_by_value is not None and not clip_by_value > 0:
            raise ConfigError(f"clip_by_value must be None or a positive number, got {clip_by_value!r}")
        self.de_mean_to_zero = de_mean_to_zero
        self.de_std_to_one = de_std_to_one
        self.clip_by_value = clip_by_value
        self.update_stats = update_stats

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        layout, spaces = RowLayout(input_observation_space), leaf_spaces(input_observation_space)
        self._layout = layout
        self._normalised = are_boxes(input_observation_space)
        boxes = [leaf for leaf, is_in in zip(layout.leaves, self._normalised, strict=True) if is_in]
        if not boxes:
            raise ConfigError(f"MeanStdFilter found no Box in {input_observation_space}; remove it, or put "
                              f"FlattenObservations before it")  # fmt: skip
        self._moments = [Moments(*(RunningMeanStd(math.prod(leaf.shape)) for _ in Moments._fields)) for leaf in boxes]
        bound = math.inf if self.clip_by_value is None else self.clip_by_value
        return with_leaf_spaces(
            input_observation_space,
            [
                gym.spaces.Box(-bound, bound, space.shape, np.float32) if is_in else space
                for space, is_in in zip(spaces, self._normalised, strict=True)
            ],
        )

    @property
    def stats(self) -> list[RunningMeanStd]:
        """Statistics used to normalise observations, one per Box."""
        return [moments.stats for moments in self._moments]

    @property
    def delta(self) -> list[RunningMeanStd]:
        """Statistics collected here since a state from `merge_states()` was last set, one per Box."""
        return [moments.delta for moments in self._moments]

    def __call__(self, obs: Any, rows: Rows) -> Any:
        boxes = count()
        return self._layout.nest([
            self._filter(leaf, next(boxes), rows) if is_in else leaf
            for leaf, is_in in zip(self._layout.leaves_of(obs), self._normalised, strict=True)
        ])  # fmt: skip

    def _filter(self, leaf: np.ndarray, box: int, rows: Rows) -> np.ndarray:
        moments = self._moments[box]
        stats = copy(moments.stats)
        values = np.ascontiguousarray(leaf).reshape(len(rows), stats.mean.size)
        out = np.empty(values.shape, np.float32)
        clip = math.inf if self.clip_by_value is None else float(self.clip_by_value)
        unfit = stats.normalize(
            values, out, update=self.update_stats, demean=self.de_mean_to_zero, destd=self.de_std_to_one, clip=clip
        )
        if self.update_stats:
            delta = copy(moments.delta)
            delta.update(values if unfit < 0 else values[:unfit])  # rows before the unfit one were counted
            self._moments[box] = moments._replace(stats=stats, delta=delta)
        if unfit >= 0:
            raise rows.error(unfit, f"MeanStdFilter needs finite numbers, got {leaf[unfit]}")
        return out.reshape(leaf.shape)

    def get_state(self) -> dict[str, Any]:
        """Return "stats" and its two parts: "base", shared by all runners, and "delta", collected here."""
        return {name: [getattr(moments, name).get_state() for moments in self._moments] for name in Moments._fields}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `state` is invalid or belongs to different observations."""
        check_keys("the state of a MeanStdFilter", state, Moments._fields)
        for name in Moments._fields:
            if not isinstance(state[name], Sequence):
                raise ConfigError(f"{name!r} of a MeanStdFilter must be a list, got {type(state[name]).__name__}")
            given, sizes = [_size(each) for each in state[name]], [moments.mean.size for moments in self.stats]
            if given != sizes:
                raise ConfigError(f"the state of a MeanStdFilter is for Boxes of sizes {given}, but its observations "
                                  f"have Boxes of sizes {sizes}")  # fmt: skip
            for moments, each in zip(self.stats, state[name], strict=True):
                moments.check_state(each)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of a runner, including its `delta`, or one from `merge_states()`, whose delta is empty.

        Raises:
            ConfigError: As in `check_state()`; nothing is changed then.
        """
        self.check_state(state)
        boxes = zip(*(state[name] for name in Moments._fields), strict=True)
        self._moments = [Moments(*map(_moments_of, states)) for states in boxes]

    def merge_states(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge `states` by adding each "delta" to the common "base", which is the one with the highest count."""
        for state in states:
            self.check_state(state)
        merged = []
        for box in range(len(self.stats)):
            base = max((state["base"][box] for state in states), key=lambda moments: moments["count"])
            total = _moments_of(base)
            for state in states:
                total.merge(_moments_of(state["delta"][box]))
            merged.append(total.get_state())
        nothing = [RunningMeanStd(moments.mean.size).get_state() for moments in self.stats]
        return {"stats": merged, "base": merged, "delta": nothing}


def _size(state: Any) -> int | None:
    """Return the row size in a state of moments, or None if its mean is invalid."""
    mean = state.get("mean") if isinstance(state, Mapping) else None
    return int(np.size(mean)) if isinstance(mean, np.ndarray | list) else None


def _moments_of(state: Mapping[str, Any]) -> RunningMeanStd:
    """Restore moments from a state that has already been checked."""
    moments = RunningMeanStd(np.size(state["mean"]))
    moments.set_state(state)
    return moments
