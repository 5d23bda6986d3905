"""Everything this package raises on purpose, and helpers for its texts.

The arguments of each constructor are its `args`, so every exception survives pickling.
"""

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable

MOST_HINTS = 3  # names that may have been meant


def shown(value: object) -> str:
    """A value for an error's text, shortened; whatever its `repr()` does, there is a text."""
    try:
        return f"{value!r:.200}"
    except Exception as error:  # an int of thousands of digits, or code of its own
        return f"<{type(value).__name__} whose repr() raises {type(error).__name__}>"


class FastmarlError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(FastmarlError, ValueError):
    """An option has a value that can't be right."""


class NotBuiltError(FastmarlError, ImportError):
    """Compiled extensions are missing, as in a clone that is not built.

    Args:
        folder: that should have them.
        names: of the extensions, one at least.
    """

    def __init__(self, folder: str, names: list[str]):
        super().__init__(folder, list(names))

    def __str__(self) -> str:
        folder, (first, *others) = self.args
        missing = f"{first} and {len(others)} more" if others else first
        python = "{}.{}".format(*sys.version_info)
        return (
            f"compiled extensions are missing in {folder} ({missing}, for Python {python}): run `make build` or `pip "
            "install -e .` in the clone; or run `pip install .` there, and Python in another folder"
        )


class RunningEpisodeError(FastmarlError, RuntimeError):
    """A callback of an RLlib runner did with its running episode what can't be done."""


class MultiAgentEnvError(FastmarlError, RuntimeError):
    """An environment broke the multi-agent protocol.

    Args:
        env_index: index of the environment in its runner; None: a `Policy` was called, which knows no environment, or a
            batch named none that it has.
        agent_id: the agent concerned, or None.
        env_t: env steps since the reset of that environment's episode.
        problem: what was expected, what came, and the way out.
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
    """An observation does not fit the agent's observation space."""


class ActionMaskError(MultiAgentEnvError, ValueError):
    """An action mask rules out every action of an agent that must act, or has the wrong size."""


class RewardError(MultiAgentEnvError, ValueError):
    """A reward is not a finite number."""


class EnvStateError(MultiAgentEnvError, ValueError):
    """The return value of an env's `state()` does not fit its state space, or its earlier states."""


ONLY_RESPAWNING = "the option respawn is only for agents that come back to life and act again"  # part of advice


class FinishedAgentError(MultiAgentEnvError):
    """Data came for an agent that had already finished (options `post_death` and `respawn`)."""


class EnvWorkerError(FastmarlError, RuntimeError):
    """A worker process ended, or did not answer in time, and took its envs with it.

    Args:
        env_indices: its envs.
        env_index: the one that was being called, or None.
        problem: what happened, and the way out.
    """

    def __init__(self, env_indices: list[int], env_index: int | None, problem: str):
        super().__init__(list(env_indices), env_index, problem)

    def __str__(self) -> str:
        env_indices, env_index, problem = self.args
        called = "" if env_index is None else f", while env {env_index} was being called"
        return f"the worker process of the envs {env_indices} {problem}{called}"


class EnvTimeoutError(EnvWorkerError, TimeoutError):
    """A worker process did not answer within `step_timeout_s`."""


class RemoteEnvError(FastmarlError, RuntimeError):
    """An env in a worker process raised an error that can't be pickled.

    Args:
        env_index: which env.
        problem: the error's type and text.
    """

    def __init__(self, env_index: int, problem: str):
        super().__init__(env_index, problem)

    def __str__(self) -> str:
        return "env {}: {}".format(*self.args)


class SamplerProcessError(FastmarlError, RuntimeError):
    """A process of a `BackgroundSampler` ended, or did not answer in time.

    Args:
        process: its number, from 0; None: one of them.
        problem: what happened, and the way out.
    """

    def __init__(self, process: int | None, problem: str):
        super().__init__(process, problem)

    def __str__(self) -> str:
        process, problem = self.args
        which = "a process of the sampler" if process is None else f"process {process} of the sampler"
        return f"{which} {problem}"


class SamplerTimeoutError(SamplerProcessError, TimeoutError):
    """A process of a `BackgroundSampler` did not answer within `timeout_s`."""


class RemoteSamplerError(SamplerProcessError):
    """A process of a `BackgroundSampler` raised an error that can't be pickled."""


class EnvRunnerLostError(FastmarlError, RuntimeError):
    """A runner of an `EnvRunnerGroup` ended, or did not answer in time, and was not replaced any more.

    Args:
        runner_index: from 0; None: all of them.
        problem: what happened, and the way out.
    """

    def __init__(self, runner_index: int | None, problem: str):
        super().__init__(runner_index, problem)

    def __str__(self) -> str:
        runner_index, problem = self.args
        return problem if runner_index is None else f"env runner {runner_index} {problem}"


class RemoteEnvRunnerError(FastmarlError, RuntimeError):
    """A runner of an `EnvRunnerGroup` raised an error that can't be pickled, or what it returned can't be unpickled.

    Args:
        problem: the error's type and text.
    """


class EnvCheckError(FastmarlError, ValueError):
    """A class, name or object can't be used as an environment."""


class UnknownModuleError(FastmarlError, KeyError):
    """The policy mapping function named a module that does not exist.

    Args:
        module_id: what the mapping function returned.
        agent_id: for which agent.
        known: ids of the existing modules.
    """

    def __init__(self, module_id: object, agent_id: object, known: list):
        super().__init__(module_id, agent_id, list(known))

    def __str__(self) -> str:
        module_id, agent_id, known = self.args
        return (
            f"policy_mapping_fn({agent_id!r}) returned {module_id!r}, which is none of the "
            f"modules {known}; add it to `policies` or correct the function"
        )


class ModuleOutputError(FastmarlError, ValueError):
    """A module returned something that can't be recorded or acted upon.

    Args:
        module_id: the module.
        problem: what was expected, what came, and the way out.
    """

    def __init__(self, module_id: object, problem: str):
        super().__init__(module_id, problem)

    def __str__(self) -> str:
        return "module {!r}: {}".format(*self.args)


class UserExitError(FastmarlError, RuntimeError):
    """An env, a module or other code of the user called `sys.exit()`. Its `__cause__` is the SystemExit.

    Args:
        code: of the SystemExit.
        place: file, line and function that raised it.
    """

    def __init__(self, code: object, place: str):
        super().__init__(code, place)

    def __str__(self) -> str:
        code, place = self.args
        exit_ = "SystemExit" if code is None else f"SystemExit({shown(code)})"
        return (
            f"{exit_} was raised in {place}, which would end the program; raise another exception there if something "
            "has failed, and end the program outside of fastmarl's calls"
        )


class ConnectorError(FastmarlError, ValueError):
    """A connector made something else than it promised.

    Args:
        module_id: whose connector it is.
        connector: its class.
        problem: what was expected, and what came.
    """

    def __init__(self, module_id: object, connector: str, problem: str):
        super().__init__(module_id, connector, problem)

    def __str__(self) -> str:
        return "module {!r}, connector {}: {}".format(*self.args)


class RunnerStoppedError(FastmarlError, RuntimeError):
    """A method was called on a runner after `stop()`."""


class RunnerBusyError(FastmarlError, RuntimeError):
    """A method was called on a runner in the middle of another one, which goes on unharmed.

    Args:
        called: the method.
        running: the call under way.
        is_own_thread: whether that one runs in the same thread: in a signal's handler, a callback, an env, a module or
            a mapping function.
    """

    def __init__(self, called: str, running: str, is_own_thread: bool):
        super().__init__(called, running, is_own_thread)

    def __str__(self) -> str:
        called, running, is_own_thread = self.args
        if is_own_thread:
            return (
                f"{called} was called within {running}, by a signal's handler, a callback, an env, a module or a "
                f"mapping function; call it after {running} has returned (an error that is raised there ends it early)"
            )
        return (
            f"{called} was called while {running} is under way in another thread; wait for that, or give each thread a "
            "runner of its own"
        )


class CheckpointError(FastmarlError, ValueError):
    """A checkpoint is missing, damaged, or from a newer version."""


class RecordingError(FastmarlError, RuntimeError):
    """A record of actions, or a video, can't be written, or what is in the folder can't be read or replayed."""


class ReplayError(FastmarlError, RuntimeError):
    """An episode that is replayed takes another course than the one on record.

    Args:
        env_index: index of the environment in its runner.
        episode: the episode's number in the record.
        env_t: env steps since the reset, at which the first difference shows.
        problem: what differs, and what to do.
    """

    def __init__(self, env_index: int, episode: int, env_t: int, problem: str):
        super().__init__(env_index, episode, env_t, problem)

    def __str__(self) -> str:
        return "env {}, episode {}, env step {}: {}".format(*self.args)


class PolicyBusyError(FastmarlError, RuntimeError):
    """A `Policy` was called in the middle of another call, which goes on unharmed."""


class EpisodeError(FastmarlError, ValueError):
    """Chunks of episodes, their columns or a saved state don't fit together."""


class BatchError(FastmarlError, ValueError):
    """Episodes, columns and options don't fit into one batch."""


class OfflineError(FastmarlError, RuntimeError):
    """Episodes can't be written to files, or files hold none that can be read."""


# Users import them from `fastmarl.errors`, and that is what tracebacks and pickles say.
for _error in [value for value in vars().values() if isinstance(value, type) and issubclass(value, FastmarlError)]:
    _error.__module__ = "fastmarl.errors"


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that begin with `name`; if none does, those spelt like it, the likeliest first."""
    known = list(known)
    return [other for other in known if other.startswith(name)][:MOST_HINTS] or difflib.get_close_matches(
        name, known, n=MOST_HINTS
    )


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message, with these names; empty if there are none."""
    alternatives = " or ".join(map(repr, names))
    return f"; did you mean {alternatives}?" if alternatives else ""


def misfit(function: Callable, *args: object, **kwargs: object) -> str:
    """Why `function(*args, **kwargs)` can't be called, in Python's words; "" if it can, or doesn't say."""
    try:
        # Decorators may take more than what they wrap.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some callables of extensions have none
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
