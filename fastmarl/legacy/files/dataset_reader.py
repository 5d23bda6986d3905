"""A reader of batches stored as rows of a dataset."""

import random
from collections.abc import Iterator
from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.legacy.files.interfaces import InputReader, IOContext
from fastmarl.legacy.files.json_format import from_record


@public("fastmarl.legacy")
class DatasetReader(InputReader):
    """Reads the rows of a dataset endlessly in random order; each row is a batch with the structure of a JSON line.

    Args:
        ds: `ray.data.Dataset`, or a sequence of dicts such as {"type": "SampleBatch", "obs": [...], ...}.
        ioctx: IOContext of the worker whose policies use the batches.

    Attributes:
        count: Number of rows.

    Raises:
        ConfigError: If there are no rows.
    """

    def __init__(self, ds: Any, ioctx: IOContext | None = None):
        self._ds, self._ioctx = ds, ioctx or IOContext()
        self.count: int = ds.count() if hasattr(ds, "iter_rows") else len(ds)
        if not self.count:
            raise ConfigError("the dataset has no rows")
        self._seed = None if self._ioctx.config is None else self._ioctx.config.seed
        self._rows = self._endless()

    def _endless(self) -> Iterator[Any]:
        draws = random.Random(self._seed)
        while True:
            if hasattr(self._ds, "iter_rows"):
                yield from self._ds.random_shuffle(seed=self._seed).iter_rows()
            else:
                yield from draws.sample(list(self._ds), self.count)

    def next(self) -> Any:
        """Return the batch in the next row.

        Raises:
            BatchError: If the row contains no batch.
        """
        return from_record(next(self._rows), self._ioctx.spaces())
