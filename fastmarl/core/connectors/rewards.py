"""Conversion of received rewards to recorded rewards."""

import numpy as np

Clip = bool | float | tuple[float, float] | None


class RewardConnector:
    """Scales and clips the reward of a transition: the sum of all rewards between an action and the next observation.

    Args:
        scale: Factor applied before clipping.
        clip: None or False for no clipping; True to keep only the sign; a number c to clip to [-c, c]; or a pair (low,
            high).
    """

    def __init__(self, scale: float, clip: Clip):
        self._scale = scale
        self._sign = clip is True
        self._bounds: tuple[float, float] | None = None
        if isinstance(clip, tuple):
            self._bounds = clip
        elif clip is not None and not isinstance(clip, bool):
            self._bounds = (-clip, clip)

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """Return the scaled and clipped rewards as a new float64 array."""
        rewards = raw * self._scale
        if self._sign:
            return np.sign(rewards)
        return rewards if self._bounds is None else np.clip(rewards, *self._bounds)


def make_reward_connector(scale: float, clip: Clip) -> RewardConnector | None:
    """Return a connector for these options, or None if rewards are recorded as received."""
    return None if scale == 1 and clip in (None, False) else RewardConnector(scale, clip)
