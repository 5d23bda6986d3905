"""Team decisions in the form expected by a module."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct


class TeamRows:
    """A batch as rows, one per decision and agent, or as other units passed to a module.

    `acted()` and the methods after it return indices of units.
    """

    def __init__(self, rows: Mapping[str, Any]):
        active, new_active = rows["active"], rows["new_active"]
        n, length, n_agents = active.shape
        flags = active.new_zeros((3, n, length + 1, n_agents))
        self._is_acted, self._is_later, self._is_there = flags
        self._is_acted[:, :-1], self._is_later[:, 1:] = active, new_active
        torch.logical_or(self._is_acted, self._is_later, out=self._is_there)
        self._columns = {name: rows[name] for name in (Columns.OBS, Columns.ACTION_MASK) if name in rows}

    def _cleared(self, leaf: Tensor) -> Tensor:
        """Return observations, with zeros for agents that take no part, whose values are arbitrary, even NaN."""
        return leaf.masked_fill(~self._is_there.view(*leaf.shape[:3], *[1] * (leaf.dim() - 3)), 0)

    def inputs(self, module: RLModule) -> dict[str, Any]:
        """Return the inputs of a module."""
        inputs = {name: map_struct(self.rows, column) for name, column in self._columns.items()}
        return {**inputs, Columns.LOSS_MASK: self.rows(self._is_there)}

    def rows(self, column: Tensor) -> Tensor:
        """Return [n, T + 1, A, ...] in the form for the module."""
        return column.flatten(0, 2)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the module outputs [., k] per decision and agent as [n, T + 1, A, k]."""
        return rows.unflatten(0, self._is_acted.shape)

    def joint(self, flattener: nn.Module) -> Tensor:
        """Return the flattened observations of all agents [n, T + 1, A k], zeros for agents that take no part."""
        flat = flattener(map_struct(lambda leaf: leaf.flatten(0, 2), self._columns[Columns.OBS]))
        return self._cleared(flat.unflatten(0, self._is_there.shape)).flatten(2)

    def acted(self) -> Tensor:
        """Return the units with acting agents."""
        return self._has(self._is_acted).nonzero().squeeze(1)

    def later(self) -> Tensor:
        """Return the units with agents in a later value."""
        return self._has(self._is_later).nonzero().squeeze(1)

    def later_alone(self) -> Tensor:
        """Return the units with agents in a later value, none of which acted."""
        return (self._has(self._is_later) & ~self._has(self._is_acted)).nonzero().squeeze(1)

    def _has(self, where: Tensor) -> Tensor:
        return where.flatten()


class TeamSequences(TeamRows):
    """A batch as sequences, one per agent, with the decisions in which it takes part at the beginning."""

    def __init__(self, rows: Mapping[str, Any]):
        super().__init__(rows)
        is_absent = ~self._by_agent(self._is_there)
        self._columns[Columns.OBS] = map_struct(self._cleared, rows[Columns.OBS])  # a pass takes complete sequences
        self._order = is_absent.int().argsort(stable=True, dim=1)  # [n A, T + 1]
        self._places = self._order.argsort(1)
        self._sequence = torch.arange(len(is_absent), device=is_absent.device)[:, None]

    def _by_agent(self, column: Tensor) -> Tensor:
        return column.transpose(1, 2).flatten(0, 1)

    def inputs(self, module: RLModule) -> dict[str, Any]:
        n, device = len(self._order), self._order.device
        state = map_struct(
            lambda leaf: torch.as_tensor(leaf, device=device).expand(n, *leaf.shape), module.get_initial_state()
        )
        return {**super().inputs(module), Columns.STATE_IN: state}

    def rows(self, column: Tensor) -> Tensor:
        return self._by_agent(column)[self._sequence, self._order]

    def columns(self, rows: Tensor) -> Tensor:
        n, length, n_agents = self._is_acted.shape
        by_agent = rows.unflatten(0, (-1, length))[self._sequence, self._places]
        return by_agent.unflatten(0, (n, n_agents)).transpose(1, 2)

    def _has(self, where: Tensor) -> Tensor:
        return self._by_agent(where).any(1)
