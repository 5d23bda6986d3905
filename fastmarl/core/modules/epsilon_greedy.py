"""Q-networks with epsilon-greedy exploration, for off-policy learners."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.default import DefaultRLModule
from fastmarl.core.modules.model_config import DefaultModelConfig
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns

SURE = 100.0  # an action whose logit exceeds all others by this much is always sampled


@public("fastmarl.modules")
@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyModelConfig(DefaultModelConfig):
    """Options of `EpsilonGreedyRLModule`: `DefaultModelConfig` plus exploration."""

    epsilon: Sequence[Sequence[float]] = ((0, 1.0), (10_000, 0.05))
    """Probability of a random action: (env steps, probability) pairs, linearly interpolated, as in RLlib."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            pairs = np.array([*self.epsilon], np.float64)
            steps, shares = pairs.T
        except (TypeError, ValueError):
            steps = shares = np.array([])
        is_valid = steps.ndim == 1 and np.isfinite(steps).all() and (np.diff(steps) >= 0).all()
        if not steps.size or not is_valid or not ((shares >= 0) & (shares <= 1)).all():
            raise ConfigError(f"epsilon must be a list of [env steps, probability] pairs with ascending env steps, got "
                              f"{self.epsilon!r}")  # fmt: skip
        object.__setattr__(self, "epsilon", tuple(map(tuple, pairs.tolist())))  # as checkpoints store it


@public("fastmarl.modules")
class EpsilonGreedyRLModule(DefaultRLModule):
    """A Q-network that outputs action values as "action_dist_inputs" and explores by taking random actions.

    Without exploration, it chooses the legal action with the highest value. With exploration, it chooses a random legal
    action with probability epsilon. `model_config` is an `EpsilonGreedyModelConfig` or a dict of its fields.

    Raises:
        ConfigError: If the action space is not Discrete; see also `DefaultRLModule`.
    """

    config_cls = EpsilonGreedyModelConfig

    def setup(self) -> None:
        if not isinstance(self.action_space, gym.spaces.Discrete):
            raise ConfigError(f"Q-networks need a Discrete action space, got {self.action_space}; for other spaces, "
                              f"use an algorithm with a policy, such as PPO")  # fmt: skip
        super().setup()
        config: Any = self.config_cls.of(self.model_config)
        self._epsilon = np.array(config.epsilon, np.float64).T

    def _forward_exploration(self, batch: dict[str, Any], t: int | None = None, **kwargs: Any) -> dict[str, Any]:
        outputs = self._forward(batch)
        values = outputs[Columns.ACTION_DIST_INPUTS]
        epsilon = self._epsilon[1, -1] if t is None else float(np.interp(t, *self._epsilon))
        # Equal logits sample a random action, scaled ranks the best one; the runner applies masks to these logits.
        ranks = values.argsort(-1).argsort(-1).to(values.dtype)
        is_random = torch.rand((*values.shape[:-1], 1), device=values.device) < epsilon
        return {**outputs, Columns.ACTION_DIST_INPUTS: torch.where(is_random, 0.0, SURE * ranks)}
