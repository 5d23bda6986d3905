"""The arguments of a `sample()` call."""

from typing import NamedTuple


class Request(NamedTuple):
    """Arguments of a `sample()` call; see `MultiAgentEnvRunner.sample()`.

    Attributes:
        explore: True or False, or None to use the configured value.
    """

    num_timesteps: int | None = None
    num_episodes: int | None = None
    explore: bool | None = None
    random_actions: bool = False
    force_reset: bool = False
