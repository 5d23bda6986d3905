"""Packed columns of files: plain data come back, and nothing that a file holds is run or ends the interpreter."""

import contextlib
import pickle
import random
import warnings
from collections import OrderedDict

import numpy as np
import pytest
from support.differences import assert_same
from support.forked import exit_code_of

from fastmarl.errors import BatchError
from fastmarl.legacy.batches.packing import unpickled

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
PLAIN = {
    "numbers": [
        np.arange(3),
        ARRAY,
        ARRAY.T,
        ARRAY[:, ::2],
        ARRAY.astype(">f8"),
        np.zeros((2, 0), np.int8),
        np.array(5),
    ],
    "bools and complex": [np.array([True, False]), np.array([1j]), np.float16([0.5])],
    "texts": [np.array(["ab", "ö"]), np.array([b"ab", b""]), "text", b"bytes"],
    "scalars": [np.float32(0.1), np.int64(-1), np.bool_(True), np.str_("x"), 1.5, 2**70, None, True],
    "nested": {"a": (ARRAY, [ARRAY, {"b": 1}]), "o": OrderedDict(x=ARRAY, y=OrderedDict())},
    "objects": np.array([{"a": ARRAY}, None, (1, np.array([{}, {"b": ARRAY.T}], object))], object),
    "shared": [ARRAY] * 3,
}


class Calls:
    """Pickled as a call."""

    def __init__(self, function, *args, state=None):
        self._reduced = function, args, state

    def __reduce__(self):
        return self._reduced


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("protocol", range(3, 6))
def test_plain_data_come_back(value, protocol):
    got = unpickled(pickle.dumps(value, protocol))
    assert_same(got, value, "value")


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
def test_arrays_of_other_versions_of_numpy(core):
    data = pickle.dumps(ARRAY, 3).replace(b"cnumpy._core", b"c" + core).replace(b"cnumpy.core", b"c" + core)
    assert_same(unpickled(data), ARRAY, "value")


def test_lists_and_dicts_that_hold_themselves():
    value = [1]
    value.append({"value": value})
    got = unpickled(pickle.dumps(value))
    assert got[1]["value"] is got
    value = ()
    for _ in range(50):  # 2 ** 50 items, if each place counts
        value = (value, value)
    got = unpickled(pickle.dumps(value))
    assert got[0] is got[1]


RECONSTRUCT = np.array([1]).__reduce__()[0]
SCALAR = np.float32(1).__reduce__()[0]
O8, F8 = np.dtype("O"), np.dtype("f8")
VOID = np.dtype([("a", "O")])
CRAFTED = {
    "an array of pointers": Calls(np.ndarray, (2,), "O", b"AAAAAAAA" * 2),
    "an array without memory": Calls(np.ndarray, (2**40,), "f8"),
    "another base class": Calls(RECONSTRUCT, np.ndarray, (2,), b"O"),
    "a state of pointers": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2,), O8, False, b"AAAAAAAA" * 2)),
    "fewer objects": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2**40,), O8, False, [1])),
    "fewer bytes": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (3,), F8, False, b"12345678")),
    "a negative size": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (-1, -1), F8, False, b"12345678")),
    "a size that is no int": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (True,), F8, False, b"12345678")),
    "fields": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1,), VOID, False, b"12345678")),
    "a scalar of a pointer": Calls(SCALAR, O8, b"AAAAAAAA"),
    "a scalar of an object": Calls(SCALAR, O8, [1]),
    "a scalar of fewer bytes": Calls(SCALAR, F8, b"A"),
    "a dtype": F8,
    "a dtype with a state": Calls(np.dtype, "V8", False, True, state=(3, "|", None, ("a",), {"a": (O8, 0)}, 8, 1, 27)),
    "a dtype of wrong sizes": Calls(np.dtype, "f8", False, True, state=(3, "<", (F8, (2,)), None, None, 2**40, 1, 0)),
    "texts without length": Calls(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2**40,), np.dtype("U0"), False, b"")),
    "a class": np.ndarray,
    "a function": Calls(eval, "1"),
    "another encoding": Calls(__import__("_codecs").encode, "", "zip"),
}


@pytest.mark.parametrize("value", CRAFTED.values(), ids=CRAFTED)
def test_crafted_pickles_are_an_error(value):
    with pytest.raises(BatchError, match="a packed column may contain only arrays, numbers and strings; this one"):
        unpickled(pickle.dumps(value))


def test_a_pickle_may_not_set_attributes():
    """BUILD sets attributes, also of functions and classes."""
    for name in (b"numpy\ndtype", b"numpy.core.multiarray\nscalar", b"numpy\nndarray"):
        for state in ({"_function": eval}, (None, {"_function": print, "__code__": 1})):
            data = b"c" + name + b"\n" + pickle.dumps(state, 2)[2:-1].replace(b"c__builtin__\neval\n", b"N")
            with pytest.raises(BatchError):
                unpickled(data.replace(b"c__builtin__\nprint\n", b"N") + b"b.")
    assert unpickled(pickle.dumps(ARRAY)).tolist() == ARRAY.tolist()


def test_a_pickle_that_claims_to_be_huge():
    """The memo of the unpickler in C would take 100 GB."""
    assert unpickled(b"\x80\x04K\x01r\xff\xff\xff\x7f.") == 1
    with pytest.raises((MemoryError, pickle.UnpicklingError, EOFError)):
        unpickled(b"\x80\x05\x96" + (2**60).to_bytes(8, "little") + b"x.")


def unpickle_random_bytes(seed, n):
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    values = [np.arange(3), np.array([{"a": 1}, "b"], object), (np.float32(1), np.array(["x"])), {"a": [b"x", None]}]
    for _ in range(n):
        data = bytearray(pickle.dumps(rng.choice(values), rng.choice([2, 4, 5])))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(Exception):
            repr(unpickled(bytes(data)))


def test_random_bytes_do_not_end_the_interpreter():
    seed = random.randrange(2**32)
    assert exit_code_of(unpickle_random_bytes, seed, 300) == 0, seed
