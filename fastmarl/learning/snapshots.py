"""Snapshots of the Python state reachable by the forward pass of a module, for detecting changes."""

import operator
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastmarl.core.nets.dense_layers import NotDenseError

MOST_OBJECTS = 5000
MOST_BYTES = 1024  # maximum size of arrays compared by value
LIBRARIES = {"torch", "numpy", "gymnasium", "fastmarl", "ray"}  # without state that a user forward pass changes
DATA = ("types", "argparse", "collections", "dataclasses")  # Python modules with classes whose objects have such state
ATOMS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, np.generic, np.dtype, types.ModuleType)
COUNTING = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
CACHED = type(lru_cache(len))
WRAPPERS = (types.MethodType, types.BuiltinMethodType, staticmethod, classmethod, property, partial, CACHED)
PARTS = ("__self__", "__func__", "__wrapped__", "fget", "fset", "func", "args", "keywords")
MISSING = object()

Change = tuple[str, int]


class Snapshot:
    """State of a module, of the objects it contains, and of the functions and global variables used by its methods.

    Objects are compared by identity, tensors by version. Values of trained parameters are ignored.

    Args:
        module: The module.
        excluded: Parts to ignore, as returned by `changes()`.

    Raises:
        NotDenseError: If the module contains too many objects, or one whose changes cannot be detected.
    """

    def __init__(self, module: nn.Module, excluded: Collection[Change] = ()):
        reached = _Reached(module)
        self._dicts = [each for k, each in enumerate(reached.dicts) if ("dict", k) not in excluded]
        self._containers = [each for k, each in enumerate(reached.containers) if ("container", k) not in excluded]
        self._variables = [each for k, each in enumerate(reached.variables) if ("variable", k) not in excluded]
        self._tensors, self._arrays = reached.tensors, reached.arrays
        self._excluded = frozenset(excluded)
        self._before = self._copies()
        self._items, self._numbers = self._read()

    def is_same(self) -> bool:
        """Return True if nothing has changed since the snapshot."""
        items, numbers = self._read()
        return numbers == self._numbers and all(map(operator.is_, items, self._items))

    def changes(self) -> set[Change]:
        """Return all changes except in tensors and arrays, in a form that also applies to copies of the module."""
        kinds = ("dict", "container", "variable")
        return {
            (kind, k)
            for kind, before, now in zip(kinds, self._before, self._copies(), strict=True)
            for k, (one, other) in enumerate(zip(before, now, strict=True))
            if not _are_same(one, other)
        } | self._excluded

    def restore(self) -> None:
        """Restore changed items and attributes. Values in tensors and arrays are not restored."""
        dicts, containers, variables = self._before
        for each, items in zip(self._dicts, dicts, strict=True):
            if not _are_same([*each, *each.values()], items):
                each.clear()
                each.update(zip(items[: len(items) // 2], items[len(items) // 2 :], strict=True))
        for held, items in zip(self._containers, containers, strict=True):
            if not _are_same([*held], items):
                held.clear()
                (held.update if isinstance(held, set) else held.extend)(items)
        for variable, items in zip(self._variables, variables, strict=True):
            if not _are_same(variable.read(), items):
                variable.write(items)

    def _read(self) -> tuple[list[Any], list[Any]]:
        """Return the parts compared by identity, and the parts compared by value."""
        items: list[Any] = []
        for each in self._dicts:
            items += each
            items += each.values()
        for held in self._containers:
            items += held
        for variable in self._variables:
            items += variable.read()
        versions = [tensor._version for tensor in self._tensors]
        arrays = [array.tobytes() for array in self._arrays]
        return items, [len(items), *map(len, self._dicts), *map(len, self._containers), *versions, *arrays]

    def _copies(self) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
        dicts = [[*each, *each.values()] for each in self._dicts]
        return dicts, [[*each] for each in self._containers], [each.read() for each in self._variables]


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


class Variables:
    """Variables or attributes that are not items of a dict or container.

    Args:
        read: Function that returns the values.
        write: Function that sets the values.
    """

    def __init__(self, read: Callable[[], list[Any]], write: Callable[[list[Any]], None] = lambda values: None):
        self.read, self.write = read, write


class _Reached:
    """The dicts, containers, variables, tensors and arrays reachable from an object."""

    def __init__(self, root: Any):
        self.dicts: list[dict[Any, Any]] = []
        self.containers: list[Any] = []
        self.variables: list[Variables] = []
        self.tensors: list[Tensor] = []
        self.arrays: list[np.ndarray] = []
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that their ids are not reused
        self._waiting: deque[Any] = deque([root])
        while self._waiting:
            each = self._waiting.popleft()
            if each is not None and not isinstance(each, ATOMS) and id(each) not in self._seen:
                self._seen[id(each)] = each
                self._visit(each)
                if len(self._seen) > MOST_OBJECTS:
                    raise NotDenseError(f"it contains more than {MOST_OBJECTS:,} objects")

    def _visit(self, each: Any) -> None:
        if isinstance(each, Tensor):
            self._visit_tensor(each)
        elif isinstance(each, dict):
            self.dicts.append(each)
            self._waiting += each.values()
        elif isinstance(each, (list, set, deque)):
            self.containers.append(each)
            self._waiting += each
        elif isinstance(each, (tuple, frozenset)):
            self._waiting += each
        elif isinstance(each, np.ndarray):
            self.arrays += [each] if each.nbytes <= MOST_BYTES and each.dtype != object else []
        elif isinstance(each, type):
            self._visit_class(each)
        elif isinstance(each, types.FunctionType):
            self._visit_function(each)
        elif isinstance(each, WRAPPERS):
            self._waiting += [getattr(each, name, None) for name in PARTS]
        else:
            self._visit_instance(each)

    def _visit_tensor(self, tensor: Tensor) -> None:
        self.variables.append(Variables(lambda: [tensor.requires_grad, tensor._backward_hooks]))
        if not tensor.is_inference() and not (isinstance(tensor, nn.Parameter) and tensor.requires_grad):
            self.tensors.append(tensor)

    def _visit_instance(self, each: Any) -> None:
        if hasattr(type(each), "__next__") or isinstance(each, COUNTING):
            raise NotDenseError(f"it uses a {type(each).__name__}, whose changes can't be detected")
        if isinstance(each, nn.Module) or type(each).__module__ in DATA or not _is_of_library(type(each).__module__):
            slots = [name for base in type(each).__mro__ for name in _slots_of(base)]
            read = partial(_attributes, each, ["__class__", *slots])
            self.variables.append(Variables(read))
            self._waiting += [getattr(each, "__dict__", None), *read()]

    def _visit_class(self, each: type) -> None:
        self._waiting += each.__bases__
        if not _is_of_library(each.__module__):
            names = [*vars(each)]
            read = partial(_variables, vars(each), names)
            self.variables.append(Variables(lambda: [len(vars(each)), *read()], partial(_write_class, each, names)))
            self._waiting += read()

    def _visit_function(self, each: types.FunctionType) -> None:
        if _is_of_library(each.__module__):
            return
        self.variables.append(Variables(partial(_attributes, each, ["__code__", "__defaults__", "__kwdefaults__"])))
        self._waiting += [vars(each), each.__defaults__, each.__kwdefaults__]
        for cell in each.__closure__ or ():
            read = partial(_read_cell, cell)
            self.variables.append(Variables(read, partial(_write_cell, cell)))
            self._waiting += read()
        self._visit_variables(each.__globals__, [*dict.fromkeys(_names_in(each.__code__))])

    def _visit_variables(self, variables: dict[str, Any], names: list[str]) -> None:
        """Visit the global variables with these names, also in user modules that are among these variables."""
        used = [name for name in names if name in variables]
        read = partial(_variables, variables, used)
        self.variables.append(Variables(read, partial(_write_variables, variables, used)))
        self._waiting += read()
        for value in read():
            is_file = isinstance(value, types.ModuleType) and not _is_of_library(value.__name__)
            if is_file and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit_variables(vars(value), names)


def _attributes(each: Any, names: list[str]) -> list[Any]:
    return [getattr(each, name, MISSING) for name in names]


def _variables(variables: Any, names: list[str]) -> list[Any]:
    return [variables.get(name, MISSING) for name in names]


def _read_cell(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is empty
        return [MISSING]


def _write_cell(cell: types.CellType, values: list[Any]) -> None:
    if values[0] is not MISSING:
        cell.cell_contents = values[0]


def _write_variables(variables: dict[str, Any], names: list[str], values: list[Any]) -> None:
    variables.update(zip(names, values, strict=True))


def _write_class(each: type, names: list[str], values: list[Any]) -> None:
    for name in vars(each).keys() - set(names):
        delattr(each, name)
    for name, value in zip(names, values[1:], strict=True):
        if vars(each).get(name, MISSING) is not value:
            setattr(each, name, value)


def _slots_of(base: type) -> list[str]:
    slots = vars(base).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [*slots]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the variables and attributes used by a function."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


@cache
def _is_of_library(name: str | None) -> bool:
    """Return True for modules of the standard library and of installed packages."""
    root = (name or "builtins").partition(".")[0]
    path = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in LIBRARIES or root in sys.stdlib_module_names or "site-packages" in path or "dist-packages" in path
