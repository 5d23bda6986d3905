"""A group of agents in a batch of envs: their observations and actions in arrays, and their lanes and rows.

Axes in names: E env of the batch, P position in the group arrays (env * number of agents + agent), R row, L lane.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import GroupArrays
from fastmarl.core.errors import ConfigError, ModuleOutputError, ObservationError, RewardError
from fastmarl.core.kernels.array_steps import NO_POSITION, append_rows, end_lanes, find_absent, settle_step
from fastmarl.core.kernels.rows import as_bytes, take_finals, take_rows
from fastmarl.core.native._array_steps import GroupSteps, put_rows
from fastmarl.core.native._finite import first_outside
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.values import choice_ranges, described, first_unheld
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import LaneTable
from fastmarl.core.store.store import INACTIVE, RowStore

Acted = tuple[int, slice, list[np.ndarray]]  # module, the rows that acted, one array per leaf of the action space


class ArrayGroup:
    """The agents of a group in all envs of a batch.

    Args:
        agents: Ids of the agents, in the order of the arrays.
        observation_space, action_space: Spaces of a single agent.
        store: Store that receives the rows.
        envs: Indices of the batch envs in the store.
        first_position: Offset of this group; `place_L` of the lane table is `first_position` + position.
        over, env_t_E, all_done_E: See `GroupSteps`.
    """

    def __init__(
        self,
        agents: list[Hashable],
        observation_space: gym.Space,
        action_space: gym.Space,
        store: RowStore,
        envs: range,
        first_position: int,
        over: np.ndarray,
        env_t_E: np.ndarray,
        all_done_E: np.ndarray,
    ):
        self._store = store
        self._table: LaneTable = store.table
        self._agents = agents
        self._shape = num_envs, n_agents = len(envs), len(agents)
        self._index_E = np.array(envs)
        self._layout, self._action_layout = RowLayout(observation_space), RowLayout(action_space)
        self._first_position = first_position
        n_positions = num_envs * n_agents
        self._lane_P = np.full(n_positions, -1, np.int32)
        self._module_P = np.zeros(n_positions, np.int32)  # module of the lane at each position
        self._n_lanes: Counter[int] = Counter()  # per module
        self._fits: dict[RowLayout, tuple[list[int], bool]] = {}  # layout of a block -> result of `_fit()`
        self._reward_P = np.zeros(n_positions)
        self._terminated_P, self._truncated_P, self._present_P = np.zeros((3, n_positions), np.bool_)
        by_env = (self._reward_P, self._terminated_P, self._truncated_P, self._present_P)
        self._leaves = [np.zeros((n_positions, *leaf.shape), leaf.dtype) for leaf in self._layout.leaves]
        obs = self._layout.nest([leaf.reshape(*self._shape, *leaf.shape[1:]) for leaf in self._leaves])
        self.arrays = GroupArrays(obs, *(array.reshape(self._shape) for array in by_env))
        self._ranges = [choice_ranges(space) for space in leaf_spaces(action_space)]
        self._actions = [np.zeros((n_positions, *leaf.shape), leaf.dtype) for leaf in self._action_layout.leaves]
        self._actions_of_envs = [array.reshape(*self._shape, *array.shape[1:]) for array in self._actions]
        terminated, truncated, present, ends = (
            flags.view(np.uint8) for flags in (self._terminated_P, self._truncated_P, self._present_P, over)
        )
        self.steps = GroupSteps(
            [self._table.envs[env_index] for env_index in envs], self._lane_P, self._module_P, self._reward_P,
            terminated, truncated, present, ends, env_t_E, all_done_E, self._actions, self._ranges, first_position,
        )  # fmt: skip
        # Scratch arrays of positions, envs and lanes.
        self._kept, self._ended, self._rewarded, self._newcomers, self._envs = np.empty((5, n_positions), np.int64)
        self._lanes = np.empty(n_positions, np.int32)
        self._n_newcomers = 0

    def _fit(self, block: Block) -> tuple[list[int], bool]:
        """Match the leaves of a block to the leaves of this group.

        Returns:
            (index of the group leaf for each leaf of the block, True if all dtypes are equal, so that rows can be
            copied as bytes).

        Raises:
            ConfigError: If the module expects different observations.
        """
        layout = block.raw_layout or block.layout
        if layout not in self._fits:
            expected = {leaf.path: (leaf.shape, leaf.dtype.kind) for leaf in self._layout.leaves}
            if expected != {leaf.path: (leaf.shape, leaf.dtype.kind) for leaf in layout.leaves}:
                raise ConfigError(f"the agents {self._agents} observe {self._layout.space}, but are mapped to a module "
                                  f"for {layout.space}; correct the module's space or the mapping")  # fmt: skip
            order = [list(expected).index(leaf.path) for leaf in layout.leaves]
            sent = [self._layout.leaves[index].dtype for index in order]
            self._fits[layout] = order, sent == [leaf.dtype for leaf in layout.leaves] and object not in sent
        return self._fits[layout]

    def _block_with(self, module: int, n_rows: int) -> Block:
        """Return the block of the module with room for `n_rows` more rows."""
        if self._store.blocks[module] is INACTIVE:
            self._store.activate(module)
        block = self._store.blocks[module]
        block.make_room(n_rows)
        return block

    def _count(self, module: int, n: int) -> None:
        """Add n (possibly negative) to the lane count of a module."""
        before = self._n_lanes[module]
        self._n_lanes[module] = before + n
        if not before or not before + n:
            # A new list, because a caller may be iterating over the old one.
            self.steps.modules = sorted(each for each, n_lanes in self._n_lanes.items() if n_lanes)

    # Writing.

    def write_reset(self, env_indices: np.ndarray, env_t_E: np.ndarray) -> None:
        """Create lanes and first rows for the agents present in these envs (int64, ascending)."""
        self.drop_lanes(env_indices)
        begins = self._present_P.reshape(self._shape)[env_indices]
        ones, agents = np.nonzero(begins)
        positions = env_indices[ones] * self._shape[1] + agents
        self._join_all(self._index_E[env_indices].tolist(), begins, positions)
        for module in self.steps.modules:
            of_module = positions[self._module_P[positions] == module]
            self._append(module, of_module, len(of_module), env_t_E)

    def resume(self, env: int, lane_of: dict[Hashable, int]) -> None:
        """Continue the episode of this env of the batch; `lane_of` may include agents of other groups."""
        self.steps.sources.clear()  # these lanes may belong to modules that are not cached
        for agent, agent_id in enumerate(self._agents):
            lane = lane_of.get(agent_id, -1)
            if lane >= 0:
                self._put_lane(env * self._shape[1] + agent, lane)

    def drop_lanes(self, env_indices: np.ndarray) -> None:
        """Drop the lanes in these envs that are left over from ended or dropped episodes."""
        lanes, modules = self._lane_P.reshape(self._shape), self._module_P.reshape(self._shape)
        for module in modules[env_indices][lanes[env_indices] >= 0].tolist():
            self._count(module, -1)
        lanes[env_indices] = -1

    def _join_all(self, env_indices: list[int], begins: np.ndarray, positions: np.ndarray) -> None:
        """Create lanes for the agents present at the reset of these envs.

        Args:
            env_indices: Indices of k envs in the runner.
            begins: bool [k, A], True for present agents.
            positions: Positions of the present agents.
        """
        table = self._table
        lanes, modules = table.join_all(env_indices, begins, self._agents)
        for module, n in enumerate(np.bincount(modules).tolist()):
            if n:
                self._count(module, n)
        self._lane_P[positions], self._module_P[positions] = lanes, modules
        table.env_L[lanes], table.module_L[lanes] = self._index_E[positions // self._shape[1]], modules
        table.place_L[lanes] = self._first_position + positions

    def write_step(self, all_done_E: np.ndarray, env_t_E: np.ndarray) -> None:
        """Write the rewards, finished agents and rows of a step, after `welcome()`.

        Args:
            all_done_E: uint8, flags of entire episodes.
            env_t_E: int32, env steps.
        """
        for module in self.steps.modules:
            n_kept, n_ended = self._settle(module, all_done_E)
            if n_ended:
                self._finalize(module, n_ended, env_t_E)
            self._append(module, self._kept, n_kept, env_t_E)
        for position in self._newcomers[: self._n_newcomers].tolist():
            self._pay_newcomer(position)

    def welcome(self, all_done_E: np.ndarray) -> None:
        """Credit rewards to agents without a lane, and create lanes for those that are observed."""
        n_rewarded, n_observed = find_absent(
            self._lane_P, self._reward_P, self._present_P, self._rewarded, self._newcomers
        )
        self._n_newcomers = 0
        if not (n_rewarded or n_observed):
            return
        for position in self._rewarded[:n_rewarded].tolist():
            self._pay_absent(position, float(self._reward_P[position]), all_done_E)
        for position in self._newcomers[:n_observed].tolist():
            agent_id, env_index = self._who(position)
            flags = [{agent_id: bool(flag_P[position])} for flag_P in (self._terminated_P, self._truncated_P)]
            lane = self._table.join(env_index, agent_id, int(all_done_E[position // self._shape[1]]), *flags)
            if lane >= 0:
                self._put_lane(position, lane)
                self._newcomers[self._n_newcomers] = position
                self._n_newcomers += 1
                self._reward_P[position] = 0.0  # counted among the early rewards

    def _settle(self, module: int, all_done_E: np.ndarray) -> tuple[int, int]:
        """Settle the lanes of a module; return how many continue (in `_kept`) and how many end (in `_ended`)."""
        table, block = self._table, self._block_with(module, 0)
        n_kept, n_ended, bad = settle_step(
            module, self._lane_P, self._reward_P, self._terminated_P, self._truncated_P, self._present_P, all_done_E,
            table.module_L, table.row_L, table.done_L, table.final_L, block.reward_R, block.rows.n_finals,
            self._kept, self._ended,
        )  # fmt: skip
        if bad != NO_POSITION:
            raise self._bad_reward(bad)
        return n_kept, n_ended

    def _finalize(self, module: int, n: int, env_t_E: np.ndarray) -> None:
        """Close lanes with their final observations: the current one, or the previous one if there is none."""
        block, rows, table = self._store.blocks[module], self._store.rows[module], self._table
        block.make_room(0, n)
        first, lanes, envs = rows.n_finals, self._lanes[:n], self._envs[:n]
        end_lanes(
            self._ended, n, self._shape[1], self._present_P, self._lane_P, table.row_L, rows.n, first,
            block.final_prev_F, block.final_at_F, lanes, envs,
        )  # fmt: skip
        self._write_finals(block, first, n)
        table.end_env_t_L[lanes] = env_t_E[envs]  # before an interrupt can expose these rows
        rows.n_finals += n
        table.finish_all(self._index_E[envs], lanes)
        self._count(module, -n)

    def _write_finals(self, block: Block, first: int, n: int) -> None:
        before_F = block.final_prev_F
        order, is_as_sent = self._fit(block)
        if is_as_sent:
            for rows, finals, index in zip(*block.row_bytes(), order, strict=True):
                sent = as_bytes(self._leaves[index])
                take_finals(sent, rows, self._ended, n, self._present_P, before_F, first, finals)
            return
        positions, out = self._ended[:n], slice(first, first + n)
        for leaf, final, index in zip(block.raw_obs, block.raw_final_obs, order, strict=True):
            final[out] = leaf[before_F[out]]
            is_seen = self._present_P[positions]
            final[out][is_seen] = self._seen(index, positions[is_seen], final.dtype)

    def _append(self, module: int, positions: np.ndarray, n: int, env_t_E: np.ndarray) -> None:
        """Append one row to each lane at the first `n` of these positions."""
        if not n:
            return
        table, block = self._table, self._block_with(module, n)
        rows, first = block.rows, block.rows.n
        self._write_rows(module, block, positions, n, first)
        append_rows(
            positions, n, self._lane_P, self._shape[1], env_t_E, first, block.lane_R, block.prev_R, block.env_t_R,
            block.reward_R, table.row_L, table.count_L,
        )  # fmt: skip
        rows.n += n

    def _write_rows(self, module: int, block: Block, positions: np.ndarray, n: int, first: int) -> None:
        order, is_as_sent = self._fit(block)
        self.steps.sources.pop(module, None)  # a former module with this index may have left entries
        if is_as_sent:
            self.steps.sources[module] = [self._leaves[index] for index in order]
            for rows, index in zip(block.row_bytes()[0], order, strict=True):
                take_rows(as_bytes(self._leaves[index]), positions, n, first, rows)
            return
        for leaf, index in zip(block.raw_obs, order, strict=True):
            leaf[first : first + n] = self._seen(index, positions[:n], leaf.dtype)

    def _seen(self, leaf: int, positions: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return the observations at these positions in a leaf, for a module that expects a different dtype.

        Raises:
            ObservationError: If the dtype of the module cannot represent an observation.
        """
        seen = self._leaves[leaf][positions]
        row = first_unheld(dtype, seen)
        if row >= 0:
            agent_id, env_index = self._who(int(positions[row]))
            env_t = self._table.envs[env_index].env_t
            problem = (f"expected an observation that {dtype}, the dtype of its module, can hold, got "
                       f"{described(seen[row])}; build the module for the env's space")  # fmt: skip
            raise ObservationError(env_index, agent_id, env_t, problem)
        return seen

    # Rare cases.

    def _who(self, position: int) -> tuple[Hashable, int]:
        """Return (agent id, env index) of a position."""
        env, agent = divmod(position, self._shape[1])
        return self._agents[agent], int(self._index_E[env])

    def _bad_reward(self, position: int) -> RewardError:
        agent_id, env_index = self._who(position)
        problem = f"expected a finite reward, got {self._reward_P[position]}"
        return RewardError(env_index, agent_id, self._table.envs[env_index].env_t, problem)

    def _put_lane(self, position: int, lane: int) -> None:
        self._lane_P[position] = lane
        self._module_P[position] = module = int(self._table.module_L[lane])
        self._count(module, 1)
        self._table.place_L[lane] = self._first_position + position

    def _pay_absent(self, position: int, reward: float, all_done_E: np.ndarray) -> None:
        if not np.isfinite(reward):
            raise self._bad_reward(position)
        agent_id, env_index = self._who(position)
        present = (agent_id,) if self._present_P[position] else ()
        flags = [{agent_id: flag_P[position]} for flag_P in (self._terminated_P, self._truncated_P)]
        flags[0]["__all__"] = all_done_E[position // self._shape[1]]
        lane = self._table.lane_for_late_reward(env_index, agent_id, reward, present, *flags)
        if lane >= 0:
            self._store.blocks[self._table.module_L[lane]].reward_R[self._table.row_L[lane]] += reward

    def _pay_newcomer(self, position: int) -> None:
        """Add the rewards that the agent received before its first observation to its first row."""
        lane, (_, env_index) = int(self._lane_P[position]), self._who(position)
        if self._table.record(env_index).early_rewards:
            early = self._table.early_reward(env_index, lane)
            self._store.blocks[self._table.module_L[lane]].reward_R[self._table.row_L[lane]] += early

    # Actions.

    def actions(self, acted: list[Acted]) -> Any:
        """Add the actions of these modules, and return the action arrays for the current step."""
        for module, rows, answers in acted:
            if not self._n_lanes[module]:
                continue  # acts for other groups, whose action spaces may differ
            lane_R, place_L = self._store.blocks[module].lane_R, self._table.place_L
            if not self.steps.put(answers, lane_R, rows.start, place_L):
                for array, sent in zip(self._actions, self._converted(module, rows, answers), strict=True):
                    put_rows(sent, lane_R, rows.start, place_L, self._first_position, array)
        return self._action_layout.nest(self._actions_of_envs)

    def _converted(self, module: int, rows: slice, answers: list[np.ndarray]) -> list[np.ndarray]:
        """Convert the actions of a module to the dtypes of the group's action space.

        Raises:
            ConfigError: If structure or shapes of the actions do not match the action space.
            ModuleOutputError: If a dtype cannot represent the actions, or an action in this group is out of range.
        """
        shapes = [each.shape[1:] for each in answers]
        if shapes != [array.shape[1:] for array in self._actions]:
            raise ConfigError(f"the agents {self._agents} expect actions of {self._action_layout.space}, got shapes "
                              f"{shapes} from their module {self._store.module_ids[module]!r}")  # fmt: skip
        converted = []
        for array, given, ranges in zip(self._actions, answers, self._ranges, strict=True):
            if given.dtype != array.dtype and first_unheld(array.dtype, given) >= 0:
                problem = (f"expected actions that {array.dtype} can hold, for {self._action_layout.space} of the "
                           f"agents {self._agents}, got {described(given)}")  # fmt: skip
                raise ModuleOutputError(self._store.module_ids[module], problem)
            converted.append(np.ascontiguousarray(given, array.dtype))
            if ranges is not None and first_outside(converted[-1], *ranges) >= 0:
                self._check_ranges(module, rows.start, converted[-1], *ranges)
        return converted

    def _check_ranges(self, module: int, first: int, sent: np.ndarray, least: np.ndarray, most: np.ndarray) -> None:
        """Raise ModuleOutputError for the first out-of-range action of an agent in this group.

        Other groups of the module may have wider ranges.
        """
        values = sent.reshape(len(sent), -1)
        rows = np.flatnonzero(((values < least) | (values > most)).any(1))
        positions = self._table.place_L[self._store.blocks[module].lane_R[first + rows]] - self._first_position
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            if 0 <= position < len(self._lane_P):
                agent_id, env_index = self._who(position)
                problem = (f"expected an action of {self._action_layout.space} for agent {agent_id!r} of env "
                           f"{env_index}, got {sent[row]}; values must be from {least} to {most}")  # fmt: skip
                raise ModuleOutputError(self._store.module_ids[module], problem)
