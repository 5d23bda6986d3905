"""What is recorded of the rewards that envs pay."""

import numpy as np

Clip = bool | float | tuple[float, float] | None


class RewardConnector:
    """Scales and clips the reward of a transition: the sum of all that was paid between an action and the next
    observation.

    Args:
        scale: rewards are multiplied by it, first of all.
        clip: None or False: not clipped; True: only the sign stays; a number c: clipped to -c .. c; a pair (low, high).
    """

    def __init__(self, scale: float, clip: Clip):
        self._scale = scale
        self._sign = clip is True
        self._bounds: tuple[float, float] | None = None
        if isinstance(clip, tuple):
            self._bounds = clip
        elif clip is not None and not isinstance(clip, bool):
            self._bounds = (-clip, clip)

    def __call__(self, paid: np.ndarray) -> np.ndarray:
        """New array of the same shape, float64."""
        rewards = paid * self._scale
        if self._sign:
            return np.sign(rewards)
        return rewards if self._bounds is None else np.clip(rewards, *self._bounds)


def make_reward_connector(scale: float, clip: Clip) -> RewardConnector | None:
    """What makes the recorded rewards; None if they are those paid."""
    return None if scale == 1 and clip in (None, False) else RewardConnector(scale, clip)
