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
from support.ledgered.values import mapped, nth, numbers_from_zero, observed
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
        """Return False for what this update's rows lack: a decision at this step that an earlier update has."""
        place = decision.env, decision.episode, agent, t
        same = [each for each in self.decisions if (each.env, each.episode, each.agent, each.t) == place]
        return not any(0 < self.update_of(each.known) < self.updates for each in same)


def criticised(critic: Any, inputs: list[Any]) -> list[float]:
    with torch.no_grad():
        return critic(torch.from_numpy(np.stack(inputs))).squeeze(-1).tolist()


class WatchedQ(Watched):
    """The rows of replays are their teams' decisions that are complete, each with the next one.

    A team decides at each step at which one of its agents acts, and is rewarded until the next one.
    """

    def setup(self) -> None:
        self.teams = [(self.learner.replay, self.learner.agents)]

    def learn_and_check(self, episodes: list) -> Mapping[str, Any]:
        update, losses = self.learner.q.update, []

        def checked(rows: Mapping[str, Any]) -> Mapping[str, Any]:
            if losses:
                return update(rows)
            losses.append(self.loss(rows))
            stats = update(rows)
            np.testing.assert_allclose(stats["qf_loss"], losses[0], rtol=1e-4, atol=1e-6)
            return stats

        self.learner.q.update = checked
        stats = self.learner.learn(episodes)
        del self.learner.q.update
        assert bool(losses) == bool(stats)
        self.rows_learnt = sum(self.check_replay(replay, agents) for replay, agents in self.teams)
        return stats

    def check_replay(self, kept: Any, agents: list) -> int:
        """Compare the decisions in a replay with the ledgers; returns their number."""
        expected = self.complete(agents)
        assert bool(expected) == bool(len(kept))
        if expected:
            n, replay = 15 * len(expected) + 30, copy(kept)
            replay._rng = deepcopy(replay._rng)  # the run goes on with the numbers that it would have drawn
            rows = replay.sample(n)
            found = {self.row_found({name: nth(column, i) for name, column in rows.items()}) for i in range(n)}
            assert found == expected
        return len(expected)

    def complete(self, agents: list) -> set:
        """Return the decisions of a team whose actions, rewards and next decision are known."""
        decisions = [each for each in self.decisions if each.agent in agents]
        seen = {
            place: of_team
            for place, of_all in observed_in(self.decisions, self.ledgers).items()
            if (of_team := {agent: of_agent for agent, of_agent in of_all.items() if agent in agents})
        }
        teams: dict[Any, list[Decision]] = {}
        for each in decisions:
            teams.setdefault((each.env, each.episode, each.t), []).append(each)
        found = set()
        for (env, episode, t), team in teams.items():
            later = sorted(place[2] for place in seen if place[:2] == (env, episode) and place[2] > t)
            is_over = any(each.end for each in self.ledgers[env] if each.episode == episode)
            lives = {each.agent: each.end for each in decisions if (each.env, each.episode) == (env, episode)}
            is_over |= not self.args.respawn and lives.keys() == {*agents} and all(lives.values())
            if all(each.known for each in team) and (later or is_over):
                reward = team_reward(decisions, team[0], t, later[0] if later else math.inf)
                following = seen[env, episode, later[0]] if later else {}
                found.add(self.row_expected(agents, team, reward, following, is_last=not later))
        return found

    def row_expected(
        self, agents: list, team: list[Decision], reward: float, following: Mapping[Any, Any], *, is_last: bool
    ) -> Row:
        space = self.runner.module[DEFAULT].action_space
        acted = {
            each.agent: (*self.shown(each.observation, each.mask), numbers_from_zero(space, each.action)[0])
            for each in team
        }
        awaited = {agent: self.shown(*seen) for agent, seen in following.items()}
        slots = [tuple(of_agent.get(agent) for agent in agents) for of_agent in (acted, awaited)]
        return slots[0], round(self.args.reward_scale * reward, 4), slots[1], is_last

    def row_found(self, row: Mapping[str, Any]) -> Row:
        acted = [
            (*self.shown_in(row, 0, slot), float(row["actions"][0, slot])) if active else None
            for slot, active in enumerate(row["active"][0].tolist())
        ]
        awaited = [
            self.shown_in(row, 1, slot) if active else None for slot, active in enumerate(row["new_active"][0].tolist())
        ]
        return tuple(acted), round(row["rewards"].item(), 4), tuple(awaited), row["terminateds"].item()

    def shown(self, observation: Any, mask: list[int] | None) -> tuple:
        return observed(observation), tuple(map(bool, mask or ())) if self.env.masks == "infos" else ()

    def shown_in(self, row: Mapping[str, Any], t: int, slot: int) -> tuple:
        mask = row["action_mask"][t, slot].tolist() if "action_mask" in row else ()
        return observed(nth(nth(row["obs"], t), slot)), tuple(mask)

    # The loss, by loops over teams, decisions and agents.

    def loss(self, rows: Mapping[str, Any]) -> float:
        """Return the mean of Huber's errors of the teams' values."""
        target, *slow_mixer = self.learner.q.target
        now, slow = (self.action_values(module, rows) for module in (self.learner.q.module, target))
        errors = []
        n, length, n_agents = rows["active"].shape
        for i in range(n):
            gain = None  # of the next decision
            for t in reversed(range(length)):
                if not rows["loss_mask"][i, t]:
                    gain = None
                    continue
                taken, after = [0.0] * n_agents, [0.0] * n_agents
                for slot in range(n_agents):
                    if rows["active"][i, t, slot]:
                        taken[slot] = now[i, t, slot][int(rows["actions"][i, t, slot])]
                    if rows["new_active"][i, t, slot]:
                        legal = self.legal(rows, i, t + 1, slot)
                        best = max(legal, key=lambda choice, seen=now[i, t + 1, slot]: seen[choice])
                        after[slot] = slow[i, t + 1, slot][best]
                later = 0.0 if rows["terminateds"][i, t] else self.mixed(slow_mixer, after, rows, i, t + 1)
                mixer = [] if self.learner.q.mixer is None else [self.learner.q.mixer]
                trace = 0.0 if gain is None else self.learner.q.lambda_
                gain = float(rows["rewards"][i, t]) + self.args.gamma * ((1 - trace) * later + trace * (gain or 0.0))
                error = abs(self.mixed(mixer, taken, rows, i, t) - gain)
                errors.append(0.5 * error**2 if error < 1 else error - 0.5)
        return sum(errors) / len(errors)

    def mixed(self, mixer: list, values: list[float], rows: Mapping[str, Any], i: int, t: int) -> float:
        if not mixer:
            return sum(values)
        joint = []
        for slot, agent in enumerate(self.learner.agents):
            space = self.env.observation_spaces[agent]
            is_there = (t < rows["active"].shape[1] and rows["active"][i, t, slot]) or (
                t and rows["new_active"][i, t - 1, slot]
            )
            seen = mapped(lambda leaf, slot=slot: leaf[i, t, slot].numpy(), rows["obs"])
            seen = seen.astype(np.int64) if isinstance(space, gym.spaces.Discrete) else seen
            flat = gym.spaces.flatten(space, seen) if is_there else np.zeros(gym.spaces.flatdim(space))
            joint.append(torch.as_tensor(flat).float())
        with torch.no_grad():
            return float(mixer[0](torch.tensor(values), torch.cat(joint)))

    def legal(self, rows: Mapping[str, Any], i: int, t: int, slot: int) -> list[int]:
        mask = torch.ones(int(self.runner.module[DEFAULT].action_space.n))
        if "action_mask" in rows:
            mask = rows["action_mask"][i, t, slot]
        elif self.env.masks:
            mask = rows["obs"]["action_mask"][i, t, slot]
        return [choice for choice, is_legal in enumerate(mask.tolist()) if is_legal]

    def action_values(self, module: Any, rows: Mapping[str, Any]) -> dict[tuple[int, int, int], list[float]]:
        """Return action values without masks, by sequence, step and slot, each life with a memory of its own."""
        found: dict[tuple[int, int, int], list[float]] = {}
        n, length, n_agents = rows["active"].shape
        states: dict[tuple[int, int, int], Any] = {}  # keyed by sequence, slot and life
        lives = self.lives()
        for t in range(length + 1):
            for slot in range(n_agents):
                here = [
                    i
                    for i in range(n)
                    if (t < length and rows["active"][i, t, slot]) or (t and rows["new_active"][i, t - 1, slot])
                ]
                if not here:
                    continue
                obs = mapped(lambda leaf, here=here, t=t, slot=slot: leaf[here][:, t, slot], rows["obs"])
                inputs = {"obs": obs}
                if module.is_stateful():
                    first = mapped(torch.as_tensor, module.get_initial_state())
                    agent = self.learner.agents[slot]
                    whose = [(i, slot, lives[agent, observed(nth(obs, place))]) for place, i in enumerate(here)]
                    before = [states.get(each, first) for each in whose]
                    inputs = {
                        "obs": mapped(lambda leaf: leaf[:, None], obs),
                        "state_in": {name: torch.stack([each[name] for each in before]) for name in first},
                    }
                with torch.no_grad():
                    outputs = module.forward_train(inputs)
                logits = outputs["action_dist_inputs"].reshape(len(here), -1).tolist()
                for place, (i, of_i) in enumerate(zip(here, logits, strict=True)):
                    found[i, t, slot] = of_i
                    if module.is_stateful():
                        states[whose[place]] = {name: leaf[place] for name, leaf in outputs["state_out"].items()}
        return found

    def lives(self) -> dict[tuple[Agent, bytes], int]:
        """Return the number of the life in which each agent observed something."""
        found: dict[tuple[Agent, bytes], int] = {}
        for each in self.decisions:
            for seen in (each.observation, *([] if each.known is None else [each.next_observation])):
                assert found.setdefault((each.agent, observed(seen)), each.life) == each.life
        return found


class WatchedIQL(WatchedQ):
    """Each agent is a team."""

    def setup(self) -> None:
        self.teams = [(replay, [agent]) for agent, replay in self.learner.replays.items()]
