"""What episodes of one agent and of many have in common."""

from typing import Any, Self

OF_OBSERVATIONS = ("observations", "infos")  # these columns have one item more than the others


class Episode:
    """Transitions, with lookback before them; can be sliced."""

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
        """The old name of `is_numpy`."""
        return self.is_numpy

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, item: slice) -> Self:
        if not isinstance(item, slice):
            raise NotImplementedError(f"an episode can be sliced, as in episode[2:5], but not indexed with {item!r}")
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
        """The old name of `to_numpy`."""
        return self

    def to_numpy(self) -> Self:
        """Itself: the columns are arrays from the start."""
        return self

    def add_temporary_timestep_data(self, key: str, data: Any) -> None:
        """Append to the list `custom_data[key]`: RLlib's older name for that."""
        self.custom_data.setdefault(key, []).append(data)

    def get_temporary_timestep_data(self, key: str) -> list[Any]:
        """The list `custom_data[key]`.

        Raises:
            KeyError: nothing was added.
        """
        data: list[Any] = self.custom_data[key]
        return data

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Any:
        raise NotImplementedError

    def _bounds(self, slice_: Any, len_lookback_buffer: int | None) -> tuple[int, int, int]:
        """(first step of a slice, its end, its lookback), as `slice()` is asked for it."""
        if slice_.step not in (None, 1):
            raise NotImplementedError(f"an episode can't be sliced with a step of {slice_.step}; only 1")
        start, stop, _ = slice_.indices(len(self))
        wanted = self.lookback if len_lookback_buffer is None else len_lookback_buffer
        return start, max(start, stop), min(wanted, self.lookback + start)
