"""Decides whether the fast path samples exactly like RLlib; if that cannot be proved, the RLlib loop samples."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from ray.rllib.connectors import env_to_module, module_to_env
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv

from fastmarl.rllib.connectors import pieces as connecting
from fastmarl.rllib.sampling.episode_events import EVENTS, listeners
from fastmarl.rllib.sampling.internals import EARLIER, OF_LOOP, Internals


class Reason(NamedTuple):
    """A reason why a runner falls back to the RLlib loop.

    Attributes:
        code: A key of CODES.
        text: Part of a sentence that names the cause.
    """

    code: str
    text: str


CODES = {  # code -> how to change the config
    "framework": 'use torch: config.framework("torch")',
    "episodes_to_numpy": "leave config.env_runners(episodes_to_numpy=True) at its default; build lists, if "
    "needed, from the episodes that sample() returns",
    "vector_env": 'use RLlib\'s synchronous vector env: config.env_runners(gym_env_vectorize_mode="sync"), '
    "and no runner class that replaces `env`",
    "module": "use a runner with envs and a torch MultiRLModule: "
    "config.rl_module(rl_module_spec=MultiRLModuleSpec(...)), or RLlib's default",
    "connector_pipeline": "keep RLlib's default pieces in place: "
    "config.env_runners(add_default_connectors_to_env_to_module_pipeline=True, "
    "add_default_connectors_to_module_to_env_pipeline=True), and no custom pipeline class",
    "connector_piece": "read only `batch`, `episodes`, `explore`, `rl_module` and `shared_data` in the piece; "
    "rewards and infos are in the episodes. Or subclass SingleAgentObservationPreprocessor or "
    "MultiAgentObservationPreprocessor",
    "module_to_env_piece": "read only `batch`, `episodes`, `explore`, `rl_module` and `shared_data` in the piece",
    "overridden_internal": "override only public methods (sample(), get_metrics(), ...), or use callbacks",
    "callback_reads_runner": "read the `episode` argument of the callback, or use on_sample_end(samples=...), which "
    "receives all episodes; store the callback's own data in episode.custom_data",
    "changed_while_running": "wait until all envs are reset, or call sample(force_reset=True)",
    "untested_ray": "install a version of Ray that was tested with fastmarl",
}


# Attributes of a runner that only the RLlib loop sets. Inspecting the code of callbacks avoids switching to that loop
# after the first call, but cannot find all reads; internals.py does so at run time. EARLIER is excluded because it is
# correct in on_episode_end, where it is read.
LOOP_STATE = OF_LOOP - {EARLIER}
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


def slow_path_reasons(internals: Internals, own_class: type) -> list[Reason]:
    """Return the reasons why this runner cannot use the fast path; empty if it can.

    Args:
        internals: A runner with env, module and connectors.
        own_class: The fastmarl class; a subclass that overrides its internals cannot use the fast path.
    """
    runner, of_callbacks = internals.runner, [*_of_callbacks(internals)]
    return [
        *_of_config(runner),
        *_of_parts(internals),
        *_of_subclass(runner, own_class),
        *of_callbacks,
        *([] if of_callbacks else reads(runner)),
    ]


def reads(runner: Any) -> list[Reason]:
    """Return the reasons to use the RLlib loop because other code has read its attributes from the runner."""
    return [Reason("callback_reads_runner", f"a callback or other code read the runner's {name}")
            for name in runner.read_by_others]  # fmt: skip


def _of_config(runner: Any) -> Iterator[Reason]:
    config = runner.config
    if config.framework_str != "torch":
        yield Reason("framework", f"the framework is {config.framework_str!r}")
    if not runner.episodes_to_numpy:
        yield Reason("episodes_to_numpy", "episodes_to_numpy is False")


def _of_parts(internals: Internals) -> Iterator[Reason]:
    runner = internals.runner
    if type(runner.env) is not SyncVectorMultiAgentEnv or "step" in vars(runner.env):
        yield Reason("vector_env", f"the vector env is {type(runner.env).__name__}")
    if runner.module is None:
        yield Reason("module", "the runner has no module")
    elif not isinstance(runner.module, MultiRLModule):
        yield Reason("module", f"the module is {type(runner.module).__name__}")
    for pipeline, kind, problems in (
        (internals.env_to_module, env_to_module.EnvToModulePipeline, connecting.problems),
        (internals.module_to_env, module_to_env.ModuleToEnvPipeline, connecting.module_to_env_problems),
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


def _of_callbacks(internals: Internals) -> Iterator[Reason]:
    for event in EVENTS:
        for listener in listeners(internals, event):
            for name in sorted(_names_in(inspect.unwrap(listener)) & LOOP_STATE):
                text = f"the callback {getattr(listener, '__qualname__', listener)}() reads the runner's {name}"
                yield Reason("callback_reads_runner", text)


def _names_in(function: Any) -> set[str]:
    """Return all names of globals and attributes in the code of a function and of its inner functions."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, CodeType):
        return set()
    return {*code.co_names, *(name for inner in code.co_consts for name in _names_in(inner))}
