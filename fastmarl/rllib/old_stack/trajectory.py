"""Steps of an agent since the last batch; replaces RLlib's AgentCollector."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
import tree  # type: ignore[import-untyped]
from ray.rllib.env.base_env import _DUMMY_AGENT_ID
from ray.rllib.evaluation.collectors.agent_collector import AgentCollector
from ray.rllib.policy.policy import Policy
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement

from fastmarl.core.native._trajectories import Steps
from fastmarl.rllib.old_stack.output_rows import OutputRows
from fastmarl.rllib.old_stack.views import AGENT_ID, CONSTANT, LISTS, OBS, REWARDS, STATE_OUT, WITH_NEXT, View, Views

TO_LOOK_AT = frozenset(vars(AgentCollector({SampleBatch.OBS: ViewRequirement()}))) | {"training", "is_empty"}


class Trajectory(Steps):
    """Steps of an agent since the last batch.

    Like the RLlib collector, it also keeps earlier steps that views need, and all steps of a finished agent.

    Args:
        agent_id, agent_index: Id and index of the agent.
        env_id, episode_id: Ids of the env and the episode.
        policy: Policy of the agent.
        views: Columns of the policy batches.
        outputs: Rows of the policy outputs, including the actions.

    Attributes:
        seen_unroll_id: Unroll index for policies that use it as an input; RLlib connectors count separately.
    """

    __slots__ = ("_initial_states", "_is_recurrent", "_policy", "_views", "agent_index", "episode_id", "outputs",
                 "seen_unroll_id")  # fmt: skip

    def __init__(
        self,
        agent_id: Hashable,
        agent_index: int,
        env_id: Any,
        episode_id: int,
        policy: Any,
        views: Views,
        outputs: OutputRows,
    ):
        super().__init__(agent_id, env_id, views.before, views.zeros.get(REWARDS))
        self.agent_index, self.episode_id = agent_index, episode_id
        self._policy, self._views, self.outputs = policy, views, outputs
        self._is_recurrent, self._initial_states = policy.is_recurrent(), policy.get_initial_state()
        self.seen_unroll_id = _next_unroll_id()
        self.begin_unroll()

    def __getattr__(self, name: str) -> Any:
        """Return attributes of the RLlib collector, such as `buffers`, which callbacks may read."""
        if name in TO_LOOK_AT:
            return getattr(self.as_collector(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def agent_steps(self) -> int:
        """Number of steps in the next batch."""
        return len(self.times) - self.before

    def begin_unroll(self) -> None:
        self.is_built = False
        self.unroll_id = _next_unroll_id()

    def build_for_training(self, view_requirements: Mapping[str, ViewRequirement]) -> SampleBatch:
        """Build the batch of these steps like the RLlib method, and drop them unless the agent has finished."""
        if torch.is_tensor(self.obs[0]):
            raise ValueError
        columns, rows = {}, np.array(self.rows)
        recorded: dict[str, Any] = {}
        for view in self._views.columns:
            if view.source not in recorded:
                recorded[view.source] = self._recorded(view.source, rows)
            values = recorded[view.source]
            if type(values) is np.ndarray:
                columns[view.name] = self._seen(view, values)
            elif values is not None:
                columns[view.name] = tree.map_structure(lambda leaf, view=view: self._seen(view, leaf), values)
        batch = SampleBatch(columns, is_training=True)
        if self._is_recurrent:
            size = self._policy.config["model"]["max_seq_len"]
            batch[SampleBatch.SEQ_LENS] = np.array([min(size, batch.count - i) for i in range(0, batch.count, size)])
            batch.max_seq_len = size
        if not self.terminateds[-1] and not self.truncateds[-1]:
            self.drop_built()
        self.is_built = True
        return batch

    def _seen(self, view: View, values: np.ndarray) -> np.ndarray:
        """Copy the part of a column shown by a view, with a row per step or per `repeat` steps."""
        first, n = self.before - (view.source in WITH_NEXT), len(self.times) - self.before
        if view.shift is not None:
            begin = first + view.shift
            if begin + n <= len(values):
                return values[begin : begin + n].copy()
        at = np.arange(0, n, view.repeat)[:, None] + first + view.shifts
        if (excess := int(at.max()) + 1 - len(values)) > 0:  # zeros beyond the last step
            values = np.concatenate([values, np.zeros((excess, *values.shape[1:]), values.dtype)])
        return values[at[:, 0] if at.shape[1] == 1 else at]

    def _recorded(self, source: str, rows: np.ndarray) -> Any:
        """Return a column, including values before the first step, as an array or nested arrays; None if missing."""
        if source in LISTS:
            values = getattr(self, LISTS[source])
            if source == OBS and isinstance(values[0], (dict, tuple)):
                leaves = [as_array(leaf) for leaf in zip(*map(tree.flatten, values), strict=True)]
                return tree.unflatten_as(values[0], leaves)
            return as_array(values)
        if source in CONSTANT:
            return as_array([getattr(self, CONSTANT[source])]).repeat(len(rows))
        if source not in self.outputs.names:
            return None
        initial = self._initial(source) if self.n_initial else None
        taken = self.outputs.take(source, rows)
        if type(taken) is np.ndarray:
            return saved(taken if initial is None else self._with_initial(taken, initial))
        if initial is not None:
            taken = tree.map_structure(self._with_initial, taken, initial)
        return tree.map_structure(saved, taken)

    def _with_initial(self, values: np.ndarray, initial: Any) -> np.ndarray:
        """Return the column with `initial` as the value before the first step."""
        values = values.astype(np.result_type(values, initial), copy=False)
        values[: self.n_initial] = initial
        return values

    def _initial(self, source: str) -> Any:
        """Return the value of an output before the first step, or None if its first value is repeated."""
        if source.startswith(STATE_OUT):
            return self._initial_states[int(source.removeprefix(STATE_OUT))]
        return self._views.zeros.get(source)

    def as_collector(self) -> AgentCollector:
        """Convert to an RLlib collector with the same steps."""
        collector = new_collector(self._policy, self._initial_states)
        collector.unroll_id = self.unroll_id
        first, n = self.n_initial, len(self.times)
        at = max(0, first - 1)
        collector.add_init_obs(
            self.episode_id, self.agent_index, self.env_id, self.obs[at], self.infos[at], self.times[at]
        )
        if self.rows:
            for i in range(first, n):
                collector.add_action_reward_next_obs(self._step(i))
            for columns in collector.buffers.values():
                columns[:] = [column[-n:] for column in columns]
            collector.agent_steps = n - self.before
        collector.buffers[SampleBatch.UNROLL_ID][0][:] = self.unrolls
        if self.is_built:
            collector.unroll_id = None
        return collector

    def as_collector_for_inference(self, initial_states: list[Any]) -> AgentCollector:
        """Convert to the inference collector of the RLlib connectors."""
        collector = new_collector(self._policy, initial_states)
        collector.is_training(False)
        collector.unroll_id = self.seen_unroll_id
        first = len(self.times) - self.before + self.n_initial_in_window
        at = max(0, first - 1)
        collector.add_init_obs(self.env_id, self.agent_index, self.env_id, self.obs[at], self.infos[at])
        collector.build_for_inference()
        for i in range(first, len(self.times)):
            collector.add_action_reward_next_obs(self._step(i))
        return collector

    def _step(self, i: int) -> dict[str, Any]:
        """Return the values of a step for the RLlib collector, in its order."""
        return {
            SampleBatch.T: self.times[i],
            SampleBatch.ENV_ID: self.env_id,
            SampleBatch.AGENT_INDEX: self.agent_index,
            SampleBatch.REWARDS: self.rewards[i],
            SampleBatch.TERMINATEDS: self.terminateds[i],
            SampleBatch.TRUNCATEDS: self.truncateds[i],
            SampleBatch.INFOS: self.infos[i],
            SampleBatch.NEXT_OBS: self.obs[i],
            **self.outputs.row(self.rows[i]),
            **({} if self.agent_id == _DUMMY_AGENT_ID else {AGENT_ID: self.agent_id}),
        }


def as_array(values: Any) -> np.ndarray:
    """Convert a list of values to an array, as RLlib collectors do."""
    return saved(np.array(values))


def saved(values: np.ndarray) -> np.ndarray:
    """Cast a float64 array to float32, as RLlib collectors do."""
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _next_unroll_id() -> int:
    AgentCollector._next_unroll_id += 1
    return AgentCollector._next_unroll_id - 1


def new_collector(policy: Policy, initial_states: list[Any]) -> AgentCollector:
    """Create an empty RLlib collector with the settings of the policy."""
    return AgentCollector(
        policy.view_requirements,
        max_seq_len=policy.config["model"]["max_seq_len"],
        disable_action_flattening=policy.config.get("_disable_action_flattening", False),
        is_policy_recurrent=policy.is_recurrent(),
        intial_states=initial_states,
        _enable_new_api_stack=False,
    )
