"""Protocol of environments that step a batch of copies together, using arrays instead of dicts keyed by agent."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import EnvCheckError, ObservationError, shown
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.values import described, first_unheld

COMMON = "__common__"


@public("fastmarl.envs")
@dataclass(frozen=True)
class GroupArrays:
    """Arrays [env, agent, ...] of a group of agents for a single step; the env writes to them in place.

    Attributes:
        obs: Arrays [E, A, ...], nested like the observation space of the group.
        rewards: float64 [E, A], initially 0.
        terminated, truncated: bool [E, A], initially False; True for agents that have finished.
        present: bool [E, A]; True if the agent is observed and, unless it has finished, acts next. Initially True for
            agents currently in the episode. The `obs` of other agents are ignored.
    """

    obs: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    present: np.ndarray


@public("fastmarl.envs")
@dataclass(frozen=True)
class StepArrays:
    """Results of a step or reset of the batch; the env writes to these arrays and must not keep references to them.

    Attributes:
        groups: Group name -> GroupArrays.
        terminated, truncated: bool [E], initially False; True if the episode is over for all agents of the env.
        infos: List to which the env may append tuples (env index, agent id or "__common__", info dict).
    """

    groups: dict[str, GroupArrays]
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[tuple[int, Hashable, dict]] = field(default_factory=list)


def write_observations(
    column: np.ndarray, given: np.ndarray, env_indices: Sequence[int] | np.ndarray, agent_id: Hashable
) -> None:
    """Write observations of an agent, or parts of them, to its column [E, ...] of a group array.

    Args:
        column: The column to write to.
        given: Observations of all envs, [E, ...], of any dtype.
        env_indices: Indices of the envs to write.
        agent_id: Id of the agent, for error messages.

    Raises:
        ObservationError: If the dtype of the column cannot represent the values (NumPy would wrap integers). The error
            contains the env's index within the batch and env step 0; the runner fills in the actual values.
    """
    given = given[env_indices]
    row = first_unheld(column.dtype, given)
    if row >= 0:
        problem = f"observation: expected {column.dtype}, got {described(given[row])}; correct it or its space"
        raise ObservationError(int(env_indices[row]), agent_id, 0, problem)
    column[env_indices] = given


def group_by_spaces(
    spaces: Mapping[Hashable, tuple[gym.Space, gym.Space]],
) -> tuple[dict[str, list[Hashable]], dict[str, gym.Space], dict[str, gym.Space]]:
    """Group agents that have equal spaces; return (groups, observation spaces, action spaces) for ArrayEnv."""
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

    Agents with equal spaces form a group, whose values are arrays with the axes env and agent. When an episode is over,
    the runner calls `reset()`; the batch must not reset the env on its own. A batch may have a method `state()` that
    returns global states [E, ...] for centralised critics; `state_space` is the space of a single state.

    With `worker_num_splits`, there are several batches. `step()` then runs in a separate thread, while the runner's
    thread may call `reset()` and `state()` of another batch, so batches must not share mutable data.

    Args:
        num_envs: Number of env copies in the batch, E.
        groups: Group name -> ids of its agents, in the order of the arrays. Each id is in exactly one group.
        observation_spaces: Group name -> observation space of a single agent.
        action_spaces: Group name -> action space of a single agent.

    Attributes:
        may_take_turns: True if batches of this class share no mutable data. If False, `worker_num_splits` is rejected.
        supports_checkpoint: True if the class implements `get_state()` and `set_state()`, which a restored runner needs
            to continue in the middle of episodes.
        seeds_each_episode: True if all randomness in an episode derives from the seed of the preceding reset. The
            runner then seeds every reset, which makes each episode reproducible; otherwise it seeds only the first
            reset of each env.

    Raises:
        EnvCheckError: If a group has no agents or no space, or an id is used twice.
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
            if isinstance(groups[name], set | frozenset):
                raise EnvCheckError(f"the agents of group {name!r} are a set, but they must be in the order of its "
                                    f"arrays; pass a list")  # fmt: skip
            if not agents or name not in observation_spaces or name not in action_spaces:
                raise EnvCheckError(f"group {name!r} needs at least one agent, an observation space and an action "
                                    f"space")  # fmt: skip
        self.possible_agents = [agent for agents in self.groups.values() for agent in agents]
        if len(set(self.possible_agents)) < len(self.possible_agents):
            raise EnvCheckError(f"agent ids must be unique across groups, got {self.groups}")
        self.observation_spaces = {a: observation_spaces[name] for name, ids in self.groups.items() for a in ids}
        self.action_spaces = {a: action_spaces[name] for name, ids in self.groups.items() for a in ids}

    @property
    def unwrapped(self) -> Any:
        """The env without adapters."""
        return self

    def new_arrays(self) -> StepArrays:
        """Allocate arrays for calling `reset()` and `step()` manually, with all agents present."""
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
        """Start new episodes in the given envs; write their first observations to `out.groups[...].obs[env_indices]`.

        Args:
            env_indices: Indices of the envs to reset in ascending order, int64 [k].
            out: Arrays to write to; `present` is initially True for all agents. Rewards and flags are ignored.
            seeds: List of k seeds if the runner is seeded, in the first reset of each env or, with
                `seeds_each_episode`, in every reset; otherwise None.
        """
        raise NotImplementedError

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        """Step all envs.

        Args:
            actions: Group name -> actions: int64 [E, A] for a Discrete space, otherwise [E, A, ...] with the dtype of
                the space, nested for Dict and Tuple spaces. They are 0 for agents that do not act. The env may modify
                them until the next step.
            out: Arrays to write observations, rewards and flags to.
        """
        raise NotImplementedError

    def get_state(self) -> Any:
        """Return the complete state of the batch; see `MultiAgentEnv.get_state()`.

        Some envs may not have been reset yet.
        """
        raise NotImplementedError

    def set_state(self, state: Any) -> None:
        """Restore a state from `get_state()` of this batch or an identically constructed one."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return an image, text or None, depending on the env."""

    def close(self) -> None:
        """Release the resources of the env."""


def info_problem(entry: Any, env: ArrayEnv) -> str | None:
    """Describe the problem with an entry of `StepArrays.infos`, or return None if it is valid."""
    try:
        env_index, agent_id, info = entry
        is_known = agent_id in env.observation_spaces or agent_id == COMMON
        fits = is_known and 0 <= index(env_index) < env.num_envs and isinstance(info, dict)
    except (TypeError, ValueError):  # not three values, an unhashable id, or a fractional index
        fits = False
    if fits:
        return None
    return (f"expected (env index from 0 to {env.num_envs - 1}, agent id or '{COMMON}', dict) in out.infos, got "
            f"{shown(entry)}")  # fmt: skip
