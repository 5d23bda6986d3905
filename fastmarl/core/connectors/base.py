"""What a connector is, and what it knows of the rows it works on."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, ObservationError
from fastmarl.core.kernels.frames import former_rows
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.public import public
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.masks import MASK_KEYS
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import LaneTable


@dataclass(frozen=True)
class Surroundings:
    """Things that a connector may look at beside its rows.

    Attributes:
        episode_of: env index -> its running episode as recorded up to now; reading it takes time.
        module: all modules of the runner.
        metrics: the runner's.
    """

    episode_of: Callable[[int], MultiAgentEpisode]
    module: MultiRLModule
    metrics: Any


@public("fastmarl.connectors")
class Rows:
    """The rows a connector is called with: in each, one agent's observation of one env step, in order of arrival.

    Its arrays are right during the call only.

    Attributes:
        lanes: int32 [n], the agent's lane: a number below `n_lanes` that is its own from its first observation in an
            episode to its last, and is then used again.
        is_final: the rows are final observations.
        block: the record: `obs` (leaves), `outputs` and `reward_R`, by row.
        explore: as `sample()` says; None: the rows are being recorded, and nothing acts yet.
        columns: more columns of the module's batch, arrays [n, ...] by name; see `Connector.adds_columns`.
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
        """Size that arrays by lane need at present. It grows; `make_env()` and `make_module()` restart it."""
        return len(self._table.row_L)

    @property
    def is_first(self) -> np.ndarray:
        """bool [n]: the agent's first observation; what is kept of its lane is of another agent."""
        if self.is_final:
            return np.zeros(len(self), bool)
        table, lanes = self._table, self.lanes
        return table.t_started_L[lanes] + table.count_L[lanes] - table.lookback_L[lanes] == 1

    def former(self, n: int) -> np.ndarray:
        """int64 [len, n]: the previous rows of the same agents in the block, in order; -1 where there is none.

        A connector that asks for n must have a `min_lookback_rows` of at least n - 1.
        """
        rows = np.empty((len(self), n), np.int64)
        former_rows(self._prev, self.block.prev_R, rows)
        return rows

    def with_former(self, n: int) -> np.ndarray:
        """The same with the rows themselves at the end: `former(n - 1)` and they. Not of final observations."""
        rows = np.empty((len(self), n), np.int64)
        own = np.arange(self._first, self._first + len(self))
        former_rows(own, self.block.prev_R, rows)
        return rows

    @property
    def agents(self) -> list[tuple[int, Hashable]]:
        """[n], (env index, agent id)."""
        return [(int(self._table.env_L[lane]), self._table.agent_ids[lane]) for lane in self.lanes.tolist()]

    def surroundings(self) -> Surroundings:
        """The runner and its episodes up to now.

        Raises:
            ConfigError: there are no episodes: a `Policy` acts, or the rows are being recorded.
        """
        if self._surroundings is None:
            raise ConfigError("running episodes can be looked at only where a runner acts: not in a Policy, and not "
                              "by connectors that record")  # fmt: skip
        return self._surroundings

    def error(self, i: int, problem: str) -> ObservationError:
        """An error to raise over row `i`, that names env, agent and env step."""
        lane = int(self.lanes[i])
        env_index = int(self._table.env_L[lane])
        return ObservationError(
            env_index, self._table.agent_ids[lane], self._table.envs[env_index].env_t, f"observation: {problem}"
        )


class ConnectorPiece:
    """The common part of connectors on either side of a module: data by lane, and a state."""

    lane_arrays: tuple[str, ...] | None = None
    """Names of the attributes that hold what is kept by lane, each an array with one entry for a lane. With these,
    running episodes go on in another runner; (): nothing is kept. None: it is not known, so all episodes restart
    there."""

    def get_state(self) -> dict[str, Any]:
        """Return all that a connector in another runner must know to do the same, as plain arrays and numbers.

        {} means nothing. Data by lane is not part of it, see `lane_arrays`.
        """
        return {}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `set_state()` can't take `state`, without a change to anything: a runner checks all
        parts of a state before it takes any."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state()` returned."""

    def merge_states(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One state, of what the connectors of several runners have got to know; the first one's by default."""
        return states[0]


@public("fastmarl.connectors")
class Connector(ConnectorPiece):
    """Makes of the observations that agents get what their module sees; see docs/connectors.md.

    Each module has connectors of its own: the runner works with copies of the objects it is given.
    """

    records = True
    """Whether what the connector makes is recorded, so that training sees it, too. Else it is made for acting only, and
    a learner makes it again from the episodes."""

    reads_record = False
    """Whether it looks up observations in the record: then, if it does not record itself, it must be the first of such.
    """

    adds_columns = False
    """True if it adds to `rows.columns`. Only a connector that does not record can do so."""

    min_lookback_rows = 0
    """How many of an agent's observations before its last one must be carried over into the next `sample()` call."""

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        """The space of what the connector makes of the observations of one agent; called once, first of all.

        Raises:
            ConfigError: the connector can't work on these spaces.
        """
        return input_observation_space

    def __call__(self, obs: Any, rows: Rows) -> Any:
        """What is made of n observations: called once with each, for the rows of one module in one tick or fewer.

        Args:
            obs: arrays [n, ...] nested as the input space. They must not be written to.
            rows: whose they are.

        Returns:
            Arrays [n, ...] nested as the output space.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a __call__(obs, rows)")


@public("fastmarl.connectors")
class OutputConnector(ConnectorPiece):
    """Changes what a module outputs, or the actions that envs get; see docs/connectors.md.

    Each module has connectors of its own: the runner works with copies of the objects it is given.
    """

    def __call__(self, outputs: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """The outputs of a module for n rows, changed; called once a tick, but not for random actions.

        Args:
            outputs: name -> arrays [n, ...], nested where the module or the action space nests them; they are the
                connector's to change. After `GetActions` "actions" and, if they were drawn, "action_logp" are among
                them; after `NormalizeAndClipActions` also "actions_for_env", which envs get.
            rows: whose they are.

        Returns:
            Outputs of the same form. All are recorded, so names, dtypes and shapes stay the same from tick to tick.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a __call__(outputs, rows)")


@public("fastmarl.connectors")
class GetActions(OutputConnector):
    """The place in `module_to_env_connector` where actions are chosen by "action_dist_inputs", where the outputs have
    none by then."""

    lane_arrays = ()


@public("fastmarl.connectors")
class NormalizeAndClipActions(OutputConnector):
    """The place in `module_to_env_connector` where "actions_for_env" are made of "actions", by the options
    `normalize_actions` and `clip_actions`; what comes before it sees to what is learned from, what comes after it to
    what happens."""

    lane_arrays = ()


def are_boxes(space: gym.Space) -> list[bool]:
    """Of each leaf of an observation space, whether it is a Box and no action mask."""
    return [
        isinstance(leaf_space, gym.spaces.Box) and not set(MASK_KEYS) & set(leaf.path)
        for leaf, leaf_space in zip(RowLayout(space).leaves, leaf_spaces(space), strict=True)
    ]
