"""Envs with a complete saveable state, so that an episode can continue elsewhere."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.errors import EnvCheckError


def supports_checkpoint(env: Any) -> bool:
    """Return True if `env` itself declares that it supports checkpoints.

    Attributes that a wrapper passes on from the env inside do not count, because they ignore the state of the wrapper.
    Methods alone do not count either, because envs may use their names for something else (MuJoCo, SMAC).

    Raises:
        EnvCheckError: If it declares support but does not have the methods.
    """
    if getattr_static(env, "supports_checkpoint", None) is None or env.supports_checkpoint is not True:
        return False
    for name in ("get_state", "set_state"):
        if not callable(getattr(env, name, None)):
            raise EnvCheckError(f"{type(env).__name__} has supports_checkpoint=True and no method {name}(); "
                                f"add it, or leave supports_checkpoint out")  # fmt: skip
    return True


class ResumableAdapter(EnvAdapter):
    """Base class of adapters that keep no episode state besides the state of their env."""

    @property
    def supports_checkpoint(self) -> bool:
        """True if the adapted env supports it."""
        return supports_checkpoint(self.env)

    def get_state(self) -> Any:
        """Return the state of the adapted env."""
        return self.env.get_state()

    def set_state(self, state: Any) -> None:
        """Restore the result of `get_state()`."""
        self.env.set_state(state)
