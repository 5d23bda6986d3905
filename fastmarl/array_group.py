"""The agents of one group of a batch of envs: what they see and do, in arrays, and their lanes and rows.

Axes in names: E env, P place in the group's arrays (env * number of agents + agent), R row, L lane.
"""

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.block import Block
from fastmarl.envs.arrays import GroupArrays
from fastmarl.errors import ConfigError, RewardError
from fastmarl.kernels.array_steps import NO_PLACE, append_rows, settle_step
from fastmarl.lanes import LaneTable
from fastmarl.spaces import RowLayout
from fastmarl.store import ASLEEP, EpisodeStore


class ArrayGroup:
    """The agents of one group in all envs.

    Args:
        agents: their ids, in the order of the arrays.
        observation_space, action_space: of one agent.
        store: where rows go to.
        first_place: `place_L` of the lane table is a place plus this.
    """

    def __init__(
        self,
        agents: list[Hashable],
        observation_space: gym.Space,
        action_space: gym.Space,
        store: EpisodeStore,
        first_place: int,
    ):
        self._store = store
        self._table: LaneTable = store.table
        self._agents = agents
        self._shape = num_envs, n_agents = len(store.table.envs), len(agents)
        self._layout, self._action_layout = RowLayout(observation_space), RowLayout(action_space)
        self._first_place = first_place
        n_places = num_envs * n_agents
        self._lane_P = np.full(n_places, -1, np.int32)
        self._module_P = np.zeros(n_places, np.int32)  # of the lane at that place
        self._n_lanes: dict[int, int] = {}  # by module
        self._orders: dict[RowLayout, list[int]] = {}  # of a block -> for each of its leaves, which of ours it is
        self._rewards = np.zeros(self._shape)
        self._flags = np.zeros((3, *self._shape), np.bool_)  # terminated, truncated, present
        self._kept, self._ended = np.empty((2, n_places), np.int64)
        self._own_leaves: list[np.ndarray] = []  # [P, ...], made when they are first needed
        self._leaves: list[np.ndarray] = []  # what the env is writing to
        self._own_module: int | None = None  # whose block `_leaves` are in
        self._dense_module: int | None = None  # whose rows of this tick are all places, in order
        self._newcomers: list[int] = []

    # What the env writes into.

    def arrays_for_reset(self) -> GroupArrays:
        """Arrays of our own."""
        self._own_module, self._leaves = None, self._staging()
        self._flags[2] = True
        return self._arrays()

    def arrays_for_step(self, own_module: int | None) -> GroupArrays:
        """Observations are the next rows of `own_module`, which acts for this group alone; None: arrays of our own."""
        rows = None if own_module is None else self._next_rows(own_module)
        self._own_module, self._leaves = (None, self._staging()) if rows is None else (own_module, rows)
        np.greater_equal(self._lane_P.reshape(self._shape), 0, out=self._flags[2])
        return self._arrays()

    def _arrays(self) -> GroupArrays:
        obs = self._layout.nest([leaf.reshape(*self._shape, *leaf.shape[1:]) for leaf in self._leaves])
        self._rewards[...] = 0.0
        self._flags[:2] = False
        return GroupArrays(obs, self._rewards, *self._flags)

    def _staging(self) -> list[np.ndarray]:
        if not self._own_leaves:
            n_places = len(self._lane_P)
            self._own_leaves = [np.zeros((n_places, *leaf.shape), leaf.dtype) for leaf in self._layout.leaves]
        return self._own_leaves

    def _next_rows(self, module: int) -> list[np.ndarray] | None:
        """The module's next rows, in our leaves' order; None if they have other dtypes than the envs'."""
        first, n_places = self._store.rows[module].n, len(self._lane_P)
        block = self._block_with(module, n_places)
        leaves = list[np.ndarray]([None] * len(block.raw_obs))  # type: ignore[list-item]
        for leaf, place in zip(block.raw_obs, self._order_in(block), strict=True):
            leaves[place] = leaf[first : first + n_places]
        same = all(leaf.dtype == own.dtype for leaf, own in zip(leaves, self._layout.leaves, strict=True))
        return leaves if same else None

    def _order_in(self, block: Block) -> list[int]:
        """For each leaf of the block, which of our leaves it is.

        Raises:
            ConfigError: the module takes other observations.
        """
        layout = block.raw_layout or block.layout
        if layout not in self._orders:
            own = {leaf.path: (place, leaf.shape, leaf.dtype.kind) for place, leaf in enumerate(self._layout.leaves)}
            taken = {leaf.path: (leaf.shape, leaf.dtype.kind) for leaf in layout.leaves}
            if taken != {path: tuple(kind) for path, (_, *kind) in own.items()}:
                raise ConfigError(f"the agents {self._agents} observe {self._layout.space}, but the module they are "
                                  f"mapped to takes {layout.space}")  # fmt: skip
            self._orders[layout] = [own[leaf.path][0] for leaf in layout.leaves]
        return self._orders[layout]

    def _block_with(self, module: int, n_rows: int) -> Block:
        """The module's block, with room for so many rows more."""
        if self._store.blocks[module] is ASLEEP:
            self._store.wake(module)
        rows, block = self._store.rows[module], self._store.blocks[module]
        while rows.capacity < rows.n + n_rows:
            block.grow(finals=False)
        return block

    def modules(self) -> list[int]:
        """Those with lanes, ascending."""
        return sorted(module for module, n in self._n_lanes.items() if n)

    # What it has written.

    def write_reset(self, env_indices: np.ndarray, out: GroupArrays, env_t_E: np.ndarray) -> None:
        """Lanes and first rows for who is present in these envs (int64, ascending)."""
        self._dense_module = None
        self._forget(env_indices)
        begins = np.zeros(self._shape, np.bool_)
        begins[env_indices] = out.present[env_indices]
        places = np.flatnonzero(begins)
        self._join_all(env_indices.tolist(), begins, places)
        for module in self.modules():
            self._append(module, places[self._module_P[places] == module], env_t_E)

    def _forget(self, env_indices: np.ndarray) -> None:
        """The lanes that these envs still have are those of episodes that were dropped."""
        lanes, modules = self._lane_P.reshape(self._shape), self._module_P.reshape(self._shape)
        for module in modules[env_indices][lanes[env_indices] >= 0].tolist():
            self._n_lanes[module] -= 1
        lanes[env_indices] = -1

    def _join_all(self, env_indices: list[int], begins: np.ndarray, places: np.ndarray) -> None:
        """Lanes for those who are there at the reset of these envs: bool [E, A], and their places."""
        table, lanes, modules = self._table, list[int](), list[int]()
        for env_index in env_indices:
            here = begins[env_index]
            agents = self._agents if here.all() else [self._agents[i] for i in np.flatnonzero(here)]
            lanes += table.join_all(env_index, agents)
            module_of = table.record(env_index).module_of
            modules += [module_of[agent] for agent in agents]
        for module in modules:
            self._n_lanes[module] = self._n_lanes.get(module, 0) + 1
        self._lane_P[places], self._module_P[places] = lanes, modules
        table.env_L[lanes], table.module_L[lanes] = places // self._shape[1], modules
        table.place_L[lanes] = self._first_place + places

    def write_step(self, out: GroupArrays, all_done_E: np.ndarray, env_t_E: np.ndarray) -> None:
        """Rewards, ends and rows of one step, after `welcome()`; uint8 flags of whole episodes, int32 env steps."""
        self._dense_module = None
        # Last the one that closes the gaps in its rows: newcomers of other modules are still there until then.
        for module in sorted(self.modules(), key=lambda module: module == self._own_module):
            kept, ended = self._settle(module, out, all_done_E, env_t_E)
            if len(ended):
                self._finalize(module, ended, out.present.reshape(-1), env_t_E)
            self._append(module, kept, env_t_E)
        for place in self._newcomers:
            self._pay_newcomer(place)

    def welcome(self, out: GroupArrays, all_done_E: np.ndarray) -> None:
        """Rewards of agents that have no lane, and lanes for those of them that are observed."""
        self._newcomers = []
        away = self._lane_P < 0
        if not away.any():
            return
        reward_P, present_P = out.rewards.reshape(-1), out.present.reshape(-1)
        for place in np.flatnonzero(away & (reward_P != 0)).tolist():
            self._pay_absent(place, float(reward_P[place]))
        for place in np.flatnonzero(away & present_P).tolist():
            agent_id, env_index = self._who(place)
            flags = [{agent_id: bool(flag.reshape(-1)[place])} for flag in (out.terminated, out.truncated)]
            self._join(place, int(all_done_E[env_index]), *flags)
            if self._lane_P[place] >= 0:
                self._newcomers.append(place)
                reward_P[place] = 0.0  # is among the early ones

    def modules_of_newcomers(self) -> list[int]:
        """Of those who joined in this step."""
        return self._module_P[self._newcomers].tolist()

    def leave_rows_of(self, joined: set[int]) -> None:
        """Some agent of another group has joined one of these modules: its row may come before those written to."""
        if self._own_module in joined:
            self._own_module, self._leaves = None, [leaf.copy() for leaf in self._leaves]

    def _settle(
        self, module: int, out: GroupArrays, all_done_E: np.ndarray, env_t_E: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(places of who goes on, of whose lanes end), of one module's."""
        table, block = self._table, self._block_with(module, 0)
        reward_P = out.rewards.reshape(-1)
        n_kept, n_ended, bad = settle_step(
            module, self._lane_P, reward_P, out.terminated.reshape(-1), out.truncated.reshape(-1),
            out.present.reshape(-1), all_done_E, table.module_L, table.row_L, table.done_L, table.final_L,
            block.reward_R, block.rows.n_finals, self._kept, self._ended,
        )  # fmt: skip
        if bad != NO_PLACE:
            agent_id, env_index = self._who(bad)
            problem = f"expected a finite reward, got {reward_P[bad]}"
            raise RewardError(env_index, agent_id, int(env_t_E[env_index]), problem)
        return self._kept[:n_kept].copy(), self._ended[:n_ended]

    def _finalize(self, module: int, ended: np.ndarray, present_P: np.ndarray, env_t_E: np.ndarray) -> None:
        """Close lanes with their final observations: what is there now, or the previous one again."""
        block, rows = self._store.blocks[module], self._store.rows[module]
        while rows.final_capacity < rows.n_finals + len(ended):
            block.grow(finals=True)
        finals = slice(rows.n_finals, rows.n_finals + len(ended))
        lanes, is_seen = self._lane_P[ended], present_P[ended]
        leaves = [self._leaves[place] for place in self._order_in(block)]
        for leaf, final, written in zip(block.raw_obs, block.raw_final_obs, leaves, strict=True):
            final[finals][is_seen] = written[ended[is_seen]]
            final[finals][~is_seen] = leaf[self._table.row_L[lanes[~is_seen]]]
        block.final_prev_F[finals] = self._table.row_L[lanes]
        block.final_at_F[finals] = np.where(is_seen, rows.n, -1)
        rows.n_finals += len(ended)
        self._finish(ended // self._shape[1], lanes, env_t_E)
        self._lane_P[ended] = -1
        self._n_lanes[module] -= len(ended)

    def _finish(self, envs: np.ndarray, lanes: np.ndarray, env_t_E: np.ndarray) -> None:
        """These lanes have ended, in these envs, which ascend."""
        self._table.end_env_t_L[lanes] = env_t_E[envs]
        begins = np.flatnonzero(np.diff(envs, prepend=-1))
        of_lanes = lanes.tolist()
        for env_index, begin, end in zip(
            envs[begins].tolist(), begins.tolist(), [*begins[1:].tolist(), len(envs)], strict=True
        ):
            self._table.finish_all(env_index, of_lanes[begin:end])

    def _append(self, module: int, places: np.ndarray, env_t_E: np.ndarray) -> None:
        """One row more for the lanes at these places."""
        if not len(places):
            return
        n, table, block = len(places), self._table, self._block_with(module, len(places))
        rows, first = block.rows, block.rows.n
        for leaf, place in zip(block.raw_obs, self._order_in(block), strict=True):
            written = self._leaves[place]
            if module != self._own_module or n < len(self._lane_P):
                leaf[first : first + n] = written[places]
        append_rows(
            places, self._lane_P, self._shape[1], env_t_E, first, block.lane_R, block.prev_R, block.env_t_R,
            block.reward_R, table.row_L, table.count_L,
        )  # fmt: skip
        rows.n += n
        if n == len(self._lane_P):
            self._dense_module = module

    # What is rare.

    def _who(self, place: int) -> tuple[Hashable, int]:
        """(agent id, env index)."""
        env_index, agent = divmod(place, self._shape[1])
        return self._agents[agent], env_index

    def _join(self, place: int, all_done: int, terminateds: dict, truncateds: dict) -> None:
        agent_id, env_index = self._who(place)
        lane = self._table.join(env_index, agent_id, all_done, terminateds, truncateds)
        self._lane_P[place] = lane
        if lane >= 0:
            self._module_P[place] = module = int(self._table.module_L[lane])
            self._n_lanes[module] = self._n_lanes.get(module, 0) + 1
            self._table.place_L[lane] = self._first_place + place

    def _pay_absent(self, place: int, reward: float) -> None:
        agent_id, env_index = self._who(place)
        if not np.isfinite(reward):
            env_t = self._table.envs[env_index].env_t
            raise RewardError(env_index, agent_id, env_t, f"expected a finite reward, got {reward}")
        lane = self._table.lane_for_late_reward(env_index, agent_id, reward)
        if lane >= 0:
            self._store.blocks[self._table.module_L[lane]].reward_R[self._table.row_L[lane]] += reward

    def _pay_newcomer(self, place: int) -> None:
        """What it was paid before it was first observed."""
        lane, env_index = int(self._lane_P[place]), place // self._shape[1]
        if self._table.record(env_index).early_rewards:
            early = self._table.early_reward(env_index, lane)
            self._store.blocks[self._table.module_L[lane]].reward_R[self._table.row_L[lane]] += early

    # Actions.

    def actions(self, acted: list[tuple[int, slice, list[np.ndarray]]]) -> Any:
        """From (module, its rows that acted, an array for each leaf)."""
        n_places = len(self._lane_P)
        for module, _, arrays in acted:
            if module == self._dense_module and len(arrays[0]) == n_places:
                return self._nested(arrays)
        own = [np.zeros((n_places, *leaf.shape), leaf.dtype) for leaf in self._action_layout.leaves]
        for module, rows, arrays in acted:
            places = self._table.place_L[self._store.blocks[module].lane_R[rows]] - self._first_place
            is_here = (places >= 0) & (places < n_places)
            if is_here.any():
                for array, of_module in zip(own, arrays, strict=True):
                    array[places[is_here]] = of_module[is_here]
        return self._nested(own)

    def _nested(self, arrays: list[np.ndarray]) -> Any:
        return self._action_layout.nest([array.reshape(*self._shape, *array.shape[1:]) for array in arrays])
