"""Decides if the fast path samples exactly as RLlib does; if that can't be proved, RLlib's loop samples."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from ray.rllib.connectors import env_to_module, module_to_env
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv

from fastmarl.rllib.connectors import pieces as connecting
from fastmarl.rllib.loop_state import reads
from fastmarl.rllib.reasons import Reason
from fastmarl.rllib.sampling.episode_events import EVENTS, listeners

# Attributes of a runner that only RLlib's own loop sets. Reading a callback's code spares the switch to that loop after
# the first call, but can't find all readers; loop_state.py does.
LOOP_STATE = {"_cached_to_module", "_done_episodes_for_metrics", "_ongoing_episodes", "_shared_data"}
INTERNALS = (
    "_sample",
    "_reset_envs",
    "_reset_envs_and_episodes",
    "_try_env_step",
    "_new_episode",
    "_make_on_episode_callback",
    "_increase_sampled_metrics",
    "_log_episode_metrics",
    "_prune_zero_len_sa_episodes",
    "_convert_to_tensor",
)


def slow_path_reasons(runner: Any, own_class: type) -> list[Reason]:
    """Return the reasons why this runner can't use the fast path; empty if it can.

    Args:
        runner: A runner with env, module and connectors.
        own_class: fastmarl's class; a subclass that overrides internals of it can't use the fast path.
    """
    of_subclass, of_callbacks = _of_subclass(runner, own_class), [*_of_callbacks(runner)]
    return [
        *_of_config(runner),
        *_of_parts(runner),
        *of_subclass,
        *of_callbacks,
        *([] if of_callbacks else reads(runner)),
    ]


def _of_config(runner: Any) -> Iterator[Reason]:
    config = runner.config
    if config.framework_str != "torch":
        yield Reason("framework", f"the framework is {config.framework_str!r}")
    if not runner.episodes_to_numpy:
        yield Reason("episodes_to_numpy", "episodes_to_numpy is off")


def _of_parts(runner: Any) -> Iterator[Reason]:
    if type(runner.env) is not SyncVectorMultiAgentEnv or "step" in vars(runner.env):
        yield Reason("vector_env", f"the vector env is {type(runner.env).__name__}")
    if runner.module is None:
        yield Reason("module", "there is no module")
    elif not isinstance(runner.module, MultiRLModule):
        yield Reason("module", f"the module is {type(runner.module).__name__}")
    for pipeline, kind, problems in (
        (runner._env_to_module, env_to_module.EnvToModulePipeline, connecting.problems),
        (runner._module_to_env, module_to_env.ModuleToEnvPipeline, connecting.module_to_env_problems),
    ):
        if type(pipeline) is not kind:
            yield Reason("connector_pipeline", f"the connector pipeline is {type(pipeline).__name__}")
        else:
            yield from (Reason(code, text) for code, text in problems(pipeline.connectors))


def _of_subclass(runner: Any, own_class: type) -> Iterator[Reason]:
    for name in INTERNALS:
        known, own = getattr(own_class, name), getattr(type(runner), name)
        # Ray wraps the methods of remote runners.
        if name in vars(runner) or (own is not known and inspect.unwrap(own) is not inspect.unwrap(known)):
            yield Reason("overridden_internal", f"{type(runner).__name__} overrides {name}()")


def _of_callbacks(runner: Any) -> Iterator[Reason]:
    for event in EVENTS:
        for listener in listeners(runner, event):
            for name in sorted(_names_in(inspect.unwrap(listener)) & LOOP_STATE):
                text = f"the callback {getattr(listener, '__qualname__', listener)}() reads the runner's {name}"
                yield Reason("callback_reads_runner", text)


def _names_in(function: Any) -> set[str]:
    """Return all names of globals and attributes in the code of a function and of its inner functions."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, CodeType):
        return set()
    return {*code.co_names, *(name for inner in code.co_consts for name in _names_in(inner))}
