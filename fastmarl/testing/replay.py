"""Replays an environment with the same seed and actions to find unexpected differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.envs.form import RETURNED
from fastmarl.core.envs.values import arrays_in, same
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.spaces.masks import MASK_KEYS
from fastmarl.testing.report import Findings

ODD_STEPS = 8  # the reset and 7 steps, deliberately not a round number


class _Difference(NamedTuple):
    env_t: int
    what: str
    agent: Any


def look_for_differences(env: Any, findings: Findings, seed: int, trace: Sequence[tuple[dict | None, tuple]]) -> None:
    """Report whether a replay with the same seed and actions differs, also after observations are overwritten.

    Args:
        env, findings: The played env, and the receiver of problems and notes.
        seed: Seed of the reset before the steps.
        trace: List of (actions or None for the reset, copy of the results without infos).
    """
    findings.episode = 0
    first_difference = partial(_first_difference, env, seed, trace)
    # State carried over from one episode to the next may repeat after a round number of steps.
    unspoilt = _first_difference(env, seed, trace[:ODD_STEPS], spoil=False) or first_difference(spoil=False)
    difference = unspoilt or first_difference(spoil=True)
    if difference is None:
        return
    findings.env_t = difference.env_t
    if unspoilt is None and difference.env_t > 0 and first_difference(spoil=False) is None:
        text = (f"different {difference.what} after observations had been overwritten: the env keeps using the arrays "
                f"that it returned; return copies")  # fmt: skip
        findings.note("aliased state", text, difference.agent)
    else:
        text = (f"different {difference.what} after the same reset(seed={seed}) and the same actions; draw all "
                f"randomness from a generator that reset() creates from its seed")  # fmt: skip
        findings.problem("seed", text, difference.agent)


def look_at_another(env: Any, findings: Findings, seed: int, trace: Sequence[tuple[dict | None, tuple]]) -> None:
    """Report whether another env, created in the same way, differs; see `look_for_differences()`."""
    findings.episode = 0
    difference = _first_difference(env, seed, trace, spoil=False)
    if difference is not None:
        findings.env_t = difference.env_t
        text = (f"another env, created in the same way, returned different {difference.what} after the same "
                f"reset(seed={seed}) and the same actions, so recorded episodes can't be replayed; don't draw random "
                f"numbers in the constructor or from global generators")  # fmt: skip
        findings.note("seed", text, difference.agent)


def _first_difference(
    env: Any, seed: int, trace: Sequence[tuple[dict | None, tuple]], *, spoil: bool
) -> _Difference | None:
    with ExitStack() as restored:
        for env_t, (actions, before) in enumerate(trace):
            try:
                with exits_as_errors():
                    result = env.reset(seed=seed) if actions is None else env.step(deepcopy(actions))
                found = _differing(before, result)
            except Exception as error:
                found = f"results ({error!r:.200})", None
            if found:
                return _Difference(env_t, *found)
            if spoil:
                _spoil(result[0], restored)
    return None


def _differing(before: tuple[dict, ...], now: tuple[dict, ...]) -> tuple[str, Any] | None:
    """Return the name and agent of the first result that differs, or None."""
    for name, one, other in zip(RETURNED["step"], before, now, strict=False):
        if not same(one, other):
            agents = [agent for agent in one | other if not same(one.get(agent), other.get(agent))]
            return name, agents[0] if agents else None
    return None


def _spoil(observations: dict, restored: ExitStack) -> None:
    """Overwrite observations with zeros, which are valid in most envs; `restored` puts the old values back.

    Masks are left unchanged, because the PettingZoo wrapper for illegal actions reads the masks it returned.
    """
    for value in observations.values():
        if isinstance(value, Mapping):
            value = {key: entry for key, entry in value.items() if key not in MASK_KEYS}
        for array in arrays_in(value):
            if array.flags.writeable and array.dtype != object:
                restored.callback(np.copyto, array, array.copy())  # in reverse order, as one may be overwritten twice
                array[...] = np.zeros((), array.dtype)
