"""Input readers and output writers that users combine with a worker's sampler."""

from collections.abc import Callable
from typing import Any

from ray.rllib.offline import InputReader, IOContext, OutputWriter
from rllib.differential import tape
from rllib.differential.tape import freeze


class Wrapped(InputReader):
    """RLlib's sampler, each second batch left out."""

    def __init__(self, context: IOContext) -> None:
        self.sampler = context.default_sampler_input()

    def next(self) -> Any:
        self.sampler.next()
        return self.sampler.next()


class Noting(OutputWriter):
    """Writes down what it is given."""

    def write(self, sample_batch: Any) -> None:
        parts = {name: dict(part) for name, part in sample_batch.policy_batches.items()}
        tape.note("pieces", "written", sample_batch.count, freeze(parts))


def _wrapped(context: IOContext) -> InputReader:
    return Wrapped(context)


def _noting(context: IOContext) -> OutputWriter:
    return Noting()


READERS: dict[str, str | Callable[[IOContext], InputReader]] = {"sampler": "sampler", "wrapped": _wrapped}
WRITERS: dict[str, Callable[[IOContext], OutputWriter]] = {"noting": _noting}
