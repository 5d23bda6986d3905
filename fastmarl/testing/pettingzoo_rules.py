"""Findings of `check_env` about PettingZoo's rules on how agents leave."""

from __future__ import annotations

from typing import Any

from fastmarl.core.envs.aec import AECPettingZooEnv
from fastmarl.core.envs.pettingzoo import PettingZooAdapter
from fastmarl.testing.report import Findings

KIND = "agents"


class PettingZooRules:
    """Notes what our adapters understand, and PettingZoo's own loop or other libraries do not.

    Args:
        env: any; of others than PettingZoo's, nothing is noted.
        findings: where notes go to.
    """

    def __init__(self, env: Any, findings: Findings):
        self._env = env if isinstance(env, PettingZooAdapter) else None
        self._findings = findings
        self._before: list[Any] = []

    def begin_step(self) -> None:
        """Remember who takes part."""
        if self._env is not None:
            self._before = list(self._env.agents)

    def look_at(self, terminateds: dict, truncateds: dict) -> None:
        """Look at who has left, and who should have, in the step that returned these flags."""
        if self._env is None:
            return
        now = list(self._env.agents)
        ended = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        removed = self._env.removed if isinstance(self._env, AECPettingZooEnv) else []
        for agent in self._before:
            if agent in removed:
                self._note(agent, "was removed from `agents` without a turn, and PettingZoo's own loop loses what it "
                                  "was to get there: leave it until step(None) in that turn")  # fmt: skip
            elif agent in now and agent in ended:
                self._note(agent, "is still in `agents` after its flag was True, and PettingZoo's own loop goes on "
                                  "with it: remove it in that step, of an AECEnv in step(None)")  # fmt: skip
            elif agent not in now and agent not in ended:
                self._note(agent, "was removed from `agents` without a flag, so it waits until the end of the episode, "
                                  "and has the flags of that: set its own flag in that step")  # fmt: skip
        if now and ended == {"__all__"}:
            self._note(None, "'__all__' ended the episode, of which PettingZoo's own loop hears nothing: set the flags "
                             "of all agents and empty `agents`")  # fmt: skip

    def _note(self, agent: Any, text: str) -> None:
        self._findings.note(KIND, text, agent, text)
