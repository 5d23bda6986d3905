"""Findings of `check_env()` on action masks, `state()`, and the PettingZoo rules for leaving agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.aec import AECPettingZooEnv
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.pettingzoo import PettingZooAdapter
from fastmarl.core.envs.states import has_state, state_space_of
from fastmarl.core.errors import EnvCheckError, EnvStateError
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
from fastmarl.core.store.env_states import EnvStates
from fastmarl.testing.report import Findings, location_of

MASK_KIND, STATE_KIND, AGENTS_KIND = "mask", "state", "agents"


class MaskFindings:
    """Checks the masks of observed agents.

    Args:
        findings: Receives problems and notes.
    """

    def __init__(self, findings: Findings):
        self._findings = findings
        self._by_info: dict[Any, bool] = {}  # agent -> True if its first info had a mask

    def look_at(self, agent: Any, action_space: gym.Space, observation: Any, info: Any, *, acts: bool) -> None:
        """Check the masks returned with an observation. A mask may exclude all actions if the agent does not act."""
        masks = masks_in(observation, info)
        sizes = choices_of(action_space)
        unread = [key for key in MASK_KEYS if key != MASK and isinstance(info, Mapping) and key in info]
        if unread and not masks:
            self._note(f"info[{unread[0]!r}] is ignored; rename it to {MASK!r}, or put it into the observation", agent)
        if masks and not sizes:
            where = next(iter(masks))
            self._note(f"{where} is ignored: masks are not supported for {action_space!r:.200}", agent, where)
            return
        rows = {where: row for where, mask in masks.items() if self._fits(agent, where, row := mask_row(mask), sizes)}
        if rows:
            first, *others = rows
            for other in others:
                if not np.array_equal(rows[other] != 0, rows[first] != 0):
                    self._note(f"{other} differs from {first}, which takes precedence", agent, other)
            if acts and not all(part.any() for part in parts_of(rows[first], sizes)):
                self._findings.problem(MASK_KIND, f"{first} {RULES_OUT_ALL}", agent, first)
        if acts and self._by_info.setdefault(agent, bool(masks)) != bool(masks):
            self._note(f"info[{MASK!r}] is present in some env steps but not in others, where all actions are legal",
                       agent, "gaps")  # fmt: skip

    def _fits(self, agent: Any, where: str, row: np.ndarray, sizes: list[int]) -> bool:
        """Return whether a mask can be read. Masks in observations are compared with their space elsewhere."""
        problem = size_problem(row.size, sizes)
        if problem is None and row.dtype.kind not in "fiub":
            problem = f"contains {row.tolist()[0]!r:.200}, expected numbers or bools"
        if problem and where.startswith("info"):
            self._findings.problem(MASK_KIND, f"{where} {problem}", agent, where)
        if problem:
            return False
        irregular = row[(row != 0) & (row != 1)]
        if irregular.size:
            self._note(f"{where} contains {irregular[0]}; 0 excludes a choice, any other value allows it", agent, where)
        return True

    def _note(self, text: str, agent: Any, where: Any = None) -> None:
        self._findings.note(MASK_KIND, text, agent, where)


class StateFindings:
    """Notes results of `state()` that a runner would reject; runners call it only with `record_env_state=True`.

    Args:
        env: An env or a batch; nothing is noted if it has no `state()`.
        findings: Receives notes.
    """

    def __init__(self, env: Any, findings: Findings):
        self._env, self._findings = env, findings
        self._num_envs = env.num_envs if isinstance(env, ArrayEnv) else None
        self._states: EnvStates | None = None
        try:
            if has_state(env):
                self._states = EnvStates(0, state_space_of(env, 0))
        except EnvCheckError as error:
            findings.note(STATE_KIND, str(error))
        except Exception as error:  # a user-defined property may raise anything
            self._note(f"{error!r:.200} in {location_of(error)}")

    def look(self) -> None:
        """Check the state after a reset or a step."""
        if self._states is None:
            return
        try:
            state = self._env.state()
        except (Exception, SystemExit) as raised:
            self._note(f"state() raised {raised!r} in {location_of(raised)}")
            return
        try:
            batch = [state] if self._num_envs is None else self._states.rows_of_batch(state, self._num_envs)
            for row in batch:
                self._states.fitting(row)
        except EnvStateError as error:
            self._note(error.args[3])

    def _note(self, problem: str) -> None:
        self._findings.note(STATE_KIND, f"record_env_state=True fails: {problem}")


class PettingZooRules:
    """Notes behaviour that our adapters handle but the PettingZoo loop and other libraries do not.

    Args:
        env: Any env; nothing is noted unless it is a PettingZoo env.
        findings: Receives notes.
    """

    def __init__(self, env: Any, findings: Findings):
        self._env = env if isinstance(env, PettingZooAdapter) else None
        self._findings = findings
        self._before: list[Any] = []

    def begin_step(self) -> None:
        """Record which agents take part before a step."""
        if self._env is not None:
            self._before = list(self._env.agents)

    def look_at(self, terminateds: dict, truncateds: dict) -> None:
        """Check which agents left in the step that returned these flags, and which should have left."""
        if self._env is None:
            return
        now = list(self._env.agents)
        ended = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        removed = self._env.removed if isinstance(self._env, AECPettingZooEnv) else []
        for agent in self._before:
            if agent in removed:
                self._note(agent, "was removed from `agents` before its last turn, so PettingZoo's own loop loses the "
                                  "data for that turn: keep the agent until step(None) in that turn")  # fmt: skip
            elif agent in now and agent in ended:
                self._note(agent, "is still in `agents` after its flag was True, so PettingZoo's own loop continues "
                                  "with it: remove it in that step, or for an AECEnv in step(None)")  # fmt: skip
            elif agent not in now and agent not in ended:
                self._note(agent, "was removed from `agents` without a flag, so it waits until the end of the episode "
                                  "and gets the episode's flags: set its own flag in that step")  # fmt: skip
        if now and ended == {"__all__"}:
            self._note(None, "'__all__' ended the episode, which PettingZoo's own loop does not notice: set the flags "
                             "of all agents and empty `agents`")  # fmt: skip

    def _note(self, agent: Any, text: str) -> None:
        self._findings.note(AGENTS_KIND, text, agent, text)
