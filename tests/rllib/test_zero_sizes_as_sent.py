"""Columns of arrays without elements, gathered and viewed for RLlib's episodes."""

import numpy as np
import pytest

from fastmarl.core.native import _rllib_episodes as compiled

SHAPES = [(0,), (0, 300), (300, 0)]


def amid(byte, shape):
    """(memory full of this byte, an array in its middle)."""
    memory = np.full(1 << 16, byte, np.uint8)
    return memory, np.ndarray(shape, np.float64, memory.data, 1 << 15)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gathering_nothing_writes_nothing(shape):
    (_, rows), (_, finals) = amid(1, (4, *shape)), amid(1, (4, *shape))
    memory, gathered = amid(0xAB, (4, *shape))
    compiled.with_finals(rows, finals, np.array([0, 2, 1]), np.array([2, 1]), np.array([3, -1]), gathered)
    assert (memory == 0xAB).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_views_of_nothing_are_known_again(shape):
    _, column = amid(0, (9, *shape))
    part = compiled.view(column, 3, 7)
    assert part.shape == (4, *shape)
    assert compiled.is_slice(part, column, 3, 7)
    assert compiled.is_slice(column[3:7], column, 3, 7)
    assert not compiled.is_slice(part, column, 3, 8)
    assert not compiled.is_slice(part.view(np.int64), column, 3, 7)


def test_arrays_of_other_byte_order_are_no_slices():
    column = np.arange(6.0)
    assert compiled.is_slice(column[2:4], column, 2, 4)
    assert not compiled.is_slice(column[2:4].view(">f8"), column, 2, 4)


def test_views_of_more_axes_than_fit():
    column = np.arange(4.0).reshape(4, *[1] * 39)
    np.testing.assert_array_equal(compiled.view(column, 1, 3), column[1:3])
