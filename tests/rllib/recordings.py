"""Records of runners that play a case: all that they hand out and leave behind, to be compared with another's."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from rllib.differential import tape
from support.differences import Differences, Lines, shared_memory


@dataclass
class Recording:
    """The results of all calls, what happened meanwhile, and the final state."""

    returned: list[Any] = field(default_factory=list)
    notes: tape.Tape = field(default_factory=dict)
    state: Any = None
    generators: Any = None
    """Where the global generators stand in the end."""
    is_accelerated: bool | None = None
    """None: RLlib's own class, or sample() did not come that far."""
    slow_path_reasons: Any = ()

    @contextmanager
    def taken_down(self) -> Iterator[None]:
        """Note what happens meanwhile, with global generators from fixed seeds; they come back, and torch's setting."""
        before, deterministic = generators(), torch.are_deterministic_algorithms_enabled()
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        self.notes = tape.start()
        try:
            yield
        finally:
            tape.start()  # who asks episodes afterwards leaves the run's notes alone
            self.generators = generators()
            torch.use_deterministic_algorithms(deterministic)
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            torch.set_rng_state(torch.from_numpy(before[2]))

    def note_path(self, runner: Any) -> None:
        """Note which loop the runner samples by."""
        self.is_accelerated = getattr(runner, "is_accelerated", None)
        self.slow_path_reasons = getattr(runner, "slow_path_reasons", ())

    def columns(self) -> Iterable[tuple[str, np.ndarray]]:
        """The returned arrays that must not share memory, with their paths."""
        return ()

    def differences(self, other: "Recording", compare: Differences) -> Lines:
        """One line for each difference from another's results."""
        for i, (theirs, ours) in enumerate(zip_longest(self.returned, other.returned)):
            yield from compare(theirs, ours, f"call {i}")
        for channel in self.notes:
            yield from compare.events(self.notes[channel], other.notes[channel], f"tape of {channel}")
        yield from compare(self.state, other.state, "get_state()")
        yield from compare(self.generators, other.generators, "global generators")
        for one, another in sorted(shared_memory(other.columns()) - shared_memory(self.columns())):
            yield f"{one} and {another} share memory"


def generators() -> list[Any]:
    """The states of all global generators."""
    return [random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()]  # noqa: NPY002
