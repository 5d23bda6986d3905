"""One agent's steps since the last batch: what RLlib's AgentCollector is, for policies with plain view requirements."""

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
"""Columns that are recorded at the end of a step, too."""


class View(NamedTuple):
    """A column of a batch.

    Attributes:
        name: of the column.
        source: what of the record it is.
        is_next: whether it is that of the step's end.
    """

    name: str
    source: str
    is_next: bool


class Views:
    """A policy's view requirements.

    Args:
        requirements: the policy's, by column.

    Attributes:
        columns: of batches for training, in order; those that are not recorded are left out of batches.
        problem: why these batches have to be built by RLlib's collector; None: they don't.
    """

    def __init__(self, requirements: Mapping[str, ViewRequirement]):
        self.look_at(requirements)

    def look_at(self, requirements: Mapping[str, ViewRequirement]) -> None:
        """They may have changed."""
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
    """As RLlib's collector, it keeps one step from before the batch, and all steps of an agent that has ended.

    Args:
        agent_id, agent_index, env_id, episode_id: whose steps these are.
        policy: of the agent.
        views: what batches of the policy hold.
        outputs: of the policy; actions stand in its rows.
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
        """Callbacks may look for what RLlib's collector has, as `buffers`: they get it of one with the same steps."""
        if name in TO_LOOK_AT:
            return getattr(self.as_collector(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def agent_steps(self) -> int:
        """How many steps the next batch has."""
        return len(self.times) - 1

    def begin_unroll(self) -> None:
        if self.is_built:
            self.unroll_before = self.unroll_id
        self.is_built = False
        self.unroll_id: int = AgentCollector._next_unroll_id
        AgentCollector._next_unroll_id += 1

    def build_for_training(self, view_requirements: Mapping[str, ViewRequirement]) -> SampleBatch:
        """The batch of these steps, as RLlib's method makes it; it drops them if the agent goes on."""
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
        """A column with its entry before the first step; None if nobody records it."""
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
        """RLlib's collector with these steps."""
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
        """What RLlib's collector is given for a step, in its order."""
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
    """An empty one of RLlib's, with the policy's settings."""
    return AgentCollector(
        policy.view_requirements,
        max_seq_len=policy.config["model"]["max_seq_len"],
        disable_action_flattening=policy.config.get("_disable_action_flattening", False),
        is_policy_recurrent=policy.is_recurrent(),
        intial_states=policy.get_initial_state(),
        _enable_new_api_stack=False,
    )
