"""Runs a world through the runner and the oracle side by side, and compares what they say."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import fastmarl
from support.replay import encode_actions, leaves, make_config, recorded
from support.runner import AgentChunk, Chunk, ReferenceRunner
from support.worlds import Call, World


class SideBySide:
    """One runner and one oracle over the same world."""

    def __init__(self, world: World, **options: Any):
        config, self.envs = make_config(world, **options)
        self.world = world
        self.runner = fastmarl.MultiAgentEnvRunner(config)
        self.oracle = ReferenceRunner(world, batched=bool(options.get("batched")))
        self.ids: dict[tuple[int, int], str] = {}

    def run(self) -> Iterator[tuple[Any, Chunk]]:
        """All calls of the world: pairs of a returned chunk and what it should be, in the order promised."""
        for call in self.world.calls:
            yield from self.sample(call)

    def sample(self, call: Call) -> list[tuple[Any, Chunk]]:
        """The chunks of one call. Raises AssertionError if there are more, fewer, or they come in another order."""
        got = self.runner.sample(**call.kwargs)
        want = self.oracle.sample(call)
        if self.world.respawn:
            got, want = by_first_serial(got, first_serial), by_first_serial(want, lambda chunk: chunk.first_serial)
        assert [outline(chunk) for chunk in got] == [
            (c.env_t_started, c.env_t, c.terminated, c.truncated, set(c.agents)) for c in want
        ], call
        for chunk, expected in zip(got, want, strict=True):
            assert self.ids.setdefault(expected.id_, chunk.id_) == chunk.id_
        assert len(set(self.ids.values())) == len(self.ids), "two episodes share an id"
        return list(zip(got, want, strict=True))

    def assert_same_actions(self) -> None:
        """Check that every env got the policy's actions in the types of its spaces, and no needless resets."""
        for env in self.envs:
            assert env.resets <= self.oracle.resets[env.index], "the last reset may wait for the next call"
        received = {
            when: actions
            for env in self.envs
            for when, actions in env.actions.items()
            if when[:2] not in self.oracle.unrecorded
        }
        assert received.keys() == self.oracle.env_actions.keys()
        for when, actions in received.items():
            expected = self.oracle.env_actions[when]
            assert actions.keys() == expected.keys(), when
            for agent, action in actions.items():
                _assert_env_action(self.world.action_kinds[self.world.module_of[agent]], action, expected[agent])

    def assert_same_metrics(self) -> None:
        got = self.runner.get_metrics()
        for name, expected in self.oracle.metrics().items():
            value = _without_nothing(got.get(name, {})) if isinstance(expected, dict) else got[name]
            assert value == (_without_nothing(expected) if isinstance(expected, dict) else expected), name


def by_first_serial(chunks: Sequence[Any], serial: Callable[[Any], int]) -> list[Any]:
    """Return finished chunks unchanged and the others sorted, as their order after respawns is unspecified.

    Raises:
        AssertionError: a chunk comes before an earlier one of its episode.
    """
    running = [chunk for chunk in chunks if not chunk.is_done]
    for i, chunk in enumerate(chunks):
        assert not any(later.id_ == chunk.id_ and later.env_t <= chunk.env_t for later in chunks[i + 1 :])
    return [chunk for chunk in chunks if chunk.is_done] + sorted(running, key=serial)


def first_serial(chunk: Any) -> int:
    """Return the lowest serial number of the observations that agents acted upon; 0 if there are none."""
    parts = chunk.agent_episodes.values()
    return min((int(part.get_extra_model_outputs("serial", 0)) for part in parts), default=0)


def outline(chunk: Any) -> tuple:
    agents = set(chunk.agent_episodes)
    assert set(chunk.agent_ids) == agents
    return chunk.env_t_started, chunk.env_t, bool(chunk.is_terminated), bool(chunk.is_truncated), agents


def assert_same_chunk(world: World, got: Any, want: Chunk) -> None:
    """Compare everything that a chunk can be asked for."""
    assert len(got) == got.env_steps() == want.env_t - want.env_t_started
    assert got.agent_steps() == sum(part.steps for part in want.agents.values())
    assert got.get_return() == want.total
    assert got.get_return(include_hanging_rewards=True) == want.total + want.hanging
    of_the_chunk = {t: info for t, info in got.get_common_infos().items() if want.env_t_started < t <= want.env_t}
    assert of_the_chunk == want.common_infos
    assert got.get_agents_to_act() == want.acting
    assert got.is_done == (want.terminated or want.truncated)
    for agent, part in want.agents.items():
        episode = got.agent_episodes[agent]
        assert episode.agent_id == agent
        assert episode.module_id == got.module_for(agent) == part.module
        _assert_same_part(world, episode, part, agent)


def _assert_same_part(world: World, got: Any, want: AgentChunk, agent: Any) -> None:
    assert (len(got), got.lookback) == (want.steps, want.lookback), agent
    assert (got.t_started, got.t) == (want.t_started, want.t_started + want.steps), agent
    assert (got.is_terminated, got.is_truncated) == (want.terminated, want.truncated), agent
    assert got.get_return() == want.total, agent
    columns = all_columns(got, want.lookback)
    _assert_same(columns["obs"], recorded(world, want.module, want.obs), (agent, "obs"))
    actions = encode_actions(world.action_kinds[want.module], want.actions)
    _assert_same(columns["actions"], actions, (agent, "actions"))
    _assert_same(columns["rewards"], np.array(want.rewards), (agent, "rewards"))
    assert columns["serial"].tolist() == want.obs[:-1], (agent, "serial")
    assert columns["two"].tolist() == [[s, -s] for s in want.obs[:-1]], (agent, "two")
    assert columns["infos"] == want.infos, (agent, "infos")
    assert env_ts_of(got) == want.env_ts, (agent, "env_ts")


def _assert_same(got: Any, want: Any, what: tuple) -> None:
    for value, expected in zip(leaves(got), leaves(want), strict=True):
        assert value.dtype == expected.dtype, (what, value.dtype, expected.dtype)
        assert value.shape == expected.shape, (what, value.shape, expected.shape)
        assert (value == expected).all(), (what, value, expected)


def _assert_env_action(kind: str, action: Any, expected: Any) -> None:
    if kind == "discrete":
        assert type(action) is int and action == expected
    else:
        assert action.dtype == (np.float32 if kind == "box" else np.int64)
        assert action.tolist() == expected


def all_columns(episode: Any, lookback: int) -> dict[str, Any]:
    """Everything a single agent's chunk holds, from the first item of its lookback on."""
    everything = {"indices": slice(-lookback if lookback else 0, None), "neg_index_as_lookback": True}
    return {
        "obs": episode.get_observations(**everything),
        "actions": episode.get_actions(**everything),
        "rewards": episode.get_rewards(**everything),
        "serial": episode.get_extra_model_outputs("serial", **everything),
        "two": episode.get_extra_model_outputs("two", **everything),
        "infos": episode.get_infos(**everything),
    }


def env_ts_of(episode: Any) -> list[int]:
    return episode.env_ts().tolist()


def fingerprint(chunk: Any, lookbacks: dict[Any, int]) -> str:
    """sha256 over every byte of every column."""
    digest = hashlib.sha256()
    for agent, lookback in lookbacks.items():
        columns = all_columns(chunk.agent_episodes[agent], lookback)
        for name in ("obs", "actions", "rewards", "serial", "two"):
            for leaf in leaves(columns[name]):
                digest.update(np.ascontiguousarray(leaf).tobytes())
        digest.update(repr((columns["infos"], env_ts_of(chunk.agent_episodes[agent]))).encode())
    digest.update(repr(outline(chunk)[:4]).encode())
    return digest.hexdigest()


def join(chunks: Sequence[Any]) -> Any:
    """The chunks of one episode, in one piece."""
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole.concat_episode(chunk)
    return whole


def _without_nothing(counts: dict[str, float]) -> dict[str, float]:
    return {key: count for key, count in counts.items() if count and not math.isnan(count)}
