"""Records env resets and steps by RLlib's rules: which agents join and end, their order, modules and flags."""

import time
from collections.abc import Hashable
from typing import Any

from fastmarl.core.errors import MultiAgentEnvError, UnknownModuleError
from fastmarl.core.native._env_values import kept as own_copy
from fastmarl.core.native._step_keys import ended_unobserved, names_others, places_in_set_order
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED
from fastmarl.rllib.sampling.mapping import AgentToModuleMapping, Step
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.store.records import RLlibRecord


class StepWriter:
    """Records resets and steps.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        mapping: Maps new agents to modules.
    """

    def __init__(self, parts: Parts, mapping: AgentToModuleMapping):
        self._parts = parts
        self._mapping = mapping
        self.keeps_common_infos = "21" in parts.runner.fixes
        self._keeps_order = "07" in parts.runner.fixes
        self._merges_flags = "01" not in parts.runner.fixes

    def begin_episode(self, env_index: int, obs: dict, infos: dict) -> None:
        """Record the first observations of an env."""
        store = self._parts.store
        record = self._parts.record_of(env_index)
        record.awaits_reset = False
        record.started_at = time.perf_counter()
        self._mapping.at_reset(record, obs, infos)
        for agent_id, value in obs.items():
            self._join(record, agent_id, value)
        # RLlib iterates over a set of agents.
        row_order = record.order if self._keeps_order else list(set(record.order))
        record.observed = tuple(obs)
        store.scatter.write_reset(env_index, {agent_id: obs[agent_id] for agent_id in row_order}, infos or {})
        self.note_joined(record)
        if self.keeps_common_infos:
            self.keep_common_info(record, infos or {})

    def _join(self, record: RLlibRecord, agent_id: Hashable, observation: Any) -> None:
        """Add an agent observed for the first time."""
        module_id, module_ids = record.mapping[agent_id], self._parts.store.module_ids
        if module_id not in module_ids:
            raise UnknownModuleError(module_id, agent_id, module_ids)
        module = record.module_of[agent_id] = module_ids.index(module_id)
        record.order.append(agent_id)
        record.joined.append(agent_id)
        self._parts.env_actions[module].add_agent(agent_id)
        self._parts.store.fit(module, observation)

    def keep_common_info(self, record: RLlibRecord, infos: dict) -> None:
        """Store the common info of the env in the custom data of the episode, keyed by env step (21)."""
        if infos.get("__common__"):
            kept = record.custom_data.setdefault("__common__", {})
            kept[self._parts.table.envs[record.env_index].env_t] = own_copy(infos["__common__"])

    def look(
        self, record: RLlibRecord, actions: dict, obs: dict, rewards: dict, terminateds: dict, truncateds: dict,
        infos: dict | None,
    ) -> dict:  # fmt: skip
        """Process a step in which the agents have changed: add new ones, and determine RLlib's row order.

        Returns the observations to record.
        """
        self._parts.count(record)
        self._check_rewarded(record, actions, obs, rewards)
        given, all_joined = obs, True
        fewer = record.keys.fewer(obs, rewards, terminateds, truncateds)
        if not fewer and names_others(known := set(record.order), obs, actions, rewards, terminateds, truncateds):
            obs = self._let_join(record, known, (obs, actions, rewards, infos, terminateds, truncateds))
            all_joined = not names_others(set(record.order), given)
        env = self._parts.table.envs[record.env_index]
        # Agents that end unobserved count as observed, because RLlib repeats their last observation.
        unseen = ended_unobserved(env.lane_of, obs, terminateds, truncateds)
        record.observed = tuple(given)
        env.order = places_in_set_order(record.order, obs, unseen, self._keeps_order)
        if all_joined and not unseen and rewards.keys() >= given.keys():
            record.keys.remember(obs, rewards, terminateds, truncateds)
        else:  # an agent may join with its next observation, or have no reward after it has acted
            record.keys.forget()
        return obs

    def _check_rewarded(self, record: RLlibRecord, actions: dict, obs: dict, rewards: dict) -> None:
        """Raise MultiAgentEnvError if an agent that acted and was observed has no reward, as in RLlib."""
        for agent_id in actions:
            if agent_id in obs and agent_id not in rewards:
                env_t = self._parts.table.envs[record.env_index].env_t + 1
                problem = "expected a reward, because it acted and was observed; return one from step(), for example 0"
                raise MultiAgentEnvError(record.env_index, agent_id, env_t, problem)

    def _let_join(self, record: RLlibRecord, known: set, step: Step) -> dict:
        """Map and add new agents of this step, in the order of the set in RLlib; return the observations to record."""
        obs, actions, rewards, _, terminateds, truncateds = step
        all_done = terminateds.get("__all__") or truncateds.get("__all__")
        named = (
            set(obs.keys())
            | set(actions.keys())
            | set(rewards.keys())
            | set(terminateds.keys())
            | set(truncateds.keys())
            | set(dict.fromkeys(record.order).keys() if all_done else set())
        ) - {"__all__"}
        all_known_done = self._all_known_done(record, terminateds, truncateds)
        if self._keeps_order:
            named = dict.fromkeys([*obs, *actions, *rewards, *terminateds, *truncateds])  # type: ignore[assignment]
        new = [agent_id for agent_id in named if agent_id not in known and agent_id != "__all__"]
        self._mapping.in_step(record, new, step)
        for agent_id in new:
            is_done = all_done or all_known_done or terminateds.get(agent_id) or truncateds.get(agent_id)
            if agent_id in obs and not is_done:
                self._join(record, agent_id, obs[agent_id])
        if all_known_done and known and self._merges_flags:
            return {agent_id: value for agent_id, value in obs.items() if agent_id in known}
        return obs

    def _all_known_done(self, record: RLlibRecord, terminateds: dict, truncateds: dict) -> bool:
        """Return True if all known agents are done. RLlib then ends the episode, even if new agents join."""
        lane_of = self._parts.table.envs[record.env_index].lane_of
        return bool(record.order) and all(terminateds.get(agent) or truncateds.get(agent) for agent in lane_of)

    def note_joined(self, record: RLlibRecord) -> None:
        """Store the lanes of new agents."""
        for agent_id in record.joined:
            record.lane_of[agent_id] = self._parts.table.envs[record.env_index].lane_of[agent_id]
        record.joined.clear()

    def forget_early_pay(self, record: RLlibRecord, all_done: int, actions: dict, *said: dict) -> None:
        """Drop rewards received by agents before their first observation, once they have ended.

        Args:
            record: Record of the episode.
            all_done: Flags of the entire env, 0 if the episode continues.
            actions: Actions of the step.
            said: Observations, rewards, terminateds and truncateds of the step.
        """
        for agent_id in list(record.unobserved_rewards):
            is_done = any(flags.get(agent_id) for flags in said[2:])
            # As in RLlib, the end of the episode ends an agent not observed yet only if it occurs in this step.
            is_there = agent_id in record.lane_of or any(agent_id in part for part in (actions, *said))
            if is_done or (all_done and is_there):
                del record.unobserved_rewards[agent_id]

    def note_flags(self, record: RLlibRecord, all_done: int, terminateds: dict, truncateds: dict) -> None:
        """Store the flags of ended agents as returned by the env."""
        scatter, table = self._parts.store.scatter, self._parts.table  # type: ignore[union-attr]
        if all_done:
            if bool(all_done & TERMINATED) and (scatter.everybody or not record.is_terminated):
                record.is_terminated = True
            if bool(all_done & TRUNCATED) and not record.is_truncated:
                record.is_truncated = True
        for lane in scatter.closed:
            if self._merges_flags:
                agent_id = table.agent_ids[lane]
                record.flags[lane] = (
                    terminateds.get(agent_id, False) or record.is_terminated,
                    truncateds.get(agent_id, False) or record.is_truncated,
                )
            else:
                record.flags[lane] = (bool(table.done_L[lane] & TERMINATED), bool(table.done_L[lane] & TRUNCATED))
        record.unseen.update(scatter.unseen)
        scatter.closed.clear()
