"""Learners whose updates are compared with the ledgers of their environments."""

from collections.abc import Mapping
from copy import deepcopy
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fastmarl.learning import normalized, ppo_loss
from support.ledgered.base import Agent
from support.ledgered.oracle import Decision, decisions_of, gae, in_trajectories, normalised
from support.ledgered.values import (
    as_sent,
    counted,
    finite,
    leaves,
    nth,
    numbers_from_zero,
    observed,
    predicted,
    remembered,
    stacked,
)

Row = tuple[bytes, list[bool], list[float], float, float]  # observation, mask, action, advantage, value target


class Watched:
    """Passes calls on to a learner, and checks each update.

    Subclasses know which values an algorithm estimates with.

    Attributes:
        rows_learnt: number of rows of all updates so far.
    """

    def __init__(self, learner: Any, runner: Any, args: Any):
        self.learner, self.runner, self.args = learner, runner, args
        self.env = runner.env.envs[0].unwrapped
        self.fragment = runner.config.get_rollout_fragment_length()
        self.updates = self.rows_learnt = 0
        self.values: dict[Any, float] = {}  # of decisions, by key, before denormalisation
        self.setup()

    def setup(self) -> None:
        pass

    def get_state(self) -> dict:
        return self.learner.get_state()

    def set_state(self, state: dict) -> None:
        self.learner.set_state(state)

    def learn(self, episodes: list) -> Mapping[str, Any]:
        self.updates += 1
        self.ledgers = [env.unwrapped.ledger for env in self.runner.env.envs]
        self.decisions = [
            each for i, ledger in enumerate(self.ledgers) for each in decisions_of(i, ledger, self.fragment)
        ]
        self.before([each for each in self.decisions if self.update_of(each.acted) == self.updates])
        self.expected = [each for each in self.decisions if self.update_of(each.known) == self.updates]
        stats = self.learn_and_check(episodes)
        finite([each for module in self.runner.module.values() for each in module.parameters()])
        finite(leaves(stats))
        return stats

    def update_of(self, step: int | None) -> int:
        """Return the update that follows a step of each env; 0 if there was no such step yet."""
        return -(-(step or 0) // self.fragment)

    def module_of(self, agent: Any) -> str:
        return str(agent) if self.args.policies else "default_policy"

    def before(self, acted: list[Decision]) -> None:
        """Note the values of these decisions under the weights that made them."""

    def learn_and_check(self, episodes: list) -> Mapping[str, Any]:
        raise NotImplementedError


class WatchedPPO(Watched):
    """The rows of each update are the decisions whose outcome became known, each once."""

    def setup(self) -> None:
        rows_of = self.learner.rows_of
        self.learner.rows_of = lambda episodes: self.checked(rows_of, episodes)

    def learn_and_check(self, episodes: list) -> Mapping[str, Any]:
        self.has_checked = False
        stats = self.learner.learn(episodes)
        assert self.has_checked or not self.expected, "the learner has not asked for its rows"
        return stats

    def checked(self, rows_of: Any, episodes: list) -> Any:
        """Check the rows before the first step of the optimizer."""
        self.has_checked = True
        self.prepare()
        found = rows_of(episodes)
        by_module = self.by_module(found)
        expected: dict[str, list[Decision]] = {}
        for decision in self.expected:
            expected.setdefault(self.module_of(decision.agent), []).append(decision)
        assert by_module.keys() == expected.keys()
        for name, decisions in expected.items():
            self.compare(name, by_module[name], decisions)
        self.rows_learnt += len(self.expected)
        return found

    def by_module(self, found: Any) -> dict[str, dict[str, Any]]:
        return {"default_policy": found} if found else {}

    def compare(self, name: str, rows: Mapping[str, Any], decisions: list[Decision]) -> None:
        module = self.runner.module[name]
        if not self.rows_learnt:
            stats: dict[str, Any] = {}
            with torch.no_grad():
                ppo_loss(module, rows, vf_coeff=0.0, stats=stats)
            assert abs(stats["kl"].item()) < 1e-6 and stats["clip_fraction"] == 0, stats
        want = self.rows_expected(name, decisions)
        got = self.rows_found(name, rows)
        assert len(got) == len(want)
        got, want = sorted(got, key=order), sorted(want, key=order)
        parts = "observations", "masks", "actions", "advantages", "targets"
        columns = zip(parts, zip(*got, strict=True), zip(*want, strict=True), strict=True)
        for part, found, expected in columns:
            if part in ("observations", "masks"):
                assert found == expected, f"other {part}"
            else:
                scale = max(1, np.abs(expected).max())
                np.testing.assert_allclose(found, expected, 1e-3, 1e-4 * scale, err_msg=part)

    def rows_found(self, name: str, rows: Mapping[str, Any]) -> list[Row]:
        rows = counted(rows)
        targets = self.denormalised(name, rows["value_targets"])
        masks = rows.get("action_mask", torch.zeros(len(targets), 0, dtype=torch.bool))
        space = self.runner.module[name].action_space
        return [
            (observed(nth(rows["obs"], i)), mask, as_sent(space, nth(rows["actions"], i)), *estimates)
            for i, (mask, *estimates) in enumerate(
                zip(masks.tolist(), rows["advantages"].tolist(), targets.tolist(), strict=True)
            )
        ]

    def rows_expected(self, name: str, decisions: list[Decision]) -> list[Row]:
        space, has_masks = self.runner.module[name].action_space, self.have_rows_masks()
        return [
            (
                observed(self.seen_by_module(each.agent, each.observation)),
                [bool(entry) for entry in each.mask or ()] if has_masks else [],
                numbers_from_zero(space, each.action),
                advantage,
                target,
            )
            for each, advantage, target in self.estimates(name, in_trajectories(decisions))
        ]

    def estimates(self, name: str, trajectories: list[list[Decision]]) -> list[tuple[Decision, float, float]]:
        """Return all decisions with their advantages, normalised, and value targets."""
        found = []
        for trajectory, last_value in zip(trajectories, self.last_values(name, trajectories), strict=True):
            values, rewards = self.values_of(name, trajectory), [each.reward for each in trajectory]
            advantages = gae(rewards, values, last_value, trajectory[-1].end, self.args.gamma, self.args.lambda_)
            targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
            found += [*zip(trajectory, advantages, targets, strict=True)]
        advantages = normalised([advantage for _, advantage, _ in found])
        return [(each, advantage, target) for (each, _, target), advantage in zip(found, advantages, strict=True)]

    # What algorithms differ in.

    def have_rows_masks(self) -> bool:
        return self.env.masks == "infos"

    def seen_by_module(self, agent: Agent, observation: Any) -> Any:
        """Return an observation as connectors leave it."""
        return observation

    def prepare(self) -> None:
        """Copy the state that the learner is about to change."""

    def denormalised(self, name: str, targets: Any) -> Any:
        raise NotImplementedError

    def values_of(self, name: str, trajectory: list[Decision]) -> list[float]:
        raise NotImplementedError

    def last_values(self, name: str, trajectories: list[list[Decision]]) -> list[float]:
        raise NotImplementedError


def order(row: Row) -> tuple:
    return row[0], row[2], row[4]


class WatchedIPPO(WatchedPPO):
    """Values are those that were recorded with each decision."""

    def norm_of(self, name: str) -> Any:
        return self.learner.learners[name].value_norm

    def by_module(self, found: Any) -> dict[str, dict[str, Any]]:
        return found

    def before(self, acted: list[Decision]) -> None:
        for name in self.runner.module:
            decisions = [each for each in acted if self.module_of(each.agent) == name]
            values = predicted(self.runner.module[name], [each.observation for each in decisions])
            self.values |= {each.key: value for each, value in zip(decisions, values, strict=True)}

    def prepare(self) -> None:
        self.norms = {name: deepcopy(self.norm_of(name)) for name in self.runner.module}

    def denormalised(self, name: str, targets: Any) -> Any:
        return self.norm_of(name).denormalize(targets)

    def values_of(self, name: str, trajectory: list[Decision]) -> list[float]:
        return self.norms[name].denormalize(torch.tensor([self.values[each.key] for each in trajectory])).tolist()

    def last_values(self, name: str, trajectories: list[list[Decision]]) -> list[float]:
        values = predicted(self.runner.module[name], [each[-1].next_observation for each in trajectories])
        return self.norms[name].denormalize(torch.tensor(values)).tolist()


class WatchedRecurrentIPPO(WatchedIPPO):
    """Values depend on what the agent observed earlier in its life."""

    def setup(self) -> None:
        super().setup()
        self.memories: dict[Any, Any] = {}  # after each decision, by key; and of each life

    def norm_of(self, name: str) -> Any:
        return self.learner.value_norm

    def by_module(self, found: Any) -> dict[str, dict[str, Any]]:
        return WatchedPPO.by_module(self, found)

    def before(self, acted: list[Decision]) -> None:
        module = self.runner.module["default_policy"]
        if not module.is_stateful():
            super().before(acted)
            return
        for decision in acted:
            memory = self.memories.get(decision.whole_life, module.get_initial_state())
            value, memory = remembered(module, decision.observation, memory)
            self.values[decision.key] = value
            self.memories[decision.key] = self.memories[decision.whole_life] = memory

    def last_values(self, name: str, trajectories: list[list[Decision]]) -> list[float]:
        module = self.runner.module[name]
        if not module.is_stateful():
            return super().last_values(name, trajectories)
        last = [each[-1] for each in trajectories]
        values = [remembered(module, each.next_observation, self.memories[each.key])[0] for each in last]
        return self.norms[name].denormalize(torch.tensor(values)).tolist()


class WatchedMAPPO(WatchedPPO):
    """Values are the newest critic's of the states at which an agent observed.

    It learns the mean target of the agents that acted on a state.
    """

    def by_module(self, found: Any) -> dict[str, dict[str, Any]]:
        of_agents, self.of_states = found
        return {"default_policy": of_agents | {"advantages": normalized(of_agents["advantages"])}} if of_agents else {}

    def compare(self, name: str, rows: Mapping[str, Any], decisions: list[Decision]) -> None:
        super().compare(name, rows, decisions)
        targets: dict[Any, list[float]] = {}
        states = {(each.env, each.acted): each.state for each in decisions}
        for decision, _, target in self.estimates(name, in_trajectories(decisions)):
            targets.setdefault((decision.env, decision.acted), []).append(target)
        want = [(states[key], fmean(targets[key])) for key in states]
        found = self.learner.value_norm.denormalize(self.of_states["value_targets"]).tolist()
        got = [*zip(self.of_states["obs"].tolist(), found, strict=True)]
        want = sorted((np.asarray(state, np.float32).reshape(-1).tolist(), target) for state, target in want)
        np.testing.assert_array_equal(*([state for state, _ in each] for each in (sorted(got), want)))
        np.testing.assert_allclose(*([target for _, target in each] for each in (sorted(got), want)), 1e-3, 1e-3)

    def prepare(self) -> None:
        self.norm = deepcopy(self.learner.value_norm)

    def denormalised(self, name: str, targets: Any) -> Any:
        return targets

    def values_of(self, name: str, trajectory: list[Decision]) -> list[float]:
        return self.criticised([each.state for each in trajectory])

    def last_values(self, name: str, trajectories: list[list[Decision]]) -> list[float]:
        return self.criticised([each[-1].next_state for each in trajectories])

    def criticised(self, states: list[Any]) -> list[float]:
        with torch.no_grad():
            return self.norm.denormalize(self.learner.critic(stacked(states).flatten(1).float()).squeeze(-1)).tolist()
