"""Conversion of team decisions to the rows or sequences that a module expects."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct


class TeamRows:
    """A batch arranged in units that a module processes: here rows, one per decision and agent.

    `acted()`, `later()` and `later_alone()` return indices of units.
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
        """Replace the observations of agents that do not take part, which may even be NaN, with zeros."""
        return leaf.masked_fill(~self._is_there.view(*leaf.shape[:3], *[1] * (leaf.dim() - 3)), 0)

    def inputs(self, module: RLModule) -> dict[str, Any]:
        """Return the input columns for a module, and the loss mask."""
        inputs = {name: map_struct(self.rows, column) for name, column in self._columns.items()}
        return {**inputs, Columns.LOSS_MASK: self.rows(self._is_there)}

    def rows(self, column: Tensor) -> Tensor:
        """Convert a column [n, T + 1, A, ...] to the rows or sequences for the module."""
        return column.flatten(0, 2)

    def columns(self, rows: Tensor) -> Tensor:
        """Convert module outputs for all rows back to [n, T + 1, A, k]; the inverse of `rows()`."""
        return rows.unflatten(0, self._is_acted.shape)

    def joint(self, flattener: nn.Module) -> Tensor:
        """Return the concatenated flat observations of all agents, [n, T + 1, A * k]; 0 for those not taking part."""
        flat = flattener(map_struct(lambda leaf: leaf.flatten(0, 2), self._columns[Columns.OBS]))
        return self._cleared(flat.unflatten(0, self._is_there.shape)).flatten(2)

    def acted(self) -> Tensor:
        """Return the units with acting agents."""
        return self._has(self._is_acted).nonzero().squeeze(1)

    def later(self) -> Tensor:
        """Return the units that are needed for the value of a next decision."""
        return self._has(self._is_later).nonzero().squeeze(1)

    def later_alone(self) -> Tensor:
        """Return the units that are needed only for the value of a next decision, not for an action."""
        return (self._has(self._is_later) & ~self._has(self._is_acted)).nonzero().squeeze(1)

    def _has(self, where: Tensor) -> Tensor:
        return where.flatten()


class TeamSequences(TeamRows):
    """A batch with one sequence per trajectory, which starts with the decisions that the agent takes part in.

    Axes in names: T decision, B agent of a batch entry, S sequence.
    """

    def __init__(self, rows: Mapping[str, Any]):
        super().__init__(rows)
        self._columns[Columns.OBS] = map_struct(self._cleared, rows[Columns.OBS])  # a pass reads complete sequences
        is_there = self._by_agent(self._is_there)
        n, length = is_there.shape
        steps, agents = torch.arange(length, device=is_there.device), torch.arange(n, device=is_there.device)[:, None]
        self._agent_S, sequence_BT = agents.squeeze(1), agents.expand(n, length)
        has_several = "trajectory" in rows
        if has_several:
            ids, sequence_BT = (self._by_agent(rows["trajectory"]) * n + agents).unique(return_inverse=True)
            self._agent_S = ids % n
            is_there = is_there[self._agent_S]
            is_there &= sequence_BT[self._agent_S] == torch.arange(len(ids), device=ids.device)[:, None]
        self._order_ST = (~is_there).int().argsort(stable=True, dim=1)
        self._padding_ST = ~is_there.gather(1, self._order_ST) if has_several else None
        self._places_BT = sequence_BT, self._order_ST.argsort(1)[sequence_BT, steps]

    def _by_agent(self, column: Tensor) -> Tensor:
        return column.transpose(1, 2).flatten(0, 1)

    def inputs(self, module: RLModule) -> dict[str, Any]:
        n, device = self._order_ST.shape[0], self._order_ST.device
        state = map_struct(
            lambda leaf: torch.as_tensor(leaf, device=device).expand(n, *leaf.shape), module.get_initial_state()
        )
        return {**super().inputs(module), Columns.STATE_IN: state}

    def rows(self, column: Tensor) -> Tensor:
        rows = self._by_agent(column)[self._agent_S[:, None], self._order_ST]
        if self._padding_ST is not None:  # it contains decisions of other trajectories
            rows.masked_fill_(self._padding_ST.view(*rows.shape[:2], *[1] * (rows.dim() - 2)), 0)
        return rows

    def columns(self, rows: Tensor) -> Tensor:
        n, length, n_agents = self._is_acted.shape
        by_agent = rows.unflatten(0, (-1, length))[self._places_BT]
        return by_agent.unflatten(0, (n, n_agents)).transpose(1, 2)

    def _has(self, where: Tensor) -> Tensor:
        return self.rows(where).any(1)
