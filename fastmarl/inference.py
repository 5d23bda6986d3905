"""What the agents of one module do: rows of observations -> torch, or lean inference -> actions and outputs."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.action_masks import masked
from fastmarl.action_sampling import SMALL, ActionSampler, make_action_sampler
from fastmarl.block import Block, Key
from fastmarl.columns import Columns
from fastmarl.connectors.module_connectors import ModuleConnectors
from fastmarl.errors import ModuleOutputError
from fastmarl.kernels.remap import lanes_to_rows, rows_to_lanes
from fastmarl.lanes import LaneTable
from fastmarl.lean import LeanModule
from fastmarl.modules import RLModule
from fastmarl.spaces import RowLayout, flatten_struct, map_struct
from fastmarl.transfer import Transfer

OBS, ACTIONS, LOGP, LOGITS = Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS
LEAST = np.finfo(np.float32).min
Batch = dict[str, Any] | np.ndarray  # what forward() gets; or the observations' own memory, for lean inference


class ModuleInference:
    """Runs one module.

    Args:
        module_id, module: the module; on `transfer.device`.
        transfer: between arrays and tensors.
        generator, rng: for exploration's random draws, by torch on the same device, and by NumPy.
        table: lanes, for modules with recurrent state.
        connectors: what makes the module's batches of the record.
        lean: whether compiled code may stand in for torch, see lean.py.
    """

    def __init__(
        self,
        module_id: str,
        module: RLModule,
        transfer: Transfer,
        generator: torch.Generator,
        rng: np.random.Generator,
        table: LaneTable,
        connectors: ModuleConnectors,
        *,
        lean: bool,
    ):
        self.module_id = module_id
        self.module = module
        self._transfer = transfer
        self._generator = generator
        self._explore_dist = module.get_exploration_action_dist_cls()
        self._inference_dist = module.get_inference_action_dist_cls()
        on_cpu = transfer.device.type == "cpu"
        self._explore_sampler = make_action_sampler(self._explore_dist, rng) if on_cpu else None
        self._inference_sampler = make_action_sampler(self._inference_dist, rng) if on_cpu else None
        self._masks = not module.masks_actions
        space = module.observation_space
        assert space is not None
        self._is_plain = not isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple))
        self._has_objects = any(leaf.dtype == object for leaf in RowLayout(space).leaves)
        self._connectors = connectors if connectors.batches else None
        self._inference_mode = torch.inference_mode()  # made once: making one takes longer than entering it
        self._state = LaneState(module.get_initial_state(), table) if module.is_stateful() else None
        self._lean = LeanModule(module, connectors.layout, transfer.device, allowed=lean)

    @property
    def backend(self) -> str:
        """What runs the module: "lean", or "torch" and the reason why."""
        return self._lean.backend

    def renew(self) -> None:
        """Somebody may have changed the module: see how it is run from now on."""
        self._lean.renew()

    def batch(self, block: Block, first: int, end: int) -> Batch:
        """The module's input for rows first .. end of its block; it may share the block's memory."""
        if end - first <= self._lean.max_rows:
            if self._connectors is None:
                return block.obs[0][first:end]
            dtype = self._connectors.layout.leaves[0].dtype
            return np.ascontiguousarray(self._connectors.batch(block, first, end)[0], dtype)
        if self._connectors is None:
            arrays, layout = [leaf[first:end] for leaf in block.obs], block.layout
        else:
            arrays, layout = self._connectors.batch(block, first, end), self._connectors.layout
        if self._has_objects:
            return self._batch_with_objects(layout, arrays, block.lane_R[first:end])
        if self._state is None:
            obs = self._transfer.to_device(arrays)
            return {OBS: obs[0] if self._is_plain else layout.nest(obs)}
        states = self._state.read(block.lane_R[first:end])
        tensors = self._transfer.to_device([*arrays, *states])
        obs = [tensor.unsqueeze(1) for tensor in tensors[: len(arrays)]]  # [B, T=1, ...], as RLlib has it
        state_in = self._state.nest(tensors[len(arrays) :])
        return {OBS: layout.nest(obs), Columns.STATE_IN: state_in}

    def _batch_with_objects(self, layout: RowLayout, arrays: list[np.ndarray], lanes: np.ndarray) -> dict[str, Any]:
        """The same where leaves are no arrays: they come as NumPy arrays of objects."""
        states = [] if self._state is None else self._state.read(lanes)
        numbers = [array for array in arrays if array.dtype != object]
        tensors = self._transfer.to_device([*numbers, *states])
        of_numbers = iter(tensors[: len(numbers)])
        leaves = [array if array.dtype == object else next(of_numbers) for array in arrays]
        if self._state is None:
            return {OBS: layout.nest(leaves)}
        obs = layout.nest([leaf[:, None] for leaf in leaves])
        return {OBS: obs, Columns.STATE_IN: self._state.nest(tensors[len(numbers) :])}

    def act(
        self, batch: Batch, n: int, *, explore: bool, t: int, legal: np.ndarray | None = None
    ) -> dict[Key, np.ndarray]:
        """One forward pass, and actions. Returns every output, "actions" among them, as arrays [n, ...].

        Arrays are valid until the next call.

        Args:
            batch: what `batch()` gave.
            n: rows of the batch.
            t: env steps of the call so far, for modules that explore by a schedule.
            legal: bool [n, choices]; other choices get the least logit, unless the module sees to that itself.

        Raises:
            ModuleOutputError: an output has another number of rows, NaN came out, or there is nothing to act upon.
        """
        if isinstance(batch, np.ndarray):
            arrays, has_actions = self._forward_lean(batch, legal), False
        else:
            arrays, has_actions = self._forward_torch(batch, n, explore, t, legal)
        if not has_actions:
            self._add_actions(arrays, explore)
        self._check_finite(arrays)
        return arrays

    def _forward_lean(self, obs: np.ndarray, legal: np.ndarray | None) -> dict[Key, np.ndarray]:
        logits, values = self._lean.forward(obs)
        if legal is not None and self._masks:
            np.copyto(logits, LEAST, where=~legal)
        return {LOGITS: logits} if values is None else {LOGITS: logits, Columns.VF_PREDS: values}

    def _forward_torch(
        self, batch: dict[str, Any], n: int, explore: bool, t: int, legal: np.ndarray | None
    ) -> tuple[dict[Key, np.ndarray], bool]:
        """The module's outputs; and whether actions are among them, which it has chosen, or torch has."""
        with self._inference_mode:
            module = self.module
            outputs = module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
            if type(outputs) is not dict or self._state is not None:
                outputs = self._plain_outputs(outputs)
            if legal is not None and self._masks and LOGITS in outputs:
                mask = torch.from_numpy(legal).to(self._transfer.device)
                outputs = {**outputs, LOGITS: masked(outputs[LOGITS], mask)}
            has_actions = ACTIONS in outputs
            if not has_actions and self._sampler(self._logits_of(outputs).shape, explore) is None:
                outputs = {**outputs, **self._chosen_by_torch(outputs[LOGITS], explore)}
                has_actions = True
        self._check_untouched(batch)
        return self._to_arrays(outputs, n), has_actions

    def _add_actions(self, arrays: dict[Key, np.ndarray], explore: bool) -> None:
        """Choose actions by the logits."""
        logits = arrays[LOGITS]
        sampler = self._sampler(logits.shape, explore)
        if sampler is None:
            with self._inference_mode:
                chosen = self._chosen_by_torch(torch.from_numpy(logits), explore)
                arrays.update(self._to_arrays(chosen, len(logits)))
            return
        logits = np.ascontiguousarray(logits, np.float32)
        if explore:
            arrays[ACTIONS], arrays[LOGP] = sampler.sample(logits)
        else:
            arrays[ACTIONS] = sampler.likeliest(logits)

    def _sampler(self, shape: tuple[int, ...], explore: bool) -> ActionSampler | None:
        """What chooses actions by logits of this shape; None: torch."""
        sampler = self._explore_sampler if explore else self._inference_sampler
        if sampler is None or len(shape) != 2 or shape[0] * shape[1] > SMALL:
            return None
        return sampler if sampler.n_logits in (None, shape[1]) else None

    def begin_state(self, lanes: np.ndarray) -> None:
        """Lanes whose first step this is begin with the initial state, though the module isn't asked."""
        if self._state is not None:
            self._state.begin(lanes)

    def keep_state(self, lanes: np.ndarray, outputs: dict[Key, np.ndarray]) -> None:
        """Keep the recurrent state each lane goes on with, and add the one it acted in to the outputs as "state_in"."""
        if self._state is not None:
            outputs.update(self._state.write(lanes, outputs, self.module_id))

    def forget_states(self) -> None:
        """Give the memory of recurrent states back; no lane is acted for."""
        if self._state is not None:
            self._state.forget()

    def _plain_outputs(self, outputs: Any) -> dict[str, Any]:
        """The outputs as a dict, without the time axis of recurrent modules."""
        if not isinstance(outputs, dict):
            problem = f"expected a dict from forward(), got {type(outputs).__name__}"
            raise ModuleOutputError(self.module_id, problem)
        if self._state is None:
            return dict(outputs)
        return {
            name: value if name == Columns.STATE_OUT else map_struct(lambda leaf: leaf.squeeze(1), value)
            for name, value in outputs.items()
        }

    def _logits_of(self, outputs: dict[str, Any]) -> torch.Tensor:
        logits = outputs.get(LOGITS)
        if logits is None:
            problem = f"expected 'action_dist_inputs' or 'actions' among its outputs, got {sorted(outputs)}"
            raise ModuleOutputError(self.module_id, problem)
        return logits

    def _chosen_by_torch(self, logits: torch.Tensor, explore: bool) -> dict[str, Any]:
        if explore:
            actions, logp = self._explore_dist.sample_and_logp(logits, self._generator)
            return {ACTIONS: actions, LOGP: logp}
        return {ACTIONS: self._inference_dist.deterministic(logits)}

    def _to_arrays(self, outputs: dict[str, Any], n: int) -> dict[Key, np.ndarray]:
        """All leaves as arrays; their rows are counted."""
        tensors: dict[Key, torch.Tensor] = {}
        for name, value in outputs.items():
            if type(value) is torch.Tensor:
                tensors[name] = value
            else:
                for path, leaf in flatten_struct(value):
                    tensors[(name, *path) if path else name] = torch.as_tensor(leaf)
        arrays = self._transfer.to_host(tensors)
        for key, array in arrays.items():
            if not array.ndim or len(array) != n:
                problem = f"expected {n} rows in output {key!r}, one for each row of its batch, got shape {array.shape}"
                raise ModuleOutputError(self.module_id, problem)
        return arrays

    def _check_finite(self, arrays: dict[Key, np.ndarray]) -> None:
        logp = arrays.get(LOGP)
        if logp is not None and logp.ndim == 1 and math.isnan(logp.dot(logp)):  # the cheapest way to look at all
            row = int(np.flatnonzero(np.isnan(logp))[0])
            logits = arrays.get(LOGITS, logp)[row]
            problem = f"row {row} of its batch has log-probability NaN, from {logits}; are weights or inputs NaN?"
            raise ModuleOutputError(self.module_id, problem)

    def _check_untouched(self, batch: dict[str, Any]) -> None:
        obs = batch[OBS]
        for leaf in (obs,) if type(obs) is torch.Tensor else [leaf for _, leaf in flatten_struct(obs)]:
            if type(leaf) is torch.Tensor and leaf._version:
                problem = "wrote into its input batch, which is the record; use an operation that is not in place"
                raise ModuleOutputError(self.module_id, problem)


class LaneState:
    """The recurrent state of every lane of one module.

    Args:
        initial: nested dict of arrays or tensors without a batch axis: the state at an agent's first step.
        table: the lanes.
    """

    def __init__(self, initial: Any, table: LaneTable):
        self._table = table
        self._keys = [(Columns.STATE_OUT, *path) for path, _ in flatten_struct(initial)]
        self._initial = [_array(leaf) for _, leaf in flatten_struct(initial)]
        self._structure = initial
        self.forget()

    def forget(self) -> None:
        """Hold no lane's state."""
        self._values_LK = [np.empty((0, leaf.size), leaf.dtype) for leaf in self._initial]
        self._read: list[np.ndarray] = []

    def nest(self, leaves: list) -> Any:
        """Leaves in the nesting of the state."""
        remaining = iter(leaves)
        return map_struct(lambda _: next(remaining), self._structure)

    def begin(self, lanes: np.ndarray) -> None:
        """Give the initial state to those of these lanes (int32 [n]) whose first step this is."""
        table = self._table
        is_first = table.t_started_L[lanes] + table.count_L[lanes] - table.lookback_L[lanes] == 1
        for i, (values_LK, initial) in enumerate(zip(self._values_LK, self._initial, strict=True)):
            if len(values_LK) < len(table.row_L):
                grown = np.zeros((len(table.row_L), initial.size), initial.dtype)
                grown[: len(values_LK)] = values_LK
                self._values_LK[i] = values_LK = grown
            values_LK[lanes[is_first]] = initial.reshape(-1)

    def read(self, lanes: np.ndarray) -> list[np.ndarray]:
        """The states these lanes (int32 [n]) act in, [n, ...] a leaf."""
        self.begin(lanes)
        self._read = []
        for values_LK, initial in zip(self._values_LK, self._initial, strict=True):
            rows = np.empty((len(lanes), initial.size), initial.dtype)
            lanes_to_rows(values_LK, lanes, rows)
            self._read.append(rows.reshape(len(lanes), *initial.shape))
        return self._read

    def write(self, lanes: np.ndarray, outputs: dict[Key, np.ndarray], module_id: str) -> dict[Key, np.ndarray]:
        """Keep "state_out" by lane; returns the "state_in" columns that were read for this batch."""
        state_in: dict[Key, np.ndarray] = {}
        for key, values_LK, read in zip(self._keys, self._values_LK, self._read, strict=True):
            out = outputs.get(key if len(key) > 1 else key[0])
            if out is None or out.shape != read.shape:
                got = "nothing" if out is None else f"shape {out.shape}"
                raise ModuleOutputError(module_id, f"expected {key} of shape {read.shape}, got {got}")
            rows_to_lanes(np.ascontiguousarray(out.reshape(len(lanes), -1), read.dtype), lanes, values_LK)
            state_in[(Columns.STATE_IN, *key[1:]) if len(key) > 1 else Columns.STATE_IN] = read
        return state_in


def _array(leaf: Any) -> np.ndarray:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
