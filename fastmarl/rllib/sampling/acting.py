"""Agents act: rows of observations go to the modules, their answers to the record and to the envs."""

import time
from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.utils.spaces.space_utils import batch as batch_of

from fastmarl.core.spaces.structs import map_struct
from fastmarl.core.store.block import Block, Key, leaves_of
from fastmarl.rllib.inference.inference import Batch
from fastmarl.rllib.sampling.core import Core

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
        core, ids, seconds = self._core, self._core.store.module_ids, self._core.counts.seconds
        began = time.perf_counter()
        order = core.store.scatter.acting_modules(core.store.acting_from)
        if not order:
            return [{} for _ in core.table.envs]
        batches = {ids[module]: self._batch(module) for module in order}
        connected = time.perf_counter()
        answers = core.inference.answer(batches, explore=explore, t=t)
        for module in order:
            self._take(module, answers[ids[module]])
        actions = core.action_dicts.by_module(order)
        core.counts.forwards += 1
        seconds["connect"] += connected - began
        seconds["forward"] += core.inference.forwarded_at - connected
        seconds["act"] += time.perf_counter() - core.inference.forwarded_at
        return actions

    def _batch(self, module: int) -> Batch:
        """As RLlib's modules get it; the last bits of a matrix product depend on where its input lies, too."""
        core, store = self._core, self._core.store
        block, first, end = store.blocks[module], store.acting_from[module], store.rows[module].n
        frames = core.connectors.frames
        if frames is None and core.inference.reads(store.module_ids[module], block.layout, end - first):
            return block.obs[0][first:end]
        shares = core.inference.leaves_input_untouched(store.module_ids[module])
        if frames is not None:
            obs: Any = map_struct(self._own_tensor, frames.of(module))
        elif block.layout.is_array:
            obs = self._tensor(block.obs[0], first, end, shares)
        elif block.layout.whole:
            obs = map_struct(self._own_tensor, batch_of(list(block.obs[0][first:end])))
        else:
            obs = block.layout.nest([self._tensor(leaf, first, end, shares) for leaf in block.obs])
        state = core.states[module]
        if state is None:
            return {Columns.OBS: obs}
        read = state.read(block.lane_R[first:end])
        return {
            Columns.OBS: map_struct(lambda leaf: leaf.unsqueeze(1), obs),
            Columns.STATE_IN: state.nest([self._on_device(torch.from_numpy(_as_float(leaf))) for leaf in read]),
        }

    def _tensor(self, leaf: np.ndarray, first: int, end: int, shares: bool) -> torch.Tensor:
        """Rows of a leaf; where that may be, without a copy."""
        if not shares or leaf.dtype == np.float64 or first * leaf.strides[0] % ALIGNMENT:
            return self._own_tensor(leaf[first:end])
        return self._on_device(torch.from_numpy(leaf[first:end]))

    def _own_tensor(self, array: np.ndarray) -> torch.Tensor:
        """As RLlib's NumpyToTensor makes it: float64 becomes float32. It has memory of its own, as NumPy allocates."""
        return self._on_device(torch.from_numpy(_as_float(array, copy=True)))

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._core.inference.is_on_cpu else tensor.to(self._core.runner._device)

    def _take(self, module: int, columns: dict[Key, np.ndarray]) -> None:
        """Record a module's answers, and keep its actions for the envs."""
        core, store = self._core, self._core.store
        first, block, state = store.acting_from[module], store.blocks[module], core.states[module]
        if state is not None:
            state.write(block.lane_R[first : store.rows[module].n], columns, store.module_ids[module])
        core.env_actions[module].set(first, columns, partial(self._agents_of, block, first))
        block.boxes_scalars = state is not None
        store.record(module, columns)

    def _agents_of(self, block: Block, first: int) -> list[Hashable]:
        """The agents of a block's rows from `first` on."""
        agent_ids = self._core.table.agent_ids
        return [agent_ids[lane] for lane in block.lane_R[first : block.rows.n]]

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
                if (state := self._core.states[module]) is not None:
                    state.begin(block.lane_R[first:end])  # lanes still have the states of earlier agents
                block.boxes_scalars = isinstance(chosen[0], np.ndarray)
                actions_of_module = leaves_of({Columns.ACTIONS: batch_of(chosen)})
                store.record(module, {key: np.asarray(leaf) for key, leaf in actions_of_module.items()})
        return actions

    def _acting_agents(self, lanes: Any, record: Any) -> set[Hashable]:
        """The agents that act next; a set made as RLlib makes it, for its order."""
        if record is None or record.awaits_reset:
            return set()
        observed = set(record.observed)
        return {agent_id for agent_id in record.order if agent_id in observed and agent_id in lanes.lane_of}


def _as_float(array: np.ndarray, *, copy: bool = False) -> np.ndarray:
    """Of float32 if it was of float64."""
    return array.astype(np.float32 if array.dtype == np.float64 else array.dtype, copy=copy)
