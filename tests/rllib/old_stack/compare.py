"""Lists what is not bit-identical between two runs of the old stack: a readable line a difference, with the path to it.

Compared are types, orders of keys, dtypes, shapes, bytes, whether an array is read-only, and all attributes of batches.
What is not, and why that is harmless:

- Ids (`eps_id`, `unroll_id`, episode_id; also in texts of errors and in files): RLlib draws the one kind at random and
  counts the other in a variable of the class, so that they mean nothing beyond being equal or not. They must pair up
  one to one over the whole run: in batches, on the tape, in files.
- The clock (`perf_stats`, `connector_metrics`): readings differ between two runs of RLlib. Names, their order and
  types must be equal; a reading must be NaN where RLlib's is, and else not negative.
- Addresses of objects in texts: another one in each run.
- Names of files that writers make: they hold the time of day. Their number, the index in their names and all that is
  in them are compared.
- Default factories, and functions: each run makes its own. Factories must give the same, functions have the same
  qualified name.
- Strides: no value depends on them.
- Private state that no public call shows: the collectors for inference in ViewRequirementAgentConnector and the
  generator within SyncSampler. What they lead to is in every later batch; what collectors of episodes hold is read by
  the callbacks "collectors" alone.

What RLlib does not do twice alike. Against itself it differs in none of the random cases 0 to 299 as they are, and in
19 of 60 if policies' spaces are left unseeded, in the columns new_obs and actions and all that follows from them:

- Observations that it makes up for agents that the end of an episode leaves without one: drawn from the policy's
  space, which is unseeded by default. Here all spaces are seeded before the worker is made; the states of their
  generators are compared at the end, as RLlib draws from them for default actions, too.
- Random actions of the exploration `Random`, which draws them from the policy's action space: seeded, as above.
- Draws from nested observation spaces by RLlib's models: a model makes a preprocessor, which draws, for each call, once
  a process has had 999 such spaces (`modelv2._cache`). Here each run begins with none.
- The order of policies whose names come out of a set (`policy_map.keys()`): within one process it is the same.
"""

import inspect
import re
import threading
from typing import Any

import numpy as np
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from rllib.differential.tape import ID_COLUMNS, Id
from support.differences import Differences, Lines

STATE_BUFFER = "StateBufferConnector"
LONG_NUMBER = re.compile(r"\b\d{12,18}\b")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
ATOMS = (str, bytes, bool, int, float, complex, type(None), np.generic)
LOCKS = (type(threading.Lock()), type(threading.RLock()))


class Text(str):
    """A text in which ids and addresses may occur."""


class Comparison(Differences):
    """Compares two runs part by part."""

    def __init__(self) -> None:
        super().__init__(
            (SampleBatch, self._sample_batches),
            (MultiAgentBatch, self.attributes),
            (RolloutMetrics, self._metrics),
            (Id, self._ids),
            (Text, self._texts),
            (AlgorithmConfig, self._configs),
            (type, self.values),
            (LOCKS, self._types),
            (ATOMS, self.values),
        )

    def rest(self, want: Any, got: Any, path: str) -> Lines:
        """Functions by name, and other objects by their attributes."""
        if inspect.isroutine(want) or callable(want):
            theirs, ours = (getattr(one, "__qualname__", type(one).__qualname__) for one in (want, got))
            yield from self.values(theirs, ours, path)
        elif hasattr(want, "__dict__"):
            yield from self.attributes(want, got, path)
        else:
            yield from self.values(want, got, path)

    def _ids(self, want: Id, got: Id, path: str) -> Lines:
        yield from self.values(want.kind, got.kind, path)
        yield from self.pairs(want, got, path)

    def entry(self, name: Any, want: Any, got: Any, path: str) -> Lines:
        return self._id_columns(want, got, path, name) if name in ID_COLUMNS else self(want, got, path)

    def _id_columns(self, want: Any, got: Any, path: str, kind: str) -> Lines:
        if not (_are_ids(want) and _are_ids(got)) or type(want) is not type(got):
            yield from self(want, got, path)
            return
        theirs, ours = np.asarray(want), np.asarray(got)
        if self.outline(theirs) != self.outline(ours):
            yield f"{path}: {self.outline(theirs)} / {self.outline(ours)}"
            return
        for i, (one, other) in enumerate(zip(theirs.ravel().tolist(), ours.ravel().tolist(), strict=True)):
            lines = [*self._ids(Id(kind, one), Id(kind, other), f"{path}[{i}]")]
            if lines:
                yield from lines
                return

    def _sample_batches(self, want: SampleBatch, got: SampleBatch, path: str) -> Lines:
        yield from self.dicts(want, got, path)
        yield from self.dicts(vars(want), vars(got), f"{path}.__dict__")

    def _metrics(self, want: RolloutMetrics, got: RolloutMetrics, path: str) -> Lines:
        for name in want._fields:
            theirs, ours, at = getattr(want, name), getattr(got, name), f"{path}.{name}"
            rule = self.clocks if name in ("perf_stats", "connector_metrics") else self
            yield from rule(theirs, ours, at)

    def _configs(self, want: AlgorithmConfig, got: AlgorithmConfig, path: str) -> Lines:
        yield from self.values(want._is_frozen, got._is_frozen, f"{path}._is_frozen")
        yield from self.dicts(want.to_dict(), got.to_dict(), path)

    def factories(self, want: Any, got: Any, path: str) -> Lines:
        """Compare the objects that factories make; classes must be the same."""
        if any(one is None or isinstance(one, type) for one in (want, got)):
            yield from self.values(want, got, path)
        else:
            yield from self(want(), got(), f"{path}()")

    def sequences(self, want: Any, got: Any, path: str) -> Lines:
        if len(want) == 2 == len(got) and {*map(type, (*want, *got))} == {str, bytes} and want[0] == STATE_BUFFER:
            yield from self(cloudpickle.loads(want[1]), cloudpickle.loads(got[1]), f"{path}[states]")
        else:
            yield from super().sequences(want, got, path)

    def _texts(self, want: Text, got: Text, path: str) -> Lines:
        theirs, ours = (LONG_NUMBER.findall(text) for text in (want, got))
        for one, other in zip(theirs, ours, strict=False):
            yield from self._ids(Id("eps_id", int(one)), Id("eps_id", int(other)), path)
        plain = [ADDRESS.sub("0x", LONG_NUMBER.sub("<id>", text)) for text in (want, got)]
        if plain[0] != plain[1]:
            yield f"{path}: {self.short(plain[0])} / {self.short(plain[1])}"

    def _types(self, want: Any, got: Any, path: str) -> Lines:
        yield from ()


def _are_ids(column: Any) -> bool:
    if isinstance(column, list):
        return all(type(one) is int for one in column)
    return isinstance(column, np.ndarray) and column.dtype.kind in "iuf"
