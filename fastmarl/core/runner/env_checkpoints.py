"""The envs' own states, from which they go on in the middle of an episode."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from fastmarl.core.envs.resumable import supports_checkpoint
from fastmarl.core.errors import ConfigError, EnvWorkerError
from fastmarl.core.runner.envs import Envs


def states_of_envs(envs: Envs, env_indices: Sequence[int]) -> dict[int, Any]:
    """What those of these envs tell that support it, by index; they have been reset. In arrays: what the batches tell,
    by their numbers, if any of their envs are among these, and all batches support it."""
    if envs.is_batch and not (env_indices and all(map(supports_checkpoint, envs.all))):
        return {}
    states = {}
    for index in range(len(envs.all)) if envs.is_batch else env_indices:
        try:
            if supports_checkpoint(envs.all[index]):
                states[index] = deepcopy(envs.all[index].get_state())
        except EnvWorkerError:
            continue  # it has ended with its worker, as the next step will find
        except Exception as error:
            error.add_note(f"fastmarl: raised by get_state() of {_name(envs, index)}")
            raise
    return states


def check_envs(envs: Envs, states: Any) -> None:
    """Raises ConfigError if `put_states_of_envs()` can't take these."""
    n = len(envs.all)
    if not isinstance(states, dict) or not all(type(index) is int and 0 <= index < n for index in states):
        raise ConfigError(f"the states of envs must be a dict by numbers below {n}, got {states!r:.200}")
    if envs.is_batch and len(states) != n:
        raise ConfigError(f"there must be states of all {n} batches of envs, got those of {list(states)}")
    for index in states:
        if not supports_checkpoint(envs.all[index]):
            raise ConfigError(f"there is a state for {_name(envs, index)}, but {envs.all[index]!r:.200} does not "
                              f"support it (supports_checkpoint)")  # fmt: skip


def put_states_of_envs(envs: Envs, states: dict[int, Any]) -> None:
    """Have the envs go on from what `states_of_envs()` has given. What they raise comes through."""
    for index, state in states.items():
        env = envs.all[index]
        try:
            if envs.is_batch:
                env.reset(np.arange(env.num_envs), env.new_arrays(), seeds=[0] * env.num_envs)
            else:
                env.reset(seed=0)
            env.set_state(deepcopy(state))
        except Exception as error:
            error.add_note(f"fastmarl: raised when {_name(envs, index)} was to go on from a state")
            raise


def _name(envs: Envs, index: int) -> str:
    return f"batch {index}" if envs.is_batch else f"env {index}"
