"""A policy's raw actions -> what the envs get; and random actions.

The record keeps the raw actions: 0 .. n-1 for Discrete, normalised or unclipped ones for Box. The env gets what its
space promises: `start` added, scaled or clipped to the bounds (RLlib's `normalize_actions`, `clip_actions`).
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl._actions import ModuleActions
from fastmarl.block import Key
from fastmarl.columns import Columns
from fastmarl.envs.masks import choices_of
from fastmarl.errors import ConfigError, ModuleOutputError
from fastmarl.kernels.sample import sample_choices
from fastmarl.spaces import Leaf, RowLayout, leaf_spaces


class EnvActions(ModuleActions):
    """One module's actions of the current tick, for dicts by agent (see `_actions.ActionDicts`) or as arrays.

    Args:
        module_id, space: the module and its action space.
        normalize, clip: RLlib's options; normalize wins.
        as_arrays: they will be taken with `take()`, and not in dicts by agent.
    """

    def __init__(self, module_id: str, space: gym.Space, *, normalize: bool, clip: bool, as_arrays: bool = False):
        super().__init__()
        self._arrays: list[np.ndarray] = []
        self._acted = slice(0)
        self._as_arrays = as_arrays
        self._module_id = module_id
        self._space = space
        self._layout = RowLayout(space)
        self._leaves = [
            (_key(leaf), leaf.shape, _LeafActions(part, normalize, clip))
            for leaf, part in zip(self._layout.leaves, leaf_spaces(space), strict=True)
        ]

    def set(self, first: int, n: int, outputs: dict[Key, np.ndarray]) -> None:
        """Take the actions of rows first .. first + n from a module's outputs.

        Raises:
            ModuleOutputError: they don't have the action space's shape or structure.
        """
        arrays = []
        for key, shape, leaf in self._leaves:
            raw = outputs.get(key)
            if raw is None or raw.shape != (n, *shape):
                got = f"none among the outputs {list(outputs)}" if raw is None else f"shape {raw.shape}"
                problem = f"expected {key} of shape {(n, *shape)} for the action space {self._space}, got {got}"
                raise ModuleOutputError(self._module_id, problem)
            arrays.append(leaf.for_env(raw))
        if self._as_arrays:
            self._acted, self._arrays = slice(first, first + n), arrays
        else:
            self._set_rows(first, n, arrays)

    def take(self) -> tuple[slice, list[np.ndarray]]:
        """(rows, an array [n, ...] for each leaf of the space, int64 for Discrete) of those that have acted since."""
        arrays, self._arrays = self._arrays, []
        return self._acted, arrays

    def forget(self) -> None:
        """Hold no actions."""
        self._arrays = []
        self.set_values(0, [])

    def _set_rows(self, first: int, n: int, arrays: list[np.ndarray]) -> None:
        if isinstance(self._space, gym.spaces.Discrete):
            self.set_numbers(first, arrays[0])
        elif isinstance(self._space, (gym.spaces.Dict, gym.spaces.Tuple)):
            self.set_values(first, [self._nested_row(arrays, i) for i in range(n)])
        elif self._space.shape:
            self.set_arrays(first, arrays[0])
        else:
            self.set_values(first, list(arrays[0]))

    def random(self, n: int, rng: np.random.Generator, legal: np.ndarray | None = None) -> dict[Key, np.ndarray]:
        """Raw actions drawn uniformly, with their log-probabilities, as a module would output them.

        Args:
            n: how many.
            legal: bool [n, choices] for a Discrete or MultiDiscrete space: what may be drawn.
        """
        if legal is not None:
            return self._random_legal(n, rng, legal)
        outputs: dict[Key, np.ndarray] = {}
        logp = np.zeros(n, np.float32)
        for key, _, leaf in self._leaves:
            outputs[key], leaf_logp = leaf.random(n, rng)
            logp += leaf_logp
        outputs[Columns.ACTION_LOGP] = logp
        return outputs

    def _random_legal(self, n: int, rng: np.random.Generator, legal: np.ndarray) -> dict[Key, np.ndarray]:
        nvec_P = np.array(choices_of(self._space), np.int64)
        logits = np.where(legal, np.float32(0), np.float32(-np.inf))
        actions_NP, logp = np.empty((n, len(nvec_P)), np.int64), np.empty(n, np.float32)
        sample_choices(logits, nvec_P, rng.random((n, len(nvec_P))), actions_NP, logp)
        shape = self._space.shape or ()
        return {Columns.ACTIONS: actions_NP.reshape(n, *shape), Columns.ACTION_LOGP: logp}

    def _nested_row(self, arrays: list[np.ndarray], i: int) -> Any:
        return self._layout.nest([
            int(array[i]) if isinstance(leaf.space, gym.spaces.Discrete) else array[i].copy()
            for (_, _, leaf), array in zip(self._leaves, arrays, strict=True)
        ])  # fmt: skip


class _LeafActions:
    """Actions of one leaf of an action space."""

    def __init__(self, space: gym.Space, normalize: bool, clip: bool):
        self.space = space
        self._scaled = self._clipped = False
        if isinstance(space, gym.spaces.Box):
            self._bounded = bool(space.bounded_below.all() and space.bounded_above.all())
            self._scaled = normalize and self._bounded
            self._clipped = clip and not normalize
        elif not isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
            raise ConfigError(f"the action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary, "
                              f"Box, or a Dict or Tuple of these")  # fmt: skip

    def for_env(self, raw: np.ndarray) -> np.ndarray:
        """C-contiguous, of the space's dtype (int64 for Discrete)."""
        space = self.space
        if isinstance(space, gym.spaces.Discrete):
            numbers = np.ascontiguousarray(raw, np.int64)
            return numbers + int(space.start) if space.start else numbers
        if isinstance(space, gym.spaces.MultiDiscrete) and space.start.any():
            raw = raw + space.start
        if isinstance(space, gym.spaces.Box):
            if self._scaled:
                raw = np.clip(space.low + (raw + 1.0) * (space.high - space.low) / 2.0, space.low, space.high)
            elif self._clipped:
                raw = np.clip(raw, space.low, space.high)
        return np.ascontiguousarray(raw, space.dtype)

    def random(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """(raw actions [n, *shape], the log-probability (density) of each)."""
        space, shape = self.space, self.space.shape or ()
        if isinstance(space, gym.spaces.Discrete):
            return rng.integers(int(space.n), size=n), -math.log(space.n)
        if isinstance(space, gym.spaces.MultiDiscrete):
            return rng.integers(np.asarray(space.nvec, np.int64), size=(n, *shape)), -float(np.log(space.nvec).sum())
        if isinstance(space, gym.spaces.MultiBinary):
            return rng.integers(2, size=(n, *shape)), -math.log(2) * math.prod(shape)
        if isinstance(space, gym.spaces.Box) and self._bounded and not self._scaled:
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        else:
            low, high = np.full(shape, -1.0), np.full(shape, 1.0)
        width = np.maximum(high - low, np.finfo(np.float32).tiny)
        return rng.uniform(low, high, (n, *shape)).astype(np.float32), -float(np.log(width).sum())


def _key(leaf: Leaf) -> Key:
    return (Columns.ACTIONS, *leaf.path) if leaf.path else Columns.ACTIONS
