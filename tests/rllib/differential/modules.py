"""Custom modules: for any spaces, with more outputs, with actions of their own, and such as only return actions."""

from typing import Any

import numpy as np
import torch
import tree
from gymnasium.spaces import Box, Discrete
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.core.rl_module.torch import TorchRLModule
from rllib.differential import tape

Batch = dict[str, Any]


class Noting(RLModule):
    """Writes down what each forward pass gets."""

    def forward_exploration(self, batch: Batch, **kwargs: Any) -> Batch:
        tape.note("forward", type(self).__name__, "exploration", tape.freeze(batch), tape.freeze(kwargs))
        return super().forward_exploration(batch, **kwargs)

    def forward_inference(self, batch: Batch, **kwargs: Any) -> Batch:
        tape.note("forward", type(self).__name__, "inference", tape.freeze(batch), tape.freeze(kwargs))
        return super().forward_inference(batch, **kwargs)


class AnySpaces(TorchRLModule):
    """One linear layer from whatever is observed to the inputs of the action distribution (Discrete or Box)."""

    def setup(self) -> None:
        leaves = [torch.as_tensor(np.asarray(leaf)) for leaf in tree.flatten(self.observation_space.sample())]
        n_in = sum(leaf.numel() for leaf in leaves)
        n_out = self.action_space.n if isinstance(self.action_space, Discrete) else 2 * self.action_space.shape[0]
        self.layer = torch.nn.Linear(n_in, int(n_out))

    def rows(self, batch: Batch) -> torch.Tensor:
        """float32 [row, leaf elements]"""
        leaves = tree.flatten(batch[Columns.OBS])
        return torch.cat([leaf.reshape(len(leaf), -1).to(torch.float32) for leaf in leaves], dim=1)

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        return {Columns.ACTION_DIST_INPUTS: self.layer(self.rows(batch))}


class NotingAnySpaces(Noting, AnySpaces):
    """A module on tape that overrides RLlib's public forward methods."""


class Extras(AnySpaces):
    """Adds columns of all shapes to the distribution's inputs; "count" is the time if it explores, else -1."""

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        rows = self.rows(batch)
        return {
            Columns.VF_PREDS: rows.sum(dim=1),
            Columns.ACTION_DIST_INPUTS: self.layer(rows),
            "features": {"wide": rows[:, None, :2].double(), "count": torch.full((len(rows),), kwargs.get("t", -1))},
        }


class Retyped(AnySpaces):
    """Outputs that are integers and flags where it does not explore, and floats where it does."""

    def _forward_exploration(self, batch: Batch, **kwargs: Any) -> Batch:
        return self._with(batch, torch.full((len(self.rows(batch)), 2), 1.5))

    def _forward_inference(self, batch: Batch, **kwargs: Any) -> Batch:
        return self._with(batch, torch.ones(len(self.rows(batch)), 2, dtype=torch.int64))

    def _with(self, batch: Batch, kept: torch.Tensor) -> Batch:
        flags = kept if kept.is_floating_point() else kept.bool()
        parts = {"integer": kept, "parts": (flags, kept[:, 0])}
        return {Columns.ACTION_DIST_INPUTS: self.layer(self.rows(batch)), "kept": parts}


class OddNames(AnySpaces):
    """Outputs with the names of the core's own arrays; dm_tree takes strings alone."""

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        rows = self.rows(batch)
        names = ("obs0", "final0", "lane_R", "prev_R", "env_t_R", "reward_R", "seq_no_R")
        numbers = {name: rows.sum(1).long() + i for i, name in enumerate(names)}
        parts = {"one": rows.sum(1), "two": rows.sum(1) + 1}
        return {Columns.ACTION_DIST_INPUTS: self.layer(rows), **numbers, "parts": parts}


class OwnActions(AnySpaces):
    """Samples by itself; RLlib adds the log probability only where it samples."""

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        outputs = self.layer(self.rows(batch))
        if isinstance(self.action_space, Box):
            half = outputs.shape[1] // 2
            return {Columns.ACTIONS: torch.normal(outputs[:, :half], 1.0), Columns.ACTION_LOGP: outputs[:, half]}
        distribution = torch.distributions.Categorical(logits=outputs)
        actions = distribution.sample()
        return {Columns.ACTIONS: actions, Columns.ACTION_LOGP: distribution.log_prob(actions), "logits": outputs}


class Heuristic(RLModule):
    """No network: NumPy actions from NumPy's global generator, and nothing else."""

    framework = "torch"

    def setup(self) -> None:
        self.calls = 0

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        n = len(tree.flatten(batch[Columns.OBS])[0])
        self.calls += 1
        if isinstance(self.action_space, Box):
            return {Columns.ACTIONS: np.random.normal(size=(n, *self.action_space.shape))}  # noqa: NPY002
        return {Columns.ACTIONS: np.random.randint(self.action_space.n, size=n)}  # noqa: NPY002

    _forward_inference = _forward_exploration = _forward

    def _forward_train(self, *args: Any, **kwargs: Any) -> Batch:
        raise NotImplementedError

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Memory(AnySpaces):
    """A recurrent module by hand: its state is a nest and counts."""

    def setup(self) -> None:
        super().setup()
        self.size = self.layer.in_features

    def get_initial_state(self) -> Any:
        return {"h": np.zeros(self.size, np.float32), "n": (np.zeros((), np.int64),)}

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        state = batch[Columns.STATE_IN]
        leaves = tree.flatten(batch[Columns.OBS])  # [row, 1, ...]
        rows = torch.cat([leaf.reshape(len(leaf), -1).to(torch.float32) for leaf in leaves], dim=1)
        h = torch.tanh(rows + 0.5 * state["h"])
        outputs = {Columns.STATE_OUT: {"h": h, "n": (state["n"][0] + 1,)}}
        return {**outputs, Columns.ACTION_DIST_INPUTS: self.layer(h)[:, None]}


class ReadsBonus(AnySpaces):
    """Reads all that connectors have put into its batch, and writes it down."""

    def _forward(self, batch: Batch, **kwargs: Any) -> Batch:
        tape.note("forward", type(self).__name__, tape.freeze(batch))
        outputs = super()._forward(batch, **kwargs)
        for name, column in batch.items():
            if name not in (Columns.OBS, Columns.STATE_IN):
                more = column.reshape(len(column), -1).sum(1).to(torch.float32)
                logits = outputs[Columns.ACTION_DIST_INPUTS]
                outputs[Columns.ACTION_DIST_INPUTS] = logits + 0.1 * more.reshape(-1, *[1] * (logits.dim() - 1))
        return outputs


class RemembersBonus(ReadsBonus, Memory):
    """A recurrent module that reads them."""
