"""Runs modules in a bare loop on observation batches recorded from a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch

from fastmarl.bench.bare_envs import TICKS_PER_CALL
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Categorical
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.runner.runner import MultiAgentEnvRunner


def watched_calls(modules: Mapping[str, Any], sample: Callable[[], Any]) -> tuple[list[tuple[str, dict]], int]:
    """Record the forward passes of modules during a call of sample().

    Returns:
        List of (module id, batch), one per forward pass, and the total number of rows. Batches of a module with the
        same size share a copy of the first one.
    """
    calls: list[tuple[str, dict]] = []
    batches: dict[tuple[str, int], dict] = {}
    sizes: list[int] = []

    def note(module_id: str, forward: Callable[..., dict], batch: dict, **kwargs: Any) -> dict:
        sizes.append(len(flatten_struct(batch[Columns.OBS])[0][1]))
        key = module_id, sizes[-1]
        if key not in batches:
            batches[key] = map_struct(torch.clone, batch)
        calls.append((module_id, batches[key]))
        return forward(batch, **kwargs)

    for module_id, module in modules.items():
        module.forward_exploration = partial(note, module_id, module.forward_exploration)
    try:
        sample()
    finally:
        for module in modules.values():
            del module.forward_exploration
    return calls, sum(sizes)


class BareNetwork:
    """Replays the forward passes that a runner's modules perform in a call of `sample()`, without the runner."""

    def __init__(self, runner: MultiAgentEnvRunner):
        assert runner.module is not None
        self._module = runner.module
        modules = dict(self._module.items())
        steps = TICKS_PER_CALL * runner.num_envs
        calls, self._rows = watched_calls(
            modules, partial(runner.sample, num_timesteps=steps, explore=True, force_reset=True)
        )
        sampling = {}
        for module_id, module in modules.items():
            device = next(module.parameters(), torch.empty(0)).device
            generator = torch.Generator(device).manual_seed(0)
            sampling[module_id] = (module, module.get_exploration_action_dist_cls(), generator)
        self._steps = [(*sampling[module_id], batch) for module_id, batch in calls]

    def run(self, passes: int, sample: Callable[..., None]) -> float:
        """Replay the recorded forward passes `passes` times; return the microseconds per agent step."""
        synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
        with torch.inference_mode(), evaluation_mode(self._module):
            begun = perf_counter()
            for _ in range(passes):
                for module, dist, generator, batch in self._steps:
                    outputs = module.forward_exploration(batch, t=0)
                    if Columns.ACTIONS not in outputs:
                        sample(dist, outputs[Columns.ACTION_DIST_INPUTS], generator)
                    synchronize()
            seconds = perf_counter() - begun
        return 1e6 * seconds / (passes * self._rows)


def sample_as_torch_does(dist: Any, logits: torch.Tensor, generator: torch.Generator) -> None:
    """Sample actions with torch.distributions, like most training loops, or with ours if torch has no equivalent."""
    if dist is Categorical:
        chosen: torch.distributions.Distribution = torch.distributions.Categorical(logits=logits)
    elif dist is DiagGaussian:
        mean, log_std = logits.chunk(2, -1)
        chosen = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    else:
        sample_as_we_do(dist, logits, generator)
        return
    chosen.log_prob(chosen.sample())


def sample_as_we_do(dist: Any, logits: torch.Tensor, generator: torch.Generator) -> None:
    """Sample actions with the fused classmethod of our distributions."""
    dist.sample_and_logp(logits, generator)


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Turn off dropout and similar layers; restore the mode of each submodule on exit."""
    training = [submodule for submodule in module.modules() if submodule.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for submodule in training:
            submodule.training = True
