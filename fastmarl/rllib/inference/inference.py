"""Runs RLlib modules and the first module-to-env pieces with far fewer calls than RLlib."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.rl_module import RLModule
from torch import Tensor

from fastmarl.core.errors import ModuleOutputError
from fastmarl.core.native._draws import ActionDraws
from fastmarl.core.native._finite import first_unfit
from fastmarl.core.native._weights import WeightsWatch, all_hold
from fastmarl.core.nets.forward_errors import note_failure
from fastmarl.core.nets.output_checks import ACTIONS, LEAST, LOGITS, LOGP, MOST
from fastmarl.core.nets.transfer import StagedCopy
from fastmarl.core.spaces.structs import map_struct
from fastmarl.core.store.block import Key, leaves_of
from fastmarl.rllib.inference.draws import draws_of, sampler_of
from fastmarl.rllib.inference.draws_cpu import RowSampler
from fastmarl.rllib.inference.draws_torch import LogitSampler
from fastmarl.rllib.inference.evaluation_switch import EvaluationSwitch, switch_of
from fastmarl.rllib.inference.layers import Actor, actor_function
from fastmarl.rllib.inference.native import NativeActor
from fastmarl.rllib.inference.plain_modules import parts_run
from fastmarl.rllib.store.block import is_state
from fastmarl.rllib.store.layout import ObservationLayout

Batch = dict[str, Any] | np.ndarray
OBS = Columns.OBS
WHOLE_FORWARDS = ("forward_exploration", "forward_inference", "_forward_exploration", "_forward_inference")
NARROWED = {
    np.dtype(np.int64): np.int32,
    **{np.dtype(kind): np.float32 for kind in (np.float16, np.float64, np.longdouble)},
}


class ExactInference:
    """Runs the modules of a `MultiRLModule`.

    Without `rng`, results are bit-identical to its forward pass followed by the pieces GetActions, TensorToNumpy and,
    for modules with state, RemoveSingleTsTimeRankFromBatch, with the same samples from torch's global generator.

    Args:
        module: The modules.
        device: Device of the modules, or None for the CPU.
        rng: Generator for actions from the same distributions but with other samples than in RLlib; outputs may also
            be rounded differently. None for bit-identical results.

    Attributes:
        is_on_cpu: True if the modules are on the CPU.
        forwarded_at: `time.perf_counter()` at the end of the last forward pass.
    """

    def __init__(
        self, module: MultiRLModule, device: torch.device | str | None, rng: np.random.Generator | None = None
    ):
        self._rng = rng
        self._module = module
        self._device = torch.device(device or "cpu")
        self.is_on_cpu = self._device.type == "cpu"
        self.forwarded_at = 0.0
        self._parts: dict[str, ModulePart] = {}
        self._watched: dict[str, tuple[RLModule, WeightsWatch]] = {}  # weights used by each ModulePart
        self.refresh()

    def refresh(self) -> None:
        """Choose again how each module is run; call this after hooks or methods have changed.

        Added, removed or replaced modules, layers and parameters are detected automatically.
        """
        module = self._module
        self._runs_as_one = any(
            getattr(type(module), name) is not getattr(MultiRLModule, name) or name in vars(module)
            for name in WHOLE_FORWARDS
        )
        self._watched = {}  # remains empty if this method raises
        functions = {module_id: actor_function(part) for module_id, part in module.items()}
        switches = {
            module_id: switch_of(part) if functions[module_id] is None else None for module_id, part in module.items()
        }
        watched = {module_id: (part, _watch(part, switches[module_id])) for module_id, part in module.items()}
        # Entering a mode costs a tenth of the forward pass of a small network, so it is entered once for all modules if
        # possible, and not at all for modules that run without torch.
        all_quick = not self._runs_as_one and None not in functions.values() and self._rng is None
        self._mode: Any = torch.inference_mode() if all_quick else nullcontext()
        mode = None if all_quick else torch.inference_mode()
        former, self._parts = self._parts, {}
        for module_id, part in module.items():
            native = None
            if self._rng is not None and not self._runs_as_one:
                native = NativeActor(part, self._device, former[module_id].native if module_id in former else None)
            self._parts[module_id] = ModulePart(
                module_id, part, functions[module_id], switches[module_id], self._device, mode, native, self._rng
            )
        self._watched = watched

    @property
    def backends(self) -> dict[str, str]:
        """Backend of each module: "native", or "torch" with the reason."""
        why = "MultiRLModule's forward methods are overridden" if self._runs_as_one else "samples must match RLlib's"
        return {
            module_id: part.native.backend if part.native else f"torch: {why}"
            for module_id, part in self._parts.items()
        }

    def leave_modes(self) -> None:
        """Exit torch modes that an interrupt left active. This object cannot be used afterwards."""
        self._mode = None  # frees the guard that entered it
        for part in self._parts.values():
            part.leave_modes()

    def leaves_input_untouched(self, module_id: str) -> bool:
        """Return True if the module, as of its last action, neither writes to nor keeps its input tensors."""
        part = self._parts.get(module_id)
        return part is not None and part.is_quick and not self._runs_as_one

    def reads(self, module_id: str, layout: ObservationLayout, n: int) -> bool:
        """Return True if `answer()` can read n rows of module observations directly from memory."""
        part = self._parts.get(module_id)
        return part is not None and part.native is not None and part.native.reads(layout, n)

    def answer(self, batches: dict[str, Batch], *, explore: bool, t: int) -> dict[str, dict[Key, np.ndarray]]:
        """Run all modules, in the order of `batches`, and sample actions.

        Args:
            batches: Module id -> {"obs": a tensor or a nest of tensors [n, ...]}; for modules with state, [n, 1, ...]
                and "state_in". Or the observation rows as an array, if `reads()` returns True.
            explore: True to explore, False to act deterministically.
            t: Number of env steps sampled, for modules with an exploration schedule.

        Returns:
            Module id -> all outputs as arrays [n, ...], including actions, in RLlib's order; nested outputs are
            flattened to keys (name, *path). int64 is converted to int32, and all floats to float32. Modules with state
            have no time axis in their outputs except "state_out".

        Raises:
            ModuleOutputError: If outputs have neither actions nor logits, or an output has no rows.
            RuntimeError: If actions cannot be sampled because of NaN; RLlib raises the same error.
        """
        # The forward methods of MultiRLModule also use this dict; MultiRLModule.get() is five times as slow.
        if not all_hold(self._watched, self._module._rl_modules, batches):
            self.refresh()
            batches = {module_id: map_struct(_own, batch) for module_id, batch in batches.items()}
        parts = self._parts
        with self._mode:
            if self._runs_as_one:
                module = self._module
                outputs = module.forward_exploration(batches, t=t) if explore else module.forward_inference(batches)
            else:
                outputs = {
                    module_id: parts[module_id].forward(batch, explore, t) for module_id, batch in batches.items()
                }
            self.forwarded_at = perf_counter()
            return {module_id: parts[module_id].act(outputs[module_id], explore) for module_id in batches}

    def forward(self, batches: dict[str, Any], *, explore: bool, t: int) -> dict[str, dict[str, Any]]:
        """Return the outputs of the forward passes of the modules; see `answer()` for the arguments."""
        module = self._module
        outputs = module.forward_exploration(batches, t=t) if explore else module.forward_inference(batches)
        self.forwarded_at = perf_counter()
        return outputs

    def act(self, outputs: dict[str, dict[str, Any]], *, explore: bool) -> dict[str, dict[Key, np.ndarray]]:
        """Run the part of `answer()` after the forward pass, on outputs that other code may have changed."""
        if not all_hold(self._watched, self._module._rl_modules, outputs):
            self.refresh()
        with self._mode:
            return {
                module_id: self._parts[module_id].act_upon(of_module, explore)
                for module_id, of_module in outputs.items()
            }


class ModulePart:
    """Runs a single module of `ExactInference`.

    Args:
        module_id: Id of the module.
        module: The module.
        actor: See `actor_function()`.
        switch: See `switch_of()`.
        device: Device of the module parameters.
        mode: Context manager that disables gradients, or None if the caller has entered it.
        native: Compiled code that may replace `actor`, or None.
        rng: See ExactInference.

    Attributes:
        is_quick: True if the module is run through functions of its layers instead of its methods.
    """

    def __init__(
        self,
        module_id: str,
        module: RLModule,
        actor: Actor | None,
        switch: EvaluationSwitch | None,
        device: torch.device,
        mode: AbstractContextManager | None,
        native: NativeActor | None,
        rng: np.random.Generator | None,
    ):
        self.native = native
        self.module = module
        self._id = module_id
        self._device = device
        self._actor = actor
        self.is_quick = actor is not None
        self._is_stateful = module.is_stateful()
        self._switch = switch
        self._transfer = None if device.type == "cpu" else StagedCopy(device)
        self._mode: Any = mode
        self._sampler: Callable[[type], LogitSampler | None] = cache(partial(sampler_of, device=device))
        own_rng = rng if device.type == "cpu" else None
        self._draws: Callable[[type], ActionDraws | None] = cache(partial(draws_of, rng=own_rng))
        self._draws_of_rows: tuple[ActionDraws | None, ...] = (None, None)  # (exploit, explore)
        self._row_sampler: RowSampler | None = None  # samples directly from the outputs of the layers
        if self.is_quick:  # other modules may have no distributions
            exploit, explore = module.get_inference_action_dist_cls(), module.get_exploration_action_dist_cls()
            self._draws_of_rows = self._draws(exploit), self._draws(explore)
            if self._draws_of_rows[True] is None:
                sampler = self._sampler(explore)
                self._row_sampler = sampler if isinstance(sampler, RowSampler) else None

    def leave_modes(self) -> None:
        """Exit torch modes; see `ExactInference.leave_modes()`."""
        self._mode = None

    def forward(self, batch: Batch, explore: bool, t: int) -> dict[str, Any]:
        """Return the outputs of the forward pass of the module; logits are an array if the batch is one."""
        if isinstance(batch, np.ndarray):
            if self.native is not None and self.native.max_rows:
                return {LOGITS: self.native.forward(batch)}
            batch = {OBS: torch.from_numpy(batch.astype(np.float32))}  # the module has changed since `reads()`
        if self._actor is not None:
            if self._mode is None:
                return self._actor(batch)
            with self._mode:
                return self._actor(batch)
        module = self.module
        try:
            if self._switch is None:
                return module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
            with self._switch:
                return module._forward_exploration(batch, t=t) if explore else module._forward_inference(batch)
        except (Exception, SystemExit) as error:
            note_failure(error, self._id, batch, explore=explore, has_memory=self._is_stateful)
            raise

    def act(self, outputs: dict[str, Any], explore: bool) -> dict[Key, np.ndarray]:
        """Sample actions and convert outputs; see `ExactInference.answer()`."""
        logits: Any = outputs.get(LOGITS)
        if explore and self._row_sampler is not None:
            rows = logits.squeeze(1) if self._is_stateful else logits
            logits_NK = rows.numpy()
            if self._mode is None:
                actions, logp = self._row_sampler.draw(rows, logits_NK)
            else:
                with self._mode:
                    actions, logp = self._row_sampler.draw(rows, logits_NK)
            columns = self._columns(logits_NK, actions, logp, explore)
            if not self._is_stateful:
                return columns
            states = leaves_of({Columns.STATE_OUT: outputs[Columns.STATE_OUT]})
            return {**self._to_arrays(states, not self.is_quick), **columns}
        if isinstance(logits, np.ndarray):
            if (draws := self._draws_of_rows[explore]) is not None:
                return self._columns(logits, *_choose(draws, logits, explore), explore)
            outputs = {LOGITS: torch.from_numpy(logits)}
        return self.act_upon(outputs, explore, copies=not self.is_quick)  # module code may write to them later

    def act_upon(self, outputs: dict[str, Any], explore: bool, *, copies: bool = True) -> dict[Key, np.ndarray]:
        """Like `act()`, but for arbitrary module outputs. If `copies` is True, the returned arrays own their memory."""
        logits: Any = outputs.get(LOGITS)
        leaves = leaves_of(outputs)
        if ACTIONS in outputs:
            return self._to_arrays(leaves, copies)
        if logits is None:
            problem = f"expected 'action_dist_inputs' or 'actions' among its outputs, got {sorted(outputs)}"
            raise ModuleOutputError(self._id, problem)
        dist_cls: Any = (
            self.module.get_exploration_action_dist_cls() if explore else self.module.get_inference_action_dist_cls()
        )
        if LOGP not in outputs and (drawn := self._draw(dist_cls, logits, explore)) is not None:
            arrays = self._to_arrays(leaves | drawn, copies)
            if explore and first_unfit(arrays[LOGP], LEAST, MOST) >= 0:
                self._let_rllib_raise(dist_cls, logits)
            return arrays
        distribution = dist_cls.from_logits(logits) if explore else dist_cls.from_logits(logits).to_deterministic()
        actions = distribution.sample()
        leaves |= leaves_of({ACTIONS: actions})
        if LOGP not in outputs:
            leaves[LOGP] = distribution.logp(actions)
        return self._to_arrays(leaves, copies)

    def _columns(
        self, logits: np.ndarray, actions: np.ndarray, logp: np.ndarray, explore: bool
    ) -> dict[Key, np.ndarray]:
        if explore and first_unfit(logp, LEAST, MOST) >= 0:
            self._let_rllib_raise(self.module.get_exploration_action_dist_cls(), torch.from_numpy(logits))
        return {LOGITS: logits, ACTIONS: actions, LOGP: logp}

    def _draw(self, dist_cls: type, logits: Tensor, explore: bool) -> dict[Key, Any] | None:
        """Return actions and their log-probabilities, or None if the RLlib distribution must sample them."""
        rows = logits.squeeze(1) if self._is_stateful else logits
        if rows.dtype is not torch.float32 or rows.dim() != 2 or not rows.is_contiguous():
            return None
        draws = self._draws(dist_cls)
        sampler = None if draws is not None else self._sampler(dist_cls)
        with self._mode or nullcontext():
            if draws is not None:
                action, logp = _choose(draws, rows.detach().numpy(), explore)
                columns: dict[Key, Any] = {ACTIONS: action}
            elif sampler is not None and (drawn := sampler.explore(rows) if explore else sampler.exploit(rows)):
                actions, logp = drawn
                columns = dict(zip(sampler.keys, actions, strict=True))
            else:
                return None
            columns[LOGP] = logp
            if self._is_stateful:
                return {key: column[:, None] for key, column in columns.items()}
        return columns

    def _let_rllib_raise(self, dist_cls: Any, logits: Tensor) -> None:
        """Sample with the RLlib distribution so that it raises its error, if any; it accepts some NaN."""
        with torch.random.fork_rng([] if self._transfer is None else [self._device]):
            try:
                dist_cls.from_logits(logits).sample()
            except RuntimeError as error:
                rows = (~logits.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
                error.add_note(f"module {self._id!r}: rows {rows} have non-finite logits; check its weights and inputs")
                raise

    def _to_arrays(self, leaves: dict[Key, Any], copies: bool) -> dict[Key, np.ndarray]:
        if self._transfer is not None:
            tensors = {key: leaf.to(self._device) for key, leaf in leaves.items() if isinstance(leaf, Tensor)}
            leaves = leaves | self._transfer.to_host(tensors)
        copies |= self._transfer is not None
        arrays = {key: self._array(key, leaf, copies) for key, leaf in leaves.items()}
        if not self._is_stateful:
            return arrays
        return {key: array if is_state(key) else np.squeeze(array, 1) for key, array in arrays.items()}

    def _array(self, key: Key, leaf: Any, copies: bool) -> np.ndarray:
        array = (leaf.detach() if leaf.requires_grad else leaf).numpy() if isinstance(leaf, Tensor) else leaf
        if not isinstance(array, np.ndarray) or not array.ndim:
            problem = f"expected output {key!r} to have one row per batch row, got {type(leaf).__name__} {leaf!r}"
            raise ModuleOutputError(self._id, problem)
        narrowed = NARROWED.get(array.dtype)
        if narrowed is not None:
            return array.astype(narrowed)
        return array.copy() if copies else array


def _choose(draws: ActionDraws, logits: np.ndarray, explore: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return actions and log-probabilities as in RLlib: zeros shaped like the actions unless `explore`."""
    if explore:
        return draws.sample(logits)
    actions = draws.likeliest(logits)
    return actions, np.zeros_like(actions)


def _watch(module: RLModule, switch: EvaluationSwitch | None) -> WeightsWatch:
    """Return a watch on the weights and submodules used by the layer functions or the evaluation switch."""
    if switch is None:
        return WeightsWatch(parts_run(module))
    return WeightsWatch(module.modules(), children_only=True)


def _own(leaf: Any) -> Any:
    """Copy a tensor that may share memory with the store, for a module that may write to it."""
    return torch.from_numpy(leaf.numpy().copy()) if isinstance(leaf, Tensor) and leaf.is_cpu else leaf
