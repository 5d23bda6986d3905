"""Common base of environment adapters."""

from typing import Any


class EnvAdapter:
    """Base class of env adapters; forwards rendering, closing and `unwrapped` to the env.

    Attributes:
        env: The adapted env.
    """

    env: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    @property
    def unwrapped(self) -> Any:
        """The adapted env without its wrappers."""
        return self.env.unwrapped

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()
