"""The base class of policies that learn with PyTorch: everything but the loss."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.masking import masked_outputs
from fastmarl.core.public import public
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning import to_tensors
from fastmarl.legacy.batches.sample_batch import SampleBatch
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.policy_model import PolicyModel

LEARNER_STATS = "learner_stats"
Gradients = list[Any]  # an array, a tensor or None for each parameter


@public("fastmarl.legacy")
class TorchPolicy(Policy):
    """Base class of policies that learn with PyTorch. Subclasses implement `loss()`.

    Methods have the names of those in RLlib's `TorchPolicyV2`.

    Args:
        module: The module that acts and learns.
        config: Options that differ from `DEFAULTS`.

    Attributes:
        model: The module in the interface of RLlib's old API stack, for `loss()`.
        dist_class: `dist_class(logits, model)` returns the action distribution.
        distributed_world_size: Number of processes among which gradients are averaged; None: no averaging.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"lr": 5e-5, "grad_clip": None, "max_seq_len": 20}

    def __init__(self, module: RLModule, config: Mapping[str, Any] | None = None):
        super().__init__(module, config)
        self.model = PolicyModel(module)
        self.dist_class: Callable[..., Distribution] = _distribution_of(module)
        self.distributed_world_size: int | None = None
        self._optimizer = self.optimizer()

    # Subclasses implement or override these.

    def loss(self, model: PolicyModel, dist_class: Callable[..., Distribution], train_batch: Any) -> Tensor:
        """Return the loss, a scalar tensor.

        Args:
            model: The module; call `model(train_batch)`.
            dist_class: `dist_class(logits, model)` returns the action distribution.
            train_batch: SampleBatch of tensors [n, ...] on the module's device. If the policy is recurrent, the n = B *
                T rows are B zero-padded sequences, with "seq_lens" [B] and "state_in_0" and so on [B, ...].
        """
        raise NotImplementedError(f"{type(self).__name__} needs a loss(model, dist_class, train_batch)")

    def optimizer(self) -> torch.optim.Optimizer:
        """Make the optimizer; called once. The default is Adam with the learning rate `lr`."""
        return torch.optim.Adam(self.module.parameters(), lr=self.config["lr"])

    def extra_grad_process(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> dict[str, Any]:
        """Clip the gradients' norm to `grad_clip`; returns statistics.

        Args:
            optimizer: The optimizer, which steps after this call.
            loss: The loss, after its `backward()`.
        """
        if self.config["grad_clip"] is None:
            return {}
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config["grad_clip"])
        return {"grad_gnorm": norm.item()}

    def stats_fn(self, train_batch: Any) -> dict[str, Any]:
        """Return the statistics that the last loss, on `train_batch`, stored in `model.tower_stats`, as floats."""
        return {name: float(torch.as_tensor(value).detach()) for name, value in self.model.tower_stats.items()}

    # Learning.

    @property
    def device(self) -> torch.device:
        """The device of the module's parameters."""
        return next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))

    def learn_on_batch(self, samples: Any) -> dict[str, Any]:
        """Take one step of the optimizer.

        Args:
            samples: SampleBatch of this policy.

        Returns:
            Statistics under "learner_stats", and counts under RLlib's names.
        """
        info = self._compute_gradients(samples)
        self._optimizer.step()
        self.num_grad_updates += 1
        behind = self.num_grad_updates - 1 - (getattr(samples, "num_grad_updates", None) or 0)
        counts = {
            "num_agent_steps_trained": samples.count,
            "num_grad_updates_lifetime": self.num_grad_updates,
            "diff_num_grad_updates_vs_sampler_policy": behind,
        }
        return {LEARNER_STATS: info, **counts}

    def compute_gradients(self, postprocessed_batch: Any) -> tuple[Gradients, dict[str, Any]]:
        """Compute gradients on the SampleBatch `postprocessed_batch`, without an update.

        Returns:
            (an array for each of the module's parameters, or None without a gradient; {"learner_stats": statistics})
        """
        info = self._compute_gradients(postprocessed_batch)
        gradients = [None if p.grad is None else p.grad.cpu().numpy().copy() for p in self.module.parameters()]
        return gradients, {LEARNER_STATS: info}

    def apply_gradients(self, gradients: Gradients) -> None:
        """Take one step of the optimizer with these gradients.

        Args:
            gradients: An array, a tensor or None for each of the module's parameters.

        Raises:
            BatchError: If the number of gradients or their shapes don't match the parameters.
        """
        parameters = list(self.module.parameters())
        if len(gradients) != len(parameters):
            raise BatchError(f"expected {len(parameters)} gradients, one for each parameter, got {len(gradients)}")
        tensors = [None if gradient is None else torch.as_tensor(gradient) for gradient in gradients]
        for index, (parameter, tensor) in enumerate(zip(parameters, tensors, strict=True)):
            if tensor is not None and tensor.shape != parameter.shape:
                raise BatchError(f"expected gradient {index} of shape {tuple(parameter.shape)}, got "
                                 f"{tuple(tensor.shape)}")  # fmt: skip
        for parameter, tensor in zip(parameters, tensors, strict=True):
            parameter.grad = None if tensor is None else tensor.to(parameter.device, parameter.dtype)
        self._optimizer.step()

    def _compute_gradients(self, batch: Any) -> dict[str, Any]:
        """Compute gradients into the parameters' `grad`; returns statistics."""
        train_batch = self._tensors(batch)
        self.module.train()
        self.model.tower_stats.clear()
        with torch.enable_grad():  # an interrupt at the end of a no_grad() may have left gradients disabled
            loss = self.loss(self.model, self.dist_class, train_batch)
        self._optimizer.zero_grad()
        loss.backward()
        self._average_gradients()
        info = self.extra_grad_process(self._optimizer, loss)
        return {**info, **self.stats_fn(train_batch)}

    def _average_gradients(self) -> None:
        if self.distributed_world_size is None:
            return
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.distributed_world_size

    def _tensors(self, batch: Any) -> Any:
        """Convert a batch to tensors, without columns of objects, padded if the policy is recurrent."""
        if self.is_recurrent() and not batch.zero_padded:
            batch = batch.copy(shallow=True)
            batch.right_zero_pad(self.config["max_seq_len"])
        return SampleBatch(to_tensors(batch, device=self.device))

    def _tensor(self, column: Any) -> Tensor:
        tensor = torch.as_tensor(column)
        return tensor.to(self.device, torch.float32 if tensor.dtype == torch.float64 else tensor.dtype)

    # Acting outside of the runner.

    def compute_actions(
        self, obs_batch: Any, state_batches: Sequence[Any] | None = None, explore: bool = True
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Compute actions for preprocessed observations.

        Args:
            obs_batch: [n, ...], nested like the module's observation space.
            state_batches: If the policy is recurrent, its states [n, ...] each; None: the initial ones.
            explore: Draw actions if true, or else take the most likely ones.

        Returns:
            (actions [n, ...], next states [n, ...] each, the module's other outputs [n, ...])
        """
        batch = {Columns.OBS: map_struct(lambda leaf: self._tensor(np.asarray(leaf)), obs_batch)}
        if self.is_recurrent():
            batch = self._with_state(batch, state_batches)
        with torch.no_grad():
            forward = self.module.forward_exploration if explore else self.module.forward_inference
            outputs = dict(masked_outputs(self.module, batch, forward(batch)))
        state_out = outputs.pop(Columns.STATE_OUT, {})
        if self.is_recurrent():
            outputs = {name: map_struct(lambda leaf: leaf.squeeze(1), output) for name, output in outputs.items()}
        actions, extra = self._choose(outputs, explore)
        states = [_array(leaf) for leaf in self.model.state_leaves(state_out)]
        return map_struct(_array, actions), states, {name: map_struct(_array, output) for name, output in extra.items()}

    def _with_state(self, batch: dict[str, Any], state_batches: Sequence[Any] | None) -> dict[str, Any]:
        obs = map_struct(lambda leaf: leaf.unsqueeze(1), batch[Columns.OBS])
        if state_batches is None:
            n = len(flatten_struct(obs)[0][1])
            state_batches = [leaf.expand(n, *leaf.shape) for leaf in self.model.get_initial_state()]
        states = [self._tensor(leaf) for leaf in state_batches]
        return {Columns.OBS: obs, Columns.STATE_IN: self.model.nested_state(states)}

    def _choose(self, outputs: dict[str, Any], explore: bool) -> tuple[Any, dict[str, Any]]:
        """Return (actions, the module's other outputs, to which exploration adds "action_logp")."""
        if Columns.ACTIONS in outputs:
            actions = outputs.pop(Columns.ACTIONS)
            return actions, outputs
        distribution = self.dist_class(outputs[Columns.ACTION_DIST_INPUTS], self.model)
        actions = (distribution if explore else distribution.to_deterministic()).sample()
        if explore:
            outputs[Columns.ACTION_LOGP] = distribution.logp(actions)
        return actions, outputs

    def compute_single_action(self, obs: Any, state: Sequence[Any] | None = None, explore: bool = True) -> tuple:
        """Compute the action for one observation, like `compute_actions()` without the axis n.

        Args:
            obs: The observation.
            state: Leaves of the recurrent state; None for the initial one.
            explore: Sample the action; False: take the most likely one.
        """
        rows = map_struct(lambda leaf: np.asarray(leaf)[None], obs)
        states = None if state is None else [np.asarray(leaf)[None] for leaf in state]
        actions, states_out, extra = self.compute_actions(rows, states, explore)
        first = {name: map_struct(lambda leaf: leaf[0], output) for name, output in extra.items()}
        return map_struct(lambda leaf: leaf[0], actions), [leaf[0] for leaf in states_out], first

    def compute_log_likelihoods(self, actions: Any, obs_batch: Any) -> np.ndarray:
        """Return the log-probabilities, float32 [n], of actions [n, ...] on `obs_batch` [n, ...]; not recurrent."""
        with torch.no_grad():
            logits, _ = self.model({Columns.OBS: map_struct(lambda leaf: self._tensor(np.asarray(leaf)), obs_batch)})
            return _array(self.dist_class(logits, self.model).logp(map_struct(torch.as_tensor, actions)))

    def get_initial_state(self) -> list[np.ndarray]:
        """Return the leaves of the initial recurrent state, [...] each; empty if the policy is not recurrent."""
        return [_array(leaf) for leaf in self.model.get_initial_state()]

    def num_state_tensors(self) -> int:
        return self.model.num_states

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return the weights, counters, and the optimizer's state."""
        return {**super().get_state(), "_optimizer_variables": [deepcopy(self._optimizer.state_dict())]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for variables in state["_optimizer_variables"]:
            self._optimizer.load_state_dict(deepcopy(variables))  # torch doesn't copy the tensors


def _distribution_of(module: RLModule) -> Callable[..., Distribution]:
    kind = module.get_train_action_dist_cls()

    def dist_class(logits: Tensor, model: Any = None) -> Distribution:
        """Return the distribution of logits [n, k]; `model` is unused, but RLlib's losses pass it."""
        return kind.from_logits(logits)

    return dist_class


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
