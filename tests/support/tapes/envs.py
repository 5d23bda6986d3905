"""An env that makes up its episodes as it goes along, and writes down what it sent and what it was sent."""

import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

import fastmarl
from support.tapes.spaces import arrays, copy, draw, leaves

ENDS = ((True, False), (False, True), (True, True))
"""(terminated, truncated)"""


@dataclass
class Tick:
    """One reset() or step(), and the actions that were sent upon it."""

    order: int
    obs: dict[Hashable, Any] = field(default_factory=dict)
    rewards: dict[Hashable, float] = field(default_factory=dict)
    flags: dict[Hashable, tuple[bool, bool]] = field(default_factory=dict)
    infos: dict[Hashable, dict] = field(default_factory=dict)
    state: np.ndarray | None = None
    actions: dict[Hashable, Any] | None = None
    weights_seq_no: int | None = None
    """Of the weights that chose the actions."""
    explores: bool = True


@dataclass
class Tape:
    """An episode as its env saw it."""

    ticks: list[Tick]
    number: int
    """How many episodes this env has begun before."""

    @property
    def end(self) -> tuple[bool, bool]:
        return self.ticks[-1].flags.get("__all__", (False, False))


@dataclass
class Habits:
    """How one agent of one episode behaves, all in ticks."""

    joins: int
    period: int
    phase: int
    lives: int | None
    """After its first observation, or for ever."""
    lag: int
    """Between an action and its pay."""
    ends_unseen: bool
    comes_again: int | None
    """After its end."""


class Story:
    """The events of one env, episode after episode, from one random stream."""

    orders = count()

    def __init__(self, world: Any, env_index: int):
        self.world, self.env_index, self.rng = world, env_index, random.Random(f"{world.seed} {env_index}")
        self.tapes: list[Tape] = []
        self.plain = world.is_batch
        """No flags without observations, nobody who comes again."""

    @property
    def tick(self) -> Tick:
        return self.tapes[-1].ticks[-1]

    def begin(self) -> Tick:
        rng = self.rng
        self.t, self.last = -1, rng.choice(self.world.lengths)
        self.style = rng.choice(("all", "all", "turns", "own", "own"))
        self.silent = rng.choice((0, 0, 0.3))
        self.talks = rng.choice((0, 0, 0.1, 0.7))
        self.habits = {agent: self._habits(i) for i, agent in enumerate(self.world.agents)}
        if self.world.first_agent_begins:
            self.habits[self.world.agents[0]].joins = 0
        self.born: dict[Hashable, int] = {}
        self.ended: dict[Hashable, int] = {}
        self.came_again: dict[Hashable, int] = {}
        self.pay: dict[tuple[int, Hashable], float] = {}
        self.tapes.append(Tape([], len(self.tapes)))
        return self._go_on()

    def go_on(self, actions: dict[Hashable, Any]) -> Tick:
        """The next tick, in which these actions are answered."""
        tick, world = self.tick, self.world
        tick.actions, tick.weights_seq_no, tick.explores = copy(actions), world.weights_seq_no, world.explores
        assert set(actions) == {agent for agent in world.agents if acts(tick, agent)}
        for agent in actions:
            if self.rng.random() < 0.8:
                due = (self.t + 1 + self.habits[agent].lag, agent)
                self.pay[due] = self.pay.get(due, 0.0) + self.rng.randint(-80, 80) / 8
        return self._go_on()

    def _habits(self, i: int) -> Habits:
        rng = self.rng
        period = {"all": 1, "turns": len(self.world.agents), "own": rng.randint(1, 4)}[self.style]
        return Habits(
            joins=rng.choice((0, 0, 0, 0, 1, 3, 9)),
            period=period,
            phase=i if self.style == "turns" else 0,
            lives=rng.choice((None, None, None, 0, 1, 2, 5, 12)),
            lag=rng.choice((0, 0, 0, 1, 3)),
            ends_unseen=rng.random() < 0.3 and not self.plain,
            comes_again=rng.choice((1, 2, 5)) if self.world.respawn and rng.random() < 0.5 else None,
        )

    def _go_on(self) -> Tick:
        self.t += 1
        tick = Tick(next(self.orders))
        self.tapes[-1].ticks.append(tick)
        silent, is_last = self.t > 0 and self.rng.random() < self.silent, self.t == self.last
        for agent in self.rng.sample(self.world.agents, len(self.world.agents)):
            self._live(tick, agent, silent, is_last)
            self._pay(tick, agent)
        if self.t > 0:
            tick.flags["__all__"] = self.rng.choice(ENDS) if is_last else (False, False)
        if self.world.tells_tape:
            tick.infos["__common__"] = {"env": self.env_index, "tape": self.tapes[-1].number, "t": self.t}
        if self.world.has_state:
            tick.state = np.array([len(self.tapes), self.t], np.int32)
        return tick

    def _live(self, tick: Tick, agent: Hashable, silent: bool, is_last: bool) -> None:
        habits, t = self.habits[agent], self.t
        seen = not silent and t >= habits.joins and (t - habits.joins) % habits.period == habits.phase % habits.period
        if agent in self.ended:
            if not seen or habits.comes_again is None or t < self.ended[agent] + habits.comes_again:
                return
            del self.ended[agent]
            self.born.pop(agent, None)
            self.came_again[agent] = t
        if agent not in self.born and not seen:
            return
        ends = t > 0 and habits.lives is not None and t >= self.born.get(agent, t) + habits.lives
        if ends and habits.ends_unseen and self.rng.random() < 0.7:
            seen = False
        elif ends and self.plain:
            seen = True
        if seen or (is_last and self.rng.random() < 0.3):
            self.born.setdefault(agent, t)
            tick.obs[agent] = draw(self.world.spaces[agent][0], self.rng)
        if self.rng.random() < self.talks and (not self.plain or agent in tick.obs):
            tick.infos[agent] = self._info(agent)
        if ends:
            self.ended[agent] = t
            tick.flags[agent] = self.rng.choice(ENDS)
        elif t > 0 and self.rng.random() < 0.2:
            tick.flags[agent] = (False, False)
        if self.world.masks_in_infos and agent in tick.obs:
            tick.infos.setdefault(agent, {})["action_mask"] = self._mask()

    def _info(self, agent: Hashable) -> dict:
        return {"t": self.t, "who": repr(agent), "array": np.full(2, self.t)}

    def _mask(self) -> np.ndarray:
        mask = np.array([self.rng.random() < 0.5 for _ in range(5)], np.int8)
        mask[self.rng.randrange(5)] = 1
        return mask

    def _pay(self, tick: Tick, agent: Hashable) -> None:
        gift = self.t > 0 and self.rng.random() < 0.05
        reward = self.pay.pop((self.t, agent), None)
        if gift:
            reward = (reward or 0.0) + self.rng.randint(-80, 80) / 8
        if reward is None:
            return
        gone = self.ended.get(agent, self.t) < self.t or self.came_again.get(agent) == self.t
        if gone and (self.plain or self.world.late_rewards == "error"):
            return
        tick.rewards[agent] = reward


class TapedEnv(fastmarl.MultiAgentEnv):
    """Plays a story in dicts, as hostile as the protocol allows: its arrays and dicts change after they were sent."""

    def __init__(self, world: Any, env_index: int):
        self.story, self.world = Story(world, env_index), world
        self.rng = random.Random(world.seed)
        if world.declares:
            self.possible_agents = list(world.agents)
        self.observation_spaces = {agent: spaces[0] for agent, spaces in world.spaces.items()}
        self.action_spaces = {agent: spaces[1] for agent, spaces in world.spaces.items()}
        self.sent: list[Any] = []

    def reset(self, *, seed=None, options=None):
        self._spoil()
        tick = self.story.begin()
        return self._sent(self._shown(tick.obs)), self._infos(tick)

    def step(self, actions):
        self._spoil()
        tick = self.story.go_on(actions)
        if self.world.spoils:
            self.sent += [actions]
        flags = [{agent: self._flag(both[i]) for agent, both in tick.flags.items()} for i in range(2)]
        if not flags[1]["__all__"] and self.rng.random() < 0.3:
            del flags[1]["__all__"]
        rewards = {agent: self._reward(reward) for agent, reward in tick.rewards.items()}
        return self._sent(self._shown(tick.obs)), self._sent(rewards), *map(self._sent, flags), self._infos(tick)

    def state(self):
        return self.story.tick.state

    def tapes(self) -> list[Tape]:
        return self.story.tapes

    def _shown(self, obs: dict) -> dict:
        return {agent: self._presented(copy_leaves(value)) for agent, value in obs.items()}

    def _presented(self, value: Any) -> Any:
        """Return the same numbers with another memory layout."""
        if not isinstance(value, np.ndarray) or not self.world.is_odd:
            return value
        way = self.rng.randrange(5)
        if way == 1 and value.ndim:
            return np.asfortranarray(value)
        if way == 2 and value.ndim:
            return np.repeat(value, 2, axis=0)[::2]
        if way == 3 and value.ndim:
            return np.ascontiguousarray(value[::-1])[::-1]
        if way == 4:
            value.flags.writeable = False
        return value

    def _flag(self, flag: bool) -> Any:
        return np.bool_(flag) if self.rng.random() < 0.2 else flag

    def _reward(self, reward: float) -> Any:
        kinds: list[Any] = [float, float, np.float64, np.float32]
        return self.rng.choice([*kinds, int, np.int64] if reward == int(reward) else kinds)(reward)

    def _infos(self, tick: Tick) -> dict:
        return {agent: dict(info) for agent, info in tick.infos.items()}

    def _sent(self, value: dict) -> dict:
        if self.world.spoils:
            self.sent.append(value)
        return value

    def _spoil(self) -> None:
        """Overwrite the values that were sent and received in the last step."""
        for value in self.sent:
            for array in arrays(list_values(value)):
                if array.flags.writeable:
                    array[...] = 1
            value.clear()
        self.sent.clear()


def list_values(by_agent: dict) -> tuple:
    return tuple(by_agent.values())


def copy_leaves(value: Any) -> Any:
    """Copy the arrays; numbers stay unchanged."""
    if isinstance(value, dict):
        return {key: copy_leaves(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(copy_leaves(item) for item in value)
    return value.copy() if isinstance(value, np.ndarray) else value


class TapedBatch(fastmarl.ArrayEnv):
    """Plays several stories in arrays."""

    may_take_turns = True

    def __init__(self, world: Any, env_indices: list[int]):
        self.world = world
        self.stories = [Story(world, env_index) for env_index in env_indices]
        groups: dict[str, list] = {}
        for agent in world.agents:
            groups.setdefault(world.kind_of[agent], []).append(agent)
        self.members = groups
        spaces = {kind: world.spaces[members[0]] for kind, members in groups.items()}
        super().__init__(
            len(env_indices),
            groups,
            {kind: both[0] for kind, both in spaces.items()},
            {kind: both[1] for kind, both in spaces.items()},
        )

    def reset(self, env_indices, out, *, seeds=None):
        for env_index in env_indices:
            self._write(int(env_index), self.stories[env_index].begin(), out)

    def step(self, actions, out):
        for env_index, story in enumerate(self.stories):
            if any(story.tick.flags.get("__all__", ())):  # it rests
                continue
            sent = {}
            for kind, members in self.members.items():
                for i, agent in enumerate(members):
                    if acts(story.tick, agent):
                        sent[agent] = row(actions[kind], (env_index, i))
            self._write(env_index, story.go_on(sent), out)
            out.terminated[env_index], out.truncated[env_index] = story.tick.flags["__all__"]

    def state(self):
        return np.stack([story.tick.state for story in self.stories])

    def _write(self, env_index: int, tick: Tick, out: Any) -> None:
        for kind, members in self.members.items():
            group = out.groups[kind]
            for i, agent in enumerate(members):
                at = (env_index, i)
                group.present[at] = agent in tick.obs
                for (_, leaf), (_, value) in zip(leaves(group.obs), leaves(tick.obs.get(agent, ())), strict=False):
                    leaf[at] = value
                if agent in tick.rewards:
                    group.rewards[at] = tick.rewards[agent]
                if agent in tick.flags:
                    group.terminated[at], group.truncated[at] = tick.flags[agent]
        out.infos.extend((env_index, agent, dict(info)) for agent, info in tick.infos.items())


def acts(tick: Tick, agent: Hashable) -> bool:
    """Return true if the agent must act after this tick."""
    return agent in tick.obs and not any(tick.flags.get(agent, ())) and not any(tick.flags.get("__all__", ()))


def row(columns: Any, at: Any) -> Any:
    """Return one item of nested arrays."""
    if isinstance(columns, dict):
        return {key: row(column, at) for key, column in columns.items()}
    if isinstance(columns, tuple):
        return tuple(row(column, at) for column in columns)
    return np.array(columns[at])
