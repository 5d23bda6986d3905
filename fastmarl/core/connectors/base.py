"""Base classes of connectors, and the rows that they are called with."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, ObservationError
from fastmarl.core.kernels.frames import former_rows
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.masks import MASK_KEYS
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import Guest, LaneTable


@dataclass(frozen=True)
class Surroundings:
    """Objects that a connector may look at besides its rows.

    Attributes:
        episode_of: Env index -> its running episode as recorded so far; reading it takes time.
        module: All modules of the runner.
        metrics: The runner's metrics logger.
    """

    episode_of: Callable[[int], MultiAgentEpisode]
    module: MultiRLModule
    metrics: Any


@public("fastmarl.connectors")
class Rows:
    """The rows that a connector is called with: each is one agent's observation, in order of arrival.

    Its arrays are valid during the call only.

    Args:
        table: Agents by lane.
        block: The recorded data of the call.
        first: Index of the first row, or of the first final observation, in the block.
        end: Index after the last one.
        is_final: True if the rows are final observations.
        explore: The argument of `sample()`; None if no module acts yet.
        surroundings: Other objects that a connector may look at.

    Attributes:
        lanes: Lane of each row's agent, int32 [n]: a number below `n_lanes` that belongs to the agent from its first
            observation in an episode to its last, and is then reused.
        is_final: True if the rows are final observations.
        block: The recorded data by row: `obs` (leaves), `outputs` and `reward_R`.
        explore: The argument of `sample()`; None if the rows are only being recorded and no module acts yet.
        columns: Further columns of the module's batch, arrays [n, ...] by name; see `adds_columns` of connectors.
    """

    __slots__ = ("_first", "_prev", "_surroundings", "_table", "block", "columns", "explore", "is_final", "lanes")

    def __init__(
        self,
        table: LaneTable,
        block: Block,
        first: int,
        end: int,
        *,
        is_final: bool,
        explore: bool | None = None,
        surroundings: Surroundings | None = None,
    ):
        self._table = table
        self._surroundings = surroundings
        self.explore = explore
        self.columns: dict[str, Any] = {}
        self._first = first
        self._prev = (block.final_prev_F if is_final else block.prev_R)[first:end]
        self.block = block
        self.is_final = is_final
        self.lanes = block.lane_R[self._prev] if is_final else block.lane_R[first:end]

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def n_lanes(self) -> int:
        """Current size for arrays indexed by lane. It only grows until `make_env()` or `make_module()` resets it."""
        return len(self._table.row_L)

    @property
    def is_first(self) -> np.ndarray:
        """True for agents' first observations, bool [n]; data kept for such a lane belongs to an earlier agent."""
        if self.is_final:
            return np.zeros(len(self), bool)
        table, lanes = self._table, self.lanes
        return table.t_started_L[lanes] + table.count_L[lanes] - table.lookback_L[lanes] == 1

    def former(self, n: int) -> np.ndarray:
        """Return the n previous rows of the same agents in the block, in order, int64 [len, n]; -1 if there is none.

        A connector that asks for n rows must have a `min_lookback_rows` of at least n - 1.
        """
        rows = np.empty((len(self), n), np.int64)
        former_rows(self._prev, self.block.prev_R, rows)
        return rows

    def with_former(self, n: int) -> np.ndarray:
        """Return `former(n - 1)` followed by the rows themselves, int64 [len, n]. Not for final observations."""
        rows = np.empty((len(self), n), np.int64)
        own = np.arange(self._first, self._first + len(self))
        former_rows(own, self.block.prev_R, rows)
        return rows

    @property
    def agents(self) -> list[tuple[int, Hashable]]:
        """(env index, agent id) of each row."""
        ids = self._table.agent_ids
        agents = (ids[lane].agent_id if type(ids[lane]) is Guest else ids[lane] for lane in self.lanes.tolist())
        return [*zip(self._table.env_L[self.lanes].tolist(), agents, strict=True)]

    def surroundings(self) -> Surroundings:
        """Return the runner's modules and metrics, and its episodes so far.

        Raises:
            ConfigError: If there are no episodes, because a `Policy` acts or the rows are only being recorded.
        """
        if self._surroundings is None:
            raise ConfigError("running episodes are available only where a runner acts: not in a Policy, and not to "
                              "connectors that record")  # fmt: skip
        return self._surroundings

    def error(self, i: int, problem: str) -> ObservationError:
        """Return an error about row `i`, to be raised, with the env, agent and env step and the text `problem`."""
        lane = int(self.lanes[i])
        env_index = int(self._table.env_L[lane])
        return ObservationError(
            env_index, self._table.agent_ids[lane], self._table.envs[env_index].env_t, f"observation: {problem}"
        )


class ConnectorPiece:
    """Common base of connectors before and after a module: data by lane, and a state."""

    per_agent_state: tuple[str, ...] | None = None
    """Names of the attributes that hold data by lane, each an array with one entry per lane.

    They let running episodes continue in another runner. () means that nothing is kept. None means unknown, so all
    episodes restart there.
    """

    def get_state(self) -> dict[str, Any]:
        """Return everything that a connector in another runner needs to behave the same, as plain arrays and numbers.

        {} means nothing. Data by lane is excluded; see `per_agent_state`.
        """
        return {}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `set_state()` can't take `state`, without changing anything.

        A runner checks all parts of a state before it sets any.
        """

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state()`."""

    def merge_states(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge what the connectors of several runners have learned; by default, return the first state."""
        return states[0]


@public("fastmarl.connectors")
class EnvToModuleConnector(ConnectorPiece):
    """Converts the observations that agents receive into what their module sees; see docs/connectors.md.

    Each module has its own connectors: the runner copies the objects it is given.
    """

    records = True
    """True if the connector's output is recorded, so that training sees it, too.

    If False, the output is only used for acting, and a learner has to make it again from the episodes.
    """

    reads_record = False
    """True if the connector looks up recorded observations.

    If it does not record, it must then be the first of the connectors that don't.
    """

    adds_columns = False
    """True if the connector adds to `rows.columns`, which requires `records = False`."""

    min_lookback_rows = 0
    """Number of observations before an agent's last one to be carried over into the next `sample()` call."""

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the connector's output for one agent; called once, before anything else.

        Args:
            input_observation_space: Space of the agent's observations, after the connectors before this one.
            input_action_space: Space of the agent's actions.

        Raises:
            ConfigError: If the connector can't work on these spaces.
        """
        return input_observation_space

    def __call__(self, obs: Any, rows: Rows) -> Any:
        """Transform n observations. Each is passed once, in calls with at most the rows of one module in one tick.

        Args:
            obs: Arrays [n, ...], nested like the input space; they must not be written to.
            rows: The rows of these observations.

        Returns:
            Arrays [n, ...], nested like the output space.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a __call__(obs, rows)")


@public("fastmarl.connectors")
class ModuleToEnvConnector(ConnectorPiece):
    """Changes a module's outputs, or the actions that envs receive; see docs/connectors.md.

    Each module has its own connectors: the runner copies the objects it is given.
    """

    def __call__(self, outputs: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Change the outputs of a module for n rows; called once a tick, but not for random actions.

        Args:
            outputs: Name -> arrays [n, ...], nested like the module's outputs or the action space, which the connector
                may change in place. After `GetActions` they include "actions" and, if these were drawn, "action_logp";
                after `NormalizeAndClipActions` also "actions_for_env", which envs receive.
            rows: The rows of these outputs.

        Returns:
            Outputs of the same form. All of them are recorded, so names, dtypes and shapes must not vary by tick.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a __call__(outputs, rows)")


@public("fastmarl.connectors")
class GetActions(ModuleToEnvConnector):
    """Marks the place in `module_to_env_connector` where actions are drawn from "action_dist_inputs".

    Outputs that already have actions by then are left as they are.
    """

    per_agent_state = ()


@public("fastmarl.connectors")
class NormalizeAndClipActions(ModuleToEnvConnector):
    """Marks the place in `module_to_env_connector` where "actions_for_env" are made from "actions".

    The options `normalize_actions` and `clip_actions` decide how. Connectors before it change what is learned from;
    connectors after it change what envs receive.
    """

    per_agent_state = ()


def are_boxes(space: gym.Space) -> list[bool]:
    """Return, for each leaf of an observation space, True if it is a Box and not an action mask."""
    return [
        isinstance(leaf_space, gym.spaces.Box) and not set(MASK_KEYS) & set(leaf.path)
        for leaf, leaf_space in zip(RowLayout(space).leaves, leaf_spaces(space), strict=True)
    ]
