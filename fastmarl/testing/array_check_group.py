"""Presence, actions and observations of the agents of a group in a checked batch."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, GroupArrays
from fastmarl.core.envs.values import Misfit, misfits
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.masks import choices_of, mask_key, parts_of
from fastmarl.core.spaces.structs import flatten_struct

READY_ACTIONS = 64  # number of different actions per agent
UNWRITTEN = 0xA5  # byte that prefills observations


class PlayedGroup:
    """A group of agents in all envs. Arrays are bool [E, A].

    Attributes:
        layout, actions: Layouts of the observation and action space of the group.
        there: True for agents that a runner considers present, because they were observed in this episode and have not
            finished.
        acting: True for agents that act next.
        seen, ended: True for agents that were observed, or have finished, in this episode.
    """

    def __init__(self, env: ArrayEnv, agents: list, seed: int):
        self.agents = agents
        observation_space, action_space = env.observation_spaces[agents[0]], env.action_spaces[agents[0]]
        self.layout, self.actions = RowLayout(observation_space), RowLayout(action_space)
        self._leaf_spaces = leaf_spaces(observation_space)
        self._mask_key, self._choices = mask_key(observation_space, action_space), choices_of(action_space)
        self._action_space = deepcopy(action_space)  # so that the generator of the env's space is not used
        self._action_space.seed(seed)
        samples = [self.actions.leaves_of(self._action_space.sample()) for _ in range(READY_ACTIONS)]
        self._ready = [np.stack([np.asarray(part) for part in parts]) for parts in zip(*samples, strict=True)]
        shape = env.num_envs, len(agents)
        self.there, self.acting, self.seen, self.ended, self._ended_before = np.zeros((5, *shape), np.bool_)
        self._mask = np.zeros((*shape, sum(self._choices)), np.bool_)  # choices of all parts, concatenated

    def begin(self, arrays: GroupArrays, is_reset: np.ndarray) -> None:
        """Update the flags after the reset of some envs, bool [E]."""
        self.ended[is_reset] = self._ended_before[is_reset] = False
        for flags in (self.there, self.acting, self.seen):
            flags[is_reset] = arrays.present[is_reset]
        self._note_masks(arrays.obs, is_reset)

    def go_on(self, arrays: GroupArrays) -> None:
        """Update the flags after a step."""
        self._ended_before = self.ended & ~arrays.present
        there = self.there | arrays.present
        self.ended = self._ended_before | (there & (arrays.terminated | arrays.truncated))
        self.seen |= arrays.present
        self.there = there & ~self.ended
        self.acting = arrays.present & ~self.ended
        self._note_masks(arrays.obs, np.ones(len(there), np.bool_))

    def _note_masks(self, obs: Any, envs: np.ndarray) -> None:
        if self._mask_key is not None:
            leaves = [leaf.reshape(*self.there.shape, -1) for _, leaf in flatten_struct(obs[self._mask_key])]
            self._mask[envs] = np.concatenate(leaves, axis=-1)[envs] != 0

    def draw(self, rng: np.random.Generator) -> Any:
        """Sample legal actions in the form that a runner passes."""
        leaves = [ready[rng.integers(READY_ACTIONS, size=self.acting.shape)] for ready in self._ready]
        if self._mask_key is not None:
            assert isinstance(self._action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
            choices = [(rng.random(part.shape) * part).argmax(-1) for part in parts_of(self._mask, self._choices)]
            leaves = [np.stack(choices, -1).reshape(leaves[0].shape) + self._action_space.start]
        for leaf in leaves:
            leaf[~self.acting] = 0
        return self.actions.nest(leaves)

    def without_choice(self) -> Iterator[tuple[int, int]]:
        """Yield (env index, agent position) of acting agents without a legal action."""
        if self._mask_key is not None:
            none = np.any([~part.any(axis=-1) for part in parts_of(self._mask, self._choices)], axis=0)
            yield from ((e, i) for e, i in np.argwhere(self.acting & none).tolist())

    def said(self, arrays: GroupArrays, e: int, *, rewards: bool) -> Iterator[bytes]:
        """Yield the report of env e for agents that had not finished before; call it after `begin()` or `go_on()`."""
        counts = ~self._ended_before[e]
        yield arrays.present[e][counts].tobytes()
        for leaf in self.layout.leaves_of(arrays.obs):
            if leaf.dtype != object:
                yield leaf[e][counts & arrays.present[e]].tobytes()
        if rewards:
            for column in (arrays.rewards, arrays.terminated, arrays.truncated):
                yield column[e][counts].tobytes()

    def is_written(self, obs: Any, envs: np.ndarray) -> bool:
        """Return whether the observations of these envs, bool [E], contain anything but UNWRITTEN."""
        leaves = [leaf for leaf in self.layout.leaves_of(obs) if leaf.dtype != object and leaf.dtype != bool]
        return any((leaf[envs].view(np.uint8) != UNWRITTEN).any() for leaf in leaves if leaf.size)

    def misfits(self, obs: Any, seen: np.ndarray) -> Iterator[tuple[int, int, Misfit]]:
        """Yield (env index, agent position, misfit) for the observations at these positions, bool [E, A]."""
        for leaf, space, array in zip(self.layout.leaves, self._leaf_spaces, self.layout.leaves_of(obs), strict=True):
            unwritten, fits = _parts(_is_unwritten(array)), _parts(_fits(space, array), np.all)
            for e, i in np.argwhere(seen & (unwritten | ~fits)).tolist():
                if unwritten[e, i]:
                    text = "was not written, or only in part, although the agent is present"
                    yield e, i, Misfit("unwritten", leaf.path, text)
                else:
                    for misfit in misfits(space, array[e, i], leaf.path):
                        yield e, i, misfit


def _parts(flags: np.ndarray, over: Any = np.any) -> np.ndarray:
    """Reduce flags [E, A, ...] to bool [E, A]."""
    return over(flags.reshape(*flags.shape[:2], -1), axis=-1)


def _is_unwritten(array: np.ndarray) -> np.ndarray:
    """Return a mask of elements whose bytes are all UNWRITTEN, or all False if this could be a valid single byte."""
    if array.dtype == object or array.itemsize == 1:
        return np.zeros(array.shape, np.bool_)
    return (array[..., None].view(np.uint8) == UNWRITTEN).all(axis=-1)


def _fits(space: gym.Space, array: np.ndarray) -> np.ndarray:
    """Return a mask of the numbers that are known to be in the space."""
    if isinstance(space, gym.spaces.Box):
        return (array >= space.low) & (array <= space.high)
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        above: np.ndarray = array - space.start
        return (above >= 0) & (above < (space.n if isinstance(space, gym.spaces.Discrete) else space.nvec))
    return np.zeros(array.shape, np.bool_)
