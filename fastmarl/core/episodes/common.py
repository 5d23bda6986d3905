"""Base class of single-agent and multi-agent episodes."""

from typing import Any, Self

OF_OBSERVATIONS = ("observations", "infos")  # these columns have one more item than the others


class Episode:
    """A sequence of transitions, preceded by a lookback, that can be sliced."""

    __slots__ = ()

    id_: Any  # a string
    lookback: int
    is_terminated: bool
    is_truncated: bool

    @property
    def is_done(self) -> bool:
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        return True

    @property
    def is_finalized(self) -> bool:
        """RLlib's deprecated name for `is_numpy`."""
        return self.is_numpy

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, item: slice) -> Self:
        if not isinstance(item, slice):
            raise NotImplementedError(f"episodes only support slices, such as episode[2:5], got index {item!r}")
        sliced: Self = self.slice(item)
        return sliced

    @property
    def custom_data(self) -> dict[str, Any]:
        raise NotImplementedError

    def env_steps(self) -> int:
        return len(self)

    def validate(self) -> None:
        raise NotImplementedError

    def finalize(self) -> Self:
        """RLlib's deprecated name for `to_numpy()`."""
        return self

    def to_numpy(self) -> Self:
        """Return this episode unchanged, since its columns are always arrays."""
        return self

    def add_temporary_timestep_data(self, key: str, data: Any) -> None:
        """Append `data` to the list `custom_data[key]` (deprecated RLlib API)."""
        self.custom_data.setdefault(key, []).append(data)

    def get_temporary_timestep_data(self, key: str) -> list[Any]:
        """Return the list `custom_data[key]`.

        Raises:
            KeyError: If no data was added under this key.
        """
        data: list[Any] = self.custom_data[key]
        return data

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Any:
        raise NotImplementedError

    def _bounds(self, slice_: Any, len_lookback_buffer: int | None) -> tuple[int, int, int]:
        """Return the (first step, end, lookback) of the slice that `slice()` creates."""
        if slice_.step not in (None, 1):
            raise NotImplementedError(f"the step of an episode slice must be 1, got {slice_.step}")
        start, stop, _ = slice_.indices(len(self))
        wanted = self.lookback if len_lookback_buffer is None else len_lookback_buffer
        return start, max(start, stop), min(wanted, self.lookback + start)
