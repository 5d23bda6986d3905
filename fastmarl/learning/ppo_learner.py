"""The PPO update: epochs of minibatches, with one Adam step per minibatch."""

import math
from collections.abc import Mapping
from numbers import Integral
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.errors import BatchError, ConfigError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._ppo import MOST_PARTS
from fastmarl.core.nets.dense_layers import NotDenseError, parts_of
from fastmarl.core.nets.row_threads import RowThreads
from fastmarl.core.objects.public import public
from fastmarl.core.processes.cores import usable_cores
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.learning.adam import OptimizerSteps, limit_norm
from fastmarl.learning.compiled_gradient import CompiledGradients
from fastmarl.learning.compiled_rows import CompiledRows, LossOptions
from fastmarl.learning.flat_parameters import FlatParameters, flat_parameters
from fastmarl.learning.minibatches import PackedRows, leaves_of, rows_and_device
from fastmarl.learning.one_module import one_module
from fastmarl.learning.ppo import check_choices, check_coefficients, check_rows, needed_columns, ppo_loss, used_columns
from fastmarl.learning.tensors import to_tensors
from fastmarl.learning.value_norm import normalized

COMPILED = "compiled"


@public("fastmarl.learning")
class PPOLearner:
    """Trains a module in place, so that a runner acts with the latest weights.

    ```python
    learner = PPOLearner(module, lr=1e-3, epochs=4, num_minibatches=4)
    stats = learner.update(batch)  # from columns(), with advantages and value targets
    ```

    The loss is `ppo_loss()`. For dense networks on the CPU its gradient is compiled, which is several times faster than
    autograd. This covers default networks without convolutions, and custom modules whose forward pass consists of
    linear layers, single-layer LSTMs and GRUs, and tanh, ReLU, SiLU, GELU or ELU, with a shared or a separate critic;
    Discrete, MultiDiscrete and Box actions; action masks and loss masks. All other modules are trained with autograd.

    The layers of a custom module are found by running a forward pass of a copy, which is repeated whenever an
    attribute, method or variable that the module uses has changed. The compiled gradient is compared with autograd for
    a few rows in each update, or every 4096 rows if updates are smaller. Autograd is used if a pass has side effects,
    such as counting passes.

    Parameters without a gradient, and their moments, are not changed.

    Args:
        module: See `ppo_loss()`. Its parameters are moved into a single tensor, see `flat_parameters()`.
        lr: Learning rate of Adam. Pass `optimizer` to schedulers.
        adam_eps: Epsilon of Adam.
        epochs: Number of passes over the rows of an update.
        num_minibatches: Number of minibatches per epoch.
        minibatch_size: Number of rows per minibatch (of sequences, for recurrent modules); replaces `num_minibatches`.
        clip: See `ppo_loss()`.
        vf_coeff: See `ppo_loss()`.
        vf_clip: See `ppo_loss()`.
        entropy_coeff: See `ppo_loss()`.
        kl_coeff: See `ppo_loss()`.
        normalize_advantages: True to pass advantages through `normalized()`, over all rows of the update that count.
        max_grad_norm: Maximum norm of gradients, which are scaled down if larger; None for no limit.
        generator: Random generator for the order of rows; None for the global torch generator.
        compiled: True to use compiled gradients where possible, False to always use autograd.
        num_threads: Number of threads for compiled gradients of large minibatches; None for the number of cores
            available to this process. The threads exit after each update, and results do not depend on their number.
            Autograd uses the torch threads.

    Attributes:
        backend: "compiled", or "autograd" followed by the reason; known after the first update.
        optimizer: torch.optim.Adam over `parameters`. A checkpoint needs its `state_dict()` and the module state.
        parameters: FlatParameters of the module.
        epochs, num_minibatches, ...: The arguments, which can be changed between updates.

    Raises:
        ConfigError: If an argument is out of range, or `flat_parameters()` does not accept the module parameters.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        lr: float = 3e-4,
        adam_eps: float = 1e-5,
        epochs: int = 4,
        num_minibatches: int = 4,
        minibatch_size: int | None = None,
        clip: float = 0.2,
        vf_coeff: float = 0.5,
        vf_clip: float | None = None,
        entropy_coeff: float = 0.01,
        kl_coeff: float = 0.0,
        normalize_advantages: bool = False,
        max_grad_norm: float | None = 0.5,
        generator: torch.Generator | None = None,
        compiled: bool = True,
        num_threads: int | None = None,
    ):
        self.module, self._module = module, one_module(module)
        self.epochs, self.num_minibatches, self.minibatch_size = epochs, num_minibatches, minibatch_size
        self.clip, self.vf_coeff, self.vf_clip = clip, vf_coeff, vf_clip
        self.entropy_coeff, self.kl_coeff = entropy_coeff, kl_coeff
        self.normalize_advantages = normalize_advantages
        self.max_grad_norm, self.generator, self.compiled = max_grad_norm, generator, compiled
        self.num_threads = num_threads
        self._check_sizes()
        self.parameters: FlatParameters = flat_parameters(module)
        self._trained = _trained(module)
        fused = True if self.parameters.is_cuda else None  # on the CPU, `FusedAdam` is faster
        self.optimizer = torch.optim.Adam([self.parameters], lr=lr, eps=adam_eps, fused=fused)
        self.backend = "autograd: there was no update yet"
        gradients: dict[Any, Any] = {each: each.grad for each in module.parameters() if each.requires_grad}
        self._gradients = CompiledGradients(self._module, gradients)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.parameters):,} parameters, {self.backend}>"

    @torch.inference_mode(False)  # also enables gradients, in case the caller has disabled them
    def update(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Train on a batch for all epochs.

        Args:
            batch: Columns as in `ppo_loss()`, arrays or tensors, with any number of rows; other columns are ignored.
                float64 arrays are converted to float32.

        Returns:
            The statistics of `ppo_loss()`, and "grad_norm" before clipping. Each is a mean over the minibatches,
            computed before the step of the minibatch.

        Raises:
            BatchError: If there are no rows, a column is missing or has a wrong shape, actions are out of range, or a
                gradient is not finite. Steps taken before the error are kept.
            ConfigError: If an attribute is out of range, the module parameters have been replaced since the learner was
                created, or the optimizer state belongs to another module.
        """
        self._check_sizes()
        batch = self._tensors(batch)
        n, device = rows_and_device(batch)
        if not n:
            raise BatchError("update() needs a batch with rows, got none")
        self._check_parameters()
        with RowThreads(min(self.num_threads or usable_cores(), MOST_PARTS)) as threads:
            return self._run_epochs(batch, n, device, self._rows(batch, threads))

    def _tensors(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns used by the loss, as tensors without gradients."""
        names = used_columns(batch, self.vf_coeff, self.kl_coeff)
        used = {name: column for name, column in batch.items() if name in names}
        arrays = {name for (name, *_), leaf in leaves_of(used) if not isinstance(leaf, Tensor)}
        used |= to_tensors(used, arrays, self.parameters.device)
        if self.normalize_advantages:
            needed = needed_columns(used, self.vf_coeff, self.kl_coeff)
            check_rows(used, needed, used[Columns.ACTION_LOGP].shape)
            used[Columns.ADVANTAGES] = normalized(used[Columns.ADVANTAGES], used.get(Columns.LOSS_MASK))
        return {name: map_struct(Tensor.detach, column) for name, column in used.items()}

    def _run_epochs(self, batch: Mapping[str, Any], n: int, device: torch.device, rows: Any) -> dict[str, float]:
        gradient, size = self.parameters.gradient, self.minibatch_size or -(-n // self.num_minibatches)
        steps = OptimizerSteps(self.optimizer, self.parameters)
        found: dict[str, list[float]] = {}
        for epoch in range(self.epochs):
            generator = self.generator
            order = torch.randperm(n, generator=generator, device="cpu" if generator is None else generator.device)
            for k, numbers in enumerate(order.to(device).split(size)):
                stats = rows.compute(numbers)
                stats["grad_norm"] = norm = limit_norm(gradient, self.max_grad_norm)
                if not math.isfinite(norm):
                    raise BatchError(f"the gradient norm of minibatch {k} of epoch {epoch} is {norm}; "
                                     f"{_not_finite(batch)}")  # fmt: skip
                steps.step(rows.unreached)
                for name, value in stats.items():
                    found.setdefault(name, []).append(value)
        return {name: fmean(values) for name, values in found.items()}

    def _check_sizes(self) -> None:
        for name in ("epochs", "num_minibatches", "minibatch_size", "num_threads"):
            size = getattr(self, name)
            if size is not None and not (isinstance(size, Integral) and int(size) >= 1):
                kind = "at least 1" if isinstance(size, Integral) else "a whole number"
                raise ConfigError(f"{name} must be {kind}, got {size}")
        check_coefficients(**self._options()._asdict(), max_grad_norm=self.max_grad_norm)

    def _options(self) -> LossOptions:
        return LossOptions(self.clip, self.vf_coeff, self.vf_clip, self.entropy_coeff, self.kl_coeff)

    def _check_parameters(self) -> None:
        """Clear the gradients; raise ConfigError unless steps would update all trainable module parameters."""
        self.parameters.grad = None  # checks that no parameter was moved
        if _trained(self.module) != self._trained:
            raise ConfigError("the trainable parameters of the module have changed since the learner was created, for "
                              "example by replacing layers or unfreezing parameters; create a new PPOLearner"
                              )  # fmt: skip
        for name, value in self.optimizer.state.get(self.parameters, {}).items():
            if isinstance(value, Tensor) and value.dim() and value.shape != self.parameters.shape:
                raise ConfigError(f"the optimizer's state belongs to another module: {name!r} has shape "
                                  f"{tuple(value.shape)}, but the parameters {tuple(self.parameters.shape)}"
                                  )  # fmt: skip

    def _rows(self, batch: Mapping[str, Any], threads: RowThreads) -> Any:
        """Prepare the batch for compiled gradients or, if these are impossible, for autograd; set `backend`."""
        options = self._options()
        try:
            if not self.compiled:
                raise NotDenseError("compiled is False")
            rows = self._gradients.rows(batch, options)
            self.parameters.mark_reached(rows.trained)
            self.backend = COMPILED
            return _CompiledRows(rows, threads, self.parameters.unreached())
        except NotDenseError as reason:
            self.backend = f"autograd: {reason}"
            return _AutogradRows(self._module, self.parameters, batch, options)


def _trained(module: torch.nn.Module) -> set[torch.nn.Parameter]:
    parameters = (each for part in parts_of(module) for each in part._parameters.values())
    return {each for each in parameters if each is not None and each.requires_grad}


def _not_finite(batch: Mapping[str, Any]) -> str:
    """Describe which columns contain NaN or infinite numbers, for an error message."""
    found = []
    for (name, *_), leaf in leaves_of(batch):
        bad = ~torch.isfinite(leaf.reshape(len(leaf), -1)).all(1)
        if bad.any():
            found.append(f"{name!r} in row {int(bad.nonzero()[0])}")
    if found:
        return f"there are non-finite numbers in {', '.join(found)}"
    return "all columns are finite: check the weights and the learning rate"


class _CompiledRows:
    """A batch with compiled gradients.

    Attributes:
        unreached: Positions of the parameters without a gradient.
    """

    def __init__(self, rows: CompiledRows, threads: RowThreads, unreached: list[slice]):
        self._rows, self._threads, self.unreached = rows, threads, unreached

    def compute(self, numbers: Tensor) -> dict[str, float]:
        """Overwrite the gradient with the gradient of the given rows; return the statistics of `ppo_loss()`."""
        return self._rows.compute(numbers, self._threads)


class _AutogradRows:
    """A batch with gradients from autograd.

    Attributes:
        unreached: Positions of the parameters without a gradient in the last minibatch.
    """

    unreached: list[slice]

    def __init__(self, module: RLModule, parameters: FlatParameters, batch: Mapping[str, Any], options: LossOptions):
        needed = needed_columns(batch, options.vf_coeff, options.kl_coeff)
        check_rows(batch, needed, batch[Columns.ACTION_LOGP].shape)
        check_choices(module, batch)
        self._module, self._parameters, self._options = module, parameters, options
        self._packed = PackedRows(batch)

    def compute(self, numbers: Tensor) -> dict[str, float]:
        """Overwrite the gradient with the gradient of the given rows; return the statistics of `ppo_loss()`."""
        stats: dict[str, Tensor] = {}
        self._parameters.grad = None
        ppo_loss(self._module, self._packed.take(numbers), stats=stats, **self._options._asdict()).backward()
        self.unreached = self._parameters.unreached()
        return dict(zip(stats, torch.stack([*stats.values()]).tolist(), strict=True))
