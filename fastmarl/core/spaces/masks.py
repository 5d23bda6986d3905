"""Action masks: where environments put them and what they look like.

Three places are supported: `obs["action_mask"]` (PettingZoo, RLlib), `obs["avail_actions"]` (SMAC) and
`info["action_mask"]`. A mask has one number per choice of a Discrete space, or per choice of each part of a
MultiDiscrete space, flat or nested; 0 marks illegal choices.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.structs import flatten_struct

MASK = "action_mask"
MASK_KEYS = (MASK, "avail_actions")  # keys in observations
RULES_OUT_ALL = (
    "rules out all actions of an observed agent, which has to act; allow at least one action, or leave the agent out "
    "of the observations"
)


def choices_of(action_space: gym.Space | None) -> list[int]:
    """Return the number of choices of each part of a space; [] for spaces that do not support masks."""
    if isinstance(action_space, gym.spaces.Discrete):
        return [int(action_space.n)]
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        return [int(n) for n in np.ravel(action_space.nvec)]
    return []


def mask_key(obs_space: gym.Space, action_space: gym.Space) -> str | None:
    """Return the key of the mask for these actions in an observation space, or None.

    Raises:
        ConfigError: If the mask has the wrong size.
    """
    key = key_among(obs_space)
    n_choices = sum(choices_of(action_space))
    if key is None or not n_choices:
        return None
    space: Any = obs_space
    n_numbers = sum(int(np.prod(leaf.shape)) for leaf in RowLayout(space[key]).leaves)
    if n_numbers != n_choices:
        raise ConfigError(f"the action mask {key!r} of the observations, {space[key]}, has {n_numbers} entries, but "
                          f"{action_space} needs {n_choices}: one per action (of each part, in order)")  # fmt: skip
    return key


def key_among(obs_space: gym.Space | None) -> str | None:
    """Return the key of a mask in an observation space, whether or not the actions support masks, or None."""
    if not isinstance(obs_space, gym.spaces.Dict):
        return None
    return next((key for key in MASK_KEYS if key in obs_space.spaces), None)


def masks_in(observation: Any, info: Any) -> dict[str, Any]:
    """Return all masks as place -> mask; the first one takes precedence."""
    found = {}
    if isinstance(observation, Mapping):
        found = {f"observation[{key!r}]": observation[key] for key in MASK_KEYS if key in observation}
    if isinstance(info, Mapping) and MASK in info:
        found[f"info[{MASK!r}]"] = info[MASK]
    return found


def action_mask(observation: Any, info: Any) -> Any:
    """Return the mask that takes precedence, or None."""
    return next(iter(masks_in(observation, info).values()), None)


def mask_row(mask: Any) -> np.ndarray:
    """Flatten a (nested) mask to a 1-D array."""
    return np.concatenate([np.ravel(leaf) for _, leaf in flatten_struct(mask)] or [np.empty(0)])


def size_problem(n_numbers: int, sizes: list[int]) -> str | None:
    """Describe why a mask of `n_numbers` entries does not match the choices in `sizes`, or return None."""
    expected = sum(sizes)
    return None if n_numbers == expected else f"has {n_numbers} entries, expected {expected}, one per choice"


def parts_of(row: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Split a flat mask, or an array [..., entries] of flat masks, into the parts of the space."""
    return np.split(row, np.cumsum(sizes)[:-1], axis=-1)
