"""What all connectors by columns have in common."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from fastmarl.rllib.connectors.newest import Newest

Change = Callable[[], None]


class ColumnConnector:
    """Does what one of RLlib's connector pieces does, for all agents of a module at once, bit-identical.

    Args:
        piece: RLlib's, whose settings and state are used.

    Attributes:
        reads_steps: whether it looks at what agents have done and were paid, too.
    """

    reads_steps = False

    def __init__(self, piece: Any):
        self.piece = piece

    @property
    def space(self) -> gym.Space:
        """What the piece gives agents' episodes for their observation space."""
        space: gym.Space = self.piece.observation_space
        return space

    def rewrite(self, newest: list[Newest]) -> Change | None:
        """What puts others in the place of all modules' observations; None: RLlib's own code has to do that.

        Until it is called, nothing is changed.
        """
        changes = [self.rewrite_module(each) for each in newest]
        if None in changes:
            return None

        def make_all() -> None:
            for change in changes:
                assert change is not None
                change()

        return make_all

    def rewrite_module(self, newest: Newest) -> Change | None:
        """The same for one module, for connectors to which the order of agents means nothing."""
        raise NotImplementedError
