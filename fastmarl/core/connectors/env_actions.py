"""Conversion of raw policy actions to actions for envs, and random actions.

Raw actions are recorded: 0 .. n-1 for Discrete, normalised or unclipped values for Box. Envs receive values of their
action space: with `start` added, and scaled or clipped to the bounds (`normalize_actions` and `clip_actions`, as in
RLlib).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.base import Rows
from fastmarl.core.connectors.module_to_env import OutputConnectors
from fastmarl.core.connectors.rllib_pieces import class_name
from fastmarl.core.errors import ConfigError, ConnectorError, ModuleOutputError, shown
from fastmarl.core.kernels.actions import (
    clip_actions,
    clip_actions_numpy,
    scale_actions,
    scale_actions_far,
    scale_actions_numpy,
)
from fastmarl.core.native._actions import ModuleActions
from fastmarl.core.native._draws import ChoiceDraws
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.layout import Leaf, RowLayout, leaf_spaces
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.spaces.values import can_hold, described, narrowest
from fastmarl.core.store.block import Key

WIDEST = 8  # bytes of the widest integer
TINY, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))


class EnvActions(ModuleActions):
    """Actions of a module in the current tick, sent to envs as dicts keyed by agent (`_actions.ActionDicts`) or arrays.

    Args:
        module_id, space: The module and its action space.
        connectors: The output connectors of the module, if any.
        normalize, clip: The options `normalize_actions` and `clip_actions`; the former takes precedence.
        as_arrays: True if actions will be read with `take()` instead of as dicts keyed by agent.

    Attributes:
        shapes: Key -> shape of this leaf of a raw action.
        uses_bounds: True if actions are scaled or clipped to the bounds of the space.
        narrow_dtypes: Smallest dtypes that can represent the leaves of an action as sent to the env.
    """

    def __init__(
        self,
        module_id: str,
        space: gym.Space,
        connectors: OutputConnectors | None = None,
        *,
        normalize: bool,
        clip: bool,
        as_arrays: bool = False,
    ):
        super().__init__()
        self._connectors = connectors if connectors is not None and connectors.after_clipping else None
        self._arrays: list[np.ndarray] = []
        self._acted = slice(0)
        self._as_arrays = as_arrays
        self._module_id = module_id
        self._space = space
        self._layout = RowLayout(space)
        self.uses_bounds = normalize or clip
        self._leaves = [
            (_key(leaf), leaf.shape, _LeafActions(module_id, leaf_space, normalize, clip))
            for leaf, leaf_space in zip(self._layout.leaves, leaf_spaces(space), strict=True)
        ]
        self.shapes = {key: shape for key, shape, _ in self._leaves}
        self.narrow_dtypes = list(map(_narrow_dtype, leaf_spaces(space)))

    def set(self, first: int, n: int, outputs: dict[Key, np.ndarray], rows: Rows | None = None) -> None:
        """Set the actions of rows first .. first + n from module outputs.

        If connectors may change the actions for the env, the result is added to `outputs`.

        Args:
            rows: The same rows, to pass to connectors; None skips connectors.

        Raises:
            ModuleOutputError: If the actions do not have the shape or structure of the action space, or its dtype
                cannot represent them.
            ConnectorError: If the same applies to the result of a connector.
        """
        arrays = []
        for key, shape, leaf in self._leaves:
            raw = outputs.get(key)
            if raw is None or raw.shape != (n, *shape) or raw.dtype.kind == "c":
                got = f"only outputs {list(outputs)}" if raw is None else f"shape {raw.shape} and dtype {raw.dtype}"
                problem = f"expected {key} of shape {(n, *shape)} for the action space {self._space}, got {got}"
                raise ModuleOutputError(self._module_id, problem)
            arrays.append(leaf.for_env(raw))
        if self._connectors is not None:
            arrays = self._changed(self._connectors, arrays, outputs, rows)
        if self._as_arrays:
            self._acted, self._arrays = slice(first, first + n), arrays
        else:
            self._set_rows(first, n, arrays)

    def _changed(
        self,
        connectors: OutputConnectors,
        arrays: list[np.ndarray],
        outputs: dict[Key, np.ndarray],
        rows: Rows | None,
    ) -> list[np.ndarray]:
        """Let connectors change these actions for the env, and add the result to the outputs to be recorded."""
        own: dict[Key, np.ndarray] = {_key_for_env(key): array for key, array in zip(self.shapes, arrays, strict=True)}
        made = {**outputs, **own}
        if rows is not None:
            made = connectors.run(connectors.after_clipping, made, rows)
        for key, array in own.items():
            got = made.get(key)
            if got is None or got.shape != array.shape or not can_hold(array.dtype, got):
                there = f"only outputs {list(made)}" if got is None else f"{described(got)}: {shown(got)}"
                name = class_name(connectors.after_clipping[-1])
                problem = f"expected {key} of shape {array.shape} that fit in {array.dtype}, got {there}"
                raise ConnectorError(self._module_id, name, problem)
            made[key] = np.array(got, array.dtype, order="C")
        outputs.clear()
        outputs |= made
        return [made[key] for key in own]

    def of_row(self, raw: np.ndarray) -> Any:
        """Return a copy of the action sent to the env for a raw action [1, ...]; not for Dict and Tuple spaces.

        Raises:
            ModuleOutputError: If the dtype of the space cannot represent it.
        """
        _, _, leaf = self._leaves[0]
        action = leaf.for_env(raw)[0]
        return int(action) if leaf.is_discrete else action.copy()

    def take(self) -> tuple[slice, list[np.ndarray]]:
        """Return the rows acted upon since the last call, and an array [n, ...] for each leaf of the space.

        Discrete leaves are int64. The next `set()` overwrites the arrays.
        """
        arrays, self._arrays = self._arrays, []
        return self._acted, arrays

    def sent(self, columns: Mapping[Key, np.ndarray], first: int, end: int) -> list[np.ndarray]:
        """Return the actions sent to the envs for rows first .. end of a block, as one array per leaf of the space.

        The next call or tick may overwrite the arrays.

        Args:
            columns: Key -> recorded output.
        """
        if self._connectors is not None:
            return [columns[_key_for_env(key)][first:end] for key in self.shapes]
        return [leaf.for_env(columns[key][first:end]) for key, _, leaf in self._leaves]

    def forget(self) -> None:
        """Drop the current actions."""
        self._arrays = []
        self.set_values(0, [])

    def _set_rows(self, first: int, n: int, arrays: list[np.ndarray]) -> None:
        if isinstance(self._space, gym.spaces.Discrete):
            self.set_values(first, arrays[0].tolist())
        elif isinstance(self._space, (gym.spaces.Dict, gym.spaces.Tuple)):
            self.set_values(first, [self._nested_row(arrays, i) for i in range(n)])
        elif self._space.shape:
            self.set_arrays(first, arrays[0])
        else:
            self.set_values(first, list(arrays[0]))

    def random(self, n: int, rng: np.random.Generator, legal: np.ndarray | None = None) -> dict[Key, np.ndarray]:
        """Sample raw actions uniformly; return them and their log-probabilities in the form of module outputs.

        Args:
            n: Number of actions.
            legal: Legal choices of a Discrete or MultiDiscrete space, bool [n, choices]; None allows all.
        """
        if legal is not None:
            draws = ChoiceDraws(rng, choices_of(self._space), self._space.shape or ())
            actions, logp = draws.sample(np.where(legal, np.float32(0), np.float32(-np.inf)))
            return {Columns.ACTIONS: actions, Columns.ACTION_LOGP: logp}
        outputs: dict[Key, np.ndarray] = {}
        logp = np.zeros(n, np.float32)
        for key, _, leaf in self._leaves:
            outputs[key], leaf_logp = leaf.random(n, rng)
            logp += leaf_logp
        outputs[Columns.ACTION_LOGP] = logp
        return outputs

    def _nested_row(self, arrays: list[np.ndarray], i: int) -> Any:
        return self._layout.nest([
            int(array[i]) if isinstance(leaf.space, gym.spaces.Discrete) else array[i].copy()
            for (_, _, leaf), array in zip(self._leaves, arrays, strict=True)
        ])  # fmt: skip


class _LeafActions:
    """Actions of a single leaf of an action space. Each call may overwrite the arrays returned by earlier ones."""

    def __init__(self, module_id: str, space: gym.Space, normalize: bool, clip: bool):
        self._module_id = module_id
        self.space = space
        self.is_discrete = isinstance(space, gym.spaces.Discrete)
        self._is_box = isinstance(space, gym.spaces.Box)
        self._shape = space.shape or ()
        self._dtype = np.dtype(np.int64 if isinstance(space, gym.spaces.Discrete) else space.dtype).newbyteorder("=")
        self._memory = np.empty((0, *self._shape), self._dtype)
        self._bounds: tuple[np.ndarray, np.ndarray] | None = None  # bounds to which raw actions are scaled or clipped
        self._start: np.ndarray | None = None  # added to raw actions
        if isinstance(space, gym.spaces.Box):
            self._is_bounded = bool(space.bounded_below.all() and space.bounded_above.all())
            self._is_scaled = normalize and self._is_bounded
            with np.errstate(over="ignore"):
                self._is_far = self._is_bounded and not np.isfinite(space.high - space.low).all()
            if self._is_scaled or (clip and not normalize):
                low, high = (bound.astype(self._dtype, copy=False).reshape(-1) for bound in (space.low, space.high))
                self._bounds = low, high
        elif isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            self._start = np.array(space.start, self._dtype) if np.any(space.start) else None
        elif not isinstance(space, gym.spaces.MultiBinary):
            raise ConfigError(f"the action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary, "
                              f"Box, or a Dict or Tuple of these")  # fmt: skip

    def for_env(self, raw: np.ndarray) -> np.ndarray:
        """Convert to a C-contiguous array with the dtype of the space (int64 for Discrete), possibly `raw` itself.

        Raises:
            ModuleOutputError: If the dtype cannot represent the actions.
        """
        if self._bounds is not None:
            return self._within(raw, *self._bounds)
        if self._start is None and raw.dtype == self._dtype and raw.flags.c_contiguous:
            return raw
        if raw.dtype != self._dtype or self._dtype.itemsize < WIDEST:
            self._check_held(raw if self._start is None else raw + self._start.astype(np.int64))
        out = self._room(len(raw))
        np.copyto(out, raw, casting="unsafe")
        if self._start is not None:
            out += self._start
        return out

    def _check_held(self, actions: np.ndarray) -> None:
        """Raise ModuleOutputError if actions would overflow an integer dtype, or a choice has a fractional part."""
        if self._dtype.kind not in "iu" or np.can_cast(actions.dtype, self._dtype) or not actions.size:
            return
        if actions.dtype.kind == "f":
            actions = actions.astype(np.float64)  # float16 cannot be compared with the limits
        limits = np.iinfo(self._dtype)
        is_held = limits.min - 1 < actions.min() and actions.max() < limits.max + 1  # False for NaN
        if not is_held or (actions.dtype.kind == "f" and not self._is_box and (actions % 1).any()):
            whole = "" if self._is_box else "integer "
            problem = (f"expected {whole}actions that fit in {self._dtype}, for {self.space}, got "
                       f"{described(actions)}: {shown(actions)}")  # fmt: skip
            raise ModuleOutputError(self._module_id, problem)

    def _within(self, raw: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Scale or clip raw actions to these bounds."""
        out, shape_NK = self._room(len(raw)), (len(raw), len(low))
        change: Callable[..., None]
        if self._is_far and self._is_scaled:
            change = scale_actions_far
        elif raw.dtype in FLOATS and self._dtype in FLOATS:
            change = scale_actions if self._is_scaled else clip_actions
        else:
            change = scale_actions_numpy if self._is_scaled else clip_actions_numpy
        change(raw.reshape(shape_NK), low, high, out.reshape(shape_NK))
        return out

    def _room(self, n: int) -> np.ndarray:
        if len(self._memory) < n:
            self._memory = np.empty((n, *self._shape), self._dtype)
        return self._memory[:n]

    def random(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Return raw actions [n, *shape] and the log-probability (density) of each."""
        space, shape = self.space, self._shape
        if isinstance(space, gym.spaces.Discrete):
            return rng.integers(int(space.n), size=n), -math.log(space.n)
        if isinstance(space, gym.spaces.MultiDiscrete):
            return rng.integers(np.asarray(space.nvec, np.int64), size=(n, *shape)), -float(np.log(space.nvec).sum())
        if isinstance(space, gym.spaces.MultiBinary):
            return rng.integers(2, size=(n, *shape)), -math.log(2) * math.prod(shape)
        if isinstance(space, gym.spaces.Box) and self._is_bounded and not self._is_scaled:
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        else:
            low, high = np.full(shape, -1.0), np.full(shape, 1.0)
        if (high / 2 - low / 2 > LARGEST / 2).any():
            return self._random_far(n, rng, low, high)
        width = np.maximum(high - low, TINY)
        return rng.uniform(low, high, (n, *shape)).astype(np.float32), -float(np.log(width).sum())

    def _random_far(
        self, n: int, rng: np.random.Generator, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Sample between bounds that are farther apart than the float32 range, in the dtype of the space."""
        share = rng.random((n, *self._shape))
        log_width = np.log(np.maximum(high / 2 - low / 2, TINY)) + math.log(2)
        return (low * (1 - share) + high * share).astype(self._dtype), -float(log_width.sum())


def _key(leaf: Leaf) -> Key:
    return (Columns.ACTIONS, *leaf.path) if leaf.path else Columns.ACTIONS


def _key_for_env(key: Key) -> Key:
    """Return the key of the actions sent to envs for a key of raw actions."""
    return Columns.ACTIONS_FOR_ENV if isinstance(key, str) else (Columns.ACTIONS_FOR_ENV, *key[1:])


def _narrow_dtype(space: gym.Space) -> np.dtype | None:
    """Return the smallest dtype for actions of this space, or None to keep the dtype of the space."""
    if isinstance(space, gym.spaces.MultiBinary):
        return np.dtype(np.int8)
    if not isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return None
    numbers = np.asarray(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec, np.int64)
    start = np.asarray(space.start, np.int64)
    if not numbers.size:
        return None
    return narrowest(int(start.min()), int((start + numbers).max()) - 1)
