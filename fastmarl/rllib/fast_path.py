"""Which configs the fast way samples exactly as RLlib does; what it can't prove equal falls back to RLlib's loop."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from ray.rllib.connectors import env_to_module, module_to_env
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv

from fastmarl.rllib.connectors import pieces as connecting
from fastmarl.rllib.reasons import Reason
from fastmarl.rllib.sampling.episode_events import EVENTS, listeners

MODULE_TO_ENV = [
    module_to_env.GetActions,
    module_to_env.TensorToNumpy,
    module_to_env.UnBatchToIndividualItems,
    module_to_env.ModuleToAgentUnmapping,
    module_to_env.RemoveSingleTsTimeRankFromBatch,
    module_to_env.NormalizeAndClipActions,
    module_to_env.ListifyDataForVectorEnv,
]
# What only RLlib's own loop has.
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
    """Why this runner can't sample the fast way; none if it can.

    Args:
        runner: a runner with env, module and connectors.
        own_class: fastmarl's class: what a subclass of it overrides is not known to be equal.
    """
    return [*_of_config(runner), *_of_parts(runner), *_of_subclass(runner, own_class), *_of_callbacks(runner)]


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
    if type(runner._env_to_module) is not env_to_module.EnvToModulePipeline:
        yield Reason("connector_pipeline", f"the connector pipeline is {type(runner._env_to_module).__name__}")
    else:
        for code, text in connecting.problems(runner._env_to_module.connectors):
            yield Reason(code, text)
    yield from _of_module_to_env(runner._module_to_env)


def _of_module_to_env(pipeline: Any) -> Iterator[Reason]:
    if type(pipeline) is not module_to_env.ModuleToEnvPipeline:
        yield Reason("connector_pipeline", f"the connector pipeline is {type(pipeline).__name__}")
        return
    found = [type(piece) for piece in pipeline.connectors]
    if foreign := [piece.__name__ for piece in found if piece not in MODULE_TO_ENV]:
        yield Reason("module_to_env_piece", f"the connector pieces {', '.join(foreign)} need running episodes")
    elif found != MODULE_TO_ENV:
        names = [piece.__name__ for piece in found]
        text = f"the module-to-env connector pipeline has other pieces than RLlib's default: {names}"
        yield Reason("connector_pipeline", text)


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
    """Names of attributes that a function's code and that of functions in it read."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, CodeType):
        return set()
    return {*code.co_names, *(name for inner in code.co_consts for name in _names_in(inner))}
