"""Check that two episodes are bit-identical in everything that they hold."""

import struct
from typing import Any

import numpy as np


def assert_same_episodes(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        assert_same_episode(one, other, f"chunk {i}")


def assert_same_episode(got: Any, want: Any, where: str = "chunk") -> None:
    """Raises AssertionError that says where they differ. Spaces and mapping functions are not compared."""
    assert_same(got.get_state(), want.get_state(), where)
    assert_same(got.get_waiting_infos(), want.get_waiting_infos(), f"{where}, infos of those who wait")


def assert_same(got: Any, want: Any, where: str) -> None:
    """Check for equal types, order of keys, dtypes, shapes and bits."""
    assert type(got) is type(want), f"{where}: {got!r} instead of {want!r}"
    if isinstance(want, dict):
        assert [(type(key), key) for key in got] == [(type(key), key) for key in want], f"{where}: {list(got)}"
        for key, value in want.items():
            assert_same(got[key], value, f"{where}[{key!r}]")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), f"{where}: {got!r} instead of {want!r}"
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    elif isinstance(want, np.ndarray) and want.dtype == object:
        assert got.dtype == object and got.shape == want.shape, where
        assert_same(got.tolist(), want.tolist(), where)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{where}: {got.dtype} {got.shape}"
        assert got.tobytes() == want.tobytes(), f"{where}: {got!r} instead of {want!r}"
    elif isinstance(want, float):
        assert struct.pack("d", got) == struct.pack("d", want), f"{where}: {got!r} instead of {want!r}"
    else:
        assert got == want, f"{where}: {got!r} instead of {want!r}"
