"""The same seed and the same actions again: what an environment must repeat, and what it must not hang on."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from fastmarl.envs.checking.report import Findings
from fastmarl.envs.checking.values import arrays_in, same
from fastmarl.envs.form import PARTS
from fastmarl.spaces.masks import MASK_KEYS


class _Difference(NamedTuple):
    env_t: int
    what: str
    agent: Any


class Replay:
    """The first steps of a play, to be made again.

    Args:
        env, findings: what was played, and where problems and notes go to.
        seed: of the reset that the steps came after.
    """

    def __init__(self, env: Any, findings: Findings, seed: int):
        self._env = env
        self._findings = findings
        self._seed = seed
        self._trace: list[tuple[dict | None, tuple]] = []

    def __len__(self) -> int:
        return len(self._trace)

    def append(self, actions: dict | None, parts: tuple[dict, ...]) -> None:
        """Keep actions (None: the reset) and what they brought, infos excepted; what came is copied."""
        self._trace.append((actions, deepcopy(parts[: len(parts) - 1])))

    def look_for_differences(self) -> None:
        """Report another course after the same seed and actions, or after somebody wrote into observations."""
        self._findings.episode = 0
        unspoilt = self._first_difference(spoil=False)
        difference = unspoilt or self._first_difference(spoil=True)
        if difference is None:
            return
        self._findings.env_t = difference.env_t
        if unspoilt is None and difference.env_t > 0 and self._first_difference(spoil=False) is None:
            text = (f"other {difference.what} came after somebody had written into observations: the env goes on from "
                    f"the arrays that it returned; return copies")  # fmt: skip
            self._findings.note("aliased state", text, difference.agent)
        else:
            text = (f"other {difference.what} came after the same reset(seed={self._seed}) and the same actions; draw "
                    f"all randomness from a generator that reset() makes from its seed")  # fmt: skip
            self._findings.problem("seed", text, difference.agent)

    def _first_difference(self, *, spoil: bool) -> _Difference | None:
        with _Spoiled() as spoiled:
            for env_t, (actions, before) in enumerate(self._trace):
                try:
                    result = self._env.reset(seed=self._seed) if actions is None else self._env.step(deepcopy(actions))
                    found = _differing(before, result)
                except Exception as error:
                    found = f"results ({error!r:.200})", None
                if found:
                    return _Difference(env_t, *found)
                if spoil:
                    spoiled.add(result[0])
        return None


def _differing(before: tuple[dict, ...], now: tuple[dict, ...]) -> tuple[str, Any] | None:
    """The first part that differs, and its agent."""
    for name, one, other in zip(PARTS["step"], before, now, strict=False):
        if not same(one, other):
            agents = [agent for agent in one | other if not same(one.get(agent), other.get(agent))]
            return name, agents[0] if agents else None
    return None


class _Spoiled:
    """Observations that are overwritten with zeros, which fit most purposes, and in the end hold what they held.

    Masks are left as they are: PettingZoo's wrapper for illegal actions looks at those it returned.
    """

    def __init__(self) -> None:
        self._held: list[tuple[np.ndarray, np.ndarray]] = []

    def __enter__(self) -> _Spoiled:
        return self

    def add(self, observations: dict) -> None:
        for value in observations.values():
            if isinstance(value, Mapping):
                value = {key: part for key, part in value.items() if key not in MASK_KEYS}
            for array in arrays_in(value):
                if array.flags.writeable and array.dtype != object:
                    self._held.append((array, array.copy()))
                    array[...] = np.zeros((), array.dtype)

    def __exit__(self, *_: object) -> None:
        for array, held in reversed(self._held):  # an array may have been overwritten more than once
            array[...] = held
