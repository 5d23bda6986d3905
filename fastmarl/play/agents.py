"""Histories and next actions of the agents that a module of a `Policy` controls."""

from collections.abc import Collection, Hashable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.connectors.rewards import make_reward_connector
from fastmarl.core.errors import ActionMaskError, ConfigError, shown
from fastmarl.core.inference.actors import Actor
from fastmarl.core.inference.inference import ModuleInference
from fastmarl.core.inference.masks import ActionMasks
from fastmarl.core.inference.options import InferenceOptions
from fastmarl.core.inference.row_states import ModuleRowsState, rows_state
from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._actions import ActionDicts
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.nets.transfer import make_transfer
from fastmarl.core.spaces.masks import MASK, choices_of, mask_row
from fastmarl.core.store.block import LEAST_ROWS, Key, OutputFormError
from fastmarl.core.store.lanes import Guest, LaneTable
from fastmarl.core.store.store import INACTIVE, RowStore
from fastmarl.runner.state.saved_policy import PolicyOptions

GOING_ON = {"__all__": False}
QUICK = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.Box)


class AgentTable(LaneTable):
    """Lanes of policy agents, which belong to no env, so errors name only the agent."""

    def __init__(self) -> None:
        super().__init__([frozenset()], lambda agent_id, env_index: 0, late_rewards="error", respawn=False)
        self.records[0] = EpisodeRecord(0, "", 0.0)

    def who(self, lane: int) -> str:
        return f"agent {self.agent_ids[lane]!r}"


class ModuleAgents:
    """A module and the agents it controls.

    Agents are recorded as in a runner, so that connectors and recurrent states find their data as usual: each agent has
    a lane, as if all agents shared a single env in which an agent acts when it is observed. Rows no longer needed are
    dropped.

    Args:
        module_id: Id of the module.
        module: Module on the CPU, owned by this object.
        connectors: Connectors of the module, owned by this object.
        options: Options of the runner that trained the module.
        generator: torch random generator for exploration.
        rng: NumPy random generator for exploration.

    Attributes:
        observation_space: Space of the observations for `act()`.
        action_space: Space of the actions returned by `act()`.
        is_quick: True if `act_quickly()` can return an action.
    """

    def __init__(
        self,
        module_id: str,
        module: RLModule,
        connectors: ModuleConnectors,
        options: PolicyOptions,
        generator: torch.Generator,
        rng: np.random.Generator,
    ):
        assert module.action_space is not None
        self.observation_space, self.action_space = connectors.sent_space, module.action_space
        self._module_id = module_id
        self._t = options.t
        self._table = AgentTable()
        connectors.bind(self._table)
        self._inference = ModuleInference(
            module_id,
            module,
            make_transfer(torch.device("cpu")),
            generator,
            rng,
            self._table,
            connectors,
            InferenceOptions(native=options.native_inference, dtype=options.inference_dtype),
        )
        recorded = connectors.recorded_layout
        self._masks = ActionMasks(connectors, self.action_space, self._table)
        how = {"normalize": options.normalize_actions, "clip": options.clip_actions}
        self._env_actions = EnvActions(module_id, self.action_space, connectors.outputs, **how)
        self._policy = Actor(module_id, module, connectors, self._inference, self._masks, self._env_actions)
        self._connectors = connectors
        rewards = make_reward_connector(options.reward_scale, options.clip_rewards)
        self._store = RowStore([recorded], [module_id], self._table, 0, connectors=[connectors], rewards=rewards)
        self._actions = ActionDicts(self._table, [self._env_actions])
        self._keeps = self._inference.lane_state is not None or bool(connectors.connectors)
        self._renew_at = LEAST_ROWS
        leaf = connectors.layout.leaves[0]
        is_plain = isinstance(connectors.layout.space, gym.spaces.Box) and isinstance(self.action_space, QUICK)
        self.is_quick = is_plain and not self._keeps and self._inference.backend == "native"
        self._shape, self._dtype = leaf.shape, leaf.dtype
        self._row = np.empty((1, *leaf.shape), leaf.dtype) if self.is_quick else np.empty(1)
        self._in_row = self._row[0, ...]

    @property
    def backend(self) -> str:
        """Inference backend of the module, as in `MultiAgentEnvRunner.inference_backends`."""
        return self._inference.backend

    def act_quickly(self, obs: Any) -> Any:
        """Return the most likely action for an observation of an agent without history and mask, or None.

        If it returns None, the caller must use `act()`, which also raises any errors.
        """
        if type(obs) is not np.ndarray or obs.shape != self._shape or obs.dtype != self._dtype:
            return None
        self._in_row[...] = obs
        raw = self._inference.likeliest(self._row)
        return None if raw is None else self._env_actions.of_row(raw)

    def act(
        self, obs: Mapping[Any, Any], rewards: Mapping[Any, Any], infos: Mapping[Any, Any], *, explore: bool
    ) -> dict[Any, Any]:
        """Return agent id -> action for all observed agents, computed in a single forward pass.

        If the call fails, the agents are unchanged.

        Args:
            obs: Agent id -> observation.
            rewards: Agent id -> reward since the previous call, which may include unobserved agents.
            infos: Agent id -> info, which may contain an action mask.
            explore: True to sample actions, False for the most likely actions.

        Raises:
            MultiAgentEnvError: If an observation, reward or mask is invalid; the error names env 0.
            Exception: Any error of the module or its connectors.
        """
        if self._store.rows[0].n >= self._renew_at:
            self._renew()
        return self._act(obs, rewards, infos, explore) if obs or (rewards and self._keeps) else {}

    def _act(
        self, obs: Mapping[Any, Any], rewards: Mapping[Any, Any], infos: Mapping[Any, Any], explore: bool
    ) -> dict[Any, Any]:
        """Do the same as `act()` without renewing the block."""
        env, record, store = self._table.envs[0], self._table.record(0), self._store
        first, new = store.acting_from[0], [agent for agent in obs if agent not in env.lane_of]
        before, early = self._rewards_of(rewards), dict(record.early_rewards)
        try:
            store.scatter.write_step(0, dict(obs), dict(rewards) if self._keeps else {}, GOING_ON, {}, dict(infos))
            if obs:
                self._answer(first, explore)
            actions = self._actions.of(env) if obs else {}
        except BaseException:
            self._take_back(first, before)
            self.forget(new)
            record.early_rewards = early
            raise
        env.infos = []
        if not self._keeps:
            self.forget(list(obs))
            self._cut(first)
        return actions

    def act_from(
        self,
        state: Mapping[str, Any],
        obs: Any,
        agent_id: Hashable,
        reward: Any,
        info: dict[str, Any],
        *,
        explore: bool,
    ) -> tuple[Any, dict[str, Any]]:
        """Return (action, next state) of an agent in a given state, without storing anything about the agent.

        Args:
            state: State returned for the previous observation of the agent, or {} for its first observation.
            obs: Observation of the agent.
            agent_id: Id of the agent.
            reward: Reward since the last observation of the agent.
            info: Info, which may contain an action mask.
            explore: True to sample the action, False for the most likely action.

        Raises:
            ConfigError: If the state does not belong to this module, or a connector does not declare its state per
                lane.
            Exception: Any error of `act()`.
        """
        if not self._keeps:
            if state:
                raise ConfigError(f"module {self._module_id!r} keeps no agent state: expected state={{}}, got "
                                  f"{state!r:.200}")  # fmt: skip
            return self.act({agent_id: obs}, {}, {agent_id: info}, explore=explore)[agent_id], {}
        if not self._connectors.knows_lanes:
            raise ConfigError(f"a connector of module {self._module_id!r} does not declare its state per agent, so "
                              f"state= is not supported; set its per_agent_state")  # fmt: skip
        if self._store.rows[0].n >= self._renew_at:
            self._renew()
        guest, first = Guest(agent_id), self._store.acting_from[0]
        known = set(self._store.blocks[0].outputs) if first else ()
        try:
            if state or type(state) is not dict:
                self._welcome(guest, state)
            actions = self._act({guest: obs}, {guest: reward}, {guest: info}, explore)
            return actions[guest], self._state_of(guest)
        finally:
            self.forget([guest])
            self._cut(first)
            if self._store.blocks[0] is not INACTIVE:  # drop columns that only this state had
                outputs = self._store.blocks[0].outputs
                for key in [key for key in outputs if key not in known]:
                    del outputs[key]

    def forget(self, agents: Collection[Hashable] | None = None) -> None:
        """Drop all data of the given agents, or of all agents if `agents` is None."""
        table = self._table
        env, record = table.envs[0], table.record(0)
        gone = set(env.lane_of if agents is None else agents)
        lanes = [lane for agent, lane in env.lane_of.items() if agent in gone]
        staying = [lane for agent, lane in env.lane_of.items() if agent not in gone]
        env.resume(env.env_t, table.agent_ids, staying, [], [])
        table.release(lanes)
        record.lanes = staying
        record.module_of = {agent: module for agent, module in record.module_of.items() if agent not in gone}
        early = record.early_rewards
        record.early_rewards = {} if agents is None else {agent: early[agent] for agent in early if agent not in gone}

    def info_of(self, agent_id: Hashable, action_mask: Any) -> dict[str, Any]:
        """Return an info with this action mask, or an empty info if the mask is None.

        Raises:
            ActionMaskError: If the module does not accept a mask separate from observations, or the mask has values
                that are not finite numbers.
        """
        if action_mask is None:
            return {}
        row = mask_row(action_mask)
        problem = self._mask_problem()
        if not problem and not (row.dtype.kind in "biuf" and np.isfinite(row).all()):
            problem = f"action_mask must contain finite numbers, got {shown(action_mask)}"
        if problem:
            raise ActionMaskError(None, agent_id, 0, problem)
        return {MASK: row}

    def _mask_problem(self) -> str:
        """Return the reason why an action mask cannot be passed separately from the observation, or ""."""
        if not choices_of(self.action_space):
            return f"action_mask needs Discrete or MultiDiscrete actions, got {self.action_space}"
        key = self._masks.key
        return "" if key is None else f"its observation contains the mask, obs[{key!r}]; don't pass action_mask"

    def _answer(self, first: int, explore: bool) -> None:
        """Run the module on row `first` and all later ones."""
        store, inference = self._store, self._inference
        if store.connects:
            store.connect()
        block, end = store.blocks[0], store.rows[0].n
        lanes = block.lane_R[first:end]
        legal = self._masks.legal(block, first, end)
        batch = inference.batch(block, first, end, explore=explore)
        outputs = inference.act(batch, lanes, explore=explore, t=self._t, legal=legal)
        self._env_actions.set(first, end - first, outputs, inference.rows)
        inference.keep_state(lanes, outputs)
        if self._connectors.connectors:
            store.record(0, outputs)
        store.advance()

    # Undoing failed calls, and dropping rows.

    def _rewards_of(self, agents: Collection[Hashable]) -> dict[int, float]:
        """Return row -> collected reward for the last row of each of these agents."""
        lane_of, row_L = self._table.envs[0].lane_of, self._table.row_L
        rows = [int(row_L[lane_of[agent]]) for agent in agents if agent in lane_of]
        return {row: float(self._store.blocks[0].reward_R[row]) for row in rows}

    def _take_back(self, first: int, rewards: dict[int, float]) -> None:
        """Restore the state in which there were `first` rows, with these rewards per row."""
        table, block = self._table, self._store.blocks[0]
        if block is not INACTIVE:
            for row in range(self._store.rows[0].n - 1, first - 1, -1):
                lane = block.lane_R[row]
                table.row_L[lane] = block.prev_R[row]
                table.count_L[lane] -= 1
            for row, reward in rewards.items():
                block.reward_R[row] = reward
            self._cut(first)
        self._env_actions.forget()

    def _cut(self, n: int) -> None:
        """Drop row `n` and all later ones."""
        store = self._store
        if store.blocks[0] is not INACTIVE:
            store.rows[0].n = store.acting_from[0] = store.blocks[0].n_connected = n

    def _renew(self) -> None:
        """Start a new block with the rows that are still needed."""
        self._store.renew_blocks()
        self._table.envs[0].env_t = 0
        self._renew_at = max(LEAST_ROWS, 2 * self._store.rows[0].n)

    # States carried by the caller.

    def _welcome(self, guest: Guest, state: Any) -> None:
        """Add the guest to the table, in the given state."""
        try:
            found = ModuleRowsState(self._policy, state, 1)
            if not found.n_acted or found.n_acted != len(state["agent"]):
                raise ConfigError("it has no rows, or rows without an action")
            self._check_actions(found.outputs)
            self._put(guest, found)
        except (ConfigError, OutputFormError) as error:
            raise ConfigError(f"agent {guest!r}: state= must be the state that act() returned with the agent's last "
                              f"action, or {{}} before its first action: {error}") from error  # fmt: skip

    def _check_actions(self, outputs: Mapping[Key, np.ndarray]) -> None:
        """Raise ConfigError unless the outputs contain the actions that connectors may look up."""
        for key, shape in self._env_actions.shapes.items() if self._connectors.connectors else ():
            values = outputs.get(key)
            if values is None or values.shape[1:] != shape or values.dtype.kind not in "biuf":
                raise ConfigError(f"its outputs must contain {key} of shape {shape} per row")

    def _put(self, guest: Guest, found: ModuleRowsState) -> None:
        store, table = self._store, self._table
        if store.blocks[0] is INACTIVE:
            store.activate(0)
        lanes = table.take_lanes([guest])
        table.envs[0].lane_of[guest] = int(lanes[0])
        found.put(store.blocks[0], table, lanes)
        store.acting_from[0] = store.rows[0].n

    def _state_of(self, guest: Guest) -> dict[str, Any]:
        store, table = self._store, self._table
        lane = table.envs[0].lane_of[guest]
        table.t_started_L[lane] += 1  # no longer its first step, so that its memory is not reset
        numbers = np.full(len(table.row_L), -1)
        numbers[lane] = 0
        rows = store.rows_of(lane)[-1 - self._connectors.min_lookback_rows :]
        store.blocks[0].seq_no_R[rows[-1]] = 0  # weights are not numbered here
        lanes = np.array([lane], np.int32)
        state = rows_state(self._policy, store.blocks[0], store.acting_from[0], lanes, numbers, rows)
        state["env_t"][:] = 0  # steps of other agents do not count
        return state
