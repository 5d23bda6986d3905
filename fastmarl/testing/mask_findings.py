"""What `check_env` finds about action masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.spaces.masks import (
    MASK,
    MASK_KEYS,
    RULES_OUT_ALL,
    choices_of,
    mask_row,
    masks_in,
    parts_of,
    size_problem,
)
from fastmarl.testing.report import Findings

MASK_KIND = "mask"


class MaskFindings:
    """Looks at the masks of observed agents.

    Args:
        findings: where problems and notes go to.
    """

    def __init__(self, findings: Findings):
        self._findings = findings
        self._by_info: dict[Any, bool] = {}  # agent -> whether its first info had a mask

    def look_at(self, agent: Any, action_space: gym.Space, observation: Any, info: Any, *, acts: bool) -> None:
        """Look at what came with one observation; who does not act may have a mask that allows nothing."""
        masks = masks_in(observation, info)
        sizes = choices_of(action_space)
        unread = [key for key in MASK_KEYS if key != MASK and isinstance(info, Mapping) and key in info]
        if unread and not masks:
            self._note(f"info[{unread[0]!r}] is not looked at; call it {MASK!r}, or put it into the observation", agent)
        if masks and not sizes:
            where = next(iter(masks))
            self._note(f"{where} is not looked at: no mask fits the action space {action_space!r:.200}", agent, where)
            return
        rows = {where: row for where, mask in masks.items() if self._fits(agent, where, row := mask_row(mask), sizes)}
        if rows:
            first, *others = rows
            for other in others:
                if not np.array_equal(rows[other] != 0, rows[first] != 0):
                    self._note(f"{other} differs from {first}, which alone counts", agent, other)
            if acts and not all(part.any() for part in parts_of(rows[first], sizes)):
                self._findings.problem(MASK_KIND, f"{first} {RULES_OUT_ALL}", agent, first)
        if acts and self._by_info.setdefault(agent, bool(masks)) != bool(masks):
            self._note(f"info[{MASK!r}] is there in some env steps and not in others, where all actions are legal",
                       agent, "gaps")  # fmt: skip

    def _fits(self, agent: Any, where: str, row: np.ndarray, sizes: list[int]) -> bool:
        """Whether a mask can be read. One in an observation is compared with its space elsewhere."""
        problem = size_problem(row.size, sizes)
        if problem is None and row.dtype.kind not in "fiub":
            problem = f"holds {row.tolist()[0]!r:.200}, expected numbers or bools"
        if problem and where.startswith("info"):
            self._findings.problem(MASK_KIND, f"{where} {problem}", agent, where)
        if problem:
            return False
        irregular = row[(row != 0) & (row != 1)]
        if irregular.size:
            self._note(f"{where} holds {irregular[0]}; 0 rules a choice out, and whatever else allows it", agent, where)
        return True

    def _note(self, text: str, agent: Any, where: Any = None) -> None:
        self._findings.note(MASK_KIND, text, agent, where)
