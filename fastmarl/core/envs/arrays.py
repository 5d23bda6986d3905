"""The protocol of environments that step a whole batch of copies at once, in arrays instead of dicts by agent."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import EnvCheckError, ObservationError, shown
from fastmarl.core.public import public
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.values import described, first_unheld

COMMON = "__common__"


@public("fastmarl.envs")
@dataclass(frozen=True)
class GroupArrays:
    """What the agents of one group see and get in one step, [env, agent, ...] each; all to be written in place.

    Attributes:
        obs: arrays [E, A, ...] in the nesting of the group's observation space.
        rewards: float64 [E, A]; 0 beforehand.
        terminated, truncated: bool [E, A]: the agent has ended, by itself; False beforehand.
        present: bool [E, A]: the agent is observed, and unless it has ended acts next; beforehand who takes part now.
            What stands in `obs` for others is ignored.
    """

    obs: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    present: np.ndarray


@public("fastmarl.envs")
@dataclass(frozen=True)
class StepArrays:
    """What one step (or reset) of the batch brings; the env writes into these arrays, and keeps none of them.

    Attributes:
        groups: GroupArrays by the group's name.
        terminated, truncated: bool [E]: the env's episode is over, for all; False beforehand.
        infos: (env index, agent id or "__common__", dict), to be appended where there is something to tell.
    """

    groups: dict[str, GroupArrays]
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[tuple[int, Hashable, dict]] = field(default_factory=list)


def write_observations(
    column: np.ndarray, given: np.ndarray, env_indices: Sequence[int] | np.ndarray, agent_id: Hashable
) -> None:
    """Write one agent's observations, or a part of them, to its column [E, ...] of a group's array.

    Args:
        given: [E, ...], of all envs and of any dtype.
        env_indices: the envs that are written.

    Raises:
        ObservationError: the column's dtype can't hold them (NumPy would wrap integers). Its env index is that in the
            batch, and its env step 0: the runner knows better.
    """
    given = given[env_indices]
    row = first_unheld(column.dtype, given)
    if row >= 0:
        problem = f"observation: expected {column.dtype}, got {described(given[row])}; correct it or its space"
        raise ObservationError(int(env_indices[row]), agent_id, 0, problem)
    column[env_indices] = given


def choice_ranges(space: gym.Space) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and the greatest of each number in a Discrete, MultiDiscrete or MultiBinary action, int64 [numbers];
    None for a Box, where the options `normalize_actions` and `clip_actions` decide."""
    if isinstance(space, gym.spaces.MultiBinary):
        least = np.zeros(math.prod(space.shape), np.int64)
        return least, least + 1
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        numbers = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        least = np.array(space.start, np.int64).reshape(-1)
        return least, least + np.array(numbers, np.int64).reshape(-1) - 1
    return None


def group_by_spaces(
    spaces: Mapping[Hashable, tuple[gym.Space, gym.Space]],
) -> tuple[dict[str, list[Hashable]], dict[str, gym.Space], dict[str, gym.Space]]:
    """Groups of agents with equal (observation space, action space), and these by group: what ArrayEnv takes."""
    distinct: list[tuple[gym.Space, gym.Space]] = []
    groups: dict[str, list[Hashable]] = {}
    for agent, of_agent in spaces.items():
        if of_agent not in distinct:
            distinct.append(of_agent)
        groups.setdefault(f"group_{distinct.index(of_agent)}", []).append(agent)
    by_group = dict(zip(groups, distinct, strict=True))
    return (
        groups,
        {name: obs for name, (obs, _) in by_group.items()},
        {name: act for name, (_, act) in by_group.items()},
    )


@public("fastmarl.envs")
class ArrayEnv:
    """Base class for a batch of environments that step together.

    With `worker_num_splits` there are several batches: `step()` is then called in another thread, while another batch's
    `reset()` and `state()` may be called in the runner's. They must share nothing that changes.

    Agents with equal spaces form a group, whose values are arrays with the axes env and agent. The runner resets envs
    whose episode is over, with `reset()`; the batch must not do so by itself. It may have a method `state()`: global
    states [E, ...] for central critics, of which `state_space` describes one.

    Args:
        num_envs: E, the copies in the batch.
        groups: name -> ids of its agents, in the order of the arrays. Each id is in one group.
        observation_spaces, action_spaces: of one agent, by the group's name.

    Attributes:
        may_take_turns: whether batches of this class share nothing that changes. A class that says False is refused
            with `worker_num_splits`.
        supports_checkpoint: whether there are `get_state()` and `set_state()`, by which a runner that is restored goes
            on in the midst of episodes.
        seeds_each_episode: whether all that is random in an env's episode comes from the seed of that env in the reset
            before. Then every reset is seeded, and every episode can be made again; else only an env's first reset is.

    Raises:
        EnvCheckError: a group has no agents or lacks a space, or an id is used twice.
    """

    may_take_turns = True
    seeds_each_episode = False
    supports_checkpoint = False

    def __init__(
        self,
        num_envs: int,
        groups: Mapping[str, Sequence[Hashable]],
        observation_spaces: Mapping[str, gym.Space],
        action_spaces: Mapping[str, gym.Space],
    ):
        self.num_envs = num_envs
        self.groups = {name: list(agents) for name, agents in groups.items()}
        for name, agents in self.groups.items():
            if not agents or name not in observation_spaces or name not in action_spaces:
                raise EnvCheckError(f"the group {name!r} needs agents, an observation space and an action space")
        self.possible_agents = [agent for agents in self.groups.values() for agent in agents]
        if len(set(self.possible_agents)) < len(self.possible_agents):
            raise EnvCheckError(f"every agent must be in one group, got the groups {self.groups}")
        self.observation_spaces = {a: observation_spaces[name] for name, ids in self.groups.items() for a in ids}
        self.action_spaces = {a: action_spaces[name] for name, ids in self.groups.items() for a in ids}

    @property
    def unwrapped(self) -> Any:
        """The env without adapters."""
        return self

    def new_arrays(self) -> StepArrays:
        """What `reset()` and `step()` are given, with everybody present: to call them by hand."""
        groups = {}
        for name, agents in self.groups.items():
            shape = self.num_envs, len(agents)
            layout = RowLayout(self.observation_spaces[agents[0]])
            obs = layout.nest([np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in layout.leaves])
            terminated, truncated = np.zeros((2, *shape), np.bool_)
            groups[name] = GroupArrays(obs, np.zeros(shape), terminated, truncated, np.ones(shape, np.bool_))
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        return StepArrays(groups, terminated, truncated)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        """Begin the episodes of some envs: write first observations into `out.groups[...].obs[env_indices]`.

        Args:
            env_indices: int64 [k], ascending.
            out: where to; `present` is True for all agents beforehand. Rewards and flags are ignored.
            seeds: k of them, if the runner has a seed: in the first reset of each env, and if `seeds_each_episode` in
                all others. Else None.
        """
        raise NotImplementedError

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        """Step all envs.

        Args:
            actions: by group: [E, A] of int64 for a Discrete space, [E, A, ...] of the space's dtype, or for Dict and
                Tuple spaces such arrays nested likewise. They are the env's to change, until the next step. Agents that
                do not act have 0.
            out: where observations, rewards and flags go to.
        """
        raise NotImplementedError

    def get_state(self) -> Any:
        """All that the rest of the envs' episodes and all later ones depend on; see `MultiAgentEnv.get_state()`. Some
        of the envs may not have been reset yet."""
        raise NotImplementedError

    def set_state(self, state: Any) -> None:
        """Go on from what `get_state()` has returned, of this batch or another one made in the same way."""
        raise NotImplementedError

    def render(self) -> Any:
        """An image, text or None; as the env likes."""

    def close(self) -> None:
        """Give resources back."""


def info_problem(entry: Any, env: ArrayEnv) -> str | None:
    """Describe the fault of an entry of `StepArrays.infos`; None if there is none."""
    try:
        env_index, agent_id, info = entry
        is_known = agent_id in env.observation_spaces or agent_id == COMMON
        fits = is_known and 0 <= index(env_index) < env.num_envs and isinstance(info, dict)
    except (TypeError, ValueError):  # no three values, no key of a dict, no whole number
        fits = False
    if fits:
        return None
    return (f"expected (env index from 0 to {env.num_envs - 1}, agent id or '{COMMON}', dict) in out.infos, got "
            f"{shown(entry)}")  # fmt: skip
