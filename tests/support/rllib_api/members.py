"""Names of RLlib's API, read from the classes and their source."""

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.utils import framework

from support.api_tables import nodes_of, parameters_of

HAS_NO_DEFAULT = inspect.Parameter.empty
SPECIAL = {"__getitem__", "__init__", "__len__", "__repr__"}
CONFIGS = ("config", "self.config")


def members_of(cls: type) -> list[str]:
    """Return the public members of a class, and the special methods that it documents."""
    return [name for name in dir(cls) if not name.startswith("_") or (name in SPECIAL and name in vars(cls))]


def constructor_arguments() -> list[str]:
    """Return the arguments that RLlib's `EnvRunnerGroup` makes a runner with: the class names few of them."""
    calls = [node for node in nodes_of(EnvRunnerGroup._make_worker) if isinstance(node, ast.Call)]
    (arguments,) = [each.keywords for each in calls if ast.unparse(each.func) == "dict"]
    return [str(each.arg) for each in arguments]


def config_fields() -> list[str]:
    """Return the fields of a config that the runner reads, itself or through methods and properties of the config."""
    found, unread = set(), {*_read_by_the_runner()}
    while unread:
        name = unread.pop()
        found.add(name)
        member = inspect.getattr_static(AlgorithmConfig, name, None)
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            unread |= {*_attributes(nodes_of(function), ("self",))} - found
    public = {
        name.removeprefix("_") for name in found
    }  # `env_to_module_connector` is kept as `_env_to_module_connector`
    return sorted(public & _options())


def _options() -> set[str]:
    """Return what the methods of a config take, and its public attributes and properties."""
    methods = [method for name, method in inspect.getmembers(AlgorithmConfig, inspect.isfunction) if name[0] != "_"]
    taken = {name for method in methods for name in parameters_of(method)}
    properties = {name for name, _ in inspect.getmembers(AlgorithmConfig, lambda member: isinstance(member, property))}
    return {name for name in taken | properties | vars(AlgorithmConfig()).keys() if name[0] != "_"}


def _read_by_the_runner() -> Iterator[str]:
    nodes = [*nodes_of(EnvRunner, MultiAgentEnvRunner, framework.get_device)]
    yield from _attributes(nodes, CONFIGS)
    for node in nodes:  # getattr(self.config, f"callbacks_{which}")
        if isinstance(node, ast.Call) and ast.unparse(node).startswith("getattr(self.config, f'callbacks_"):
            for event in ("created", "start", "step", "end"):
                yield f"callbacks_on_episode_{event}"


def _attributes(nodes: Any, owners: tuple[str, ...]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) in owners:
            yield node.attr


def check_parameter(theirs: Any, ours: Any, name: str) -> None:
    """Raise AssertionError unless an argument of RLlib's method is one of ours, of the same kind and default."""
    want, got = parameters_of(theirs)[name], parameters_of(ours)[name]
    assert got.kind == want.kind, (got.kind, want.kind)
    assert want.default in (HAS_NO_DEFAULT, got.default), (got.default, want.default)
    if want.kind is want.POSITIONAL_OR_KEYWORD:
        places = [list(parameters_of(each)).index(name) for each in (theirs, ours)]
        assert places[0] == places[1], places


def check_added(theirs: Any, ours: Any) -> None:
    """Raise AssertionError if our method needs an argument that RLlib's does not have."""
    known = parameters_of(theirs)
    needed = [each.name for each in parameters_of(ours).values() if each.default is HAS_NO_DEFAULT]
    assert set(needed) <= known.keys(), needed
