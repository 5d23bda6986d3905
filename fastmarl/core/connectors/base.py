"""Base classes of connectors, and the rows passed to them."""

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
    """Objects that a connector may access besides its rows.

    Attributes:
        episode_of: Function of an env index that returns its running episode as currently recorded; slow.
        module: All modules of the runner.
        metrics: The metrics logger of the runner.
    """

    episode_of: Callable[[int], MultiAgentEpisode]
    module: MultiRLModule
    metrics: Any


@public("fastmarl.connectors")
class Rows:
    """The rows passed to a connector, in order of arrival; each is the observation of a single agent.

    The arrays are valid only during the call.

    Args:
        table: Table of agents, indexed by lane.
        block: The recorded data of the call.
        first: Index of the first row, or of the first final observation, in the block.
        end: Index after the last one.
        is_final: True if the rows are final observations.
        explore: The argument of `sample()`; None if no module acts yet.
        surroundings: Other objects that a connector may access.

    Attributes:
        lanes: Lane of each row's agent, int32 [n]: an index < `n_lanes`, assigned to the agent from its first to its
            last observation in an episode, and then reused.
        is_final: True if the rows are final observations.
        block: The recorded data, indexed by row: `obs` (leaves), `outputs` and `reward_R`.
        explore: The argument of `sample()`; None if the rows are only being recorded and no module acts yet.
        columns: Name -> additional column of the module batch, array [n, ...]; see `adds_columns` of connectors.
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
        """Current length of arrays indexed by lane; only grows, until `make_env()` or `make_module()` resets it."""
        return len(self._table.row_L)

    @property
    def is_first(self) -> np.ndarray:
        """True for first observations of agents, bool [n]; their per-lane data still belongs to earlier agents."""
        if self.is_final:
            return np.zeros(len(self), bool)
        table, lanes = self._table, self.lanes
        return table.t_started_L[lanes] + table.count_L[lanes] - table.lookback_L[lanes] == 1

    def former(self, n: int) -> np.ndarray:
        """Return the n previous rows of each row's agent in the block, oldest first, int64 [len, n]; -1 if missing.

        A connector that requests n rows needs a `min_lookback_rows` >= n - 1.
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
        """Return the modules, metrics and running episodes of the runner.

        Raises:
            ConfigError: If there are no episodes, because a `Policy` acts or the rows are only being recorded.
        """
        if self._surroundings is None:
            raise ConfigError("running episodes are available only while a runner acts, neither in a Policy nor to "
                              "connectors that record")  # fmt: skip
        return self._surroundings

    def error(self, i: int, problem: str) -> ObservationError:
        """Return an error about row `i`, for the caller to raise; it names the env, agent, env step and `problem`."""
        lane = int(self.lanes[i])
        env_index = int(self._table.env_L[lane])
        return ObservationError(
            env_index, self._table.agent_ids[lane], self._table.envs[env_index].env_t, f"observation: {problem}"
        )


class ConnectorPiece:
    """Base class of connectors before and after a module; defines their per-lane data and their state."""

    per_agent_state: tuple[str, ...] | None = None
    """Names of the attributes with per-lane data, each an array with one entry per lane.

    They let running episodes continue in another runner. () means that there is no such data; None means that it is
    unknown, so that all episodes restart there.
    """

    def get_state(self) -> dict[str, Any]:
        """Return all data that a connector in another runner needs to behave identically, as plain arrays and numbers.

        {} means that there is none. Per-lane data is excluded; see `per_agent_state`.
        """
        return {}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `set_state()` cannot accept `state`, without changing anything.

        A runner checks all parts of a state before it sets any.
        """

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state()`."""

    def merge_states(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge the learned states of the connectors of several runners; by default, return the first state."""
        return states[0]


@public("fastmarl.connectors")
class EnvToModuleConnector(ConnectorPiece):
    """Converts the observations of agents to the inputs of their module; see docs/connectors.md.

    Each module has separate connectors: the runner copies the given objects.
    """

    records = True
    """True if the output of the connector is recorded, so that it is also used in training.

    If False, the output is only used for acting, and a learner has to recompute it from the episodes.
    """

    reads_record = False
    """True if the connector looks up recorded observations.

    If it does not record, it must precede all other connectors that do not record.
    """

    adds_columns = False
    """True if the connector adds to `rows.columns`, which requires `records = False`."""

    min_lookback_rows = 0
    """Number of observations before the last one of each agent to carry over into the next `sample()` call."""

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """Return the space of the connector output for a single agent; called once, before anything else.

        Args:
            input_observation_space: Observation space after all preceding connectors.
            input_action_space: Action space.

        Raises:
            ConfigError: If the connector does not support these spaces.
        """
        return input_observation_space

    def __call__(self, obs: Any, rows: Rows) -> Any:
        """Transform n observations of a single module and tick; each observation is passed exactly once.

        Args:
            obs: Arrays [n, ...], nested like the input space; read-only.
            rows: The rows of these observations.

        Returns:
            Arrays [n, ...], nested like the output space.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(obs, rows)")


@public("fastmarl.connectors")
class ModuleToEnvConnector(ConnectorPiece):
    """Changes the outputs of a module, or the actions that envs receive; see docs/connectors.md.

    Each module has separate connectors: the runner copies the given objects.
    """

    def __call__(self, outputs: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Change the outputs of a module for n rows; called once per tick, but not for random actions.

        Args:
            outputs: Name -> arrays [n, ...], nested like the module outputs or the action space, which the connector
                may change in place. After `GetActions` they include "actions" and, if these were sampled,
                "action_logp"; after `NormalizeAndClipActions` also "actions_for_env", which envs receive.
            rows: The rows of these outputs.

        Returns:
            Outputs in the same form. All of them are recorded, so names, dtypes and shapes must not vary between ticks.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(outputs, rows)")


@public("fastmarl.connectors")
class GetActions(ModuleToEnvConnector):
    """Marks the place in `module_to_env_connector` where actions are sampled from "action_dist_inputs".

    Outputs that already contain actions are left unchanged.
    """

    per_agent_state = ()


@public("fastmarl.connectors")
class NormalizeAndClipActions(ModuleToEnvConnector):
    """Marks the place in `module_to_env_connector` where "actions_for_env" are computed from "actions".

    The options `normalize_actions` and `clip_actions` control the conversion. Connectors before it change the recorded
    actions used for learning; connectors after it change the actions that envs receive.
    """

    per_agent_state = ()


def are_boxes(space: gym.Space) -> list[bool]:
    """Return a bool for each leaf of an observation space, True if it is a Box other than an action mask."""
    return [
        isinstance(leaf_space, gym.spaces.Box) and not set(MASK_KEYS) & set(leaf.path)
        for leaf, leaf_space in zip(RowLayout(space).leaves, leaf_spaces(space), strict=True)
    ]
