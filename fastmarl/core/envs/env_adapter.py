"""What adapters of environments have in common."""

from typing import Any


class EnvAdapter:
    """Passes on what an adapter does not change.

    Attributes:
        env: what is adapted.
    """

    env: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    @property
    def unwrapped(self) -> Any:
        """The adapted env, without its wrappers."""
        return self.env.unwrapped

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
