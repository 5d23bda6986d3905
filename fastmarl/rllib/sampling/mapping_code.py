"""What a policy mapping function can read of the episode that it is given, by its bytecode."""

import dis
import inspect
from collections.abc import Iterator
from typing import Any

from fastmarl.rllib.episodes.in_the_making import MappingFn

KNOWN = {"id_", "env_t", "env_t_started"}
LOOKS_AT_FRAMES = {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"}


class EpisodeTimes:
    """Stands for an episode whose reader asks for no more than this, and whether it has steps.

    Attributes:
        id_: the episode's.
        env_t_started, env_t: env steps before the chunk, and up to now.
    """

    __slots__ = ("env_t", "env_t_started", "id_")

    def __init__(self, id_: str, env_t_started: int, env_t: int):
        self.id_ = id_
        self.env_t_started = env_t_started
        self.env_t = env_t

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"policy_mapping_fn reads {name!r} of the episode in a way that its bytecode does not show; "
            "hand the episode to a function, which reads it there, and policy_mapping_fn is given the whole of it"
        )


def reads_times_only(function: MappingFn) -> bool:
    """Whether all that a mapping function can see of its episode is what `EpisodeTimes` has, by its bytecode.

    False where that can't be proven: the episode is stored, compared or handed on, or the function has no bytecode.
    """
    code = getattr(function, "__code__", None)
    if code is None or LOOKS_AT_FRAMES & set(code.co_names):
        return False
    n_positional = code.co_argcount - hasattr(function, "__self__")
    names = code.co_varnames[code.co_argcount - n_positional :][:n_positional]
    if len(names) < 2:  # then it is in *args
        rest = code.co_argcount + code.co_kwonlyargcount  # place of this name
        return bool(code.co_flags & inspect.CO_VARARGS) and not any(_uses_of(code, code.co_varnames[rest]))
    return all(_asks_for_times(following) for following in _uses_of(code, names[1]))


def _uses_of(code: Any, name: str) -> Iterator[dis.Instruction | None]:
    """For each instruction that loads this argument, what is done with it next; None: it can't be told."""
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
    """Whether what was loaded before is only asked for what `EpisodeTimes` has, whether it is None, or has steps."""
    if following is None:
        return False
    operation = following.opname
    if operation in ("LOAD_ATTR", "LOAD_METHOD"):
        return following.argval in KNOWN
    if operation == "LOAD_CONST":  # of a comparison: `is None`
        return following.argval is None
    return operation in ("TO_BOOL", "UNARY_NOT") or operation.startswith(("POP_JUMP_", "POP_JUMP_FORWARD_"))
