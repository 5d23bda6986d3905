"""Agents act: rows of observations go to the modules, their answers to the record and to the envs."""

import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.utils.spaces.space_utils import batch as batch_of

from fastmarl.block import Block, Key
from fastmarl.rllib.core import Core
from fastmarl.rllib.records import RLlibLanes
from fastmarl.spaces import flatten_struct, map_struct

ALIGNMENT = 16  # bytes


class Acting:
    """Lets all agents act that have been observed.

    Args:
        core: the parts to work with.
    """

    def __init__(self, core: Core):
        self._core = core

    def act(self, explore: bool, t: int) -> list[dict]:
        """All modules answer to their agents' rows; what they say is recorded and made ready for the envs."""
        core, store, counts, ids = self._core, self._core.store, self._core.counts, self._core.module_ids
        began = time.perf_counter()
        order = self._acting_modules()
        if not order:
            return [{} for _ in core.table.envs]
        batches = {ids[module]: self._batch(module) for module in order}
        connected = time.perf_counter()
        outputs = core.inference.forward(batches, explore=explore, t=t)
        answered = time.perf_counter()
        for module in order:
            first, block = store.acting_from[module], store.blocks[module]
            columns = core.inference.act(ids[module], outputs[ids[module]], explore=explore)
            if (state := core.states[module]) is not None:
                state.write(block.lane_R[first : store.rows[module].n], columns, ids[module])
            core.env_actions[module].set(first, columns, _AgentsOfRows(core.table, block, first))
            block.boxes_scalars = state is not None
            store.record(module, columns)
        envs = core.table.envs
        if len(ids) == 1:
            actions = [core.action_dicts.of(env) for env in envs]
        else:
            actions = [core.action_dicts.by_module(env, order) for env in envs]
        counts.forwards += 1
        counts.seconds["connect"] += connected - began
        counts.seconds["forward"] += answered - connected
        counts.seconds["act"] += time.perf_counter() - answered
        return actions

    def _acting_modules(self) -> list[int]:
        """Modules with rows to answer, in the order in which their first rows stand in RLlib's batch."""
        store, table = self._core.store, self._core.table
        acting = [module for module, rows in enumerate(store.rows) if rows.n > store.acting_from[module]]
        if len(acting) > 1:
            first_lanes = {m: int(store.blocks[m].lane_R[store.acting_from[m]]) for m in acting}
            acting.sort(key=lambda m: (table.env_L[first_lanes[m]], table.place_L[first_lanes[m]]))
        return acting

    def _batch(self, module: int) -> dict[str, Any]:
        store = self._core.store
        block, first, end = store.blocks[module], store.acting_from[module], store.rows[module].n
        if block.layout.whole:
            obs = batch_of(list(block.obs[0][first:end]))
        else:
            obs = block.layout.nest([leaf[first:end] for leaf in block.obs])
        shares = not block.layout.whole and self._core.inference.leaves_input_untouched(self._core.module_ids[module])
        # The last bits of a matrix product depend on where its input lies; RLlib's lies as NumPy allocates.
        shares = shares and all(first * leaf.strides[0] % ALIGNMENT == 0 for leaf in block.obs)
        state = self._core.states[module]
        if state is None:
            return {Columns.OBS: map_struct(lambda leaf: self._tensor(leaf, shares), obs)}
        read = state.read(block.lane_R[first:end])
        return {
            Columns.OBS: map_struct(lambda leaf: self._tensor(leaf, shares).unsqueeze(1), obs),
            Columns.STATE_IN: state.nest([self._tensor(leaf, False) for leaf in read]),
        }

    def _tensor(self, array: np.ndarray, shares: bool) -> torch.Tensor:
        """As RLlib's NumpyToTensor makes it: float64 becomes float32. Without `shares`, memory of its own."""
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        elif not shares:
            array = array.copy()
        tensor = torch.from_numpy(array)
        device = self._core.runner._device
        return tensor if device is None or torch.device(device).type == "cpu" else tensor.to(device)

    def act_at_random(self) -> list[dict]:
        """Actions drawn from the env's own spaces, recorded without anything beside them."""
        store, table = self._core.store, self._core.table
        actions: list[dict] = []
        for env, lanes, record in zip(self._core.runner.env.envs, table.envs, table.records, strict=True):
            acting = self._acting_agents(lanes, record)
            actions.append({agent_id: env.unwrapped.get_action_space(agent_id).sample() for agent_id in acting})
        for module, block in enumerate(store.blocks):
            first, end = store.acting_from[module], store.rows[module].n
            lanes_R = block.lane_R[first:end].tolist()
            chosen = [actions[table.env_L[lane]][table.agent_ids[lane]] for lane in lanes_R]
            if chosen:
                block.boxes_scalars = isinstance(chosen[0], np.ndarray)
                store.record(module, _flat_actions(chosen))
        return actions

    def _acting_agents(self, lanes: Any, record: Any) -> set[Hashable]:
        """The agents that act next; a set made as RLlib makes it, for its order."""
        if record is None or record.awaits_reset:
            return set()
        observed = set(record.observed)
        return {agent_id for agent_id in record.order if agent_id in observed and agent_id in lanes.lane_of}


class _AgentsOfRows(Sequence):
    """The agents of a block's newest rows, found when asked for."""

    def __init__(self, table: RLlibLanes, block: Block, first: int):
        self._table, self._block, self._first = table, block, first

    def __len__(self) -> int:
        return self._block.rows.n - self._first

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self._table.agent_ids[self._block.lane_R[self._first + i]]


def _flat_actions(actions: list[Any]) -> dict[Key, np.ndarray]:
    """Single actions as columns."""
    return {
        ("actions", *path) if path else "actions": np.asarray(column)
        for path, column in flatten_struct(batch_of(actions))
    }
