"""Check that two episodes are bit-identical in everything that they hold."""

from typing import Any

import numpy as np

from support.differences import Differences


class Copied(Differences):
    """Arrays that come back from a file may be written to, also where the others are read-only."""

    def outline(self, array: np.ndarray) -> str:
        return super().outline(array).removesuffix(" read-only")


def assert_same_episodes(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        assert_same_episode(one, other, f"chunk {i}")


def assert_same_episode(got: Any, want: Any, where: str = "chunk") -> None:
    """Raises AssertionError that says where they differ. Spaces and mapping functions are not compared."""
    theirs, ours = ({"state": each.get_state(), "waiting": each.get_waiting_infos()} for each in (want, got))
    line = next(Copied()(theirs, ours, where), None)
    assert line is None, line
