"""The expected results of `sample()` for a scripted world: a plain oracle of lists and dicts.

It keeps the whole history of every episode and derives each chunk from it by definition, so cutting, lookback and
waiting agents need no state of their own.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from support.worlds import Call, Tick, World, action_of


@dataclass
class Trajectory:
    """One agent's stay: n observations, and a reward for each answer to them (the last one may still be growing)."""

    agent: Hashable
    module: str
    obs: list[int] = field(default_factory=list)
    env_ts: list[int] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def is_done(self) -> bool:
        return self.terminated or self.truncated

    def observe(self, serial: int, env_t: int, info: dict) -> None:
        self.obs.append(serial)
        self.env_ts.append(env_t)
        self.infos.append(info)


@dataclass
class AgentChunk:
    """One agent's part of a chunk: `lookback + n + 1` observations, `lookback + n` of everything else."""

    module: str
    lookback: int
    t_started: int
    obs: list[int]
    env_ts: list[int]
    infos: list[dict]
    actions: list
    rewards: list[float]
    terminated: bool
    truncated: bool

    @property
    def steps(self) -> int:
        return len(self.rewards) - self.lookback

    @property
    def total(self) -> float:
        return sum(self.rewards[self.lookback :])


@dataclass
class Chunk:
    id_: tuple[int, int]
    """(env, reset)"""
    env_t_started: int
    env_t: int
    terminated: bool
    truncated: bool
    agents: dict[Hashable, AgentChunk]
    hanging: float
    """What waiting agents have been paid, at the end of the chunk, since they acted."""
    acting: set[Hashable]
    """Who acts next, at the end of the chunk."""
    common_infos: dict[int, dict]

    @property
    def is_done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def total(self) -> float:
        return sum(part.total for part in self.agents.values())

    @property
    def first_serial(self) -> int:
        return min((part.obs[part.lookback] for part in self.agents.values()), default=0)


@dataclass
class Episode:
    """All that has happened since the `resets`-th reset of env `env`."""

    env: int
    resets: int
    env_t: int = 0
    trajectories: list[Trajectory] = field(default_factory=list)
    current: dict[Hashable, Trajectory] = field(default_factory=dict)
    early: dict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    common_infos: dict[int, dict] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    call_started: int = 0
    chunk_started: int = 0
    """The env_t at the last return of a chunk, and at the last cut for whatever reason."""

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated

    @property
    def live(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.current.values() if not trajectory.is_done]

    @property
    def hanging(self) -> float:
        """The rewards that waiting agents have received since they acted."""
        return sum(t.rewards[-1] for t in self.live if len(t.rewards) == len(t.obs))

    @property
    def acting(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.live if trajectory.env_ts[-1] == self.env_t]

    @property
    def acting_agents(self) -> set[Hashable]:
        return {trajectory.agent for trajectory in self.acting}


class ReferenceRunner:
    """Steps the scripts of `world` as a runner would step its envs, and predicts what it returns and counts."""

    min_lookback_rows = 0
    """How many steps of each agent a chunk looks back upon at least, if there are so many."""

    def __init__(self, world: World, *, batched: bool = False):
        self.world = world
        self.resets = [-1] * world.num_envs
        self.env_steps = 0
        self.agent_steps: Counter[str] = Counter()
        self.module_steps: Counter[str] = Counter()
        self.lost = 0.0
        """Rewards that no transition will ever hold: what was paid too late, and what was paid before the first
        observation to agents of whom none came before the end of an episode that was returned."""
        self.early = 0
        """How many agents were paid before their first observation."""
        self.finished: list[Episode] = []
        """Episodes returned to their end, in order."""
        self.env_actions: dict[tuple[int, int, int], dict[Hashable, object]] = {}
        """(env, reset, env_t) -> the actions that lead from env_t to the next step."""
        self.ongoing: list[Episode | None] = [None] * world.num_envs
        """The envs' episodes, one each; None where the env has yet to be reset."""
        self.batched = batched
        self.unrecorded: dict[tuple[int, int], int] = {}
        """(env, reset) -> steps, of episodes that a batch has run in envs that had done their part."""
        self._resting: dict[int, int] = {}
        """Such an env -> the steps of its unrecorded episode; -1 before that is begun."""
        parts = [list(range(i, world.num_envs, world.num_splits)) for i in range(world.num_splits)]
        self._parts = [part for part in parts if part]
        """Envs that are stepped together; the part whose turn it is comes first."""
        self._closed: list[tuple[Episode, int, int, float, set[Hashable]]] = []
        """(episode, start, end, hanging, acting) of this call's chunks, in order of ending."""

    def sample(self, call: Call) -> list[Chunk]:
        """Those that were finished or split in order of that, then the ongoing ones in env order."""
        target, by_episodes = self._target(call)
        if by_episodes or call.force_reset:
            self.ongoing = [None if e is None or self._is_dropped(e) else e for e in self.ongoing]
        taking_part = range(self.world.num_envs)[: target if by_episodes else None]
        for env in range(taking_part.stop, self.world.num_envs):
            self.ongoing[env] = None
        self._begin_in(taking_part)
        to_begin = target - len(taking_part) if by_episodes else math.inf
        done: list[Episode] = []
        self._closed = []
        env_steps_before, agent_steps_before = self.env_steps, self.agent_steps.total()
        idle, stepping = self._parts, []
        made = 0
        while made < target or stepping:
            if made < target:
                stepping = stepping + [part for part in idle if any(self.ongoing[env] for env in part)]
                idle = [part for part in idle if part not in stepping]
            idle.append(stepping.pop(0))
            over = self._step_part(idle[-1])
            done += over
            begin = sorted(episode.env for episode in over)[: min(to_begin, len(over))]
            to_begin -= len(begin)
            self._begin_in(begin)
            stepped = [self.ongoing[env] for part in stepping for env in part if self.ongoing[env]]
            by_agents = self.world.count_steps_by == "agent_steps"
            steps = self.env_steps - env_steps_before + len(stepped)
            if by_agents:
                steps = self.agent_steps.total() - agent_steps_before + sum(len(e.acting) for e in stepped)
            made = len(done) if by_episodes else steps
        self._parts = idle
        self.finished += done
        self.lost += sum(sum(episode.early.values()) for episode in done)
        ongoing = [episode for episode in self.ongoing if episode]
        return self._cut(ongoing, done + ongoing)

    def _step_part(self, part: list[int]) -> list[Episode]:
        """Those whose episode is over, and has no successor yet."""
        over = []
        if self.batched:
            self._step_unrecorded(part)
        for env in part:
            episode = self.ongoing[env]
            if episode is None:
                continue
            self._step(episode)
            if episode.is_over:
                self._close(episode)
                over.append(episode)
                self.ongoing[env] = None
        return over

    def _step_unrecorded(self, part: list[int]) -> None:
        """Step finished envs of a part in unrecorded episodes, since a batch is stepped as a whole."""
        self._begin_unrecorded(part)
        for env in self._resting.keys() & part:
            self._resting[env] += 1
            self.unrecorded[env, self.resets[env]] = self._resting[env]
            if self._resting[env] == len(self.world.script(env, self.resets[env])) - 1:
                self._resting[env] = -1

    def _begin_unrecorded(self, part: list[int]) -> None:
        for env in self._resting.keys() & part:
            if self._resting[env] < 0:
                self.resets[env] += 1
                self._resting[env] = 0

    def _begin_in(self, envs: Sequence[int]) -> None:
        """Begin episodes in those of these envs that have none; the other ones without rest."""
        begin = [env for env in envs if self.ongoing[env] is None]
        for env, episode in enumerate(self.ongoing):
            if episode is None and env not in begin:
                self._resting.setdefault(env, -1)
        for env in begin:
            self._resting.pop(env, None)
        for part in self._parts_of_all():
            if self.batched and set(part) & set(begin):
                self._begin_unrecorded(part)  # the batch is reset anyway
        for env in begin:
            self.ongoing[env] = self._begin(env)

    def _parts_of_all(self) -> list[range]:
        n = self.world.num_splits
        return [range(i, self.world.num_envs, n) for i in range(n)]

    def _cut(self, ongoing: list[Episode], kept: list[Episode]) -> list[Chunk]:
        for episode in ongoing:
            self._close(episode)
            episode.call_started = episode.env_t
        of_kept = [piece for piece in self._closed if any(piece[0] is episode for episode in kept)]
        return [self._chunk(*piece) for piece in of_kept if piece[2] > piece[1]]

    def _close(self, episode: Episode) -> None:
        """The current chunk ends here."""
        self._closed.append((episode, episode.chunk_started, episode.env_t, episode.hanging, episode.acting_agents))
        episode.chunk_started = episode.env_t

    @property
    def pending(self) -> float:
        """Rewards of the running episodes that wait for an agent's next observation, or for its first."""
        return sum(episode.hanging + sum(episode.early.values()) for episode in self.ongoing if episode)

    def _target(self, call: Call) -> tuple[int, bool]:
        if call.num_episodes:
            return call.num_episodes, True
        if call.num_timesteps:
            return call.num_timesteps, False
        if self.world.batch_mode == "complete_episodes":
            return self.world.num_envs, True
        return self.world.fragment * self.world.num_envs, False

    def _is_dropped(self, episode: Episode) -> bool:
        """Return true if a call that wants fresh episodes drops this one."""
        return episode.env_t > 0

    def _module_for(self, agent: Hashable, episode: Episode) -> str:
        return self.world.module_of[agent]

    def _begin(self, env: int) -> Episode:
        self.resets[env] += 1
        episode = Episode(env, self.resets[env])
        self._observe(episode, self.world.script(env, episode.resets)[0])
        return episode

    def _step(self, episode: Episode) -> None:
        self._act(episode)
        tick = self.world.script(episode.env, episode.resets)[episode.env_t + 1]
        episode.env_t += 1
        self.env_steps += 1
        self._pay(episode, tick)
        must_split = self._must_split(episode, tick)
        self._observe(episode, tick)
        self._finish(episode, tick)
        if must_split:
            self._close(episode)

    def _act(self, episode: Episode) -> None:
        actions = {}
        for trajectory in episode.acting:
            self.early += not trajectory.rewards and trajectory.agent in episode.early
            trajectory.rewards.append(0.0 if trajectory.rewards else episode.early.pop(trajectory.agent, 0.0))
            kind = self.world.action_kinds[trajectory.module]
            actions[trajectory.agent] = action_of(kind, trajectory.obs[-1])
            self.agent_steps[str(trajectory.agent)] += 1
            self.module_steps[trajectory.module] += 1
        self.env_actions[episode.env, episode.resets, episode.env_t] = actions

    def _pay(self, episode: Episode, tick: Tick) -> None:
        for agent, given in tick.rewards.items():
            reward = float(np.asarray(given).item())
            trajectory = episode.current.get(agent)
            returns = self.world.respawn and agent in tick.obs
            if trajectory is None or (trajectory.is_done and returns and self._begins(episode, agent, tick)):
                episode.early[agent] += reward
            elif not trajectory.is_done or self._still_takes(episode, trajectory):
                trajectory.rewards[-1] += reward
            elif self.world.late_rewards == "error" and not returns:
                raise ValueError(f"the world pays the finished agent {agent!r} at {episode.env_t}")
            else:
                self.lost += reward

    def _still_takes(self, episode: Episode, finished: Trajectory) -> bool:
        """Its last transition ended in this call, so no chunk that holds it has been returned."""
        return self.world.late_rewards == "accumulate" and finished.env_ts[-1] > episode.call_started

    def _begins(self, episode: Episode, agent: Hashable, tick: Tick) -> bool:
        """Return true if this observation is the first of a trajectory."""
        if tick.is_last or tick.terminateds.get(agent) or tick.truncateds.get(agent):
            return False
        earlier = episode.current.get(agent)
        if earlier is not None and earlier.is_done and not self.world.respawn:
            raise ValueError(f"the world observes the finished agent {agent!r} at {episode.env_t}")
        return earlier is None or earlier.is_done

    def _must_split(self, episode: Episode, tick: Tick) -> bool:
        """Return true if an agent respawns whose earlier trajectory ended in the current chunk."""
        again = [episode.current[a] for a in tick.obs if a in episode.current and self._begins(episode, a, tick)]
        return any(earlier.env_ts[-1] > episode.chunk_started for earlier in again)

    def _observe(self, episode: Episode, tick: Tick) -> None:
        if "__common__" in tick.infos:
            episode.common_infos[episode.env_t] = tick.infos["__common__"]
        for agent, local in tick.obs.items():
            if self._begins(episode, agent, tick):
                trajectory = Trajectory(agent, self._module_for(agent, episode))
                episode.trajectories.append(trajectory)
                episode.current[agent] = trajectory
            trajectory = episode.current.get(agent)
            if trajectory and not trajectory.is_done:
                serial = self.world.serial(episode.env, episode.resets, local)
                trajectory.observe(serial, episode.env_t, tick.infos.get(agent, {}))

    def _finish(self, episode: Episode, tick: Tick) -> None:
        episode.terminated = bool(tick.terminateds.get("__all__"))
        episode.truncated = bool(tick.truncateds.get("__all__"))
        for trajectory in episode.live:
            agent = trajectory.agent
            flags = bool(tick.terminateds.get(agent)), bool(tick.truncateds.get(agent))
            if not any(flags):
                flags = episode.terminated, episode.truncated
            trajectory.terminated, trajectory.truncated = flags
            if trajectory.is_done and trajectory.env_ts[-1] != episode.env_t:
                trajectory.observe(trajectory.obs[-1], episode.env_t, tick.infos.get(agent, {}))

    def whole(self, episode: Episode) -> Chunk:
        """All of an episode in one chunk. Raises AssertionError if some agent came twice."""
        return self._chunk(episode, 0, episode.env_t, episode.hanging, episode.acting_agents)

    def _chunk(self, episode: Episode, start: int, end: int, hanging: float, acting: set[Hashable]) -> Chunk:
        agents = {}
        for trajectory in episode.trajectories:
            part = self._agent_chunk(trajectory, start, end)
            if part is not None:
                assert trajectory.agent not in agents, "one trajectory per agent and chunk"
                agents[trajectory.agent] = part
        is_last = end == episode.env_t
        return Chunk(
            id_=(episode.env, episode.resets),
            env_t_started=start,
            env_t=end,
            terminated=is_last and episode.terminated,
            truncated=is_last and episode.truncated,
            agents=agents,
            hanging=hanging,
            acting=acting,
            common_infos={t: info for t, info in episode.common_infos.items() if start < t <= end},
        )

    def _agent_chunk(self, trajectory: Trajectory, start: int, end: int) -> AgentChunk | None:
        """The transitions whose next observation came after `start` and not after `end`, and the lookback before."""
        arrivals = trajectory.env_ts[1:]
        steps = [j for j, env_t in enumerate(arrivals) if start < env_t <= end]
        if not steps:
            return None
        oldest = start - self.world.lookback
        always = steps[0] - self.min_lookback_rows
        lookback = [j for j in range(steps[0]) if trajectory.env_ts[j] >= oldest or j >= always]
        first, stop = (lookback + steps)[0], steps[-1] + 1
        done = trajectory.env_ts[-1] <= end
        kind = self.world.action_kinds[trajectory.module]
        return AgentChunk(
            module=trajectory.module,
            lookback=len(lookback),
            t_started=steps[0],
            obs=trajectory.obs[first : stop + 1],
            env_ts=trajectory.env_ts[first : stop + 1],
            infos=trajectory.infos[first : stop + 1],
            actions=[action_of(kind, serial) for serial in trajectory.obs[first:stop]],
            rewards=trajectory.rewards[first:stop],
            terminated=done and trajectory.terminated,
            truncated=done and trajectory.truncated,
        )

    def metrics(self) -> dict:
        """Return get_metrics() after all calls so far, if it was not called before."""
        window = self.finished[-self.world.window :]
        returns = [sum(sum(t.rewards) for t in episode.trajectories) for episode in window]
        lengths = [episode.env_t for episode in window]
        expected = {
            "num_env_steps_sampled": self.env_steps,
            "num_env_steps_sampled_lifetime": self.env_steps,
            "num_agent_steps_sampled": dict(self.agent_steps),
            "num_module_steps_sampled": dict(self.module_steps),
            "num_episodes": len(self.finished),
            "num_episodes_lifetime": len(self.finished),
            "unattributed_reward": self.lost,
        }
        for name, values in (("return", returns), ("len", lengths)):
            if values:
                expected[f"episode_{name}_mean"] = _mean(values)
                expected[f"episode_{name}_min"] = min(values)
                expected[f"episode_{name}_max"] = max(values)
        if len({str(agent) for agent in self.world.agents}) == len(self.world.agents):
            expected |= _means_by_agent_and_module(window)
        return expected


def _means_by_agent_and_module(window: list[Episode]) -> dict[str, dict[str, float]]:
    """Each over those episodes of the window in which the agent or the module took part."""
    returns, steps, module_returns = defaultdict(list), defaultdict(list), defaultdict(list)
    for episode in window:
        for agent in {t.agent for t in episode.trajectories}:
            own = [t for t in episode.trajectories if t.agent == agent]
            returns[str(agent)].append(sum(sum(t.rewards) for t in own))
            steps[str(agent)].append(sum(len(t.rewards) for t in own))
        for module in {t.module for t in episode.trajectories}:
            own = [t for t in episode.trajectories if t.module == module]
            module_returns[module].append(sum(sum(t.rewards) for t in own))
    named = {"agent_episode_returns_mean": returns, "agent_steps": steps, "module_episode_returns_mean": module_returns}
    return {name: {key: _mean(values) for key, values in by_key.items()} for name, by_key in named.items()}


def _mean(values: list) -> float:
    return sum(values) / len(values)
