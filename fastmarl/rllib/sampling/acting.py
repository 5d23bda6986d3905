"""Runs the modules on new rows of observations, stores their outputs, and prepares actions for the envs."""

import time
from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.spaces.space_utils import batch as batch_of

from fastmarl.core.store.block import Block, Key, leaves_of
from fastmarl.rllib.sampling.module_inputs import ModuleInputs
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.sampling.shared_data import Mapped
from fastmarl.rllib.sampling.to_env import Acted, ToEnv
from fastmarl.rllib.sampling.to_module import ToModule

OWN_COLUMNS = {Columns.ACTIONS_FOR_ENV, WEIGHTS_SEQ_NO}  # RLlib records its own number, and no actions for envs


class Acting:
    """Chooses the actions of all observed agents.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        inputs: Builds the module batches.
        to_module: Runs user connector pieces on batches.
        to_env: Runs user connector pieces on module outputs.
    """

    def __init__(self, parts: Parts, inputs: ModuleInputs, to_module: ToModule, to_env: ToEnv):
        self._parts = parts
        self._inputs = inputs
        self._to_module = to_module
        self._to_env = to_env
        self._makes_batches = parts.to_module.makes_batches

    def act(self, explore: bool, t: int) -> Acted:
        """Run all modules on the rows of their agents, store the outputs, and return actions for the envs."""
        parts, ids, seconds = self._parts, self._parts.store.module_ids, self._parts.counts.seconds
        began = time.perf_counter()
        order: list[int] = []
        if self._makes_batches:
            batches = self._to_module.next_batches()
            order = [ids.index(module_id) for module_id in batches]
        else:
            order, is_shown = parts.store.scatter.acting_modules(parts.store.acting_from), self._to_env.runs_as_one
            batches = {ids[module]: self._inputs.batch(module, is_shown=is_shown) for module in order}
        if not batches:
            nothing: list[dict] = [{} for _ in parts.table.envs]
            return Acted(nothing, nothing)
        connected = time.perf_counter()
        if self._to_env.is_own or self._to_module.is_reordered:
            acted = self._to_env.act(batches, self._mapped(), explore=explore, t=t)
        else:
            answers = parts.inference.answer(batches, explore=explore, t=t)
            for module in order:
                self._take(module, answers[ids[module]])
            actions = parts.action_dicts.by_module(order)
            acted = Acted(actions, actions)
        parts.counts.forwards += 1
        seconds["connect"] += connected - began
        seconds["forward"] += parts.inference.forwarded_at - connected
        seconds["act"] += time.perf_counter() - parts.inference.forwarded_at
        return acted

    def _mapped(self) -> Mapped:
        """Return the agents of the batch rows; see `Mapped`."""
        if self._makes_batches:
            return self._to_module.mapped
        mapped = self._parts.rows_to_act()
        self._parts.shared_data.note_batches(mapped)
        return mapped

    def _take(self, module: int, columns: dict[Key, np.ndarray]) -> None:
        """Store the outputs of a module, and its actions for the envs."""
        parts, store = self._parts, self._parts.store
        first, block, state = store.acting_from[module], store.blocks[module], parts.states[module]
        if state is not None:
            state.write(block.lane_R[first : store.rows[module].n], columns, store.module_ids[module])
        parts.env_actions[module].set(first, columns, partial(self._agents_of, block, first))
        block.boxes_scalars = state is not None
        if not OWN_COLUMNS.isdisjoint(columns):
            columns = {key: values for key, values in columns.items() if key not in OWN_COLUMNS}
        store.record(module, columns)

    def _agents_of(self, block: Block, first: int) -> list[Hashable]:
        """Return the agents of row `first` of a block and of all later rows."""
        agent_ids = self._parts.table.agent_ids
        return [agent_ids[lane] for lane in block.lane_R[first : block.rows.n]]

    def act_at_random(self) -> Acted:
        """Sample actions from the env spaces, and store them without other outputs."""
        store, table = self._parts.store, self._parts.table
        actions: list[dict] = []
        for env, lanes, record in zip(self._parts.runner.env.envs, table.envs, table.records, strict=True):
            acting = self._acting_agents(lanes, record)
            actions.append({agent_id: env.unwrapped.get_action_space(agent_id).sample() for agent_id in acting})
        for module, block in enumerate(store.blocks):
            first, end = store.acting_from[module], store.rows[module].n
            lanes_R = block.lane_R[first:end].tolist()
            chosen = [actions[table.env_L[lane]][table.agent_ids[lane]] for lane in lanes_R]
            if chosen:
                if (state := self._parts.states[module]) is not None:
                    state.begin(block.lane_R[first:end])  # lanes still have the states of earlier agents
                block.boxes_scalars = isinstance(chosen[0], np.ndarray)
                actions_of_module = leaves_of({Columns.ACTIONS: batch_of(chosen)})
                store.record(module, {key: np.asarray(leaf) for key, leaf in actions_of_module.items()})
        return Acted(actions, actions)

    def _acting_agents(self, lanes: Any, record: Any) -> set[Hashable]:
        """Return the agents to act next; the set is built as in RLlib, so that its order is the same."""
        if record is None or record.awaits_reset:
            return set()
        observed = set(record.observed)
        return {agent_id for agent_id in record.order if agent_id in observed and agent_id in lanes.lane_of}
