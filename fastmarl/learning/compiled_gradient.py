"""Compiled gradients of a module's PPO loss, verified against the module itself."""

import copy
import random
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.masking import in_a_row, mask_of
from fastmarl.core.native._ppo import BEST, SUMS, PPOGradient
from fastmarl.core.nets.dense_layers import OBSERVATIONS, NotDenseError, parts_of
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning.dense_nets import (
    ADVANTAGES,
    COUNTS,
    LOGP,
    MOST_WEIGHTS,
    TARGETS,
    DenseNet,
    gradient_of,
    needed_layers,
    packed_rows,
)  # fmt: skip
from fastmarl.learning.module_layers import ModuleLayers, check_unwatched, is_default, layers_of_module
from fastmarl.learning.ppo import check_choices, check_rows, module_inputs, needed_columns
from fastmarl.learning.snapshots import Change, Snapshot

MOST_COMPARED = 256  # rows in the comparison of gradients after a module was read
MOST_SEEN = 8  # rows in each later comparison
MOST_UNSEEN = 4096  # rows of updates without a comparison
CHANGES = "its forward pass changes attributes"
SMALLEST = 1e-7  # difference that rounding explains between gradients of 0
TOLERANCE = 1e-3  # of gradients in float32, relative to their size


class LossOptions(NamedTuple):
    """The arguments of `ppo_loss()` that an update sets."""

    clip: float
    vf_coeff: float
    vf_clip: float | None
    entropy_coeff: float
    kl_coeff: float


class CompiledGradients:
    """Compiled code for a module, which is read again after it has changed.

    Modules of other classes than `DefaultRLModule` are read from a pass of a copy, so that nothing of it is left in the
    module. Attributes, methods and variables that a pass may use are compared before each update, and the gradients of
    a few rows after every 4096 rows; a module with another gradient than its layers is left to autograd.

    Args:
        module: The module.
        gradients: Trained parameter -> tensor that receives its gradient.
    """

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor]):
        self._module, self._gradients = module, gradients
        self._known: CompiledGradient | str | None = None  # or the reason why there is none
        self._snapshot: Snapshot | None = None
        self._form: Any = None  # of the module's inputs
        self._n_unseen = 0

    def rows(self, batch: Mapping[str, Any], options: LossOptions) -> "CompiledRows":
        """Prepare a batch, whose columns have equally many rows on one device.

        Raises:
            BatchError: If `ppo_loss()` would raise it, or actions are out of range.
            NotDenseError: If it is not certain that the module computes only its layers, or compiled code does not
                support the batch.
        """
        check_unwatched(self._module)
        form = _form_of(batch, options)
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None or form != self._form or not snapshot.is_same():
            snapshot, self._form = self._read(batch, options), form
            self._n_unseen = MOST_UNSEEN
        if not isinstance(self._known, CompiledGradient):
            self._snapshot = snapshot
            raise NotDenseError(self._known)
        rows = CompiledRows(self._known, batch, options)
        self._n_unseen += len(rows)
        if self._n_unseen >= MOST_UNSEEN:
            rows.compare_with_autograd(MOST_SEEN)
            self._n_unseen = 0
            if not snapshot.is_same():
                raise NotDenseError(CHANGES)
        self._snapshot = snapshot
        return rows

    def _read(self, batch: Mapping[str, Any], options: LossOptions) -> Snapshot:
        """Read the module in its current state, which is returned."""
        excluded: set[Change] = set()
        try:
            self._check_parameters()
            layers = layers_of_module(self._module) if is_default(self._module) else self._read_copy(batch, options)
            self._known = CompiledGradient(self._module, self._gradients, layers)
        except RandomError:
            raise  # maybe another thread has drawn them
        except ChangesError as error:
            self._known, excluded = str(error), error.changes
        except NotDenseError as error:
            self._known = str(error)
        return Snapshot(self._module, excluded)

    def _check_parameters(self) -> None:
        for each in self._gradients.values():
            if each.device.type != "cpu" or each.dtype != torch.float32:
                raise NotDenseError(f"its parameters are {each.dtype} on {each.device}")
        n_weights = sum(each.numel() for each in _parameters_of(self._module))
        if n_weights > MOST_WEIGHTS[BEST]:
            raise NotDenseError(f"torch is faster for {n_weights:,} weights")

    def _read_copy(self, batch: Mapping[str, Any], options: LossOptions) -> ModuleLayers:
        """Read a copy of the module, whose weights differ: where they are 0, they would hide gradients."""
        try:
            twin = copy.deepcopy(self._module)
        except Exception as error:  # the module may hold anything
            raise NotDenseError(f"it can't be copied: {type(error).__name__}: {error}") from None
        parameters = _parameters_of(twin)
        _perturb(parameters)
        taken = _taken(batch, _spread(_counted(batch), MOST_COMPARED))
        snapshot, randomness = Snapshot(twin), _randomness()
        layers = reason = None
        try:
            layers = layers_of_module(twin, module_inputs(taken))
            gradients = {each: torch.zeros_like(each).detach() for each in parameters if each.requires_grad}
            rows = CompiledRows(CompiledGradient(twin, gradients, layers), taken, options)
            rows.compare_with_autograd(MOST_COMPARED)
        except NotDenseError as error:
            reason = str(error)
        if not snapshot.is_same():
            changes = snapshot.changes()
            snapshot.restore()  # what the copy shares with others
            raise ChangesError(reason or CHANGES, changes)
        if _randomness() != randomness:
            _set_randomness(randomness)
            if layers is not None:
                raise RandomError("its forward pass draws random numbers")
        if layers is None or reason is not None:
            raise NotDenseError(reason)
        return layers.of_other(dict(zip(parameters, _parameters_of(self._module), strict=True)))


class ChangesError(NotDenseError):
    """A pass of the module changes the module, or objects and variables that it uses."""

    def __init__(self, message: str, changes: set[Change]):
        super().__init__(message)
        self.changes = changes


class RandomError(NotDenseError):
    """A pass of the module draws random numbers."""


def _parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """List the parameters of all parts, where shared ones stand several times."""
    found = (each for part in parts_of(module) for each in part._parameters.values())
    return [each for each in found if each is not None]


@torch.no_grad()
def _perturb(parameters: list[nn.Parameter]) -> None:
    generator = torch.Generator("cpu").manual_seed(0)
    for each in dict.fromkeys(parameters):
        if each.is_cpu and each.is_floating_point():
            each.add_(torch.randn(each.shape, generator=generator, device="cpu"), alpha=0.1)


def _form_of(batch: Mapping[str, Any], options: LossOptions) -> Any:
    """Return a value that is the same for batches with the same kinds of columns."""
    leaves = flatten_struct(module_inputs(batch))
    forms = [(path, leaf.dtype, leaf.shape[1:]) for path, leaf in leaves]
    return forms, options.vf_coeff != 0, options.kl_coeff != 0


def _counted(batch: Mapping[str, Any]) -> Tensor:
    """Return the numbers of the rows that count."""
    mask = batch.get(Columns.LOSS_MASK)
    if mask is None:
        return torch.arange(len(batch[Columns.ACTION_LOGP]), device="cpu")
    if not mask.any():
        raise NotDenseError("no row counts")
    return mask.nonzero().squeeze(1)


def _spread(numbers: Tensor, most: int) -> Tensor:
    """Return at least 2 and at most `most` of these numbers, evenly spread; one alone is returned twice."""
    places = torch.linspace(0, len(numbers) - 1, max(2, min(len(numbers), most)), dtype=torch.float64, device="cpu")
    return numbers[places.long()]


def _taken(batch: Mapping[str, Any], numbers: Tensor) -> dict[str, Any]:
    """Return the batch's rows with these numbers."""
    return {name: map_struct(lambda leaf: leaf[numbers], column) for name, column in batch.items()}


def _randomness() -> tuple[bytes, Any, Any]:
    """Return the states of the global random generators."""
    state: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (state[0], state[1].tobytes(), *state[2:])


def _set_randomness(states: tuple[bytes, Any, Any]) -> None:
    of_torch, of_python, (kind, keys, *others) = states
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    random.setstate(of_python)
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *others))  # noqa: NPY002


class CompiledGradient:
    """Computes gradients of a module's parameters. See `CompiledGradients`."""

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor], layers: ModuleLayers):
        self.module, self.gradients, self.layers = module, gradients, layers
        self._nets: dict[tuple[bool, ...], PPOGradient] = {}

    def net(self, *, has_values: bool, has_mask: bool, has_former: bool) -> PPOGradient:
        """Return the compiled code for rows with or without values, masks and former logits."""
        if (key := (has_values, has_mask, has_former)) not in self._nets:
            net = self.needed(has_values=has_values)
            self._nets[key] = gradient_of(net, self.gradients, has_mask=has_mask, has_former=has_former)
        return self._nets[key]

    def needed(self, *, has_values: bool) -> DenseNet:
        """Return the layers on which the loss depends."""
        net = self.layers.net
        return needed_layers(net if has_values else net._replace(values=OBSERVATIONS))


class CompiledRows:
    """A batch whose gradients are computed by compiled code; see `CompiledGradients.rows()`.

    Attributes:
        trained: Parameters that receive gradients.
    """

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any], options: LossOptions):
        self._gradient, self._options, self._batch = gradient, options, batch
        net: DenseNet = gradient.layers.net
        needed = needed_columns(batch, options.vf_coeff, options.kl_coeff)
        n = len(batch[Columns.ACTION_LOGP])
        if batch[Columns.ACTION_LOGP].dim() > 1:
            raise NotDenseError("its rows are sequences")
        check_rows(batch, needed, torch.Size([n]))
        check_choices(gradient.module, batch)
        has_values = options.vf_coeff != 0
        if has_values and net.values == OBSERVATIONS:
            raise NotDenseError("it outputs no values")
        obs = gradient.layers.observe(batch[Columns.OBS])
        if not isinstance(obs, Tensor) or obs.dtype != torch.float32 or obs.shape != (n, net.n_obs):
            raise NotDenseError(f"its observations are not float32 [{n}, {net.n_obs}]")
        if obs.device.type != "cpu":
            raise NotDenseError(f"the observations are on {obs.device}")
        mask = self._action_mask(n)
        former = batch[Columns.ACTION_DIST_INPUTS] if options.kl_coeff else None
        if former is not None and former.shape != (n, net.n_logits):
            raise BatchError(f"expected {Columns.ACTION_DIST_INPUTS!r} of shape {(n, net.n_logits)}, got shape "
                             f"{tuple(former.shape)}")  # fmt: skip
        targets = batch[Columns.VALUE_TARGETS] if has_values else None
        loss_mask = batch.get(Columns.LOSS_MASK)
        with torch.no_grad():
            rows = packed_rows(
                logp=batch[Columns.ACTION_LOGP], advantages=batch[Columns.ADVANTAGES], targets=targets,
                actions=self._actions(n), loss_mask=loss_mask, action_mask=mask, former_logits=former,
            )  # fmt: skip
            if loss_mask is not None:  # padding may have any values
                rows[~loss_mask] = 0
                rows[~loss_mask, LOGP] = torch.finfo(torch.float32).max  # gives ratios of 0; other values may overflow
        self._obs, self._rows = obs.detach().contiguous().numpy(), rows.numpy()
        self._mask = mask
        self._net = gradient.net(has_values=has_values, has_mask=mask is not None, has_former=former is not None)
        reached = gradient.needed(has_values=has_values).parameters
        self.trained: list[Any] = [each for each in reached if each in gradient.gradients]

    def __len__(self) -> int:
        return len(self._rows)

    def _action_mask(self, n: int) -> Tensor | None:
        module, batch = self._gradient.module, self._batch
        key = self._gradient.layers.mask_key
        if not choices_of(module.action_space):
            return None
        mask = mask_of(module, batch, ()) if key is None else batch[Columns.OBS][key]
        return None if mask is None else in_a_row(mask, (n, sum(choices_of(module.action_space))))

    def _actions(self, n: int) -> Tensor:
        """Return the actions, [n, choices]."""
        given = self._batch[Columns.ACTIONS]
        if not isinstance(given, Tensor):
            raise NotDenseError("its actions are nested")
        return given.reshape(n, -1)

    def compute(self, numbers: Tensor) -> dict[str, float]:
        """Overwrite the gradient with that of the given row numbers; returns the statistics of `ppo_loss()`."""
        options = self._options
        sums = self._compute(self._obs, self._rows, numbers.numpy(), options)
        found = dict(zip(SUMS, sums.tolist(), strict=True))
        n = max(1.0, found["count"])
        mean = {name: value / n for name, value in found.items()}
        stats = {
            "policy_loss": -mean["surrogate"], "entropy": mean["entropy"], "kl": mean["kl"],
            "clip_fraction": mean["clipped"],
        }  # fmt: skip
        if options.kl_coeff:
            stats["mean_kl_loss"] = mean["former_kl"]
        if options.vf_coeff:
            of_errors = mean["squared_error"] - mean["error"] ** 2
            of_targets = mean["squared_target"] - mean["target"] ** 2
            stats["vf_loss"] = mean["vf_loss"]
            stats["vf_explained_var"] = max(-1.0, 1 - of_errors / max(of_targets, sys.float_info.min))
        return stats

    def _compute(self, obs: Any, rows: Any, order: Any, options: LossOptions) -> Any:
        """Overwrite the gradient; returns SUMS."""
        return self._net.compute(
            obs, rows, order, clip=options.clip, value_coeff=options.vf_coeff, entropy_coeff=options.entropy_coeff,
            value_clip=options.vf_clip, kl_coeff=options.kl_coeff,
        )  # fmt: skip

    def compare_with_autograd(self, most: int) -> None:
        """Raise NotDenseError unless compiled code and autograd compute the same gradient.

        The rows are at most `most` of those that count, with ratios of 1, and with other advantages and targets:
        derivatives of actual rows may be 0, for example where ratios are clipped.
        """
        numbers, gradients = _spread(_counted(self._batch), most), self._gradient.gradients
        try:
            with torch.enable_grad():
                loss, columns = self._comparable(numbers)
            found = torch.autograd.grad(loss, [*gradients], allow_unused=True)
        except Exception as error:  # the module's, or about its outputs: autograd will raise it again
            raise NotDenseError(f"a pass with few rows fails: {type(error).__name__}: {error}") from None
        rows = self._rows[numbers.numpy()]
        rows[:, list(columns)] = torch.stack([*columns.values()], 1).numpy()
        self._compute(self._obs[numbers.numpy()], rows, np.arange(len(rows)), self._comparing)
        trained = set(self.trained)
        theirs = [torch.zeros_like(each) if of is None else of for each, of in zip(gradients, found, strict=True)]
        off = [of - ours if each in trained else of for of, (each, ours) in zip(theirs, gradients.items(), strict=True)]
        norms = torch.stack(torch._foreach_norm([*theirs, *off])).tolist()
        sizes, differences = norms[: len(theirs)], norms[len(theirs) :]
        rounding = SMALLEST * max(1.0, sum(size**2 for size in sizes) ** 0.5)
        for each, size, difference in zip(gradients, sizes, differences, strict=True):  # one by one: their norms differ
            if not difference <= TOLERANCE * size + rounding:
                raise NotDenseError(f"the compiled gradient of a parameter of shape {tuple(each.shape)} is "
                                    f"{difference:.2g} off autograd's, whose norm is {size:.2g}")  # fmt: skip

    @property
    def _comparing(self) -> LossOptions:
        options = self._options
        return LossOptions(0.2, 0.5 if options.vf_coeff else 0.0, None, 0.01, 1.0 if options.kl_coeff else 0.0)

    def _comparable(self, numbers: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Return a loss of these rows, and columns that replace theirs, by their place in packed rows."""
        module, options = self._gradient.module, self._comparing
        names = [
            *module_inputs(self._batch),
            Columns.ACTIONS,
            *([Columns.ACTION_DIST_INPUTS] if options.kl_coeff else []),
        ]
        rows = _taken({name: self._batch[name] for name in names}, numbers)
        outputs = module.forward_train(module_inputs(rows))
        kind = module.get_train_action_dist_cls()
        distribution = kind.from_logits(outputs[Columns.ACTION_DIST_INPUTS])
        logp, advantages = (
            distribution.logp(rows[Columns.ACTIONS]),
            torch.linspace(-1.0, 1.3, len(numbers), device="cpu"),
        )
        columns = {LOGP: logp.detach(), ADVANTAGES: advantages, COUNTS: torch.ones_like(advantages)}
        gain = logp.dot(advantages) + options.entropy_coeff * distribution.entropy().sum()
        if options.vf_coeff:
            values = outputs[Columns.VF_PREDS]
            columns[TARGETS] = (values + (1 + values.abs()) * advantages.flip(0)).detach()
            gain = gain - options.vf_coeff * (values - columns[TARGETS]).square().sum()
        if options.kl_coeff:
            gain = gain - kind.from_logits(rows[Columns.ACTION_DIST_INPUTS]).kl(distribution).sum()
        return -gain / len(numbers), columns
