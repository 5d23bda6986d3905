"""Base class of policies trained with PyTorch, which implements everything except the loss."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.masking import masked_outputs
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning import to_tensors
from fastmarl.legacy.batches.sample_batch import SampleBatch
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.policy_model import PolicyModel

LEARNER_STATS = "learner_stats"
Gradients = list[Any]  # an array, a tensor or None for each parameter


@public("fastmarl.legacy")
class TorchPolicy(Policy):
    """Base class of policies trained with PyTorch. Subclasses implement `loss()`.

    Method names are the same as in `TorchPolicyV2` of RLlib.

    Args:
        module: The module that acts and learns.
        config: Options that differ from `DEFAULTS`.

    Attributes:
        model: The module, wrapped in the model interface of the old RLlib API stack, for `loss()`.
        dist_class: `dist_class(logits, model)` returns the action distribution.
        distributed_world_size: Number of processes that average gradients, or None without averaging.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"lr": 5e-5, "grad_clip": None, "max_seq_len": 20, "minibatch_size": 128}

    def __init__(self, module: RLModule, config: Mapping[str, Any] | None = None):
        super().__init__(module, config)
        self.model = PolicyModel(module)
        self.dist_class: Callable[..., Distribution] = _distribution_of(module)
        self.distributed_world_size: int | None = None
        self._optimizer = self.optimizer()
        self._loaded: dict[int, Any] = {}  # buffer index -> batch

    # Subclasses implement or override these.

    def loss(self, model: PolicyModel, dist_class: Callable[..., Distribution], train_batch: Any) -> Tensor:
        """Return the loss, a scalar tensor.

        Args:
            model: The module; call `model(train_batch)`.
            dist_class: `dist_class(logits, model)` returns the action distribution.
            train_batch: SampleBatch of tensors [n, ...] on the module device. For a recurrent policy, the n = B * T
                rows are B zero-padded sequences, with "seq_lens" [B] and "state_in_0" and so on, [B, ...].
        """
        raise NotImplementedError(f"{type(self).__name__} must implement loss(model, dist_class, train_batch)")

    def optimizer(self) -> torch.optim.Optimizer:
        """Create the optimizer, by default Adam with learning rate `lr`; called once."""
        return torch.optim.Adam(self.module.parameters(), lr=self.config["lr"])

    def extra_grad_process(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> dict[str, Any]:
        """Clip the gradient norm to `grad_clip` and return {"grad_gnorm": norm after clipping}.

        The dict is empty if there are no gradients. Gradients are averaged over a process group after this call.

        Args:
            optimizer: The optimizer, which steps after this call.
            loss: The loss, after its `backward()` call.
        """
        bound = math.inf if self.config["grad_clip"] is None else self.config["grad_clip"]
        parameters = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        if not parameters:
            return {}
        return {"grad_gnorm": min(torch.nn.utils.clip_grad_norm_(parameters, bound).item(), bound)}

    def stats_fn(self, train_batch: Any) -> dict[str, Any]:
        """Return the statistics that the last loss on `train_batch` stored in `model.tower_stats`, as floats."""
        return {name: float(torch.as_tensor(value).detach()) for name, value in self.model.tower_stats.items()}

    # Learning.

    @property
    def device(self) -> torch.device:
        """Device of the module parameters."""
        return next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))

    def learn_on_batch(self, samples: Any) -> dict[str, Any]:
        """Take an optimizer step on a batch.

        Args:
            samples: SampleBatch of this policy.

        Returns:
            Dict of "learner_stats", "model" (results of `model.metrics()`), "custom_metrics" (from callbacks), and
            counts named as in RLlib. "learner_stats" contains "allreduce_latency" (seconds spent averaging gradients
            over a process group), "grad_gnorm", and the results of `stats_fn()`.
        """
        custom_metrics: dict[str, Any] = {}
        self.callbacks.on_learn_on_batch(policy=self, train_batch=samples, result=custom_metrics)
        info = self._compute_gradients(samples)
        self._optimizer.step()
        self.num_grad_updates += 1
        behind = self.num_grad_updates - 1 - (getattr(samples, "num_grad_updates", None) or 0)
        counts = {
            "num_agent_steps_trained": samples.count,
            "num_grad_updates_lifetime": self.num_grad_updates,
            "diff_num_grad_updates_vs_sampler_policy": behind,
        }
        return {LEARNER_STATS: info, "model": self.model.metrics(), "custom_metrics": custom_metrics, **counts}

    def load_batch_into_buffer(self, batch: Any, buffer_index: int = 0) -> int:
        """Store the SampleBatch `batch` in buffer `buffer_index` and return its number of steps."""
        self._loaded[buffer_index] = batch
        return int(batch.count)

    def get_num_samples_loaded_into_buffer(self, buffer_index: int = 0) -> int:
        """Return the number of steps in buffer `buffer_index`, or 0 if nothing was loaded into it."""
        return int(self._loaded[buffer_index].count) if buffer_index in self._loaded else 0

    def learn_on_loaded_batch(self, offset: int = 0, buffer_index: int = 0) -> dict[str, Any]:
        """Learn from `minibatch_size` steps, starting at `offset`, of the batch in buffer `buffer_index`.

        Raises:
            BatchError: If no batch was loaded into the buffer.
        """
        if buffer_index not in self._loaded:
            raise BatchError(f"no batch is loaded into buffer {buffer_index}; call load_batch_into_buffer() first")
        batch, size = self._loaded[buffer_index], self.config["minibatch_size"]
        return self.learn_on_batch(batch if size >= batch.count else batch[offset : offset + size])

    def compute_gradients(self, postprocessed_batch: Any) -> tuple[Gradients, dict[str, Any]]:
        """Compute gradients on the SampleBatch `postprocessed_batch` without updating the module.

        Returns:
            (list of an array per module parameter, or None without a gradient; {"learner_stats": statistics})
        """
        info = self._compute_gradients(postprocessed_batch)
        gradients = [None if p.grad is None else p.grad.cpu().numpy().copy() for p in self.module.parameters()]
        return gradients, {LEARNER_STATS: info}

    def apply_gradients(self, gradients: Gradients) -> None:
        """Take an optimizer step with these gradients.

        Args:
            gradients: An array, a tensor or None for each module parameter.

        Raises:
            BatchError: If the number of gradients or their shapes do not match the parameters.
        """
        parameters = list(self.module.parameters())
        if len(gradients) != len(parameters):
            raise BatchError(f"expected {len(parameters)} gradients, one per parameter, got {len(gradients)}")
        tensors = [None if gradient is None else torch.as_tensor(gradient) for gradient in gradients]
        for index, (parameter, tensor) in enumerate(zip(parameters, tensors, strict=True)):
            if tensor is not None and tensor.shape != parameter.shape:
                raise BatchError(f"expected gradient {index} of shape {tuple(parameter.shape)}, got "
                                 f"{tuple(tensor.shape)}")  # fmt: skip
        for parameter, tensor in zip(parameters, tensors, strict=True):
            parameter.grad = None if tensor is None else tensor.to(parameter.device, parameter.dtype)
        self._optimizer.step()

    def _compute_gradients(self, batch: Any) -> dict[str, Any]:
        """Compute gradients into `grad` of the parameters and return statistics."""
        train_batch = self._tensors(batch)
        self.module.train()
        self.model.tower_stats.clear()
        with torch.enable_grad():  # an interrupt at the end of a no_grad() may have left gradients disabled
            loss = self.loss(self.model, self.dist_class, train_batch)
        self._optimizer.zero_grad()
        loss.backward()
        return self._processed(loss, train_batch)

    def _processed(self, loss: Tensor, train_batch: Any) -> dict[str, Any]:
        """Process the new gradients of `loss` and return statistics."""
        info = self.extra_grad_process(self._optimizer, loss)
        return {"allreduce_latency": self._average_gradients(), **info, **self.stats_fn(train_batch)}

    def _average_gradients(self) -> float:
        """Average the gradients over the process group, if there is one, and return the duration in seconds."""
        if self.distributed_world_size is None:
            return 0.0
        begun = time.perf_counter()
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.distributed_world_size
        return time.perf_counter() - begun

    def _tensors(self, batch: Any) -> Any:
        """Convert a batch to tensors, dropping object columns and padding sequences of a recurrent policy."""
        if self.is_recurrent() and not batch.zero_padded:
            batch = batch.copy(shallow=True)
            batch.right_zero_pad(int(np.max(batch[Columns.SEQ_LENS])))
        return SampleBatch(to_tensors(batch, device=self.device))

    def _tensor(self, column: Any) -> Tensor:
        tensor = torch.as_tensor(column)
        return tensor.to(self.device, torch.float32 if tensor.dtype == torch.float64 else tensor.dtype)

    # Acting outside of the runner.

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Compute actions for preprocessed observations.

        `prev_action_batch`, `prev_reward_batch`, `info_batch`, `episodes` and `timestep` are unused, because modules do
        not accept them.

        Args:
            obs_batch: Observations [n, ...], nested like the observation space of the module.
            state_batches: Leaves of the recurrent states, each [n, ...]; None for the initial states.
            explore: True or None to sample actions, False for the most likely actions.

        Returns:
            (actions [n, ...], list of next states [n, ...], dict of other module outputs [n, ...])
        """
        explore = explore is None or explore
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
        """Return (actions, other module outputs with "action_logp" and "action_prob").

        As in RLlib, actions that are not sampled have probability 1.
        """
        if Columns.ACTIONS in outputs:
            actions = outputs.pop(Columns.ACTIONS)
            return actions, outputs
        distribution = self.dist_class(outputs[Columns.ACTION_DIST_INPUTS], self.model)
        actions = (distribution if explore else distribution.to_deterministic()).sample()
        logp = distribution.logp(actions)
        outputs[Columns.ACTION_LOGP] = logp if explore else torch.zeros_like(logp)
        outputs[SampleBatch.ACTION_PROB] = outputs[Columns.ACTION_LOGP].exp()
        return actions, outputs

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Any],
        explore: bool | None = None,
        timestep: int | None = None,
        episodes: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Compute actions like `compute_actions()`; `timestep` and `episodes` are unused.

        Args:
            input_dict: Columns "obs" and, for a recurrent policy, "state_in_0" and so on.
            explore: As in `compute_actions()`.
        """
        states = [input_dict[f"state_in_{i}"] for i in range(self.num_state_tensors()) if f"state_in_{i}" in input_dict]
        return self.compute_actions(input_dict[Columns.OBS], states or None, explore=explore)

    def compute_single_action(
        self,
        obs: Any = None,
        state: Sequence[Any] | None = None,
        *,
        prev_action: Any = None,
        prev_reward: Any = None,
        info: Any = None,
        input_dict: Mapping[str, Any] | None = None,
        episode: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        **kwargs: Any,
    ) -> tuple:
        """Compute the action for a single observation, like `compute_actions()` without the batch axis.

        `prev_action`, `prev_reward`, `info`, `episode` and `timestep` are unused.

        Args:
            obs: The observation.
            state: Leaves of the recurrent state; None for the initial state.
            input_dict: Columns with one row, instead of `obs` and `state`; see `compute_actions_from_input_dict()`.
            explore: True or None to sample the action, False for the most likely action.
        """
        if input_dict is not None:
            actions, states_out, extra = self.compute_actions_from_input_dict(input_dict, explore)
        else:
            rows = map_struct(lambda leaf: np.asarray(leaf)[None], obs)
            states = None if state is None else [np.asarray(leaf)[None] for leaf in state]
            actions, states_out, extra = self.compute_actions(rows, states, explore=explore)
        first = {name: map_struct(lambda leaf: leaf[0], output) for name, output in extra.items()}
        return map_struct(lambda leaf: leaf[0], actions), [leaf[0] for leaf in states_out], first

    def compute_log_likelihoods(
        self,
        actions: Any,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        actions_normalized: bool = True,
        in_training: bool = True,
    ) -> np.ndarray:
        """Return the log-probabilities, float32 [n], of actions [n, ...] given `obs_batch` [n, ...].

        `prev_action_batch`, `prev_reward_batch`, `actions_normalized` and `in_training` are unused.

        Args:
            actions: Actions in the form used by the module distribution.
            obs_batch: As in `compute_actions()`.
            state_batches: As in `compute_actions()`.
        """
        columns = {Columns.OBS: map_struct(lambda leaf: self._tensor(np.asarray(leaf)), obs_batch)}
        if self.is_recurrent():
            n = len(flatten_struct(columns[Columns.OBS])[0][1])
            states = state_batches or [leaf.expand(n, *leaf.shape) for leaf in self.model.get_initial_state()]
            columns |= {f"state_in_{i}": self._tensor(leaf) for i, leaf in enumerate(states)}
            columns[Columns.SEQ_LENS] = torch.ones(n, dtype=torch.int64)
        with torch.no_grad():
            logits, _ = self.model(columns)
            return _array(self.dist_class(logits, self.model).logp(map_struct(torch.as_tensor, actions)))

    def get_initial_state(self) -> list[np.ndarray]:
        """Return the leaves of the initial recurrent state, [...] each; empty if the policy is not recurrent."""
        return [_array(leaf) for leaf in self.model.get_initial_state()]

    def num_state_tensors(self) -> int:
        return self.model.num_states

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return the state of the base class and the optimizer state."""
        return {**super().get_state(), "_optimizer_variables": [deepcopy(self._optimizer.state_dict())]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for variables in state.get("_optimizer_variables", ()):
            self._optimizer.load_state_dict(deepcopy(variables))  # torch does not copy the tensors


def _distribution_of(module: RLModule) -> Callable[..., Distribution]:
    kind = module.get_train_action_dist_cls()

    def dist_class(logits: Tensor, model: Any = None) -> Distribution:
        """Return the distribution of logits [n, k]; `model` is unused, but RLlib losses pass it."""
        return kind.from_logits(logits)

    return dist_class


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
