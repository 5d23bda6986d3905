"""All errors raised deliberately by this package, and helpers for their messages.

The arguments of each constructor become `args`, so that every exception survives pickling.
"""

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

Config = TypeVar("Config")
MOST_HINTS = 3  # maximum number of suggested names


def shown(value: object) -> str:
    """Return a shortened `repr()` for error messages, or a substitute if `repr()` itself raises an error."""
    try:
        return f"{value!r:.200}"
    except Exception as error:  # an int with thousands of digits, or user code
        return f"<{type(value).__name__} whose repr() raises {type(error).__name__}>"


class FastmarlError(Exception):
    """Base class of all errors raised deliberately."""


class ConfigError(FastmarlError, ValueError):
    """An option has an invalid value."""


class NotBuiltError(FastmarlError, ImportError):
    """Compiled extensions are missing, as in a clone that was not built.

    Args:
        folder: Directory that should contain them.
        names: Names of the missing extensions, at least one.
    """

    def __init__(self, folder: str, names: list[str]):
        super().__init__(folder, list(names))

    def __str__(self) -> str:
        folder, (first, *others) = self.args
        missing = f"{first} and {len(others)} more" if others else first
        python = "{}.{}".format(*sys.version_info)
        return (
            f"compiled extensions are missing in {folder} ({missing}, for Python {python}): run `make build` or `pip "
            "install -e .` in the clone; or run `pip install .` there and start Python in another folder"
        )


class RunningEpisodeError(FastmarlError, RuntimeError):
    """A callback of an RLlib runner used its running episode in an unsupported way."""


class MultiAgentEnvError(FastmarlError, RuntimeError):
    """An environment violated the multi-agent protocol.

    Args:
        env_index: Index of the environment in its runner; None if not applicable, as in a `Policy`, or if a batch
            reported an unknown env.
        agent_id: The agent concerned, or None.
        env_t: Env steps since the last reset of that environment.
        problem: Expected and actual behaviour, and how to fix it.
    """

    def __init__(self, env_index: int | None, agent_id: object, env_t: int, problem: str):
        super().__init__(env_index, agent_id, env_t, problem)

    def __str__(self) -> str:
        env_index, agent_id, env_t, problem = self.args
        if env_index is None:
            return problem if agent_id is None else f"agent {agent_id!r}: {problem}"
        agent = "" if agent_id is None else f", agent {agent_id!r}"
        return f"env {env_index}{agent}, env step {env_t}: {problem}"


class UnknownAgentError(MultiAgentEnvError, KeyError):
    """An env named an agent that is not in its `possible_agents`."""


class ObservationError(MultiAgentEnvError, ValueError):
    """An observation does not match the observation space of the agent."""


class ActionMaskError(MultiAgentEnvError, ValueError):
    """An action mask rules out every action of an agent that must act, or has the wrong size."""


class RewardError(MultiAgentEnvError, ValueError):
    """A reward is not a finite number."""


class EnvStateError(MultiAgentEnvError, ValueError):
    """The return value of `state()` of an env does not match its state space, or its earlier states."""


ONLY_RESPAWNING = "the option respawn is only for agents that return and act again"  # part of messages


class FinishedAgentError(MultiAgentEnvError):
    """Data arrived for an agent that had already finished (options `late_rewards` and `respawn`)."""


class EnvWorkerError(FastmarlError, RuntimeError):
    """A worker process exited or did not respond in time, so its envs are lost.

    Args:
        env_indices: Indices of its envs.
        env_index: The env that was being called, or None.
        problem: Description of the failure, and how to fix it.
    """

    def __init__(self, env_indices: list[int], env_index: int | None, problem: str):
        super().__init__(list(env_indices), env_index, problem)

    def __str__(self) -> str:
        env_indices, env_index, problem = self.args
        called = "" if env_index is None else f", while env {env_index} was being called"
        return f"the worker process of envs {env_indices} {problem}{called}"


class EnvTimeoutError(EnvWorkerError, TimeoutError):
    """A worker process did not respond within `step_timeout_s`."""


class RemoteEnvError(FastmarlError, RuntimeError):
    """An env in a worker process raised an error that cannot be pickled.

    Args:
        env_index: Index of the env.
        problem: Type and message of the error.
    """

    def __init__(self, env_index: int, problem: str):
        super().__init__(env_index, problem)

    def __str__(self) -> str:
        return "env {}: {}".format(*self.args)


class SamplerProcessError(FastmarlError, RuntimeError):
    """A process of a `BackgroundSampler` exited or did not respond in time.

    Args:
        process: Index of the process, from 0; None if unknown.
        problem: Description of the failure, and how to fix it.
    """

    def __init__(self, process: int | None, problem: str):
        super().__init__(process, problem)

    def __str__(self) -> str:
        process, problem = self.args
        which = "a process of the sampler" if process is None else f"process {process} of the sampler"
        return f"{which} {problem}"


class SamplerTimeoutError(SamplerProcessError, TimeoutError):
    """A process of a `BackgroundSampler` did not respond within `timeout_s`."""


class RemoteSamplerError(SamplerProcessError):
    """A process of a `BackgroundSampler` raised an error that cannot be pickled."""


class EnvRunnerLostError(FastmarlError, RuntimeError):
    """A runner of an `EnvRunnerGroup` exited or did not respond in time, and will not be replaced.

    Args:
        runner_index: Index of the runner, from 0; None for all of them.
        problem: Description of the failure, and how to fix it.
    """

    def __init__(self, runner_index: int | None, problem: str):
        super().__init__(runner_index, problem)

    def __str__(self) -> str:
        runner_index, problem = self.args
        return problem if runner_index is None else f"env runner {runner_index} {problem}"


class RemoteEnvRunnerError(FastmarlError, RuntimeError):
    """A runner of an `EnvRunnerGroup` raised an error that cannot be pickled, or its result cannot be unpickled.

    The message contains the type and text of the error.
    """


class EnvCheckError(FastmarlError, ValueError):
    """A class, name or object cannot be used as an environment."""


class UnknownModuleError(FastmarlError, KeyError):
    """The policy mapping function returned a module id that does not exist.

    Args:
        module_id: Return value of the mapping function.
        agent_id: Agent for which it was called.
        known: Ids of the existing modules.
    """

    def __init__(self, module_id: object, agent_id: object, known: list):
        super().__init__(module_id, agent_id, list(known))

    def __str__(self) -> str:
        module_id, agent_id, known = self.args
        return (
            f"policy_mapping_fn({agent_id!r}) returned {module_id!r}, which is not one of the "
            f"modules {known}; add it to `policies` or fix the function"
        )


class ModuleOutputError(FastmarlError, ValueError):
    """A module returned a value that cannot be recorded or used as an action.

    Args:
        module_id: Id of the module.
        problem: Expected and actual behaviour, and how to fix it.
    """

    def __init__(self, module_id: object, problem: str):
        super().__init__(module_id, problem)

    def __str__(self) -> str:
        return "module {!r}: {}".format(*self.args)


class UserExitError(FastmarlError, RuntimeError):
    """An env, a module or other user code called `sys.exit()`. Its `__cause__` is the SystemExit.

    Args:
        code: Exit code of the SystemExit.
        place: File, line and function that raised it.
    """

    def __init__(self, code: object, place: str):
        super().__init__(code, place)

    def __str__(self) -> str:
        code, place = self.args
        exit_ = "SystemExit" if code is None else f"SystemExit({shown(code)})"
        return (
            f"{exit_} was raised in {place}, which would exit the program; raise a different exception there on "
            "failure, and exit the program outside of fastmarl calls"
        )


class ConnectorError(FastmarlError, ValueError):
    """A connector returned a value that does not match its declaration.

    Args:
        module_id: Id of its module.
        connector: Class name of the connector.
        problem: Expected and actual result.
    """

    def __init__(self, module_id: object, connector: str, problem: str):
        super().__init__(module_id, connector, problem)

    def __str__(self) -> str:
        return "module {!r}, connector {}: {}".format(*self.args)


class RunnerStoppedError(FastmarlError, RuntimeError):
    """A method was called on a runner after `stop()`."""


class RunnerBusyError(FastmarlError, RuntimeError):
    """A method of a runner was called during another call, which continues unaffected.

    Args:
        called: Name of the method.
        running: The running call.
        is_own_thread: True if that call runs in the same thread, so that `called` was called by a signal handler, a
            callback, an env, a module or a mapping function.
    """

    def __init__(self, called: str, running: str, is_own_thread: bool):
        super().__init__(called, running, is_own_thread)

    def __str__(self) -> str:
        called, running, is_own_thread = self.args
        if is_own_thread:
            return (
                f"{called} was called within {running}, by a signal handler, a callback, an env, a module or a "
                f"mapping function; call it after {running} has returned (raise an exception there to stop it early)"
            )
        return (
            f"{called} was called while {running} is running in another thread; wait for it to return, or use a "
            "separate runner for each thread"
        )


class CheckpointError(FastmarlError, ValueError):
    """A checkpoint is missing, damaged, or from a newer version."""


class RecordingError(FastmarlError, RuntimeError):
    """Actions or a video cannot be recorded, or a recording cannot be read or replayed."""


class ReplayError(FastmarlError, RuntimeError):
    """A replayed episode differs from the recorded one.

    Args:
        env_index: Index of the environment in its runner.
        episode: Number of the episode in the record.
        env_t: Env steps from the reset to the first difference.
        problem: Description of the difference, and how to fix it.
    """

    def __init__(self, env_index: int, episode: int, env_t: int, problem: str):
        super().__init__(env_index, episode, env_t, problem)

    def __str__(self) -> str:
        return "env {}, episode {}, env step {}: {}".format(*self.args)


class PolicyBusyError(FastmarlError, RuntimeError):
    """A `Policy` was called during another call, which continues unaffected."""


class EpisodeError(FastmarlError, ValueError):
    """Chunks of episodes, their columns, or a saved state are inconsistent."""


class BatchError(FastmarlError, ValueError):
    """Episodes, columns and options cannot be combined into a single batch."""


class OfflineError(FastmarlError, RuntimeError):
    """Episodes cannot be written to files, or files contain no readable episodes."""


# Users import these from `fastmarl.errors`, so tracebacks and pickles show that path.
for _error in [value for value in vars().values() if isinstance(value, type) and issubclass(value, FastmarlError)]:
    _error.__module__ = "fastmarl.errors"


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return known names starting with `name` or, if there are none, similarly spelt ones, best match first."""
    known = list(known)
    return [other for other in known if other.startswith(name)][:MOST_HINTS] or difflib.get_close_matches(
        name, known, n=MOST_HINTS
    )


def did_you_mean(names: Iterable[str]) -> str:
    """Return a message suffix that suggests these names, or "" if there are none."""
    alternatives = " or ".join(map(repr, names))
    return f"; did you mean {alternatives}?" if alternatives else ""


def misfit(function: Callable, *args: object, **kwargs: object) -> str:
    """Return why `function(*args, **kwargs)` cannot be called, as worded by Python; "" if it can, or if unknown."""
    try:
        # A decorator may accept more than the function it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some callables of extension modules have no signature
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def corrects_options(config_class: type[Config]) -> type[Config]:
    """Class decorator that makes the TypeError for a misspelt option suggest the intended name."""
    make = config_class.__init__

    @wraps(make)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        known = [each.name for each in fields(self)]
        for option in options:
            if option not in known and (hint := did_you_mean(similar(option, known)[:1])):
                raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {option!r}{hint}")
        make(self, *args, **options)

    config_class.__init__ = checked  # type: ignore[method-assign]
    return config_class
