"""Tables of RLlib's API: rows that are checked on two faces."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

Rows = Iterable[tuple[str, Callable[[], Any]]]
"""(name, check): a check runs what it is about on both faces, and raises if one lacks it or answers otherwise."""

OF_ONE = ("id_", "t", "t_started", "is_terminated", "is_truncated", "agent_id", "module_id", "multi_agent_episode_id")
OF_MANY = ("id_", "env_t", "env_t_started", "is_terminated", "is_truncated")
BUFFERS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")


def failed(rows: Rows) -> dict[str, Exception]:
    """Run the checks, and return the errors of those that don't hold."""
    errors = {}
    for name, check in rows:
        try:
            check()
        except Exception as error:
            errors[name] = error
    return errors


def parameters_of(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a method.

    Ray adds a parameter of its own, `_ray_trace_ctx`, to the methods of each class it has made an actor of.
    """
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(method).parameters.values()
    return {
        each.name: each
        for each in parameters
        if each.name not in ("self", "_ray_trace_ctx") and each.kind not in variadic
    }


def nodes_of(*objects: Any) -> Iterator[ast.AST]:
    """Yield the syntax of classes and functions."""
    for each in objects:
        yield from ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each))))


def plain(value: Any) -> Any:
    """Lists, dicts and numbers, whatever classes they were of; an episode as a dict of what is in it."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if hasattr(value, "policy_batches"):
        return plain(value.policy_batches)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "agent_episodes"):
        made = plain({name: getattr(value, name) for name in (*OF_MANY, "agent_episodes")})
        for part in made["agent_episodes"].values():
            del part["id_"]  # random, where none was given
        return made
    if hasattr(value, "multi_agent_episode_id"):
        return plain({name: getattr(value, name) for name in (*OF_ONE, *BUFFERS)})
    if hasattr(value, "lookback"):
        return [plain(value.data), value.lookback]
    return value
