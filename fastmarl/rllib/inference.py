"""What RLlib's modules and the first connector pieces after them compute, with a fraction of the calls."""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.rl_module import RLModule
from torch import Tensor

from fastmarl.block import Key
from fastmarl.errors import ModuleOutputError
from fastmarl.rllib.layers import Function, actor_function
from fastmarl.rllib.sampling import sampler_of
from fastmarl.rllib.sampling_cpu import RowSampler
from fastmarl.rllib.sampling_torch import Sampler
from fastmarl.spaces import flatten_struct
from fastmarl.transfer import StagedCopy

OBS, ACTIONS, LOGP, LOGITS = Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS
WHOLE_FORWARDS = ("forward_exploration", "forward_inference", "_forward_exploration", "_forward_inference")
NARROWED = {
    np.dtype(np.int64): np.int32,
    **{np.dtype(kind): np.float32 for kind in (np.float16, np.float64, np.longdouble)},
}


class ExactInference:
    """Runs the modules of a `MultiRLModule`.

    Equal to the bit to its forward pass, the pieces GetActions and TensorToNumpy and, for modules with state,
    RemoveSingleTsTimeRankFromBatch; as much is taken from torch's global generator.

    Args:
        module: on `device`.
        device: None is the CPU.
        rng: if given, actions are drawn from the same distributions, but need not be the ones that RLlib would draw.

    Attributes:
        is_on_cpu: whether the modules are.
        forwarded_at: when the last forward pass was done, by `time.perf_counter()`.
    """

    def __init__(
        self, module: MultiRLModule, device: torch.device | str | None, rng: np.random.Generator | None = None
    ):
        self._rng = rng
        self._module = module
        self._device = torch.device(device or "cpu")
        self.is_on_cpu = self._device.type == "cpu"
        self.forwarded_at = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Look at the modules anew: after layers, hooks or methods were changed.

        Parameters may change or be replaced, and modules come, go and be replaced at any time without this.
        """
        module = self._module
        self._runs_whole = any(
            getattr(type(module), name) is not getattr(MultiRLModule, name) or name in vars(module)
            for name in WHOLE_FORWARDS
        )
        functions = {module_id: actor_function(part) for module_id, part in module.items()}
        # Entering a mode takes a tenth of the time of a small net, so it is done once for all modules where it can be.
        all_quick = not self._runs_whole and None not in functions.values()
        self._mode = torch.inference_mode() if all_quick else nullcontext()
        mode = nullcontext() if all_quick else torch.inference_mode()
        self._parts = {
            module_id: ModulePart(module_id, part, functions[module_id], self._device, self._rng, mode)
            for module_id, part in module.items()
        }

    def leaves_input_untouched(self, module_id: str) -> bool:
        """Whether the module neither writes to nor keeps the tensors it is given."""
        part = self._parts.get(module_id)
        return (
            part is not None and part.is_quick and part.module is self._module.get(module_id) and not self._runs_whole
        )

    def answer(self, batches: dict[str, dict[str, Any]], *, explore: bool, t: int) -> dict[str, dict[Key, np.ndarray]]:
        """What all modules say and do, in the order of `batches`.

        Args:
            batches: module id -> "obs", a tensor or nested ones, [n, ...]; for modules with state [n, 1, ...], and
                "state_in".
            t: env steps sampled so far, for modules that explore by a schedule.

        Returns:
            Module id -> every output as an array [n, ...], actions among them, in RLlib's order; nested outputs are
            flattened to keys (name, *path). int64 has become int32, and every float float32. Only "state_out" of
            modules with state has kept its axes, of the others the time axis is gone.

        Raises:
            ModuleOutputError: there is nothing to act upon, or an output has no rows.
            RuntimeError: NaN came out while exploring; torch raises it as under RLlib.
        """
        parts = self._parts_of(batches)
        with self._mode:
            if self._runs_whole:
                module = self._module
                outputs = module.forward_exploration(batches, t=t) if explore else module.forward_inference(batches)
            else:
                outputs = {module_id: part.forward(batches[module_id], explore, t) for module_id, part in parts.items()}
            self.forwarded_at = perf_counter()
            return {module_id: part.act(outputs[module_id], explore) for module_id, part in parts.items()}

    def _parts_of(self, module_ids: Iterable[str]) -> dict[str, "ModulePart"]:
        known, module = self._parts, self._module
        for module_id in module_ids:
            if module_id not in known or known[module_id].module is not module.get(module_id):
                self.refresh()
                return {module_id: self._parts[module_id] for module_id in module_ids}
        return {module_id: known[module_id] for module_id in module_ids}


class ModulePart:
    """One of the modules.

    Args:
        actor: see `actor_function`.
        device: where its parameters are.
        rng: see ExactInference.
        mode: to enter where no gradients are needed; a null context if whoever calls has done so.

    Attributes:
        is_quick: whether it is run by its layers' functions instead of its own methods.
    """

    def __init__(
        self,
        module_id: str,
        module: RLModule,
        actor: Function | None,
        device: torch.device,
        rng: np.random.Generator | None,
        mode: AbstractContextManager,
    ):
        self._rng = rng
        self.module = module
        self._id = module_id
        self._device = device
        self._actor = actor
        self.is_quick = actor is not None
        self._is_stateful = module.is_stateful()
        self._samplers: dict[type, Sampler | None] = {}  # by RLlib's distribution classes
        self._transfer = None if device.type == "cpu" else StagedCopy(device, pinned=device.type == "cuda")
        self._mode = mode
        self._row_sampler = self._find_row_sampler()

    def _find_row_sampler(self) -> RowSampler | None:
        """What samples from its layers' outputs without a detour, where there is such a thing."""
        if not self.is_quick or self._is_stateful or self._transfer is not None:
            return None
        sampler = self._sampler(self.module.get_exploration_action_dist_cls())
        return sampler if isinstance(sampler, RowSampler) else None

    def forward(self, batch: dict[str, Any], explore: bool, t: int) -> dict[str, Any]:
        """What the module's own forward pass returns."""
        if self._actor is not None:
            with self._mode:
                return {LOGITS: self._actor(batch[OBS])}
        return self.module.forward_exploration(batch, t=t) if explore else self.module.forward_inference(batch)

    def act(self, outputs: dict[str, Any], explore: bool) -> dict[Key, np.ndarray]:
        """See `ExactInference.answer`."""
        if explore and self._row_sampler is not None:
            return self._draw_rows(self._row_sampler, outputs[LOGITS])
        leaves = _leaves(outputs)
        if ACTIONS in outputs:
            return self._to_arrays(leaves)
        logits = outputs.get(LOGITS)
        if logits is None:
            problem = f"expected 'action_dist_inputs' or 'actions' among its outputs, got {sorted(outputs)}"
            raise ModuleOutputError(self._id, problem)
        dist_cls: Any = (
            self.module.get_exploration_action_dist_cls() if explore else self.module.get_inference_action_dist_cls()
        )
        if LOGP not in outputs and (drawn := self._draw(dist_cls, logits, explore)) is not None:
            arrays = self._to_arrays(leaves | drawn)
            if explore and not _is_finite(arrays[LOGP]):
                self._let_rllib_raise(dist_cls, logits)
            return arrays
        distribution = dist_cls.from_logits(logits) if explore else dist_cls.from_logits(logits).to_deterministic()
        actions = distribution.sample()
        logp = {} if LOGP in outputs else {LOGP: distribution.logp(actions)}
        return self._to_arrays(leaves | _leaves({ACTIONS: actions, **logp}))

    def _draw_rows(self, sampler: RowSampler, logits: Tensor) -> dict[Key, np.ndarray]:
        logits_NK = logits.numpy()
        with self._mode:
            actions, logp = sampler.draw(logits, logits_NK)
        if not _is_finite(logp):
            self._let_rllib_raise(self.module.get_exploration_action_dist_cls(), logits)
        return {LOGITS: logits_NK, ACTIONS: actions, LOGP: logp}

    def _draw(self, dist_cls: type, logits: Tensor, explore: bool) -> dict[Key, Any] | None:
        """Actions and their log-probabilities; None where only RLlib's own distribution is known to do it."""
        rows = logits.squeeze(1) if self._is_stateful else logits
        if rows.dtype is not torch.float32 or rows.dim() != 2 or not rows.is_contiguous():
            return None
        sampler = self._sampler(dist_cls)
        if sampler is None:
            return None
        with self._mode:
            drawn = sampler.explore(rows) if explore else sampler.exploit(rows)
            if drawn is None:
                return None
            actions, logp = drawn
            columns = dict(zip(sampler.keys, actions, strict=True))
            columns[LOGP] = logp
            if self._is_stateful:
                return {key: column[:, None] for key, column in columns.items()}
        return columns

    def _sampler(self, dist_cls: type) -> Sampler | None:
        try:
            return self._samplers[dist_cls]
        except KeyError:
            return self._samplers.setdefault(dist_cls, sampler_of(dist_cls, self._device, self._rng))

    def _let_rllib_raise(self, dist_cls: Any, logits: Tensor) -> None:
        """Raise if RLlib's distribution does; it lets some NaN pass, and then so do we."""
        with torch.random.fork_rng([] if self._transfer is None else [self._device]):
            try:
                dist_cls.from_logits(logits).sample()
            except RuntimeError as error:
                rows = (~logits.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
                error.add_note(f"module {self._id!r}: rows {rows} of its batch gave these; are weights or inputs NaN?")
                raise

    def _to_arrays(self, leaves: dict[Key, Any]) -> dict[Key, np.ndarray]:
        if self._transfer is not None:
            tensors = {key: leaf.to(self._device) for key, leaf in leaves.items() if isinstance(leaf, Tensor)}
            leaves = leaves | self._transfer.to_host(tensors)
        copies = self._transfer is not None or not self.is_quick  # who else may write to it later
        arrays = {key: self._array(key, leaf, copies) for key, leaf in leaves.items()}
        if not self._is_stateful:
            return arrays
        return {key: array if _is_state(key) else np.squeeze(array, 1) for key, array in arrays.items()}

    def _array(self, key: Key, leaf: Any, copies: bool) -> np.ndarray:
        array = (leaf.detach() if leaf.requires_grad else leaf).numpy() if isinstance(leaf, Tensor) else leaf
        if not isinstance(array, np.ndarray) or not array.ndim:
            problem = f"expected a row for each row of its batch in output {key!r}, got {type(leaf).__name__} {leaf!r}"
            raise ModuleOutputError(self._id, problem)
        narrowed = NARROWED.get(array.dtype)
        if narrowed is not None:
            return array.astype(narrowed)
        return array.copy() if copies else array


def _leaves(outputs: dict[str, Any]) -> dict[Key, Any]:
    leaves: dict[Key, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, Tensor):
            leaves[name] = value
        else:
            leaves.update(((name, *path) if path else name, leaf) for path, leaf in flatten_struct(value))
    return leaves


def _is_finite(numbers: np.ndarray) -> bool:
    return math.isfinite(numbers.dot(numbers))  # the cheapest way to look at all


def _is_state(key: Key) -> bool:
    return (key if isinstance(key, str) else key[0]) == Columns.STATE_OUT
