"""Hooks into sampling, with the event names and keyword arguments of RLlib.

An event that is not overridden has no listeners, so the sampling loop neither calls nor prepares anything for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from fastmarl.core.errors import ConfigError, did_you_mean, misfit, similar
from fastmarl.core.objects.public import public

EVENTS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)

Listener = Callable[..., Any]

# RLlibCallback defines every event as a no-op. It is recognised by name, as Ray is not imported here.
_RLLIB_BASE = ("ray.rllib.callbacks.callbacks", "RLlibCallback")


@public("fastmarl")
class Callbacks:
    """Base class with all events as no-ops; override the ones you need.

    All arguments are passed by keyword, and more may be added later: end your signature with `**kwargs` and name only
    the ones you use. One object is created per runner, so attributes of `self` last as long as the runner.
    """

    def on_environment_created(
        self, *, env_runner: Any, metrics_logger: Any, env: Any, env_context: Any, **kwargs: Any
    ) -> None:
        """Called after the environments have been created.

        Args:
            env_runner: The `MultiAgentEnvRunner`.
            metrics_logger: The `MetricsLogger` of the runner (its attribute `metrics`).
            env: All environments; `env.envs` lists them.
            env_context: The `env_config` that they were created from.
        """

    def on_episode_created(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called after an empty episode has been created for an environment that has not been reset yet.

        Args:
            episode: The episode, a `MultiAgentEpisode`.
            env_runner: The `MultiAgentEnvRunner`.
            metrics_logger: The `MetricsLogger` of the runner (its attribute `metrics`).
            env: All environments; `env.envs` lists them.
            rl_module: The `MultiRLModule` of the runner (its attribute `module`).
            env_index: Index of the environment in `env.envs`.
        """

    def on_episode_start(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called after environment `env_index` has been reset; `episode` contains its first observations.

        `env_runner`, `metrics_logger`, `env` and `rl_module` are as in `on_episode_created()`.
        """

    def on_episode_step(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called after each step of environment `env_index`; `episode` contains the result.

        `env_runner`, `metrics_logger`, `env` and `rl_module` are as in `on_episode_created()`.
        """

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: list,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called when the episode of environment `env_index` is over.

        `episode` is its last chunk; `prev_episode_chunks` lists the earlier chunks returned by `sample()`, limited to
        the last 100,000 env steps of the episode. `env_runner`, `metrics_logger`, `env` and `rl_module` are as in
        `on_episode_created()`.
        """

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: list, **kwargs: Any) -> None:
        """Called when `sample()` is about to return `samples`, a list of episodes.

        `env_runner` and `metrics_logger` are as in `on_episode_created()`.
        """


ARGUMENTS = {  # event -> its keyword arguments
    event: tuple(inspect.signature(getattr(Callbacks, event)).parameters)[1:-1] for event in EVENTS
}


def listeners(
    callbacks_class: Any, functions: Mapping[str, Any], arguments: Mapping[str, Sequence[str]] = ARGUMENTS
) -> dict[str, tuple[Listener, ...]]:
    """Instantiate the callback classes and collect the listeners of each event.

    Args:
        callbacks_class: None, a class (or a function that creates the object), or a list of these; each is called once.
        functions: Event name -> None, a callable, or a list of callables.
        arguments: Event name -> names of its keyword arguments.

    Returns:
        Event name -> bound callables in calling order: classes first, then functions, each in the order given. Classes
        need not derive from `Callbacks`; `RLlibCallback` and its subclasses work.

    Raises:
        ConfigError: If an event name or a method of a class is unknown, or a callable does not accept the arguments of
            its event.
    """
    objects = [_instantiate(cls) for cls in _as_list(callbacks_class)]
    for obj in objects:
        _check_methods(obj, arguments)
    for event in functions:
        if event not in arguments:
            raise _unknown(event, arguments)
    found = {
        event: [getattr(obj, event) for obj in objects if _overrides(obj, event)] + [*_as_list(functions.get(event))]
        for event in arguments
    }
    return {event: tuple(_checked(event, function, names) for function in found[event])
            for event, names in arguments.items()}  # fmt: skip


def _as_list(value: Any) -> Iterable[Any]:
    if value is None:
        return []
    return value if isinstance(value, list | tuple) else [value]


def _instantiate(callbacks_class: Any) -> Any:
    if not callable(callbacks_class):
        raise ConfigError(
            f"callbacks_class must be a class or a list of classes, got {callbacks_class!r}; "
            "pass the class itself, not an instance"
        )
    return callbacks_class()


def _check_methods(obj: Any, events: Collection[str]) -> None:
    """Raise ConfigError for methods named like events that neither fastmarl nor RLlib defines."""
    known = {*events, *(name for cls in type(obj).__mro__ if _is_rllib_base(cls) for name in vars(cls))}
    for name in dir(obj):
        if name.startswith("on_") and name not in known and callable(inspect.getattr_static(obj, name, None)):
            raise _unknown(name, events, f" of {type(obj).__name__}")


def _unknown(event: str, events: Collection[str], of: str = "") -> ConfigError:
    hint = did_you_mean(similar(event, list(events))[:1])
    return ConfigError(f"unknown callback event {event!r}{of}; the events are {', '.join(events)}{hint}")


def _checked(event: str, function: Any, arguments: Sequence[str]) -> Listener:
    if not callable(function):
        raise ConfigError(f"callbacks_{event} must be a callable or a list of callables, got {function!r}")
    if reason := misfit(function, **dict.fromkeys(arguments)):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(f"{event} is called with the keywords {', '.join(arguments)}, which {name} does not accept: "
                          f"{reason}; name the arguments you use, and end the signature with **kwargs")  # fmt: skip
    return function


def _overrides(obj: Any, event: str) -> bool:
    """Return True if `obj` handles `event`: its most derived definition is not the no-op of a base class."""
    if event in getattr(obj, "__dict__", ()):
        return True
    for cls in type(obj).__mro__:
        if event in vars(cls):
            return cls is not Callbacks and not _is_rllib_base(cls)
    return False


def _is_rllib_base(cls: type) -> bool:
    return (cls.__module__, cls.__qualname__) == _RLLIB_BASE
