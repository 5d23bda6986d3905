"""Copies data between a batch of envs and module blocks: env steps to rows, and the actions of rows to arrays.

This is the counterpart for batches of `_scatter` and `_actions`, which use dicts keyed by agent. Axes in names: E env
of the batch, P position in the group arrays (env * number of agents in the group + agent), R row, L lane.
"""

from typing import Any

import numpy as np

from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.envs.arrays import COMMON, ArrayEnv, StepArrays, info_problem
from fastmarl.core.errors import MultiAgentEnvError
from fastmarl.core.kernels.array_steps import count_step
from fastmarl.core.native._array_steps import record_ordinary
from fastmarl.core.native._env_lanes import end_step, set_env_steps
from fastmarl.core.native._env_values import private_copy
from fastmarl.core.store.store import RowStore
from fastmarl.core.vector.arrays.group import Acted, ArrayGroup


def take_actions(env_actions: list[EnvActions]) -> list[Acted]:
    """Collect the actions that modules have chosen since the last call, in order of module index."""
    acted = [(module, *actions.take()) for module, actions in enumerate(env_actions)]
    return [(module, rows, arrays) for module, rows, arrays in acted if arrays]


class ArrayScatter:
    """Writes the steps of a batch of envs to the store, and collects the actions for the batch.

    Args:
        env: The batch.
        store: Store that receives the rows; its table has a lane for each participating agent.
        envs: Indices of the batch envs in the store.
        first_position: First position of the batch among all batches; see `ArrayGroup`.
    """

    def __init__(self, env: ArrayEnv, store: RowStore, envs: range, first_position: int):
        self._env, self._store, self._env_indices = env, store, envs
        self._envs = store.table.envs[envs.start : envs.stop : envs.step]
        self._env_t_E = np.zeros(env.num_envs, np.int32)
        self._over = np.zeros((2, env.num_envs), np.bool_)  # terminated, truncated
        self._all_done_E = np.zeros(env.num_envs, np.uint8)
        self._ended_envs = np.zeros(env.num_envs, np.int64)
        self._groups: dict[str, ArrayGroup] = {}
        for name, agents in env.groups.items():
            spaces = env.observation_spaces[agents[0]], env.action_spaces[agents[0]]
            steps = self._over, self._env_t_E, self._all_done_E
            self._groups[name] = ArrayGroup(agents, *spaces, store, envs, first_position, *steps)
            first_position += env.num_envs * len(agents)
        self._steps = [group.steps for group in self._groups.values()]
        self._out = StepArrays({name: group.arrays for name, group in self._groups.items()}, *self._over)

    def arrays_for_reset(self) -> StepArrays:
        """Return the arrays for a reset, with all agents marked as present."""
        out = self.arrays_for_step()
        for group in out.groups.values():
            group.present.fill(True)
        return out

    def arrays_for_step(self) -> StepArrays:
        """Return the arrays for a step (always the same objects), with the participating agents marked as present."""
        for steps in self._steps:
            steps.begin()
        self._out.infos.clear()
        return self._out

    def write_reset(self, env_indices: np.ndarray, out: StepArrays) -> None:
        """Start episodes in these envs of the batch: create a lane and a first row for each present agent."""
        self._env_t_E[env_indices] = 0
        set_env_steps(self._envs, self._env_t_E)
        for group in self._groups.values():
            group.write_reset(env_indices, self._env_t_E)
        self._write_infos(out)
        self._all_done_E[:] = 0
        end_step(self._envs, self._all_done_E)

    def env_t(self, env: int) -> int:
        """Return the number of recorded env steps in the current episode of this batch env."""
        return int(self._env_t_E[env])

    def resume(self, env: int) -> None:
        """Continue the episode of this env of the batch, with its lanes in the table."""
        lanes = self._envs[env]
        self._env_t_E[env] = lanes.env_t
        for group in self._groups.values():
            group.resume(env, lanes.lane_of)

    def drop_lanes(self, env_indices: np.ndarray) -> None:
        """Drop the lanes of these envs of the batch (int64), whose episodes finished or were dropped."""
        for group in self._groups.values():
            group.drop_lanes(env_indices)

    def forget(self, env_indices: np.ndarray, out: StepArrays) -> None:
        """Clear the results of these envs of the batch (int64), so that they are not recorded."""
        self._check_infos(out)
        out.terminated[env_indices] = out.truncated[env_indices] = False
        for group in out.groups.values():
            group.rewards[env_indices] = 0.0
            group.present[env_indices] = group.terminated[env_indices] = group.truncated[env_indices] = False
        out.infos[:] = [info for info in out.infos if info[0] not in env_indices]

    def write_step(self, out: StepArrays) -> tuple[np.ndarray, np.ndarray]:
        """Record a step of all envs.

        Returns:
            (uint8 [E], flags of entire episodes: 0 none, 1 terminated, 2 truncated, 3 both; int64, the envs with any
            flag). The next step overwrites both.

        Raises:
            MultiAgentEnvError: If a result is invalid; the error names env index, agent and env step. All episodes are
                then unusable.
        """
        all_done_E, table = self._all_done_E, self._store.table
        if not out.infos and record_ordinary(self._steps, self._store.rows, table.row_L, table.count_L, table.done_L):
            return all_done_E, self._ended_envs[:0]
        n_over = count_step(self._over[0], self._over[1], self._env_t_E, all_done_E, self._ended_envs)
        set_env_steps(self._envs, self._env_t_E)
        for group in self._groups.values():
            group.welcome(all_done_E)
        self._write_infos(out)
        for group in self._groups.values():
            group.write_step(all_done_E, self._env_t_E)
        end_step(self._envs, all_done_E)
        return all_done_E, self._ended_envs[:n_over]

    def actions(self, acted: list[Acted]) -> dict[str, Any]:
        """Return {group: actions}: arrays [E, A, ...], nested like the action space; 0 where no agent acts."""
        return {name: group.actions(acted) for name, group in self._groups.items()}

    def _check_infos(self, out: StepArrays) -> None:
        for entry in out.infos:
            problem = info_problem(entry, self._env)
            if problem:
                raise MultiAgentEnvError(None, None, 0, problem)

    def _write_infos(self, out: StepArrays) -> None:
        self._check_infos(out)
        for env_index, agent_id, info in out.infos:
            env = self._envs[env_index]
            lane = env.lane_of.get(agent_id, -1)
            if lane < 0 and agent_id != COMMON:
                continue  # an agent that was never observed
            env.infos.append((env.env_t, lane, private_copy(info, self._env_indices[env_index], agent_id, env.env_t)))
