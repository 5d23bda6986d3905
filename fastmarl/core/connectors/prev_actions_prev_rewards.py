"""Adds the previous actions and rewards of an agent to its observations."""

from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.base import EnvToModuleConnector, Rows
from fastmarl.core.errors import ConfigError
from fastmarl.core.kernels.frames import gather_frames, one_hot_frames
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.store.block import Block


@public("fastmarl.connectors")
class PrevActionsPrevRewards(EnvToModuleConnector):
    """Wraps each observation in a dict with the previous actions and rewards of the agent, oldest first.

    Actions are the recorded raw actions of the policy as float32, with Discrete and MultiDiscrete leaves one-hot
    encoded. Rewards are the recorded rewards as float32, each the sum of the rewards between an action and the next
    observation. Steps before the first step of the agent are zeros. For networks with vector inputs, add
    FlattenObservations after this connector.

    Args:
        n_prev_actions: Number of actions; 0 omits their entry.
        n_prev_rewards: Number of rewards; 0 omits their entry.
    """

    per_agent_state = ()
    ORIG_OBS_KEY = "_orig_obs"
    PREV_ACTIONS_KEY = "prev_n_actions"
    PREV_REWARDS_KEY = "prev_n_rewards"

    def __init__(self, *, n_prev_actions: int = 1, n_prev_rewards: int = 1):
        for name, n in (("n_prev_actions", n_prev_actions), ("n_prev_rewards", n_prev_rewards)):
            if not isinstance(n, int) or isinstance(n, bool) or n < 0:
                raise ConfigError(f"{name} must be an integer >= 0, got {n!r}")
        if not n_prev_actions and not n_prev_rewards:
            raise ConfigError("PrevActionsPrevRewards needs n_prev_actions or n_prev_rewards > 0, got 0 for both")
        self.n_prev_actions = n_prev_actions
        self.n_prev_rewards = n_prev_rewards
        self.min_lookback_rows = max(n_prev_actions, n_prev_rewards) - 1

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        self._leaves = [
            ((Columns.ACTIONS, *leaf.path) if leaf.path else Columns.ACTIONS, choices, size)
            for leaf, space in zip(RowLayout(input_action_space).leaves, leaf_spaces(input_action_space), strict=True)
            for choices, size in [_encoding(space)]
        ]
        self._size = sum(size for _, _, size in self._leaves)
        spaces: dict[str, gym.Space] = {self.ORIG_OBS_KEY: input_observation_space}
        if self.n_prev_actions:
            one_hot = all(choices is not None for _, choices, _ in self._leaves)
            low, high = (0.0, 1.0) if one_hot else (-np.inf, np.inf)
            spaces[self.PREV_ACTIONS_KEY] = gym.spaces.Box(low, high, (self.n_prev_actions * self._size,), np.float32)
        if self.n_prev_rewards:
            spaces[self.PREV_REWARDS_KEY] = gym.spaces.Box(-np.inf, np.inf, (self.n_prev_rewards,), np.float32)
        return gym.spaces.Dict(spaces)

    def __call__(self, obs: Any, rows: Rows) -> dict[str, Any]:
        made = {self.ORIG_OBS_KEY: obs}
        if self.n_prev_actions:
            made[self.PREV_ACTIONS_KEY] = self._actions(rows.block, rows.former(self.n_prev_actions))
        if self.n_prev_rewards:
            former = rows.former(self.n_prev_rewards)
            rewards = rows.block.recorded_rewards(rows.block.reward_R[former])
            made[self.PREV_REWARDS_KEY] = np.where(former >= 0, rewards, 0.0).astype(np.float32)
        return made

    def _actions(self, block: Block, former: np.ndarray) -> np.ndarray:
        """Return the previous actions as float32 [n, n_prev_actions * size]."""
        n, n_prev = former.shape
        out = np.zeros((n, n_prev, self._size), np.float32)
        begin = 0
        for key, choices, size in self._leaves if block.outputs else ():  # no outputs: no agent has acted before
            values, column = block.outputs[key], out[:, :, begin : begin + size]
            if choices is None:
                if values.dtype == np.float16:  # numba does not support it
                    values = values.astype(np.float32)
                gather_frames(values.reshape(len(values), 1, size), former, column[:, None])
            else:
                one_hot_frames(values.reshape(len(values), len(choices)), former, choices, column)
            begin += size
        return out.reshape(n, n_prev * self._size)


def _encoding(space: Any) -> tuple[np.ndarray | None, int]:
    """Return the choice counts of a one-hot leaf (None for other leaves) and the encoded size of the leaf."""
    if choices := choices_of(space):
        return np.array(choices, np.int64), sum(choices)
    if isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
        return None, int(np.prod(space.shape))
    raise ConfigError(f"PrevActionsPrevRewards does not support the action space {space}")
