"""One agent's steps since the last batch, in place of RLlib's AgentCollector, for plain view requirements."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from ray.rllib.env.base_env import _DUMMY_AGENT_ID
from ray.rllib.evaluation.collectors.agent_collector import AgentCollector
from ray.rllib.policy.policy import Policy
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement

from fastmarl.core.native._trajectories import Steps
from fastmarl.rllib.old_stack.output_rows import OutputRows

OBS, INFOS = SampleBatch.OBS, SampleBatch.INFOS
WITH_NEXT = (OBS, INFOS)
"""Columns that have a value at the end of a step, too."""


class View(NamedTuple):
    """A column of a batch.

    Attributes:
        name: Name of the column.
        source: Name of the recorded data that it comes from.
        is_next: True if it has the values at the end of the steps.
    """

    name: str
    source: str
    is_next: bool


class Views:
    """A policy's view requirements.

    Args:
        requirements: The policy's view requirements by column.

    Attributes:
        columns: Columns of batches for training, in order; batches lack those that are not recorded.
        problem: The reason why RLlib's collector must build the batches; None: it need not.
    """

    def __init__(self, requirements: Mapping[str, ViewRequirement]):
        self.look_at(requirements)

    def look_at(self, requirements: Mapping[str, ViewRequirement]) -> None:
        """Read view requirements, which may have changed."""
        self.columns = [View(name, one.data_col or name, bool(one.shift_arr[0])) for name, one in requirements.items()]
        self.problem = _problem(requirements)


def _problem(requirements: Mapping[str, ViewRequirement]) -> str | None:
    if OBS not in requirements:
        return "it asks for no observations"
    for name, one in requirements.items():
        source = one.data_col or name
        shifts = (0, 1) if source in WITH_NEXT else (0,)
        if len(one.shift_arr) != 1 or one.shift_arr[0] not in shifts or one.batch_repeat_value != 1:
            return f"it asks for {name!r} of other steps"
        if source.startswith("state_"):
            return f"it asks for {name!r}"
        if one.used_for_compute_actions and (name, source, int(one.shift_arr[0])) != (OBS, OBS, 0):
            return f"it asks for {name!r} to act"
    return None


AGENT_ID = "agent_id"
CONSTANT = {
    SampleBatch.EPS_ID: "episode_id",
    SampleBatch.UNROLL_ID: "unroll_id",
    SampleBatch.AGENT_INDEX: "agent_index",
    SampleBatch.ENV_ID: "env_id",
    AGENT_ID: "agent_id",
}
TO_LOOK_AT = frozenset(vars(AgentCollector({SampleBatch.OBS: ViewRequirement()}))) | {"training", "is_empty"}
LISTS = {
    OBS: "obs",
    INFOS: "infos",
    SampleBatch.T: "times",
    SampleBatch.REWARDS: "rewards",
    SampleBatch.TERMINATEDS: "terminateds",
    SampleBatch.TRUNCATEDS: "truncateds",
}


class Trajectory(Steps):
    """One agent's steps since the last batch.

    Like RLlib's collector, it keeps the last step before the batch, and all steps of an agent that has ended.

    Args:
        agent_id, agent_index: Id and index of the agent.
        env_id, episode_id: Ids of the env and the episode.
        policy: The agent's policy.
        views: Columns of the policy's batches.
        outputs: Rows of the policy's outputs, which hold the actions.
    """

    __slots__ = ("_policy", "_views", "agent_index", "episode_id", "outputs", "unroll_before", "unroll_id")

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
        super().__init__(agent_id, env_id)
        self.agent_index, self.episode_id = agent_index, episode_id
        self._policy, self._views, self.outputs = policy, views, outputs
        self.begin_unroll()
        self.unroll_before = self.unroll_id

    def __getattr__(self, name: str) -> Any:
        """Return attributes of RLlib's collector, such as `buffers`, which callbacks may read."""
        if name in TO_LOOK_AT:
            return getattr(self.as_collector(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def agent_steps(self) -> int:
        """Number of steps in the next batch."""
        return len(self.times) - 1

    def begin_unroll(self) -> None:
        if self.is_built:
            self.unroll_before = self.unroll_id
        self.is_built = False
        self.unroll_id: int = AgentCollector._next_unroll_id
        AgentCollector._next_unroll_id += 1

    def build_for_training(self, view_requirements: Mapping[str, ViewRequirement]) -> SampleBatch:
        """Build the batch of these steps as RLlib's method does, and drop them unless the agent has ended."""
        if torch.is_tensor(self.obs[0]):
            raise ValueError
        columns, rows = {}, np.array(self.rows)
        recorded: dict[str, np.ndarray | None] = {}
        for name, source, is_next in self._views.columns:
            if source in recorded:
                values = recorded[source]
            else:
                values = recorded[source] = self._recorded(source, rows)
            if values is not None:
                columns[name] = (values[:-1] if source in WITH_NEXT and not is_next else values[1:]).copy()
        batch = SampleBatch(columns, is_training=True)
        if not self.terminateds[-1] and not self.truncateds[-1]:
            for steps in (self.obs, self.infos, self.times, self.rewards, self.terminateds, self.truncateds, self.rows):
                del steps[:-1]
        self.is_built = True
        return batch

    def _recorded(self, source: str, rows: np.ndarray) -> np.ndarray | None:
        """Return a column with its value before the first step; None if it is not recorded."""
        if source in LISTS:
            values = np.array(getattr(self, LISTS[source]))
        elif source in CONSTANT:
            values = np.array([getattr(self, CONSTANT[source])] * len(rows))
        elif source in self.outputs.names:
            return self.outputs.take(source, rows)
        else:
            return None
        return values.astype(np.float32) if values.dtype == np.float64 else values

    def as_collector(self) -> AgentCollector:
        """Convert to RLlib's collector with the same steps."""
        collector = new_collector(self._policy)
        collector.unroll_id = self.unroll_id
        collector.add_init_obs(
            self.episode_id, self.agent_index, self.env_id, self.obs[0], self.infos[0], self.times[0]
        )
        if self.rows:  # the step before the first
            collector.add_action_reward_next_obs(self._step(0))
            for columns in collector.buffers.values():
                columns[:] = [column[-1:] for column in columns]
            collector.agent_steps = 0
        for i in range(1, len(self.times)):
            collector.add_action_reward_next_obs(self._step(i))
        is_new = self.is_built and not self.agent_steps
        collector.buffers[SampleBatch.UNROLL_ID][0][0] = self.unroll_id if is_new else self.unroll_before
        if self.is_built:
            collector.unroll_id = None
        return collector

    def _step(self, i: int) -> dict[str, Any]:
        """Return a step's values for RLlib's collector, in its order."""
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


def new_collector(policy: Policy) -> AgentCollector:
    """Make an empty RLlib collector with the policy's settings."""
    return AgentCollector(
        policy.view_requirements,
        max_seq_len=policy.config["model"]["max_seq_len"],
        disable_action_flattening=policy.config.get("_disable_action_flattening", False),
        is_policy_recurrent=policy.is_recurrent(),
        intial_states=policy.get_initial_state(),
        _enable_new_api_stack=False,
    )
