"""Public members of RLlib's classes, read from RLlib itself."""

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.env_context import EnvContext
from ray.rllib.evaluation.env_runner_v2 import EnvRunnerV2
from ray.rllib.evaluation.episode_v2 import EpisodeV2
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.offline.io_context import IOContext
from ray.rllib.offline.json_reader import JsonReader
from ray.rllib.offline.json_writer import JsonWriter
from ray.rllib.offline.mixed_input import MixedInput
from ray.rllib.offline.shuffled_input import ShuffledInput
from ray.rllib.policy.policy import Policy, PolicySpec
from ray.rllib.policy.policy_map import PolicyMap
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.filter import MeanStdFilter

from support.api_tables import nodes_of

CLASSES = {
    cls.__name__: cls
    for cls in (
        RolloutWorker, EnvRunnerV2, EpisodeV2, RolloutMetrics, SampleBatch, MultiAgentBatch, Policy, PolicyMap,
        PolicySpec, EnvContext, MeanStdFilter, IOContext, JsonReader, JsonWriter, MixedInput, ShuffledInput,
    )
}  # fmt: skip
CONSTRUCTED = ("RolloutWorker", "SampleBatch", "MultiAgentBatch", "PolicySpec", "EnvContext", "IOContext", "JsonReader",
               "JsonWriter", "MixedInput", "ShuffledInput")  # fmt: skip
"""Classes that programs make themselves; workers make the others."""
EVENTS = "RLlibCallback"
OF_TENSORFLOW = ("tf_input_ops", "import_model_from_h5")


def all_names() -> dict[str, list[str]]:
    """Return the names of the table's rows by class.

    They are the public methods, properties, constants and instance attributes of `CLASSES` that RLlib's own modules
    define, the constructors of `CONSTRUCTED`, and the events of `RLlibCallback` that the old stack's modules call.
    """
    found = {name: _members(name, cls) for name, cls in CLASSES.items()}
    return {**found, EVENTS: _events()}


def _members(name: str, cls: type) -> list[str]:
    names = {"__init__"} if name in CONSTRUCTED else set()
    for owner in cls.__mro__:
        if owner.__module__.startswith("ray.rllib."):
            nodes = _nodes(owner)
            names |= {each for each in vars(owner) if not each.startswith("_")} | set(_assigned(nodes))
            names -= set(_deprecated(nodes))
    return sorted(names - set(OF_TENSORFLOW))


def _nodes(owner: type) -> list[ast.AST]:
    try:
        return [*nodes_of(owner)]
    except OSError:  # a namedtuple
        return []


def _assigned(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the public attributes that methods set on `self`."""
    for node in nodes:
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and ast.unparse(node.value) == "self" and not node.attr.startswith("_"):
            yield node.attr


def _deprecated(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the methods that RLlib has made errors."""
    for node in nodes:
        decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
        if any(each.startswith("Deprecated(") and "error=True" in each for each in decorators):
            yield node.name


def _events() -> list[str]:
    events = [name for name in vars(RLlibCallback) if name.startswith("on_")]
    modules: list[Any] = [inspect.getmodule(CLASSES[name]) for name in ("RolloutWorker", "EnvRunnerV2", "EpisodeV2")]
    from ray.rllib.policy import torch_policy_v2

    source = "".join(map(inspect.getsource, [*modules, torch_policy_v2]))
    return [name for name in events if f"callbacks.{name}(" in source]
