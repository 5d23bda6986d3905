"""The required contents of a chunk, by the definitions of the documentation, from the tape of the whole episode."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from support.tapes.envs import Tape, row
from support.tapes.spaces import leaf_spaces, leaves, number, same


@dataclass
class Trajectory:
    """One stay of an agent: it is observed at `at`, and transition i goes from at[i] to at[i + 1]."""

    at: list[int]
    rewards_from: int
    """The first tick whose reward counts."""
    rewards: list[float] = field(default_factory=list)
    late: list[tuple[int, float]] = field(default_factory=list)
    """(tick, reward) after its end."""
    waiting: float = 0.0
    """Paid since the last observation; before the first, too, if there was only one."""
    end: tuple[bool, bool] | None = None
    stands_in: bool = False
    """Whether its last observation was never sent: the one before it is taken."""

    def has_ended(self, t: int) -> bool:
        return self.end is not None and self.at[-1] <= t


@dataclass
class Agent:
    """One agent in an episode."""

    stays: list[Trajectory] = field(default_factory=list)
    unattributed: float = 0.0
    """What reached no transition, but for `late`."""

    def attributed(self, cuts: list[tuple[int, int]], late_rewards: str) -> float:
        """Return the sum of rewards on transitions; `cuts` has (end, env step when it was returned) of each chunk."""
        return sum(sum(stay.rewards) + sum(self._accumulated(stay, cuts, late_rewards)) for stay in self.stays)

    def unattributed_by(self, cuts: list[tuple[int, int]], late_rewards: str) -> float:
        """Return the sum of rewards that never will be on transitions."""
        late = sum(
            sum(r for _, r in stay.late) - sum(self._accumulated(stay, cuts, late_rewards)) for stay in self.stays
        )
        return self.unattributed + late

    def _accumulated(self, stay: Trajectory, cuts: list[tuple[int, int]], late_rewards: str) -> list[float]:
        """Return the late rewards that still reached the last transition."""
        if late_rewards != "accumulate" or not stay.rewards:
            return []
        returned_at = min((at for end, at in cuts if end >= stay.at[-1]), default=np.inf)
        return [reward for t, reward in stay.late if t <= returned_at]


def follow(tape: Tape, agent: Hashable) -> Agent:
    """Return the agent's way through the episode so far."""
    way, stay, early = Agent(), None, 0.0
    for t, tick in enumerate(tape.ticks):
        reward, own = tick.rewards.get(agent, 0.0), tick.flags.get(agent, (False, False))
        all_done = tick.flags.get("__all__", (False, False))
        acted = next((stay for stay in reversed(way.stays) if stay.rewards), None)
        returns = acted is not None and stay is None and agent in tick.obs and not (any(own) or any(all_done))
        if stay is not None:
            stay.waiting += reward
            if agent in tick.obs:
                _arrive(stay, t)
        elif acted is not None and not returns:
            acted.late.append((t, reward))
        else:
            early += reward
        if stay is None and agent in tick.obs:
            stay = Trajectory([t], 0 if acted is None else t if returns else t + 1, waiting=early)
            way.stays.append(stay)
            early = 0.0
        if stay is not None and (any(own) or any(all_done)):
            stay.end = own if any(own) else all_done
            if stay.at[-1] != t:
                stay.stands_in = True
                _arrive(stay, t)
            early, stay.waiting, stay = stay.waiting, 0.0, None  # of one who has not acted
    if any(tape.end):
        way.unattributed = early
    return way


def _arrive(stay: Trajectory, t: int) -> None:
    stay.at.append(t)
    stay.rewards.append(stay.waiting)
    stay.waiting = 0.0


class ChunkCheck:
    """Compares one chunk with its episode's tape; each method raises AssertionError.

    Args:
        world: the World.
        tape: of the chunk's episode, at any later time.
        chunk: the MultiAgentEpisode.
        lookback: env steps before the chunk of which it may tell.
        returned_at: the env step that the episode had reached when the chunk was returned.
        is_slice: what else was known in the whole chunk is gone.
    """

    def __init__(self, world: Any, tape: Tape, chunk: Any, lookback: int, returned_at: int, is_slice: bool = False):
        self.world, self.tape, self.chunk = world, tape, chunk
        self.begin, self.end, self.lookback = chunk.env_t_started, chunk.env_t, lookback
        self.returned_at, self.is_slice = returned_at, is_slice

    def run(self) -> None:
        chunk, ticks = self.chunk, self.tape.ticks
        assert 0 <= self.begin <= self.end < len(ticks), (self.begin, self.end, len(ticks))
        chunk.validate()
        is_last = self.end == len(ticks) - 1 and any(self.tape.end)
        assert (chunk.is_terminated, chunk.is_truncated) == (self.tape.end if is_last else (False, False))
        ways = {agent: follow(self.tape, agent) for agent in self.world.agents}
        expected = {agent: stays for agent, way in ways.items() if (stays := self._stays(way))}
        assert set(chunk.agent_episodes) == set(expected), (set(chunk.agent_episodes), set(expected))
        for agent, stays in expected.items():
            assert len(stays) == 1, f"{agent!r} came again within a chunk"
            with noted(f"agent {agent!r}"):
                self._check_part(agent, chunk.agent_episodes[agent], stays[0])
        self._check_whole(ways)

    def _stays(self, way: Agent) -> list[Trajectory]:
        """Those with transitions that end in this chunk."""
        return [stay for stay in way.stays if any(self.begin < t <= self.end for t in stay.at[1:])]

    def _check_part(self, agent: Hashable, part: Any, stay: Trajectory) -> None:
        first = min(i for i in range(len(stay.at) - 1) if stay.at[i + 1] > self.begin)
        last = max(i for i, t in enumerate(stay.at) if t <= self.end)
        before = sum(t >= self.begin - self.lookback for t in stay.at[:first])
        rows = range(first - before, last + 1)
        assert part.agent_id == agent
        assert part.lookback == before, (part.lookback, before)
        assert (part.t_started, part.t, len(part)) == (first, last, last - first)
        assert part.env_ts().tolist() == [stay.at[i] for i in rows]
        is_end = stay.end is not None and last == len(stay.at) - 1
        assert (part.is_terminated, part.is_truncated) == (stay.end if is_end else (False, False))
        assert part.module_id == self.world.mapped[self.chunk.id_, agent]
        sent = [self.tape.ticks[t].obs.get(agent) for t in stay.at]
        if stay.stands_in:
            sent[-1] = sent[-2]
        self._check_observations(agent, part, [sent[i] for i in rows])
        self._check_rewards(part, stay, rows)
        infos = [self.tape.ticks[stay.at[i]].infos.get(agent, {}) for i in rows]
        assert same_infos(part.get_infos(slice(-before, None) if before else None, neg_index_as_lookback=True), infos)
        self._check_actions(agent, part, [self.tape.ticks[stay.at[i]] for i in rows[:-1]])
        self._check_outputs(part, [self.tape.ticks[stay.at[i]] for i in rows[:-1]], sent, rows)

    def _check_observations(self, agent: Hashable, part: Any, expected: list[Any]) -> None:
        space = self.world.spaces[agent][0]
        got = with_lookback(part, part.get_observations)
        for (path, column), (_, leaf_space) in zip(leaves(got), leaf_spaces(space), strict=True):
            narrow = leaf_space.dtype == np.float64 and not self.world.keep_float64
            assert column.dtype == (np.float32 if narrow else leaf_space.dtype), path
            assert column.shape == (len(expected), *leaf_space.shape), path
        for i, value in enumerate(expected):
            assert same(row(got, i), value), f"observation {i}: {row(got, i)} instead of {value}"

    def _check_rewards(self, part: Any, stay: Trajectory, rows: range) -> None:
        rewards = list(stay.rewards)
        if self.world.late_rewards == "accumulate" and stay.end is not None and rewards:
            rewards[-1] += sum(reward for t, reward in stay.late if t <= self.returned_at)
        got = with_lookback(part, part.get_rewards)
        assert got.dtype == np.float64
        expected = [self.world.recorded_reward(rewards[i]) for i in rows[:-1]]
        assert got.tolist() == expected, (got.tolist(), expected)

    def _check_actions(self, agent: Hashable, part: Any, ticks: list[Any]) -> None:
        got = with_lookback(part, part.get_actions)
        for i, tick in enumerate(ticks):
            for (_, mine), (_, theirs), (_, space) in zip(
                leaves(row(got, i)), leaves(tick.actions[agent]), leaf_spaces(self.world.spaces[agent][1]), strict=True
            ):
                assert np.allclose(as_env_takes(space, mine), theirs, atol=1e-5), (i, mine, theirs)
            mask = tick.infos.get(agent, {}).get("action_mask")
            assert mask is None or mask[int(tick.actions[agent])], f"action {i} is not legal"

    def _check_outputs(self, part: Any, ticks: list[Any], sent: list[Any], rows: range) -> None:
        keys = part.extra_model_output_keys
        if not keys or self.world.acted_at_random:
            return
        options = self.world.options[part.module_id]
        assert {"seen", "weight", "weights_seq_no"} <= set(keys)
        if not self.world.is_async and all(tick.explores for tick in ticks):  # else envs don't hear of it
            assert ("action_logp" in keys) == options["draws"]
        got = {
            key: with_lookback(part, lambda *a, key=key, **k: part.get_extra_model_outputs(key, *a, **k))
            for key in keys
        }
        numbers = [number(tuple(leaf for _, leaf in leaves(value))) for value in sent]
        assert got["seen"].tolist() == [numbers[i] for i in rows[:-1]]
        if not self.world.is_async:
            in_force = [tick.weights_seq_no for tick in ticks]
            assert got["weights_seq_no"].tolist() == in_force
            assert got["weight"].tolist() == in_force
        if options["remembers"]:
            assert got["state_out"]["n"].tolist() == [i + 1 for i in rows[:-1]]
            sums = [sum(numbers[: i + 1]) for i in rows[:-1]]
            assert got["state_out"]["of"]["sum"][:, 0].tolist() == sums
        is_discrete = isinstance(self.world.spaces[part.agent_id][1], gym.spaces.Discrete)
        if options["draws"] and is_discrete and not self.world.is_async:
            inputs, actions = got["action_dist_inputs"].astype(np.float64), with_lookback(part, part.get_actions)
            logp = inputs[np.arange(len(inputs)), actions] - np.log(np.exp(inputs).sum(1))
            asked = [i for i, tick in enumerate(ticks) if tick.explores]
            assert not asked or np.allclose(got["action_logp"][asked], logp[asked], atol=1e-4)

    def _check_whole(self, ways: dict[Hashable, Agent]) -> None:
        chunk, ticks = self.chunk, self.tape.ticks
        if self.world.has_state:
            states = chunk.get_env_states()
            assert states.tolist() == [tick.state.tolist() for tick in ticks[self.begin : self.end + 1]]
        if self.world.tells_tape:
            got = {t: info for t, info in chunk.get_common_infos().items() if t >= self.begin}
            assert got == {t: ticks[t].infos["__common__"] for t in range(self.begin, self.end + 1)}
        if chunk.is_done:
            assert chunk.get_agents_to_act() == set()
        else:
            acting = {
                agent
                for agent, way in ways.items()
                if any(self.end in stay.at and not stay.has_ended(self.end) for stay in way.stays)
            }
            if self.is_slice:  # who has no transition in the whole chunk is not known
                acting &= chunk.get_agents_to_act() | set(chunk.agent_episodes)
            assert chunk.get_agents_to_act() == acting, (chunk.get_agents_to_act(), acting)
        if not self.is_slice:
            hanging = sum(self.world.recorded_reward(self._hanging(*item)) for item in ways.items())
            got = chunk.get_return(include_hanging_rewards=True) - chunk.get_return()
            assert np.isclose(got, hanging), (got, hanging)

    def _hanging(self, agent: Hashable, way: Agent) -> float:
        """Return the rewards of an agent that has acted and waits for an observation at the end of the chunk."""
        for stay in way.stays:
            seen = [t for t in stay.at if t <= self.end]
            if seen and seen[-1] < self.end and not stay.has_ended(self.end):
                first = seen[-1] + 1 if len(seen) > 1 else stay.rewards_from
                return sum(tick.rewards.get(agent, 0.0) for tick in self.tape.ticks[first : self.end + 1])
        return 0.0


def with_lookback(part: Any, getter: Any) -> Any:
    """Return a column with the lookback in front."""
    return getter(slice(-part.lookback, None), neg_index_as_lookback=True) if part.lookback else getter()


def as_env_takes(space: gym.Space, action: Any) -> Any:
    """Apply normalize_actions to a module's action."""
    if isinstance(space, gym.spaces.Box) and space.is_bounded():
        return np.clip(space.low + (action + 1) * (space.high - space.low) / 2, space.low, space.high)
    return action


def same_infos(got: list[dict], expected: list[dict]) -> bool:
    return len(got) == len(expected) and all(same(a, b) for a, b in zip(got, expected, strict=True))


class noted:
    """Adds a note to errors that are raised inside."""

    def __init__(self, note: str):
        self.note = note

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            error.add_note(self.note)
