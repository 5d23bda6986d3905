"""A wrapper that gives a policy module the model interface used by losses of the old RLlib API stack."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.errors import ConfigError, ModuleOutputError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct


class PolicyModel:
    """Model passed to a loss, used as `logits, state = model(train_batch)` and then `model.value_function()`.

    Attributes:
        module: Module of the policy.
        tower_stats: Dict in which the loss stores the statistics that `stats_fn()` reports.
    """

    def __init__(self, module: RLModule):
        self.module = module
        self.tower_stats: dict[str, Any] = {}
        self._values: Tensor | None = None

    def __call__(
        self, input_dict: Any, state: list[Tensor] | None = None, seq_lens: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the training forward pass of the module.

        Args:
            input_dict: Dict of tensors, with "obs" [n, ...]. For a recurrent policy, the n = B * T rows are B sequences
                padded to T steps, with "seq_lens" [B] and "state_in_0" and so on, [B, ...].
            state, seq_lens: States and lengths to use instead of those in `input_dict`.

        Returns:
            (logits [n, k], list of recurrent states [B, ...] after the last steps, empty if not recurrent)
        """
        batch = {Columns.OBS: input_dict[Columns.OBS]}
        if Columns.ACTION_MASK in input_dict:
            batch[Columns.ACTION_MASK] = input_dict[Columns.ACTION_MASK]
        if not self.module.is_stateful():
            outputs = self.module.forward_train(batch)
            self._values = outputs.get(Columns.VF_PREDS)
            return outputs[Columns.ACTION_DIST_INPUTS], []
        lengths = input_dict[Columns.SEQ_LENS] if seq_lens is None else seq_lens
        if state is None:
            state = [input_dict[f"state_in_{i}"] for i in range(self.num_states)]
        batch = map_struct(lambda leaf: leaf.unflatten(0, (len(lengths), -1)), batch)
        outputs = self.module.forward_train({**batch, Columns.STATE_IN: self.nested_state(state)})
        values = outputs.get(Columns.VF_PREDS)
        self._values = None if values is None else values.flatten(0, 1)
        return outputs[Columns.ACTION_DIST_INPUTS].flatten(0, 1), self.state_leaves(outputs[Columns.STATE_OUT])

    def value_function(self) -> Tensor:
        """Return the values [n] of the observations in the last call.

        Raises:
            ModuleOutputError: If the module has no output "vf_preds".
        """
        if self._values is None:
            raise ModuleOutputError(type(self.module).__name__, f"value_function() needs the output "
                                    f"{Columns.VF_PREDS!r}, which the last forward pass did not return; add it, or set "
                                    f"use_critic=False and use_gae=False in policy_config")  # fmt: skip
        return self._values

    @property
    def num_states(self) -> int:
        """Number of leaves of the recurrent state."""
        return len(flatten_struct(self.module.get_initial_state()))

    def nested_state(self, leaves: list[Any]) -> Any:
        """Nest the leaves of a recurrent state, in order, like the initial state of the module.

        Raises:
            ConfigError: If the number of leaves does not match the module state.
        """
        if len(leaves) != self.num_states:
            raise ConfigError(f"expected {self.num_states} states, got {len(leaves)}")
        given = iter(leaves)
        return map_struct(lambda leaf: next(given), self.module.get_initial_state())

    def state_leaves(self, state: Any) -> list[Any]:
        """Return the leaves of a recurrent state, in the order of the initial state."""
        by_path = dict(flatten_struct(state))
        return [by_path[path] for path, _ in flatten_struct(self.module.get_initial_state())]

    def get_initial_state(self) -> list[Tensor]:
        """Return the leaves of the initial state, [...] each."""
        return [torch.as_tensor(leaf) for _, leaf in flatten_struct(self.module.get_initial_state())]

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.module.parameters()

    def train(self, mode: bool = True) -> None:
        self.module.train(mode)

    def eval(self) -> None:
        self.module.eval()

    def metrics(self) -> dict[str, Any]:
        """Return an empty dict of statistics for `learn_on_batch()`, like RLlib models by default."""
        return {}

    def is_time_major(self) -> bool:
        """Return False, because sequences have the shape [B, T, ...]."""
        return False
