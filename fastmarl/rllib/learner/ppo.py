"""RLlib's PPOTorchLearner with less overhead around matrix products: same losses, minibatches and random numbers."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator

from fastmarl.core.errors import ConfigError
from fastmarl.rllib.learner import adam
from fastmarl.rllib.learner.direct_update import DirectUpdate, direct_update
from fastmarl.rllib.learner.minibatches import ColumnSlices, Numbers, RowNumbers, are_plain, minibatches

UPDATES = ("exact", "fast")
GRADIENTS = ("compute_gradients", "get_parameters", "_uncompiled_update")  # methods bypassed by a DirectUpdate


class PPOTorchLearner(RLlibLearner):
    """Replaces the RLlib class of the same name; weights, optimizers and results are bit-identical.

    ```python
    config.learners(learner_class=fastmarl.rllib.PPOTorchLearner)
    ```

    Methods overridden by a subclass, and RLlib code for special configs (GPUs, several learners, compiled updates, loss
    scaling), are called as in RLlib; the rest still runs faster.

    Attributes:
        update_mode: "exact" or "fast"; see `options()`.
    """

    update_mode: ClassVar[str] = "exact"
    _is_last = True  # True if the minibatch is the last of an update
    _direct: DirectUpdate | None = None  # the running update, if it runs without autograd

    @classmethod
    def options(cls, *, update: Literal["exact", "fast"] = "exact") -> type["PPOTorchLearner"]:
        """Return a variant of this class with these options, which can be sent to remote learners.

        Args:
            update: "exact": bit-identical to RLlib. "fast": equal up to rounding, for default RLlib modules of linear
                layers on the CPU; other modules are updated as with "exact".

        Raises:
            ConfigError: If `update` is neither of these.
        """
        if update not in UPDATES:
            raise ConfigError(f"update must be one of {list(UPDATES)}, got {update!r}")
        origin: Any = vars(cls).get("variant_of", cls)
        return _variant(origin, update)

    # Minibatches.

    def _create_iterator_if_necessary(self, **arguments: Any) -> Iterable:
        self._is_last, self._direct = True, None  # also if the last update failed
        iterator = super()._create_iterator_if_necessary(**arguments)
        if type(iterator) is not MiniBatchCyclicIterator or not self._reads_columns_only():
            return iterator
        if not are_plain(iterator._batch):
            return self._noting_the_last(iterator)
        is_exact = self.update_mode == "exact"
        if self._is_plain(*GRADIENTS, of=PPOTorchLearner):
            size = iterator._minibatch_size
            self._direct = direct_update(self, iterator._batch, size, is_exact=is_exact)
        return self._noting_the_last(
            minibatches(
                iterator._batch,
                size=iterator._minibatch_size,
                n_epochs=iterator._num_epochs,
                n_total=iterator._num_total_minibatches,
                shuffles=iterator._shuffle_batch_per_epoch,
                source_class=ColumnSlices if self._direct is None or is_exact else Numbers,
            )
        )

    def _reads_columns_only(self) -> bool:
        """Return True if all methods and modules receiving minibatches are from RLlib."""
        methods = (
            *("_log_metrics", "_log_steps_trained_metrics", "_set_slicing_by_batch_id", "_update", "compute_losses"),
            *("compute_loss_for_module", "_compute_off_policyness"),
        )
        return self._is_plain(*methods) and are_default(self.module)

    def _noting_the_last(self, minibatches: Iterable) -> Iterator:
        """Yield minibatches one step late, so that `_is_last` is already set when the last one is used.

        Building one minibatch ahead is safe, because nothing else draws random numbers.
        """
        self._is_last, waiting = False, None
        for minibatch in minibatches:
            if waiting is not None:
                yield waiting
            waiting = minibatch
        self._is_last = True
        if waiting is not None:
            yield waiting
        self._direct = None  # frees its memory

    # One minibatch.

    def _uncompiled_update(self, batch: dict, **kwargs: Any) -> Any:
        if self.config.num_learners > 1:
            return super()._uncompiled_update(batch, **kwargs)
        if self._direct is None:
            return self._update_by_autograd(batch)
        if self.update_mode == "fast":
            return self._fast_update(batch)
        return self._exact_update(batch)

    def _fast_update(self, batch: dict[str, RowNumbers]) -> Any:
        direct: Any = self._direct
        if not direct.compute(batch):  # RLlib handles non-finite gradients
            return self._update_by_autograd({module_id: rows.columns() for module_id, rows in batch.items()})
        results: Any = {}, {}
        if self._is_last:
            with torch.no_grad():
                results = self._log_losses({module_id: rows.columns() for module_id, rows in batch.items()})
        self._apply(direct)
        return *results, {}

    def _exact_update(self, batch: dict) -> Any:
        direct: Any = self._direct
        if self._is_last or not direct.is_checked or not direct.compute(batch):
            return self._update_by_autograd(batch)
        self._apply(direct)
        return {}, {}, {}

    def _apply(self, direct: DirectUpdate) -> None:
        if self._takes_gradients_as_they_are():
            for optimizer in self._named_optimizers.values():
                direct.step(optimizer)
        else:
            self.apply_gradients(self.postprocess_gradients(direct.hand_over()))

    def _takes_gradients_as_they_are(self) -> bool:
        methods = "postprocess_gradients", "postprocess_gradients_for_module", "apply_gradients", "get_optimizer"
        if not self._is_plain(*methods, of=PPOTorchLearner):
            return False
        configs = map(self.config.get_config_for_module, self.module.keys())
        return all(config.grad_clip is None and not config.log_gradients for config in configs)

    def _log_losses(self, batch: dict) -> tuple[Any, Any]:
        """Log the metrics of a minibatch and return (module outputs, losses)."""
        fwd_out = forward_train(self.module, batch)
        self._compute_off_policyness(batch)
        return fwd_out, self.compute_losses(fwd_out=fwd_out, batch=batch)

    def _update_by_autograd(self, batch: dict) -> Any:
        if self._is_last:
            fwd_out, loss_per_module = self._log_losses(batch)
        else:  # the next minibatch would overwrite the metrics
            fwd_out = forward_train(self.module, batch)
            loss_per_module = {name: loss_without_metrics(self, name, batch[name], fwd_out[name]) for name in fwd_out}
        gradients = self.compute_gradients(loss_per_module)
        if self._direct is not None and not self._direct.is_checked and not self._is_last:
            self._direct = self._direct if self._direct.check(batch, gradients) else None
        self.apply_gradients(self.postprocess_gradients(gradients))
        return fwd_out, loss_per_module, {}

    def compute_gradients(self, loss_per_module: dict, **kwargs: Any) -> Any:
        """Compute gradients of the losses in `loss_per_module`, like the RLlib method."""
        for parameter in self._params.values():
            parameter.grad = None  # faster than zeroing the gradients of each RLlib optimizer
        return super().compute_gradients(loss_per_module, **kwargs)

    def apply_gradients(self, gradients_dict: dict) -> None:
        """Apply the gradients in `gradients_dict`, like the RLlib method."""
        if (
            self._grad_scalers is not None
            or self._lr_scheduler_classes is not None
            or not gradients_dict
            or not _are_finite(list(gradients_dict.values()))
        ):
            super().apply_gradients(gradients_dict)
            return
        for reference, gradient in gradients_dict.items():
            self._params[reference].grad = gradient
        for module_id, names in self._module_optimizers.items():
            for name in names:
                adam.step(self.get_optimizer(module_id, name))

    def _is_plain(self, *names: str, of: type = RLlibLearner) -> bool:
        """Return True if these methods of the class `of` are not overridden."""
        return all(getattr(type(self), name) is getattr(of, name) and name not in vars(self) for name in names)


def _are_finite(gradients: list[Any]) -> bool:
    """Return True if the sum of all gradients is finite, so each element is too."""
    if not all(type(each) is torch.Tensor and each.dtype == torch.float32 and each.is_cpu for each in gradients):
        return False
    return bool(torch.isfinite(torch.stack([gradient.sum() for gradient in gradients]).sum()))


def __getattr__(name: str) -> Any:
    """Return variants by name, for unpickling: `PPOTorchLearner__fast` has update="fast"."""
    if name not in map(_name_with, UPDATES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _variant(PPOTorchLearner, name.rpartition("__")[2])


def _name_with(update: str) -> str:
    return f"{PPOTorchLearner.__name__}__{update}"


@cache
def _variant(origin: type, update: str) -> type:
    """Return the variant of a learner class with this update, cached.

    Variants of PPOTorchLearner are pickled by reference; cloudpickle pickles variants of other classes by value.
    """
    name = _name_with(update)
    if origin is not PPOTorchLearner:
        name = f"{origin.__name__}[{name}]"
    members = {
        "__module__": origin.__module__,
        "__qualname__": name,
        "__doc__": origin.__doc__,
        "update_mode": update,
        "variant_of": origin,
    }
    return type(name, (origin,), members)


def are_default(module: Any) -> bool:
    """Return True if all modules are the default RLlib modules for PPO."""
    names = list(module.keys()) if type(module) is MultiRLModule else []
    return bool(names) and all(type(module[name]) is DefaultPPOTorchRLModule for name in names)


def forward_train(module: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Call `module.forward_train(batch)`, but skip the switch to training mode for modules already in it.

    RLlib switches a module and all its submodules in each forward pass.
    """
    if type(module) is not MultiRLModule or "_forward_train" in vars(module):
        return module.forward_train(batch)  # type: ignore[no-any-return]
    return {
        module_id: _forward_train(module[module_id], batch[module_id]) for module_id in batch if module_id in module
    }


def _forward_train(module: Any, batch: Any) -> Any:
    own = type(module)
    is_plain = own.forward_train is TorchRLModule.forward_train and "forward_train" not in vars(module)
    if is_plain and not module.inference_only and "train" not in vars(module) and _is_in_training(module):
        return module._forward_train(batch)
    return module.forward_train(batch)


def _is_in_training(module: Any) -> bool:
    return all(part.training for part in module.modules())


def loss_without_metrics(learner: Any, module_id: str, batch: dict[str, Any], fwd_out: dict[str, Any]) -> torch.Tensor:
    """Compute the loss returned by `compute_loss_for_module()` of the learner for default RLlib modules.

    This is the PPO loss (Schulman et al. 2017, "Proximal Policy Optimization Algorithms") with RLlib's operations in
    the same order, so that the gradient is bit-identical. Operations needed only for metrics are left out.
    """
    config, module = learner.config.get_config_for_module(module_id), learner.module[module_id].unwrapped()
    mask = batch.get(Columns.LOSS_MASK)
    n_valid: Any = None if mask is None else torch.sum(mask)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return torch.mean(values) if mask is None else torch.sum(values[mask]) / n_valid

    policy = module.get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
    former = module.get_exploration_action_dist_cls().from_logits(batch[Columns.ACTION_DIST_INPUTS])
    advantages = batch[Postprocessing.ADVANTAGES]
    ratio = torch.exp(policy.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP])
    divergence = mean(former.kl(policy)) if config.use_kl_loss else None
    entropy = policy.entropy()
    clipped = torch.clamp(ratio, 1 - config.clip_param, 1 + config.clip_param)
    gain = torch.min(advantages * ratio, advantages * clipped)
    value_loss: Any = torch.tensor(0.0, device=gain.device)
    if config.use_critic:
        values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        error = torch.pow(values - batch[Postprocessing.VALUE_TARGETS], 2.0)
        value_loss = torch.clamp(error, 0, config.vf_clip_param)
    entropy_coeff = learner.entropy_coeff_schedulers_per_module[module_id].get_current_value()
    loss = mean(-gain + config.vf_loss_coeff * value_loss - entropy_coeff * entropy)
    if divergence is not None:
        loss += learner.curr_kl_coeffs_per_module[module_id] * divergence
    return loss
