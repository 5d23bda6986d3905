"""Algorithms of teams, whose updates are compared with the ledgers of their environments."""

import math
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from support.ledgered.base import Agent
from support.ledgered.oracle import Decision, n_step_returns, observed_in, team_reward
from support.ledgered.values import mapped, nth, numbers_from_zero, observed, predicted
from support.ledgered.watched import Watched, WatchedPPO

DEFAULT, SCALE = "default_policy", 0.1
Row = tuple[tuple, float, tuple, bool]  # by slot what agents saw and did; reward; what they saw next; if none did


class WatchedEPyMARL(WatchedPPO):
    """Targets are n-step returns of the team's rewards, along each agent's own decisions."""

    def have_rows_masks(self) -> bool:
        return bool(self.env.masks)

    def seen_by_module(self, agent: Agent, observation: Any) -> Any:
        seen = gym.spaces.flatten(self.env.observation_spaces[agent], observation)
        return np.concatenate([seen, self.indicator(agent)]).astype(np.float32)

    def indicator(self, agent: Agent) -> list[float]:
        return [float(each == agent) for each in self.learner.agents]

    def before(self, acted: list[Decision]) -> None:
        self.observed = observed_in(self.decisions, self.ledgers)
        if self.args.critic == "own":
            seen = [self.seen_by_module(each.agent, each.observation) for each in acted]
            values = predicted(self.runner.module[DEFAULT], seen)
            self.values |= {each.key: value for each, value in zip(acted, values, strict=True)}

    def by_module(self, found: Any) -> dict[str, dict[str, Any]]:
        return super().by_module(found[0])

    def denormalised(self, name: str, targets: Any) -> Any:
        return targets

    def estimates(self, name: str, trajectories: list[list[Decision]]) -> list[tuple[Decision, float, float]]:
        found = []
        for trajectory in trajectories:
            rewards = [team_reward(self.decisions, each, each.t, each.known_t) for each in trajectory]
            inputs = [self.critic_input(each, each.t, each.observation) for each in trajectory]
            last = self.critic_input(trajectory[-1], trajectory[-1].known_t, trajectory[-1].next_observation)
            later = criticised(self.learner.target, [*inputs, last])
            targets = n_step_returns(rewards, later, trajectory[-1].end, self.args.n_steps, self.args.gamma)
            if self.args.critic == "own":
                values = [self.values[each.key] for each in trajectory]
            else:
                values = criticised(self.learner.critic, inputs)
            advantages = [target - value for target, value in zip(targets, values, strict=True)]
            found += [*zip(trajectory, advantages, targets, strict=True)]
        return found

    def critic_input(self, decision: Decision, t: int, observation: Any) -> Any:
        """Return what the critic sees for an agent: its own observation, or those of all that observe at this step."""
        if self.args.critic == "own":
            return self.seen_by_module(decision.agent, observation)
        present = self.observed.get((decision.env, decision.episode, t), {})
        joint = []
        for agent in self.learner.agents:
            space = self.env.observation_spaces[agent]
            size = gym.spaces.flatdim(space)
            is_there = agent in present and self.is_in_rows(decision, agent, t)
            joint.append(gym.spaces.flatten(space, present[agent][0]) if is_there else np.zeros(size))
        return np.concatenate([*joint, self.indicator(decision.agent)]).astype(np.float32)

    def is_in_rows(self, decision: Decision, agent: Agent, t: int) -> bool:
        """Return False for what this update's rows lack: an agent's decision at this step that an earlier update has,
        and one at which a new life begins, after a cut."""
        place = decision.env, decision.episode, agent, t
        same = [each for each in self.decisions if (each.env, each.episode, each.agent, each.t) == place]
        return not any(
            0 < self.update_of(each.known) < self.updates
            or (each.is_first and each.life > 0 and each.cuts > decision.cuts)
            for each in same
        )


def criticised(critic: Any, inputs: list[Any]) -> list[float]:
    with torch.no_grad():
        return critic(torch.from_numpy(np.stack(inputs))).squeeze(-1).tolist()


class WatchedVDN(Watched):
    """The replay's rows are the team's decisions that are complete, each with the next one.

    The team decides at each step at which an agent acts, and is rewarded until the next one.
    """

    def learn_and_check(self, episodes: list) -> Mapping[str, Any]:
        stats = self.learner.learn(episodes)
        expected = self.complete()
        self.rows_learnt = len(expected)
        if expected:
            n, replay = 15 * len(expected) + 30, copy(self.learner.replay)
            replay._rng = deepcopy(replay._rng)  # the run goes on with the numbers that it would have drawn
            rows = replay.sample(n, "cpu")
            found = {self.row_found({name: nth(column, i) for name, column in rows.items()}) for i in range(n)}
            assert found == expected
            rows = replay.sample(64, "cpu")
            np.testing.assert_allclose(self.learner.loss(rows).item(), self.loss(rows), rtol=1e-4, atol=1e-6)
        return stats

    def complete(self) -> set:
        """Return the team's decisions whose actions, rewards and next decision are known."""
        seen = observed_in(self.decisions, self.ledgers)
        teams: dict[Any, list[Decision]] = {}
        for each in self.decisions:
            teams.setdefault((each.env, each.episode, each.t), []).append(each)
        found = set()
        for (env, episode, t), team in teams.items():
            later = sorted(place[2] for place in seen if place[:2] == (env, episode) and place[2] > t)
            is_over = any(entry.end for entry in self.ledgers[env] if entry.episode == episode)
            if all(each.known for each in team) and (later or is_over):
                reward = team_reward(self.decisions, team[0], t, later[0] if later else math.inf)
                following = seen[env, episode, later[0]] if later else {}
                found.add(self.row_expected(team, reward, following, is_last=not later))
        return found

    def row_expected(self, team: list[Decision], reward: float, following: Mapping[Any, Any], *, is_last: bool) -> Row:
        space = self.runner.module[DEFAULT].action_space
        acted = {
            each.agent: (*self.shown(each.observation, each.mask), numbers_from_zero(space, each.action)[0])
            for each in team
        }
        awaited = {agent: self.shown(*seen) for agent, seen in following.items()}
        slots = [tuple(of_agent.get(agent) for agent in self.learner.agents) for of_agent in (acted, awaited)]
        return slots[0], round(reward, 3), slots[1], is_last

    def row_found(self, row: Mapping[str, Any]) -> Row:
        acted = [
            (*self.shown_in(row, "", slot), float(row["actions"][slot])) if active else None
            for slot, active in enumerate(row["active"].tolist())
        ]
        awaited = [
            self.shown_in(row, "new_", slot) if active else None
            for slot, active in enumerate(row["new_active"].tolist())
        ]
        return tuple(acted), round(row["rewards"].item(), 3), tuple(awaited), row["terminateds"].item()

    def shown(self, observation: Any, mask: list[int] | None) -> tuple:
        return observed(observation), tuple(map(bool, mask or ())) if self.env.masks == "infos" else ()

    def shown_in(self, row: Mapping[str, Any], prefix: str, slot: int) -> tuple:
        mask = row[f"{prefix}action_mask"][slot].tolist() if f"{prefix}action_mask" in row else ()
        return observed(nth(row[f"{prefix}obs"], slot)), tuple(mask)

    def loss(self, rows: Mapping[str, Any]) -> float:
        """Return the mean of Huber's errors of the team's values, row by row."""
        modules = self.learner.module, self.learner.target
        now, new, slow = (
            self.action_values(module, rows, prefix)
            for module, prefix in ((modules[0], ""), (modules[0], "new_"), (modules[1], "new_"))
        )
        total = 0.0
        for i, reward in enumerate(rows["rewards"].tolist()):
            slots = range(len(self.learner.agents))
            taken = sum(now[i][slot][int(rows["actions"][i, slot])] for slot in slots if rows["active"][i, slot])
            after = 0.0
            for slot in slots:
                if rows["new_active"][i, slot]:
                    legal = self.legal(rows, i, slot)
                    best = max(legal, key=lambda choice: new[i][slot][choice])
                    after += slow[i][slot][best]
            error = abs(taken - (SCALE * reward + self.args.gamma * after))
            total += 0.5 * error**2 if error < 1 else error - 0.5
        return total / len(rows["rewards"])

    def legal(self, rows: Mapping[str, Any], i: int, slot: int) -> list[int]:
        mask = torch.ones(int(self.runner.module[DEFAULT].action_space.n))
        if self.env.masks == "infos":
            mask = rows["new_action_mask"][i, slot]
        elif self.env.masks:
            mask = rows["new_obs"]["action_mask"][i, slot]
        return [choice for choice, is_legal in enumerate(mask.tolist()) if is_legal]

    def action_values(self, module: Any, rows: Mapping[str, Any], prefix: str) -> list[list[list[float]]]:
        """Return action values without masks: row, slot, choice."""
        flat = mapped(lambda leaf: leaf.flatten(0, 1), rows[f"{prefix}obs"])
        n_agents = len(self.learner.agents)
        with torch.no_grad():
            return module.forward_train({"obs": flat})["action_dist_inputs"].unflatten(0, (-1, n_agents)).tolist()
