"""Finds faster samplers for RLlib action distributions, either bit-identical or with other random numbers."""

import functools
from typing import Any

import numpy as np
import torch
import tree  # type: ignore[import-untyped]
from ray.rllib.core.distribution.distribution import Distribution
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchMultiDistribution,
)
from torch import Generator, Tensor

from fastmarl.core.native._draws import ActionDraws, ChoiceDraws, GaussianDraws
from fastmarl.rllib.inference.draws_cpu import CategoricalRows, GaussianRows, MultiCategoricalRows
from fastmarl.rllib.inference.draws_torch import (
    CategoricalSampler,
    GaussianSampler,
    LogitSampler,
    MultiCategoricalSampler,
    StructSampler,
)

CHECKED_SHAPES = ((1, 2), (2, 4), (5, 6), (40, 2), (41, 3), (33, 36), (70, 14))  # (rows, columns) of test logits
CHECK_SEED = 1
N_OTHERS = 5  # logits in a row before the tested part


def draws_of(dist_cls: type[Distribution], rng: np.random.Generator | None) -> ActionDraws | None:
    """Return a CPU sampler of the same distribution that uses `rng`, or None if not supported.

    Actions have the same dtypes and shapes as after RLlib's connectors.
    """
    if rng is None:
        return None
    if dist_cls is TorchDiagGaussian:
        return GaussianDraws(rng)
    base, known = partial_of(dist_cls)
    if dist_cls is not TorchCategorical and base is not TorchMultiCategorical:
        return None
    return ChoiceDraws(rng, known.get("input_lens"), dtype=np.int32)


def sampler_of(dist_cls: type[Distribution], device: torch.device) -> LogitSampler | None:
    """Return a sampler that is bit-identical to this RLlib class on this device, or None if not supported."""
    return _sampler_of(dist_cls, device.type == "cpu") if equals_torch(device) else None


def _sampler_of(dist_cls: type[Distribution], on_cpu: bool) -> LogitSampler | None:
    if dist_cls is TorchCategorical:
        return CategoricalRows() if on_cpu else CategoricalSampler()
    if dist_cls is TorchDiagGaussian:
        return GaussianRows() if on_cpu else GaussianSampler()
    base, known = partial_of(dist_cls)
    if base is TorchMultiCategorical:
        n_choices = [int(n) for n in known["input_lens"]]
        return MultiCategoricalRows(n_choices) if on_cpu else MultiCategoricalSampler(n_choices)
    if base is TorchMultiDistribution:
        struct = known["child_distribution_cls_struct"]
        parts = [_sampler_of(part, on_cpu) for part in tree.flatten(struct)]
        if all(parts):
            sizes = [int(n) for n in tree.flatten(known["input_lens"])]
            return StructSampler([part for part in parts if part], sizes, struct)
    return None


def partial_of(dist_cls: Any) -> tuple[type | None, dict[str, Any]]:
    """Return the class and arguments from which RLlib's `get_partial_dist_cls()` made this class, or (None, {})."""
    if dist_cls.__qualname__ != "Distribution.get_partial_dist_cls.<locals>.DistributionPartial":
        return None, {}
    return dist_cls.__base__, dist_cls._merge_kwargs()


@functools.cache
def equals_torch(device: torch.device) -> bool:
    """Return whether the samplers match torch on this device; they rely on torch internals, which may change."""
    rows = device.type == "cpu"
    categorical: list[LogitSampler] = [CategoricalSampler(), *([CategoricalRows()] if rows else [])]
    gaussian: list[LogitSampler] = [GaussianSampler(), *([GaussianRows()] if rows else [])]
    return all(
        all(_is_equal(sampler, draw_categorical, shape, device) for sampler in categorical)
        and (shape[1] % 2 or all(_is_equal(sampler, draw_gaussian, shape, device) for sampler in gaussian))
        for shape in CHECKED_SHAPES
    )


def _is_equal(sampler: LogitSampler, draw: Any, shape: tuple[int, int], device: torch.device) -> bool:
    ours, theirs = (torch.Generator(device).manual_seed(CHECK_SEED) for _ in range(2))
    logits = torch.randn(shape, generator=ours, device=device)
    part = torch.cat((logits[:, :1].expand(-1, N_OTHERS), logits), -1)[:, N_OTHERS:]  # as one part of several
    theirs.set_state(ours.get_state())
    for values in (logits, part):
        (action,), logp = sampler.explore(values.contiguous(), ours)
        want, want_logp = draw(values, theirs)
        if not torch.equal(torch.as_tensor(action).to(want.dtype), want):
            return False
        if not torch.equal(torch.as_tensor(logp), want_logp) or not torch.equal(ours.get_state(), theirs.get_state()):
            return False
    return True


def draw_categorical(logits: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return actions and log-probabilities with the same calls as RLlib's TorchCategorical, but with a generator."""
    distribution = torch.distributions.Categorical(logits=logits, validate_args=False)
    action = torch.multinomial(distribution.probs, 1, True, generator=generator).squeeze(-1)
    return action, distribution.log_prob(action)


def draw_gaussian(logits: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return actions and log-probabilities with the same calls as RLlib's TorchDiagGaussian, but with a generator."""
    mean, log_std = logits.chunk(2, -1)
    distribution = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
    action = torch.normal(mean, distribution.scale, generator=generator)
    return action, distribution.log_prob(action).sum(-1)
