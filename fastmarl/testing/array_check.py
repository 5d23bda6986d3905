"""Plays a batch of envs for `check_env()` and inspects everything that the batch writes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, GroupArrays, StepArrays, info_problem
from fastmarl.core.errors import ONLY_RESPAWNING, ConfigError
from fastmarl.core.spaces.masks import RULES_OUT_ALL
from fastmarl.testing.array_check_group import UNWRITTEN, PlayedGroup
from fastmarl.testing.findings import MASK_KIND
from fastmarl.testing.play import IDLE_STEPS, REPLAYED_STEPS, AnyPlay, UnplayableError
from fastmarl.testing.report import Findings

OTHERWISE_UNWRITTEN = 0x5A  # byte that prefills observations in a replay of the batch
EARLY_RESETS = 0.05  # fraction of the varied envs that are reset early in each step of a replay


class BatchPlay(AnyPlay):
    """Plays a batch of envs."""

    def __init__(self, env: ArrayEnv, findings: Findings, seed: int, late_rewards: bool, respawn: bool):
        super().__init__(env, findings, seed, late_rewards, respawn)
        self._groups: dict[str, PlayedGroup] = {}
        self._trace: list[tuple[dict[str, Any], list[bytes]]] = []  # (actions, report of each env), per step
        self._t_E, self._episode_E = np.zeros((2, env.num_envs), np.int64)
        self._began: list[bytes] = []  # report of each env in its first reset
        self._keeps = False  # True once the env is known to keep arrays

    def _prepare(self) -> None:
        """Check the spaces of all groups."""
        for number, (name, agents) in enumerate(self._env.groups.items()):
            try:
                self._groups[name] = PlayedGroup(self._env, agents, self._seed + number)
            except ConfigError as error:
                self._findings.problem("space", f"group {name!r}: {error}")
        if self._findings.problems:
            raise UnplayableError

    def play(self, steps: int) -> None:
        """Take `steps` steps in every env, then repeat the first ones."""
        self._prepare()
        self._began = self._reset(np.arange(self._env.num_envs), UNWRITTEN, seeded=True)
        for step in range(steps):
            actions = self._draw(np.random.default_rng((self._seed, step)))
            self._look_at_masks()
            self.agent_steps += sum(int(group.acting.sum()) for group in self._groups.values())
            out, said = self._step(deepcopy(actions), UNWRITTEN)
            over = out.terminated | out.truncated
            self.env_steps += len(over)
            self.episodes += int(over.sum())
            self._episode_E += over
            said = self._reset_those(over, said, UNWRITTEN)
            if step < REPLAYED_STEPS:
                self._trace.append((actions, said))
        self._findings.env_t = None
        if not self.episodes:
            self._findings.note("endless", f"no episode ended within {steps} steps of each env; set out.terminated or "
                                           f"out.truncated when one should end")  # fmt: skip
        self._look_for_differences()

    def _look_for_differences(self) -> None:
        """Check that replays give the same results, regardless of initial array contents and of the other envs."""
        everybody = np.arange(self._env.num_envs)
        if self._replay_differs(everybody, everybody[:0]):
            text = (f"results changed although reset(seeds=[{self._seed}, ...]) and the actions were the same; draw "
                    f"all randomness from generators that reset() creates from its seeds, and write complete "
                    f"observations for all present agents")  # fmt: skip
            self._findings.problem("seed", text)
        elif len(everybody) > 1 and self._replay_differs(everybody[::2], everybody[1::2]):
            text = ("results changed when other envs of the batch took different actions and were reset at different "
                    "times; use one generator per env, and let reset() change only the state of env_indices"
                    )  # fmt: skip
            self._findings.note("neighbours", text)

    def _replay_differs(self, same: np.ndarray, other: np.ndarray) -> bool:
        """Repeat the first steps, but vary the envs in `other`; return whether reports of envs in `same` differ."""
        rng = np.random.default_rng(self._seed)
        began = self._reset(np.arange(self._env.num_envs), OTHERWISE_UNWRITTEN, seeded=True)
        if any(began[e] != self._began[e] for e in same.tolist()):
            self._findings.episode, self._findings.env_t = 0, 0
            return True
        for step, (before, said_before) in enumerate(self._trace):
            actions = self._draw(rng)
            for name, group in self._groups.items():
                for array, first in zip(*map(group.actions.leaves_of, (actions[name], before[name])), strict=True):
                    array[same] = first[same]
            out, said = self._step(actions, OTHERWISE_UNWRITTEN)
            over = out.terminated | out.truncated
            over[other] |= rng.random(len(other)) < EARLY_RESETS
            said = self._reset_those(over, said, OTHERWISE_UNWRITTEN)
            if any(said[e] != said_before[e] for e in same.tolist()):
                self._findings.episode, self._findings.env_t = 0, step + 1
                return True
        return False

    # Calls of the env

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        return {name: group.draw(rng) for name, group in self._groups.items()}

    def _reset_those(self, over: np.ndarray, said: list[bytes], byte: int) -> list[bytes]:
        """Reset the envs whose episode is over, and return `said` with the new reports of these envs appended."""
        if not over.any():
            return said
        began = self._reset(np.flatnonzero(over), byte, seeded=False)
        return [before + now if is_new else before for before, now, is_new in zip(said, began, over, strict=True)]

    def _reset(self, env_indices: np.ndarray, byte: int, *, seeded: bool) -> list[bytes]:
        """Reset these envs and return the report of each env."""
        seeds = [self._seed + e for e in env_indices.tolist()] if seeded else None
        out = self._arrays(byte)
        self._t_E[env_indices] = 0
        self._call("reset", out, env_indices.copy(), out, seeds=seeds)
        is_reset = np.zeros(self._env.num_envs, np.bool_)
        is_reset[env_indices] = True
        for name, group in self._groups.items():
            group.begin(out.groups[name], is_reset)
        if byte == UNWRITTEN:
            for name, group in self._groups.items():
                self._look_at_observations(group, out.groups[name], out.groups[name].present & is_reset[:, None])
                if group.is_written(out.groups[name].obs, ~is_reset):
                    text = "reset() wrote observations of envs that it was not asked to reset; they are ignored"
                    self._findings.note("other rows", text, None, name)
            self._look_at_infos(out)
            self._states.look()
        said, references = self._said(out, rewards=False), self._references(out)
        del out
        self._look_for_kept(references)
        return said

    def _step(self, actions: dict[str, Any], byte: int) -> tuple[StepArrays, list[bytes]]:
        """Step the batch and return a copy of the results and the report of each env."""
        out = self._arrays(byte)
        for name, group in self._groups.items():
            out.groups[name].present[...] = group.there
        self._t_E += 1
        self._call("step", out, actions, out)
        if byte == UNWRITTEN:
            for name, group in self._groups.items():
                self._look_at_ends(group, out.groups[name])
                again = out.groups[name].present & (self._respawn | ~group.ended)
                self._look_at_observations(group, out.groups[name], again)
            self._look_at_infos(out)
            self._states.look()
        for name, group in self._groups.items():
            group.go_on(out.groups[name])
        if byte == UNWRITTEN:
            self._look_at_who_is_left(out)
        private, said, references = deepcopy(out), self._said(out, rewards=True), self._references(out)
        del out
        self._look_for_kept(references)
        return private, said

    def _arrays(self, byte: int) -> StepArrays:
        """Return arrays like those that a runner passes to a reset, but with observations filled with `byte`."""
        out = self._env.new_arrays()
        for name, group in self._groups.items():
            arrays = out.groups[name]
            leaves = [leaf.copy() for leaf in group.layout.leaves_of(arrays.obs)]
            for leaf in leaves:
                if leaf.dtype != object:
                    leaf.view(np.uint8)[...] = byte & 1 if leaf.dtype == bool else byte
            columns = arrays.rewards, arrays.terminated, arrays.truncated, arrays.present
            out.groups[name] = GroupArrays(group.layout.nest(leaves), *(column.copy() for column in columns))
        return StepArrays(out.groups, out.terminated.copy(), out.truncated.copy())

    def _call(self, call: str, out: StepArrays, *args: Any, **kwargs: Any) -> None:
        """Call `reset()` or `step()`, and check that it writes to the given arrays."""
        before = dict(self._named_arrays(out))
        self._answer(call, int(self._t_E.max()), *args, **kwargs)
        replaced = [(name, before[name], now) for name, now in self._named_arrays(out) if now is not before[name]]
        for name, array, now in replaced:
            text = (f"{call}() replaced {name}, {_form(array)}, with {_form(now)}; write into the existing array, for "
                    f"example with array[...] = values")  # fmt: skip
            self._findings.problem("replaced", text, None, name)
        if replaced:
            raise UnplayableError

    def _named_arrays(self, out: StepArrays) -> Iterator[tuple[str, Any]]:
        yield "out.terminated", out.terminated
        yield "out.truncated", out.truncated
        for name, group in self._groups.items():
            arrays = out.groups[name]
            for column in ("rewards", "terminated", "truncated", "present"):
                yield f"out.groups[{name!r}].{column}", getattr(arrays, column)
            for leaf, values in zip(group.layout.leaves, group.layout.leaves_of(arrays.obs), strict=True):
                keys = "".join(f"[{key!r}]" for key in leaf.path)
                yield f"out.groups[{name!r}].obs{keys}", values

    def _said(self, out: StepArrays, *, rewards: bool) -> list[bytes]:
        """Return the report of each env, which covers agents that had not finished before."""
        said = []
        for e in range(self._env.num_envs):
            pieces = [out.terminated[e].tobytes(), out.truncated[e].tobytes()] if rewards else []
            for name, group in self._groups.items():
                pieces += group.said(out.groups[name], e, rewards=rewards)
            said.append(b"".join(pieces))
        return said

    def _references(self, out: StepArrays) -> dict[str, weakref.ref]:
        return {name: weakref.ref(array) for name, array in self._named_arrays(out)}

    def _look_for_kept(self, references: dict[str, weakref.ref]) -> None:
        """Check that no references to the arrays of a finished call remain."""
        if self._keeps or all(reference() is None for reference in references.values()):
            return
        gc.collect()
        for name, reference in references.items():
            if reference() is not None:
                text = f"{name} or a view of it is kept after the call, but its memory is then reused; keep a copy"
                self._findings.problem("kept", text, None, name)
                self._keeps = True

    # Checks

    def _problem(self, kind: str, e: int, text: str, agent: Any = None, where: Any = None) -> None:
        self._findings.episode, self._findings.env_t = int(self._episode_E[e]), int(self._t_E[e])
        self._findings.problem(kind, f"env {e}: {text}", agent, where)

    def _look_at_masks(self) -> None:
        for group in self._groups.values():
            for e, i in group.without_choice():
                self._problem(MASK_KIND, e, f"its mask {RULES_OUT_ALL}", group.agents[i])

    def _look_at_observations(self, group: PlayedGroup, arrays: GroupArrays, seen: np.ndarray) -> None:
        for i in np.flatnonzero(seen.any(axis=0)).tolist():
            self.observed[group.agents[i]] = None
        for e, i, misfit in group.misfits(arrays.obs, seen):
            where = "observation" + "".join(f"[{key!r}]" for key in misfit.path)
            self._problem(misfit.kind, e, f"{where} {misfit.text}", group.agents[i], misfit.path)

    def _look_at_ends(self, group: PlayedGroup, arrays: GroupArrays) -> None:
        for e, i in np.argwhere(~np.isfinite(arrays.rewards)).tolist():
            self._problem("reward", e, f"expected a finite reward, got {arrays.rewards[e, i]}", group.agents[i])
        if not self._late_rewards:
            returns = arrays.present & self._respawn
            for e, i in np.argwhere(group.ended & ~returns & (arrays.rewards != 0)).tolist():
                text = (f"received a reward of {arrays.rewards[e, i]} after it had ended; leave its entries alone, or "
                        f'set late_rewards="accumulate" or "drop"')  # fmt: skip
                self._problem("after the end", e, text, group.agents[i], "rewards")
        if not self._respawn:
            for e, i in np.argwhere(group.ended & arrays.present).tolist():
                text = f"is present after it had ended; leave `present` alone; {ONLY_RESPAWNING}"
                self._problem("after the end", e, text, group.agents[i], "present")

    def _look_at_who_is_left(self, out: StepArrays) -> None:
        over = out.terminated | out.truncated
        groups = self._groups.values()
        are_there = np.any([group.there.any(axis=1) for group in groups], axis=0)
        were_there = np.any([group.seen.any(axis=1) for group in groups], axis=0)
        for e in np.flatnonzero(~over & ~are_there & were_there).tolist():
            self._findings.episode, self._findings.env_t = int(self._episode_E[e]), int(self._t_E[e])
            text = "all agents of an env have ended, but its terminated and truncated flags are False"
            self._findings.note("nobody left", text)
        acting = any(group.acting.any() for group in groups)
        is_idle = not (acting or over.any())
        self._look_at_idleness(is_idle, f"was present to act in {IDLE_STEPS} steps of the batch")

    def _look_at_infos(self, out: StepArrays) -> None:
        for entry in out.infos:
            problem = info_problem(entry, self._env)
            if problem:
                self._findings.problem("info", problem)


def _form(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
