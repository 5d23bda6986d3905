"""Inference for a single module: from rows of observations to actions and outputs, in torch or compiled code."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.connectors.base import Rows
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.connectors.module_to_env import has_actions
from fastmarl.core.errors import ModuleOutputError
from fastmarl.core.inference.options import InferenceOptions, make_autocast, why_never_captured
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Categorical, MultiCategorical
from fastmarl.core.modules.masking import masked
from fastmarl.core.native._draws import ActionDraws, ChoiceDraws, GaussianDraws
from fastmarl.core.native._finite import all_finite, first_unfit
from fastmarl.core.native._masks import rule_out
from fastmarl.core.nets.compiled import CompiledForwards
from fastmarl.core.nets.dense_layers import NATIVE
from fastmarl.core.nets.forward_errors import describe_failure
from fastmarl.core.nets.graph_guard import ModuleCapture
from fastmarl.core.nets.graphs import GraphCall, Launch
from fastmarl.core.nets.native import NativeModule
from fastmarl.core.nets.output_checks import ACTIONS, LEAST, LOGITS, LOGP, MOST, OutputChecks
from fastmarl.core.nets.recurrent_state import LaneState
from fastmarl.core.nets.transfer import Transfer, sent_dtype
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.store.block import Block, Key, leaves_of, name_of, nested_outputs
from fastmarl.core.store.lanes import LaneTable

OBS = Columns.OBS
# Input of forward(), leaves of observations for native inference, or a forward pass that was already launched.
Batch = dict[str, Any] | list[np.ndarray] | Launch


class ModuleInference:
    """Runs a single module to compute its outputs and choose actions.

    Args:
        module_id, module: The module, on `transfer.device`.
        transfer: Copies between arrays and tensors.
        generator, rng: Torch generator (on the same device) and NumPy generator for exploration.
        table: Lanes, for modules with recurrent state.
        connectors: Connectors that build the module batches from recorded rows.
        options: Options for running the module.

    Attributes:
        launched: Forward pass already launched for the next batch, see `Policies.launch()`.
        rows: Rows of the last batch, for modules with output connectors.
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
        options: InferenceOptions,
    ):
        self.module_id = module_id
        self.module = module
        self.launched: Launch | None = None
        self._transfer = transfer
        self._generator = generator
        # Pairs are (inference, exploration).
        self._dists = module.get_inference_action_dist_cls(), module.get_exploration_action_dist_cls()
        self._checks = OutputChecks(module_id, module.action_space, self._dists, table)
        self._chooses = [False, False]  # True if the module outputs include actions
        on_cpu = transfer.device.type == "cpu" and options.graphs is None
        self._draws = [make_draws(kind, rng) if on_cpu else None for kind in self._dists]
        self._masks = not module.masks_actions
        self._layout = connectors.layout
        self._is_plain = not isinstance(self._layout.space, (gym.spaces.Dict, gym.spaces.Tuple))
        self._dtypes = [leaf.dtype for leaf in self._layout.leaves]
        self._has_objects = object in self._dtypes
        for dtype in self._dtypes:
            if dtype != object:
                sent_dtype(dtype)  # raises an error if torch does not support the dtype
        self._connectors = connectors if connectors.batches else None
        self._columns: dict[Key, np.ndarray] = {}
        self._outputs = connectors if connectors.outputs else None
        self._chooses_late = bool(connectors.outputs.before_actions)
        self.rows: Rows | None = None
        # Not inference_mode(): a module may keep tensors created while acting and use them in training.
        self._no_grad = torch.no_grad()
        self._had_grad: bool | None = None  # grad mode before no_grad was entered
        self._autocast = make_autocast(transfer.device, options.dtype)
        self._is_casting = False
        self.lane_state = LaneState(module.get_initial_state(), table) if module.is_stateful() else None
        self._native = NativeModule(
            module,
            self._layout,
            transfer.device,
            allowed=options.native,
            dtype=options.dtype,
            threads=options.threads,
        )
        self._compiled = None if options.compile is None else CompiledForwards(module, options.compile)
        self._forwards: Any = module  # the module, or its compiled methods
        self._capture = ModuleCapture(
            module, options.graphs, why_never_captured(connectors, self._has_objects, options)
        )

    @property
    def backend(self) -> str:
        """Backend in use: "native", CUDA graphs or torch.compile, or "torch" with the reason."""
        if self._native.backend == NATIVE:
            return NATIVE
        if self._capture.in_use:
            return self._capture.backend(self)
        reason = self._capture.reason or self._native.backend.removeprefix("torch: ")
        return f"{'torch' if self._forwards is self.module else 'torch.compile'}: {reason}"

    def is_captured(self) -> bool:
        """Return True if the module, in its current form, takes part in launches."""
        return self._capture.is_current(self)

    def renew(self) -> None:
        """Choose the backend again, because the module may have changed."""
        self._native.renew()
        self._capture.renew(self)
        if self._compiled is not None:
            self._forwards = self.module if self._compiled.is_replaced() else self._compiled

    def batch(self, block: Block, first: int, end: int, *, explore: bool) -> Batch:
        """Build the module input for rows first .. end of its block.

        Native inference reads the memory of the block directly; the module gets copies that it may keep and modify.
        """
        if self.launched is not None:
            launched, self.launched = self.launched, None
            return launched
        if self._outputs is not None:
            self.rows = self._outputs.rows(block, first, end, explore=explore)
        if end - first <= self._native.max_rows:
            obs, states = self._inputs(block, first, end, explore=explore)
            if self._connectors is not None:
                obs = [np.ascontiguousarray(*of) for of in zip(obs, self._dtypes, strict=True)]
            return [*obs, *states]
        obs, states = self._inputs(block, first, end, explore=explore)
        self._columns = leaves_of({} if self._connectors is None else self._connectors.columns)
        arrays = [*obs, *states, *self._columns.values()]
        if not self._has_objects:
            return self._nest(self._transfer.to_device(arrays))
        numbers = iter(self._transfer.to_device([array for array in arrays if array.dtype != object]))
        return self._nest([array.copy() if array.dtype == object else next(numbers) for array in arrays])

    def call(self, block: Block, first: int, end: int, legal: np.ndarray | None, *, explore: bool) -> GraphCall:
        """Prepare the module inputs for a launch: observations, states, and masks not applied by the module itself."""
        obs, states = self._inputs(block, first, end, explore=explore)
        masks = [legal] if legal is not None and self._masks else []
        return GraphCall(self, [*obs, *states, *masks])

    def on_device(self, tensors: list[torch.Tensor], *, explore: bool) -> dict[Key, torch.Tensor]:
        """Compute outputs and actions for the tensors of `call()`; this may be captured in a CUDA graph."""
        n_inputs = len(self._layout.leaves) + (0 if self.lane_state is None else len(self.lane_state.initial))
        mask = tensors[n_inputs] if len(tensors) > n_inputs else None
        outputs = self._forward(self._nest(tensors[:n_inputs]), explore, None, mask)
        if not self._chooses[explore]:
            outputs |= self._chosen_by_torch(self._logits_of(outputs), explore)
        return outputs

    def refuse_capture(self, reason: str) -> None:
        """Mark the module as impossible to capture, after a failed attempt."""
        self._capture.refuse(self, reason)

    def _inputs(
        self, block: Block, first: int, end: int, *, explore: bool
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the leaves of observations and of recurrent states for these rows."""
        if self._connectors is None:
            obs = [leaf[first:end] for leaf in block.obs]
        else:
            obs = self._connectors.batch(block, first, end, explore=explore)
        return obs, [] if self.lane_state is None else self.lane_state.read(block.lane_R[first:end])

    def _nest(self, leaves: list[Any]) -> dict[str, Any]:
        """Nest the leaves of observations, states, and columns added by connectors to form a batch."""
        n_leaves = len(self._layout.leaves)
        if self.lane_state is None:
            batch = {OBS: leaves[0] if self._is_plain else self._layout.nest(leaves[:n_leaves])}
            added = leaves[n_leaves:]
        else:
            end = n_leaves + len(self.lane_state.initial)
            # [B, T=1, ...], as in RLlib
            obs, added = map(_with_time, leaves[:n_leaves]), [*map(_with_time, leaves[end:])]
            batch = {OBS: self._layout.nest([*obs]), Columns.STATE_IN: self.lane_state.nest(leaves[n_leaves:end])}
        if added:
            batch |= nested_outputs(dict(zip(self._columns, added, strict=True)))
        return batch

    def act(
        self, batch: Batch, lanes: np.ndarray, *, explore: bool, t: int, legal: np.ndarray | None = None
    ) -> dict[Key, np.ndarray]:
        """Run a forward pass and choose actions.

        Args:
            batch: Result of `batch()`, with n rows.
            lanes: int32 [n], lanes of the rows.
            explore: If True, sample actions; otherwise choose the most probable ones.
            t: Number of env steps of all runners so far, for exploration schedules.
            legal: bool [n, choices]; illegal choices get the lowest logit, unless the module applies masks itself.

        Returns:
            All outputs, including "actions", as arrays [n, ...], which are valid until the next call.

        Raises:
            ModuleOutputError: If an output has the wrong number of rows or contains NaN or infinity; if both actions
                and logits are missing; or if the logits do not match the action space or rule out all choices.
        """
        if isinstance(batch, list) and (answered := self._native_forward(batch)) is not None:
            arrays = self._native_outputs(*answered, explore, legal)
        elif isinstance(batch, Launch):
            arrays = batch.outputs(self)
        else:
            if isinstance(batch, list):  # the module changed after the batch was built
                batch = self._nest(self._transfer.to_device(batch))
            arrays = self._forward_torch(batch, len(lanes), explore, t, legal)
        if self._outputs is not None:
            arrays = self._changed(arrays, explore)
        if not all_finite(arrays):
            self._checks.check_finite(arrays, lanes, legal, explore=explore, chosen=not self._chooses[explore])
        return arrays

    def likeliest(self, obs: np.ndarray) -> np.ndarray | None:
        """Return the most probable raw actions [n, ...], or None if only `act()` can handle these observations.

        The next call overwrites the result.

        Args:
            obs: Complete module observations [n, ...], C-contiguous, with the dtype of the layout. Masks are not
                applied.
        """
        draws = self._draws[False]
        can_answer = draws is not None and self.lane_state is None and len(obs) <= self._native.max_rows
        answered = self._native.forward([obs]) if can_answer else None
        if draws is None or answered is None or answered[0].shape[1] != self._checks.n_logits[False]:
            return None
        return None if first_unfit(answered[0], LEAST, MOST) >= 0 else draws.likeliest(answered[0])

    def _native_forward(self, batch: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None, list[np.ndarray]] | None:
        n_leaves = len(self._layout.leaves)
        return self._native.forward(batch[:n_leaves], batch[n_leaves:])

    def _native_outputs(
        self,
        logits: np.ndarray,
        values: np.ndarray | None,
        states: list[np.ndarray],
        explore: bool,
        legal: np.ndarray | None,
    ) -> dict[Key, np.ndarray]:
        if logits.shape[1] != self._checks.n_logits[explore]:
            self._checks.check_logits(logits.shape, explore)
        if legal is not None and self._masks:
            rule_out(logits, legal)
        arrays: dict[Key, np.ndarray] = {LOGITS: logits}
        if values is not None:
            arrays[Columns.VF_PREDS] = values
        if self.lane_state is not None:
            arrays |= self.lane_state.columns_out(states)
        if not self._chooses_late:
            self._add_actions(arrays, explore)
        return arrays

    def _changed(self, arrays: dict[Key, np.ndarray], explore: bool) -> dict[Key, np.ndarray]:
        """Let connectors change the outputs and the recorded actions."""
        assert self._outputs is not None and self.rows is not None
        connectors = self._outputs.outputs
        arrays = connectors.run(connectors.before_actions, arrays, self.rows)
        if not has_actions(arrays):
            self._checks.check_logits(None if LOGITS not in arrays else arrays[LOGITS].shape, explore)
            arrays[LOGITS] = np.ascontiguousarray(arrays[LOGITS])
            self._add_actions(arrays, explore)
        return connectors.run(connectors.after_actions, arrays, self.rows)

    def _forward_torch(
        self, batch: dict[str, Any], n: int, explore: bool, t: int, legal: np.ndarray | None
    ) -> dict[Key, np.ndarray]:
        """Run the module in torch; return its outputs and the chosen actions."""
        self._had_grad = torch.is_grad_enabled()
        with self._no_grad:
            mask = None if legal is None or not self._masks else torch.from_numpy(legal).to(self._transfer.device)
            outputs = self._forward(batch, explore, t, mask)
            chooses = self._chooses[explore] or self._chooses_late
            if not chooses and self._draws_for(self._logits_of(outputs).shape, explore) is None:
                outputs |= self._chosen_by_torch(outputs[LOGITS], explore)
                chooses = True
        self._had_grad = None
        arrays = self._to_arrays(outputs, n)
        if not chooses:
            self._add_actions(arrays, explore)
        return arrays

    def _forward(self, batch: dict[str, Any], explore: bool, t: int | None, mask: Any) -> dict[Key, torch.Tensor]:
        """Return the outputs of the module, masked, and without the time axis for a module with memory."""
        module = self._forwards
        try:
            if self._autocast is None:
                outputs = module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
            else:
                self._is_casting = True
                with self._autocast:
                    outputs = module.forward_exploration(batch, t=t) if explore else module.forward_inference(batch)
                self._is_casting = False
        except (Exception, SystemExit) as error:
            has_memory = self.lane_state is not None
            describe_failure(error, self.module_id, batch, explore=explore, has_memory=has_memory)
            raise
        tensors = self._checks.tensors_of(outputs)
        if self.lane_state is not None:
            tensors = {key: self._without_time(key, tensor) for key, tensor in tensors.items()}
        logits, self._chooses[explore] = tensors.get(LOGITS), ACTIONS in outputs
        if logits is not None and not logits.is_floating_point() and not logits.is_complex():
            tensors[LOGITS] = logits = logits.float()  # for masks; always, so that the column has one dtype
        if logits is not None and (mask is not None or not self._chooses[explore]):
            self._checks.check_logits(logits.shape, explore)
            if logits.is_complex():
                raise ModuleOutputError(self.module_id, f"expected real 'action_dist_inputs', got {logits.dtype}")
            if mask is not None:
                tensors[LOGITS] = masked(logits, mask)
        return tensors

    def _add_actions(self, arrays: dict[Key, np.ndarray], explore: bool) -> None:
        """Choose actions from the logits and add them."""
        logits = arrays[LOGITS]
        draws = self._draws_for(logits.shape, explore)
        if draws is None:
            self._had_grad = torch.is_grad_enabled()
            with self._no_grad:
                chosen = self._chosen_by_torch(torch.from_numpy(logits).to(self._transfer.device), explore)
                arrays.update(self._to_arrays(chosen, len(logits)))
            self._had_grad = None
        elif explore:
            arrays[ACTIONS], arrays[LOGP] = draws.sample(logits)
        else:
            arrays[ACTIONS] = draws.likeliest(logits)

    def _draws_for(self, shape: tuple[int, ...], explore: bool) -> ActionDraws | None:
        """Return the sampler for logits of this shape, or None if torch samples."""
        draws = self._draws[explore]
        return draws if draws is not None and len(shape) == 2 and draws.n_logits in (None, shape[1]) else None

    def begin_state(self, lanes: np.ndarray) -> None:
        """Set the initial recurrent state of lanes on their first step, if the module does not choose their actions."""
        if self.lane_state is not None:
            self.lane_state.begin(lanes)

    def keep_state(self, lanes: np.ndarray, outputs: dict[Key, np.ndarray]) -> None:
        """Store the next recurrent state of each lane, and add the current one to the outputs as "state_in"."""
        if self.lane_state is not None:
            self.lane_state.write(lanes, outputs, self.module_id)
            outputs.update(self.lane_state.columns_read(outputs))

    def leave_modes(self) -> None:
        """Exit all torch modes that were entered before an interrupt; this object cannot act afterwards."""
        if self._had_grad is not None:
            torch.set_grad_enabled(self._had_grad)
            self._had_grad = None
        if self._is_casting and self._autocast is not None and torch.is_autocast_enabled(self._autocast.device):
            self._autocast.__exit__(None, None, None)
        self._is_casting = False

    def rest(self) -> None:
        """Free the per-lane memory; call this only while all lanes are idle."""
        self._capture.forget(self)
        if self.lane_state is not None:
            self.lane_state.forget()

    def _without_time(self, key: Key, tensor: torch.Tensor) -> torch.Tensor:
        if name_of(key) == Columns.STATE_OUT:
            return tensor
        shape = tuple(tensor.shape)
        if len(shape) < 2 or shape[1] != 1:
            problem = (
                f"expected output {name_of(key)!r} of shape [B, T, ...] with T=1, got shape {shape}; a module with "
                f"memory must return all outputs except 'state_out' with a time axis T"
            )
            raise ModuleOutputError(self.module_id, problem)
        return tensor.squeeze(1)

    def _logits_of(self, outputs: dict[Key, torch.Tensor]) -> torch.Tensor:
        logits = outputs.get(LOGITS)
        if logits is None:
            problem = f"expected 'action_dist_inputs' or 'actions' among its outputs, got {list(outputs)}"
            raise ModuleOutputError(self.module_id, problem)
        return logits

    def _chosen_by_torch(self, logits: torch.Tensor, explore: bool) -> dict[Key, torch.Tensor]:
        kind = self._dists[explore]
        if not explore:
            return self._checks.tensors_of({ACTIONS: kind.deterministic(logits)})
        actions, logp = kind.sample_and_logp(logits, self._generator)
        return self._checks.tensors_of({ACTIONS: actions, LOGP: logp})

    def _to_arrays(self, outputs: dict[Key, torch.Tensor], n: int) -> dict[Key, np.ndarray]:
        """Convert the outputs to arrays, and check their row counts."""
        arrays = self._transfer.to_host(outputs)
        for key, array in arrays.items():
            if not array.ndim or len(array) != n:
                problem = f"expected {n} rows in output {key!r}, one for each row of its batch, got shape {array.shape}"
                raise ModuleOutputError(self.module_id, problem)
        return arrays


def _with_time(leaf: Any) -> Any:
    return leaf.unsqueeze(1) if isinstance(leaf, torch.Tensor) else leaf[:, None]


def make_draws(kind: type[Distribution], rng: np.random.Generator) -> ActionDraws | None:
    """Return a sampler for Categorical, MultiCategorical or DiagGaussian; None for subclasses and other distributions.

    It uses the same probabilities as torch, with a separate random stream. Other distributions sample themselves.
    """
    bound, attributes = vars(kind).get("bound", (kind, ()))
    given = dict(attributes)
    if bound is Categorical:
        return ChoiceDraws(rng)
    if bound is MultiCategorical:
        return ChoiceDraws(rng, given["nvec"], given["shape"])
    if bound is DiagGaussian:
        return GaussianDraws(rng, given.get("shape"))
    return None
