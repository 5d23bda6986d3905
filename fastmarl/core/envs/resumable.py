"""Envs that can save their whole state, so that an episode can go on elsewhere."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.errors import EnvCheckError


def supports_checkpoint(env: Any) -> bool:
    """Whether it says so itself. What a wrapper passes on of the env inside knows nothing of the wrapper's own state,
    and envs have methods of these names that mean something else (MuJoCo's, SMAC's).

    Raises:
        EnvCheckError: it says so, and has no such methods.
    """
    if getattr_static(env, "supports_checkpoint", None) is None or env.supports_checkpoint is not True:
        return False
    for name in ("get_state", "set_state"):
        if not callable(getattr(env, name, None)):
            raise EnvCheckError(f"{type(env).__name__} has supports_checkpoint=True and no method {name}(); "
                                f"add it, or leave supports_checkpoint out")  # fmt: skip
    return True


class ResumableAdapter(EnvAdapter):
    """Base of adapters that keep nothing of an episode outside their env."""

    @property
    def supports_checkpoint(self) -> bool:
        """Whether the env does."""
        return supports_checkpoint(self.env)

    def get_state(self) -> Any:
        """The env's."""
        return self.env.get_state()

    def set_state(self, state: Any) -> None:
        """Take what `get_state()` has returned."""
        self.env.set_state(state)
