"""Which actions are legal: as envs say it in observations or infos, for modules and for random actions.

Three forms are known: `obs["action_mask"]` (PettingZoo's and RLlib's), `obs["avail_actions"]` (SMAC's) and
`info["action_mask"]`. A mask has a number for each choice of a Discrete space, or for each choice of each part of a
MultiDiscrete one, in a row or nested; 0 rules the choice out.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.block import Block
from fastmarl.errors import ActionMaskError, ConfigError
from fastmarl.lanes import LaneTable
from fastmarl.spaces import RowLayout, flatten_struct

MASK = "action_mask"
MASK_KEYS = (MASK, "avail_actions")  # in observations


class ActionMasks:
    """The masks of one module's agents.

    Args:
        obs_space, action_space: of the module's agents, as the envs have them.
        table: lanes, for infos and for who is named in errors.
        recorded_space: of the observations on record, which connectors may have changed.

    Attributes:
        key: of the mask in observations; None: masks come in infos, if at all.
        on_record: whether masks are part of the recorded observations.

    Raises:
        ConfigError: the observation's mask has another size than the action space needs.
    """

    def __init__(
        self,
        obs_space: gym.Space,
        action_space: gym.Space,
        table: LaneTable,
        recorded_space: gym.Space,
    ):
        self._table = table
        self._sizes = choices_of(action_space)
        self.key = mask_key(obs_space, action_space)
        self.on_record = self.key is not None and self.key == mask_key(recorded_space, action_space)
        leaves = RowLayout(obs_space).leaves
        self._places = [i for i, leaf in enumerate(leaves) if self.key is not None and leaf.path[:1] == (self.key,)]

    def legal(self, block: Block, first: int, end: int) -> np.ndarray | None:
        """bool [end - first, choices] for the rows from `first` on; None where nothing is ruled out.

        Raises:
            ActionMaskError: an agent has no legal action, or its info's mask has another size.
        """
        if not self._sizes:
            return None
        if self.key is not None:
            legal = self._from_observations(block, first, end)
        else:
            found = self._in_infos(block, first, end)
            if not found:
                return None
            legal = self._from_infos(found, block, first, end)
        self._check(legal, block, first)
        return legal

    def _from_observations(self, block: Block, first: int, end: int) -> np.ndarray:
        parts = [block.raw_obs[i][first:end].reshape(end - first, -1) != 0 for i in self._places]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def _in_infos(self, block: Block, first: int, end: int) -> dict[int, Any]:
        """Row -> mask, of those infos that came with the rows' observations."""
        found: dict[int, Any] = {}
        for env in self._table.envs:
            for env_t, lane, info in reversed(env.infos):
                if env_t != env.env_t:
                    break
                if lane < 0 or MASK not in info:
                    continue
                row = int(self._table.row_L[lane])
                if first <= row < end and block.lane_R[row] == lane:
                    found[row] = info[MASK]
        return found

    def _from_infos(self, found: dict[int, Any], block: Block, first: int, end: int) -> np.ndarray:
        legal = np.ones((end - first, sum(self._sizes)), bool)
        for row, mask in found.items():
            legal[row - first] = self._as_row(mask, block, row)
        return legal

    def _as_row(self, mask: Any, block: Block, row: int) -> np.ndarray:
        values = np.concatenate([np.ravel(leaf) for _, leaf in flatten_struct(mask)])
        if values.size != sum(self._sizes):
            raise self._error(
                block, row, f"has {values.size} numbers, expected {sum(self._sizes)}: one for each choice"
            )
        return values != 0

    def _check(self, legal: np.ndarray, block: Block, first: int) -> None:
        begin = 0
        for size in self._sizes:
            some_legal = legal[:, begin : begin + size].any(1)
            if not some_legal.all():
                row = first + int(np.argmin(some_legal))
                raise self._error(block, row, "rules out all actions of an agent that is observed, and so must act; "
                                              "allow one, or leave the agent out of the observations")  # fmt: skip
            begin += size

    def _error(self, block: Block, row: int, problem: str) -> ActionMaskError:
        lane, place = int(block.lane_R[row]), f"obs[{self.key!r}]" if self.key else f"info[{MASK!r}]"
        agent_id, env_index = self._table.agent_ids[lane], int(self._table.env_L[lane])
        return ActionMaskError(env_index, agent_id, int(block.env_t_R[row]), f"{place} {problem}")


def choices_of(action_space: gym.Space) -> list[int]:
    """Number of choices of each part; empty for spaces that no mask fits."""
    if isinstance(action_space, gym.spaces.Discrete):
        return [int(action_space.n)]
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        return [int(n) for n in np.ravel(action_space.nvec)]
    return []


def mask_key(obs_space: gym.Space, action_space: gym.Space) -> str | None:
    """The key under which an observation space has a mask for these actions, if it has one.

    Raises:
        ConfigError: it has one of another size.
    """
    n_choices = sum(choices_of(action_space))
    if not n_choices or not isinstance(obs_space, gym.spaces.Dict):
        return None
    key = next((key for key in MASK_KEYS if key in obs_space.spaces), None)
    if key is None:
        return None
    n_numbers = sum(int(np.prod(leaf.shape)) for leaf in RowLayout(obs_space[key]).leaves)
    if n_numbers != n_choices:
        raise ConfigError(f"the observation's {key!r} {obs_space[key]} has {n_numbers} numbers, but {action_space} "
                          f"needs {n_choices}: one for each action (of each part, in a row)")  # fmt: skip
    return key


def masked(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits [..., choices] where the mask, of the same size, is not 0; elsewhere the least finite number."""
    return logits.masked_fill(mask.reshape(logits.shape) == 0, torch.finfo(logits.dtype).min)
