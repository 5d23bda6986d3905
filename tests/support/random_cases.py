"""Random cases by seed: which ones a run of pytest plays, and what one that fails says."""

import os
from collections.abc import Callable, Sequence
from typing import Any

MOST_LINES = 10


def number_of_cases(usual: int, most: int | None = None) -> int:
    """How many random cases a test plays: the usual number, or FASTMARL_FUZZ_CASES; at most as many as there are."""
    n = int(os.environ.get("FASTMARL_FUZZ_CASES", usual))
    return n if most is None else min(n, most)


class RandomCases:
    """The cases of a file of tests.

    Attributes:
        first, n: the seeds, from the environment variables `<prefix>_FIRST_SEED` and `<prefix>_CASES`.
        alone: the seed that `test_alone` plays, from `<prefix>_SEED`.
        raised: kind and seed of cases in which RLlib itself raises -> its error.

    Args:
        usual: how many cases there are by default.
    """

    def __init__(self, usual: int, prefix: str = "FASTMARL_FUZZ"):
        self._prefix = prefix
        self.n = int(os.environ.get(f"{prefix}_CASES", usual))
        self.first = int(os.environ.get(f"{prefix}_FIRST_SEED", 0))
        self.alone = int(os.environ.get(f"{prefix}_SEED", self.first))
        self._played: set[tuple[str, int]] = set()
        self.raised: dict[tuple[str, int], str] = {}

    def seeds(self, share: int = 1) -> range:
        """All seeds; or the first half of them, the first third, ..., and one at least."""
        return range(self.first, self.first - (-self.n // share))

    def batch(self, i: int, n_batches: int) -> range:
        """The seeds of one of several tests that share all of them."""
        return range(self.first + i, self.first + self.n, n_batches)

    def was_played(self, make_case: Callable[[int], Any], seed: int, error: BaseException | None) -> bool:
        """Note a case, and whether RLlib raises in it."""
        kind = make_case.__name__
        self._played.add((kind, seed))
        if error is not None:
            self.raised[kind, seed] = f"{type(error).__name__}: {error!s:.120}"
        return error is None

    def assert_few_raised(self, most: float, n_batches: int) -> None:
        """The cases keep to what RLlib takes, so that something was compared."""
        assert len(self.raised) <= most * max(len(self._played), n_batches), self.raised

    def assert_none(self, lines: Sequence[str], seed: int, case: Any, cause: BaseException | None = None) -> None:
        """Raises AssertionError with the differences, and how to see them again."""
        test = os.environ["PYTEST_CURRENT_TEST"].split("[")[0].split(" ")[0]
        again = f"{self._prefix}_FIRST_SEED={seed} {self._prefix}_CASES=1 pytest {test}"
        order = "the order of string ids depends on PYTHONHASHSEED"
        if lines:
            text = "\n".join([f"seed {seed}; again: {again} ({order})", *lines[:MOST_LINES], repr(case)])
            raise AssertionError(text) from cause
