"""Determines from bytecode whether a policy mapping function reads only the id and times of its episode."""

import dis
import inspect
from collections.abc import Callable, Hashable, Iterator
from typing import Any

MappingFn = Callable[[Hashable, Any], str]  # (agent id, episode) -> module id
TIMES = {"id_", "env_t", "env_t_started"}
LOOKS_AT_FRAMES = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}


def reads_times_only(function: MappingFn) -> bool:
    """Return True if a mapping function can only read TIMES of its episode, or test whether the episode has steps.

    False if that cannot be proved: the episode is stored, compared or passed on, or the function has no bytecode.
    """
    code = getattr(function, "__code__", None)
    if code is None or LOOKS_AT_FRAMES & set(code.co_names):
        return False
    n_positional = code.co_argcount - hasattr(function, "__self__")
    names = code.co_varnames[code.co_argcount - n_positional :][:n_positional]
    if len(names) < 2:  # the episode is in *args
        rest = code.co_argcount + code.co_kwonlyargcount  # index of the name "args"
        return bool(code.co_flags & inspect.CO_VARARGS) and not any(_uses_of(code, code.co_varnames[rest]))
    return all(_asks_for_times(following) for following in _uses_of(code, names[1]))


def _uses_of(code: Any, name: str) -> Iterator[dis.Instruction | None]:
    """Yield the next instruction after each one that loads this argument, or None if the use is unclear."""
    if name in code.co_cellvars:
        yield None
        return
    instructions = list(dis.get_instructions(code))
    for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
        if "LOAD_FAST" not in instruction.opname:
            continue
        loaded = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if name in loaded:
            yield following if name not in loaded[:-1] else None


def _asks_for_times(following: dis.Instruction | None) -> bool:
    """Return True if the instruction only reads TIMES of the value, or tests whether it is None or has steps."""
    if following is None:
        return False
    operation = following.opname
    if operation in ("LOAD_ATTR", "LOAD_METHOD"):
        return following.argval in TIMES
    if operation == "LOAD_CONST":  # for a comparison: `is None`
        return following.argval is None
    return operation in ("TO_BOOL", "UNARY_NOT") or operation.startswith(("POP_JUMP_", "POP_JUMP_FORWARD_"))
