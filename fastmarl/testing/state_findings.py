"""Findings of `check_env` about `state()`."""

from __future__ import annotations

from typing import Any

from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.states import has_state, state_space_of
from fastmarl.core.errors import EnvCheckError, EnvStateError
from fastmarl.core.store.env_states import EnvStates
from fastmarl.testing.report import Findings, location_of

KIND = "state"


class StateFindings:
    """Notes states that a runner refuses, which calls `state()` only with `record_env_state=True`.

    Args:
        env: an env, or a batch; if it has no `state()`, nothing is noted.
        findings: where notes go to.
    """

    def __init__(self, env: Any, findings: Findings):
        self._env, self._findings = env, findings
        self._num_envs = env.num_envs if isinstance(env, ArrayEnv) else None
        self._states: EnvStates | None = None
        try:
            if has_state(env):
                self._states = EnvStates(0, state_space_of(env, 0))
        except EnvCheckError as error:
            findings.note(KIND, str(error))
        except Exception as error:  # a property of its own may raise anything
            self._note(f"{error!r:.200} in {location_of(error)}")

    def look(self) -> None:
        """Look at the state after a reset or a step."""
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
        self._findings.note(KIND, f"record_env_state=True fails: {problem}")
