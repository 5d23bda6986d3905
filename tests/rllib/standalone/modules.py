"""One network in RLlib's class and in ours: linear, with weights of quarters, so that outputs are exact.

What is random is a function of a row's own content: so both runners draw from one stream, whatever the order of rows.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tree
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
)
from ray.rllib.core.rl_module.torch import TorchRLModule
from rllib.differential import tape

import fastmarl
from fastmarl.distributions import Categorical, DiagGaussian

Batch = dict[str, Any]
KINDS = ("logits", "logits", "extras", "own actions", "own actions and logp", "memory")
DRAWING = ("logits", "extras", "memory")


def n_outputs(space: gym.Space) -> int:
    """How many inputs the distribution of actions has."""
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    return int(space.n) if isinstance(space, Discrete) else 2 * space.shape[0]


def codes(rows: torch.Tensor) -> torch.Tensor:
    """int64 [row], by the rows' content."""
    return (rows * 1024).round().long() @ (torch.arange(rows.shape[-1]) * 7 + 3)


class Exact:
    """The methods of both classes. `model_config`: "kind", one of KINDS, and "salt", which the weights follow from."""

    def setup(self) -> None:
        space: Any = self.observation_space
        n_in = sum(np.asarray(leaf).size for leaf in tree.flatten(space.sample()))
        self.kind, self.salt = self.model_config["kind"], self.model_config["salt"]
        rng = np.random.default_rng(self.salt)
        weights = rng.integers(-6, 7, (n_in, n_outputs(self.action_space))) / 4
        self.weight = torch.nn.Parameter(torch.as_tensor(weights, dtype=torch.float32))
        self.size = n_in

    def get_initial_state(self) -> dict[str, Any]:
        if self.kind != "memory":
            return {}
        return {"h": np.zeros(self.size, np.float32), "n": (np.zeros((), np.int64),)}

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        return self._answer(batch, 0)

    def _forward_exploration(self, batch: Batch, **kwargs: Any) -> Batch:
        return self._answer(batch, 1)

    _forward_inference = _forward

    def _answer(self, batch: Batch, explores: int) -> Batch:
        leaves = [torch.as_tensor(leaf) for leaf in tree.flatten(batch["obs"])]
        rows = torch.cat([leaf.reshape(len(leaf), -1).float() for leaf in leaves], dim=1)
        tape.note("forward", self.salt, len(rows))
        state = batch.get("state_in") if self.kind == "memory" else None
        if state is not None:
            rows = torch.remainder(rows + 3 * state["h"], 8)
        # Without ties; and as log standard deviations small enough for RLlib, which takes the logarithm of their exp().
        logits = torch.remainder(rows @ self.weight, 16) - 8 + torch.arange(self.weight.shape[1]) / 1024
        outputs = self._outputs(rows, logits, explores)
        if state is None:
            return outputs
        outputs = {name: output[:, None] for name, output in outputs.items()}
        return {**outputs, "state_out": {"h": rows, "n": (state["n"][0] + 1,)}}

    def _outputs(self, rows: torch.Tensor, logits: torch.Tensor, explores: int) -> Batch:
        if self.kind == "extras":
            features = {"wide": rows[:, None, :2].double(), "mode": torch.full((len(rows),), explores)}
            return {"vf_preds": rows.sum(dim=1), "action_dist_inputs": logits, "features": features}
        if not self.kind.startswith("own actions"):
            return {"action_dist_inputs": logits}
        outputs: Batch = {"actions": self._chosen(codes(logits) + explores)}
        if self.kind == "own actions and logp":
            outputs["action_logp"] = -rows.abs().sum(dim=1)
        return outputs

    def _chosen(self, code: torch.Tensor) -> torch.Tensor:
        """Actions by these numbers."""
        space: Any = self.action_space
        if isinstance(space, Discrete):
            return code % int(space.n)
        if isinstance(space, MultiDiscrete):
            return torch.stack([code // (i + 1) % int(n) for i, n in enumerate(space.nvec)], dim=1)
        return torch.stack([(code * (i + 1) % 25 - 12) / 8 for i in range(space.shape[0])], dim=1)


def draw(logits: torch.Tensor) -> torch.Tensor:
    """Indices that look random, from the logits alone."""
    return codes(logits) % logits.shape[-1]


def noise(loc: torch.Tensor) -> torch.Tensor:
    """Numbers that look random, from the means alone."""
    return (codes(loc)[:, None] + torch.arange(loc.shape[-1])) % 17 / 8 - 1


class RLlibsCategorical(TorchCategorical):
    def sample(self, **kwargs: Any) -> torch.Tensor:
        return draw(self.logits.reshape(-1, self.logits.shape[-1])).reshape(self.logits.shape[:-1])


class RLlibsGaussian(TorchDiagGaussian):
    def sample(self, **kwargs: Any) -> torch.Tensor:
        flat = self.loc.reshape(-1, self.loc.shape[-1])
        return (flat + noise(flat)).reshape(self.loc.shape)


class OurCategorical(Categorical):
    @classmethod
    def sample_and_logp(cls, logits: torch.Tensor, generator: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        actions = draw(logits)
        return actions, cls.from_logits(logits).logp(actions)


class OurGaussian(DiagGaussian):
    @classmethod
    def sample_and_logp(cls, logits: torch.Tensor, generator: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        loc, _ = logits.chunk(2, dim=-1)
        actions = loc + noise(loc)
        return actions, cls.from_logits(logits).logp(actions)


class RLlibsModule(Exact, TorchRLModule):
    """The module of RLlib's runner."""

    def get_exploration_action_dist_cls(self) -> Any:
        if isinstance(self.action_space, Discrete):
            return RLlibsCategorical
        return RLlibsGaussian if isinstance(self.action_space, Box) else self.get_inference_action_dist_cls()

    def get_inference_action_dist_cls(self) -> Any:
        space: Any = self.action_space
        if isinstance(space, MultiDiscrete):
            return TorchMultiCategorical.get_partial_dist_cls(space=space, input_lens=[*map(int, space.nvec)])
        return TorchCategorical if isinstance(space, Discrete) else TorchDiagGaussian


class OurModule(Exact, fastmarl.RLModule):
    """The module of the standalone runner."""

    def get_exploration_action_dist_cls(self) -> Any:
        if isinstance(self.action_space, Discrete):
            return OurCategorical
        return OurGaussian if isinstance(self.action_space, Box) else super().get_exploration_action_dist_cls()

    def get_inference_action_dist_cls(self) -> Any:
        return super().get_exploration_action_dist_cls()
