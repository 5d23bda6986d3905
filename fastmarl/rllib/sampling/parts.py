"""Parts of an RLlib runner that samples with fastmarl."""

from collections.abc import Hashable
from typing import Any

import numpy as np
from ray.rllib.utils.spaces.space_utils import get_base_struct_from_space
from torch import Tensor

from fastmarl.core.native._actions import ActionDicts
from fastmarl.core.nets.recurrent_state import LaneState
from fastmarl.core.spaces.structs import map_struct
from fastmarl.rllib.connectors.pieces import EnvToModuleParts, are_rewriting, normalizing_piece, own_of_module_to_env
from fastmarl.rllib.connectors.pipeline import Connectors
from fastmarl.rllib.inference.env_actions import RLlibEnvActions
from fastmarl.rllib.inference.inference import NARROWED, ExactInference
from fastmarl.rllib.sampling.internals import Internals
from fastmarl.rllib.sampling.shared_data import Mapped, SharedData
from fastmarl.rllib.store.records import CallCounts, RLlibLanes, RLlibRecord
from fastmarl.rllib.store.store import RLlibStore


class Parts:
    """Core parts for a single RLlib runner: lanes, store, inference, actions.

    Args:
        internals: The RLlib runner, whose env, module, connectors and config are read.
        draws: Generator for sampler="fast", or None to use the same random numbers as RLlib.

    Attributes:
        counts: Counts of the current call.
        counts_actions: True to count agents that act, rather than agents that are observed (RLlib defect 18).
        spaces: Per env ({agent id: observation space}, {agent id: action space}), as in RLlib episodes.
        to_module: Pieces of the env-to-module pipeline.
        connectors: Connectors that rewrite observations before they reach the modules.
        shared_data: Data shared by pieces.
        shows_episodes: True if custom pieces receive running episodes.
        action_structs, action_options: See RLlibEnvActions.
    """

    def __init__(self, internals: Internals, draws: np.random.Generator | None):
        self.internals, self.runner = internals, internals.runner
        runner = internals.runner
        self.counts = CallCounts()
        self.counts_actions = "18" in runner.fixes
        self._module = runner.module
        self._rng = draws
        self.inference = ExactInference(runner.module, internals.device, self._rng)
        self.table = RLlibLanes(
            [frozenset()] * runner.num_envs, _already_mapped, late_rewards="accumulate", respawn=False
        )
        n_agents = [len(getattr(env.unwrapped, "possible_agents", None) or ()) for env in runner.env.envs]
        merge_flags = "01" not in runner.fixes
        self.spaces = _spaces_of(runner.env.envs)
        self._pieces = self._all_pieces()
        self.to_module = EnvToModuleParts.of(list(internals.env_to_module.connectors))
        own = self.to_module.own
        self.store = RLlibStore(self.table, merge_flags, n_agents, rewrites=are_rewriting(own))
        self.connectors = Connectors(own, self.store, self.spaces)
        acts = bool(own_of_module_to_env(internals.module_to_env.connectors))
        self.shared_data = SharedData(internals, is_read=acts or self.to_module.makes_batches)
        self.shows_episodes = acts or self.to_module.shows_episodes
        self._unsquash = normalizing_piece(internals.module_to_env.connectors)
        self.action_structs = get_base_struct_from_space(self._unsquash.input_action_space)
        self.action_options = self._action_options()
        self.env_actions: list[RLlibEnvActions] = []  # this and the next two are indexed by module; see refresh()
        self.action_dicts = ActionDicts(self.table, [])
        self.states: list[LaneState | None] = []

    def changes(self) -> list[str]:
        """Return the changes in the runner since these parts were created, as sentence fragments."""
        changes, pieces = [], self._all_pieces()
        unsquash = normalizing_piece(self.internals.module_to_env.connectors)
        if unsquash is not self._unsquash or self._action_options() != self.action_options:
            changes.append("actions are scaled or clipped differently than before")
        if [*map(id, pieces)] != [*map(id, self._pieces)]:
            changes.append("the connector pieces have changed")
        return changes

    def _all_pieces(self) -> list[Any]:
        return [*self.internals.env_to_module.connectors, None, *self.internals.module_to_env.connectors]

    def _action_options(self) -> dict[str, bool]:
        return {
            "normalize": self._unsquash.normalize_actions,
            "clip": self._unsquash.clip_actions,
            "adds_start": "28" in self.runner.fixes,
        }

    def refresh(self) -> None:
        """Add new modules. Must be called before each sample() call."""
        if self._module is not self.runner.module:
            self._module = self.runner.module
            self.inference = ExactInference(self._module, self.internals.device, self._rng)
        self.inference.refresh()
        for module_id, module in self.runner.module.items():
            if module_id not in self.store.module_ids:
                self._add_module(module_id, module)

    def _add_module(self, module_id: str, module: Any) -> None:
        actions = RLlibEnvActions(self.action_structs, **self.action_options, boxed=module.is_stateful())
        self.env_actions.append(actions)
        self.action_dicts.modules.append(actions.rows)
        state = None
        if module.is_stateful():
            self.store.stateful.add(len(self.states))
            state = LaneState(_narrowed(module.get_initial_state()), self.table, casting="unsafe")
        self.states.append(state)
        self.store.add_module(module_id)

    def record_of(self, env_index: int) -> RLlibRecord:
        """Return the record of the running episode in the env."""
        record = self.table.record(env_index)
        assert isinstance(record, RLlibRecord)
        return record

    def running(self) -> list[RLlibRecord]:
        """Return the records of the running episodes, in env order."""
        return [self.record_of(i) for i, record in enumerate(self.table.records) if record is not None]

    def rows_to_act(self) -> Mapped:
        """Return the agents whose rows act next, in the order of RLlib batches."""
        store, table, rows = self.store, self.table, Mapped()
        ids = [None if record is None else record.id_ for record in table.records]
        for module in store.scatter.acting_modules(store.acting_from):
            lanes = store.blocks[module].lane_R[store.acting_from[module] : store.rows[module].n].tolist()
            rows[store.module_ids[module]] = [(ids[table.env_L[lane]], table.agent_ids[lane]) for lane in lanes]
        return rows

    def count(self, record: RLlibRecord) -> None:
        """Add the observations in the episode to the counts of the call; RLlib counts them as steps."""
        if not self.counts_actions:
            counts, env = self.counts, self.table.envs[record.env_index]
            env_t = env.env_t - (not env.is_complete)  # without a step that failed halfway
            record.count_observations(env_t, counts.agent_observations, counts.module_observations)

    def log_counts(self) -> None:
        """Log the current counts of the call and start new ones."""
        for record in self.running():
            self.count(record)
        counts, self.counts = self.counts, CallCounts()
        self.internals.bulk_metrics.log_call(counts)

    def count_actions(self, actions: list[dict]) -> int:
        """Add the acting agents to the counts of the call, and return their number."""
        agents, modules = self.counts.agent_observations, self.counts.module_observations
        for record, of_env in zip(self.table.records, actions, strict=True):
            for agent_id in of_env:
                module_id = record.mapping[agent_id]  # type: ignore[union-attr]
                agents[agent_id] = agents.get(agent_id, 0) + 1
                modules[module_id] = modules.get(module_id, 0) + 1
        return sum(map(len, actions))


def _narrowed(state: Any) -> Any:
    """Cast an initial state to arrays of the dtypes used by RLlib connectors."""

    def narrowed(leaf: Any) -> Any:
        array = leaf.numpy(force=True) if isinstance(leaf, Tensor) and leaf.ndim else leaf
        return array.astype(NARROWED.get(array.dtype, array.dtype)) if isinstance(array, np.ndarray) else array

    return map_struct(narrowed, state)


def _already_mapped(agent_id: Hashable, env_index: int) -> int:
    raise AssertionError(f"agent {agent_id!r} of env {env_index} has joined without a module")


def _spaces_of(envs: list[Any]) -> list[tuple[dict, dict]]:
    """Return per env ({agent id: observation space}, {agent id: action space}), as in RLlib episodes.

    Equal spaces become the same object, so that pickled episodes contain each space only once.
    """
    known: list[Any] = []

    def one_of_its_kind(space: Any) -> Any:
        for other in known:
            if type(other) is type(space) and other == space:
                return other
        known.append(space)
        return space

    found = []
    for env in envs:
        inner, agents = env.unwrapped, env.unwrapped.possible_agents
        observations = {agent_id: one_of_its_kind(inner.get_observation_space(agent_id)) for agent_id in agents}
        actions = {agent_id: one_of_its_kind(inner.get_action_space(agent_id)) for agent_id in agents}
        found.append((observations, actions))
    return found
