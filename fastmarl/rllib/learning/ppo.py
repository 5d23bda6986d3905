"""RLlib's PPOTorchLearner with less around torch: the same losses, minibatches and random draws."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator

from fastmarl.rllib.learning import adam
from fastmarl.rllib.learning.loss import unheard_loss
from fastmarl.rllib.learning.minibatches import are_plain, minibatches
from fastmarl.rllib.learning.modules import are_default, forward_train


class PPOTorchLearner(RLlibLearner):
    """Takes the place of RLlib's class of the same name; weights, optimizers and results are equal to the bit.

    ```python
    config.training(learner_class=fastmarl.rllib.PPOTorchLearner)
    ```

    What a subclass overrides, and what RLlib does otherwise for some configs (GPUs, several learners, compiled updates,
    loss scaling), runs as RLlib has it; the rest is faster all the same.
    """

    _is_last = True  # whether the minibatch is the last of an update

    # Minibatches.

    def _create_iterator_if_necessary(self, **arguments: Any) -> Iterable:
        self._is_last = True  # also if the update before has failed
        iterator = super()._create_iterator_if_necessary(**arguments)
        if type(iterator) is not MiniBatchCyclicIterator or not self._reads_columns_only():
            return iterator
        if not are_plain(iterator._batch):
            return self._noting_the_last(iterator)
        return self._noting_the_last(
            minibatches(
                iterator._batch,
                size=iterator._minibatch_size,
                n_epochs=iterator._num_epochs,
                n_total=iterator._num_total_minibatches,
                shuffles=iterator._shuffle_batch_per_epoch,
            )
        )

    def _reads_columns_only(self) -> bool:
        """Whether all that is given minibatches is RLlib's."""
        methods = (
            *("_log_metrics", "_log_steps_trained_metrics", "_set_slicing_by_batch_id", "_update", "compute_losses"),
            *("compute_loss_for_module", "_compute_off_policyness"),
        )
        return self._is_plain(*methods) and are_default(self.module)

    def _noting_the_last(self, minibatches: Iterable) -> Iterator:
        """Know of each minibatch whether there is another. None draws random numbers but when it is made."""
        self._is_last, waiting = False, None
        for minibatch in minibatches:
            if waiting is not None:
                yield waiting
            waiting = minibatch
        self._is_last = True
        if waiting is not None:
            yield waiting

    # One minibatch.

    def _uncompiled_update(self, batch: dict, **kwargs: Any) -> Any:
        if self.config.num_learners > 1:
            return super()._uncompiled_update(batch, **kwargs)
        fwd_out = forward_train(self.module, batch)
        if self._is_last:
            self._compute_off_policyness(batch)
            loss_per_module = self.compute_losses(fwd_out=fwd_out, batch=batch)
        else:  # the metrics of the next minibatch will take the place of this one's
            loss_per_module = {name: unheard_loss(self, name, batch[name], fwd_out[name]) for name in fwd_out}
        gradients = self.compute_gradients(loss_per_module)
        self.apply_gradients(self.postprocess_gradients(gradients))
        return fwd_out, loss_per_module, {}

    def compute_gradients(self, loss_per_module: dict, **kwargs: Any) -> Any:
        """See RLlib's method."""
        for parameter in self._params.values():
            parameter.grad = None  # before RLlib's optimizers do it one after the other
        return super().compute_gradients(loss_per_module, **kwargs)

    def apply_gradients(self, gradients_dict: dict) -> None:
        """See RLlib's method."""
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

    def _is_plain(self, *names: str) -> bool:
        """Whether these methods are RLlib's."""
        return all(
            getattr(type(self), name) is getattr(RLlibLearner, name) and name not in vars(self) for name in names
        )


def _are_finite(gradients: list[Any]) -> bool:
    """Whether all numbers are finite, if that is easily seen: a sum is finite only if all its terms are."""
    if not all(type(each) is torch.Tensor and each.dtype == torch.float32 and each.is_cpu for each in gradients):
        return False
    return bool(torch.isfinite(torch.stack([gradient.sum() for gradient in gradients]).sum()))
