"""An env whose global states are recorded."""

from __future__ import annotations

from typing import Any

from fastmarl.core.store.env_states import EnvStates


class StateRecordingEnv:
    """reset() and step() of an env, with its state recorded after each."""

    def __init__(self, env: Any, states: EnvStates):
        self._env = env
        self._states = states

    def reset(self, *, seed: int | None = None) -> tuple[dict, dict]:
        result = self._env.reset(seed=seed)
        self._states.add(self._env.state())
        return result

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        result = self._env.step(actions)
        self._states.add(self._env.state())
        return result
