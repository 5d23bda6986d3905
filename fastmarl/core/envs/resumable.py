"""Support for envs that can save and restore their complete state, even in the middle of an episode."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.errors import EnvCheckError


def supports_checkpoint(env: Any) -> bool:
    """Return True if `env` itself declares that it supports checkpoints.

    Attributes that a wrapper forwards from its inner env do not count, since they ignore the wrapper's state. Having
    the methods is not enough either: some envs (MuJoCo, SMAC) use the same names for something else.

    Raises:
        EnvCheckError: If it declares support but does not implement the methods.
    """
    if getattr_static(env, "supports_checkpoint", None) is None or env.supports_checkpoint is not True:
        return False
    for name in ("get_state", "set_state"):
        if not callable(getattr(env, name, None)):
            raise EnvCheckError(f"{type(env).__name__} has supports_checkpoint=True but no method {name}(); add it, or "
                                f"leave out supports_checkpoint")  # fmt: skip
    return True


class ResumableAdapter(EnvAdapter):
    """Base class of adapters without episode state beyond that of their env."""

    @property
    def supports_checkpoint(self) -> bool:
        """True if the adapted env supports checkpoints."""
        return supports_checkpoint(self.env)

    def get_state(self) -> Any:
        """Return the state of the adapted env."""
        return self.env.get_state()

    def set_state(self, state: Any) -> None:
        """Restore a state returned by `get_state()`."""
        self.env.set_state(state)
