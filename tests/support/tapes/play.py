"""Plays a world, and checks what the runner returns and reports against the tapes of its envs."""

import pickle
import random
from collections import Counter
from typing import Any

import numpy as np

import fastmarl
from support.tapes.chunks import ChunkCheck, follow, noted
from support.tapes.envs import Tape
from support.tapes.worlds import World


class Play:
    """One runner in one world.

    Attributes:
        chunks: all that was returned: (chunk, its tape, the env step at which it was returned).
    """

    def __init__(self, world: World):
        self.world, self.rng = world, random.Random(world.seed)
        self.runner = fastmarl.MultiAgentEnvRunner(world.config())
        self.tapes: list[list[Tape]] = []
        self.chunks: list[tuple[Any, Tape, int]] = []
        self.returned: dict[str, int] = {}
        """By episode, the env step up to which it was returned."""
        self.place: dict[str, tuple[int, int]] = {}
        """By episode, (env, number)."""
        self.dropped: set[tuple[int, int]] = set()
        self.reported: Counter = Counter()
        self.unattributed = 0.0

    def run(self) -> None:
        try:
            for i, call in enumerate(self.world.calls()):
                with noted(f"call {i}: {call}"):
                    self._sample(call)
                    self._between()
            with noted("at the end"):
                for returned in self.chunks:  # chunks that were not read yet, and the others once more
                    self.check(*returned)
                self._check_joined()
        finally:
            self.runner.stop()

    def _sample(self, call: dict[str, Any]) -> None:
        world = self.world
        explore = call.get("explore")
        world.explores = (explore is None or explore) and not call.get("random_actions")
        world.acted_at_random |= "random_actions" in call
        before = [[len(tape.ticks) - 1 for tape in tapes] for tapes in self.tapes] or [[]] * world.num_envs
        chunks = self.runner.sample(**call)
        self.tapes = world.tapes(self.runner)
        steps = [
            sum(len(tape.ticks) - 1 for tape in tapes) - sum(b) for tapes, b in zip(self.tapes, before, strict=True)
        ]
        drops = "num_episodes" in call or "force_reset" in call or (world.complete and "num_timesteps" not in call)
        episodes = call.get("num_episodes", world.num_envs if drops and "force_reset" not in call else None)
        if drops:
            self._drop(before)
        for chunk in chunks:
            tape = self._tape_of(chunk)
            self.chunks.append((chunk, tape, len(tape.ticks) - 1))
            if self.rng.random() < 0.6:
                self.check(*self.chunks[-1])
        self._check_joins(chunks)
        if episodes is None:
            self._check_amount(call, steps, before)
            self._check_complete()
        else:
            self._check_whole(chunks, episodes, before, "num_episodes" not in call)
            self._drop([[len(tape.ticks) - 1 for tape in tapes] for tapes in self.tapes])
        self._check_order(chunks)

    def check(self, chunk: Any, tape: Tape, returned_at: int) -> None:
        with noted(f"episode {self.place[chunk.id_]}, env steps {chunk.env_t_started} to {chunk.env_t}"):
            ChunkCheck(self.world, tape, chunk, self.world.lookback, returned_at).run()
            if len(chunk) > 1 and self.rng.random() < 0.2:
                begin, end = sorted(self.rng.sample(range(len(chunk) + 1), 2))
                with noted(f"slice {begin}:{end}"):
                    part = chunk.slice(slice(begin, end))
                    ChunkCheck(self.world, tape, part, chunk.lookback, returned_at, is_slice=True).run()

    def _tape_of(self, chunk: Any) -> Tape:
        if chunk.id_ not in self.place:
            if self.world.tells_tape:
                info = chunk.get_common_infos()[chunk.env_t_started]
                place = info["env"], info["tape"]
                assert place not in self.place.values(), "one episode has two ids"
            else:
                (place,) = [(i, ids.index(chunk.id_)) for i, ids in enumerate(self.world.starts) if chunk.id_ in ids]
            self.place[chunk.id_] = place
        env_index, number = self.place[chunk.id_]
        return self.tapes[env_index][number]

    def _drop(self, begun: list[list[int]]) -> None:
        """Record episodes that were begun and not finished, as they are never returned."""
        for env_index, (tapes, steps) in enumerate(zip(self.tapes, begun, strict=True)):
            for tape, n in zip(tapes, steps, strict=False):
                place = env_index, tape.number
                whole = any(
                    self.returned.get(id_) == len(tape.ticks) - 1 for id_, p in self.place.items() if p == place
                )
                if n and not whole:
                    self.dropped.add(place)

    def _check_joins(self, chunks: list[Any]) -> None:
        """Check that chunks of an episode follow each other without gaps, and none belongs to a dropped episode."""
        for chunk in chunks:
            assert self.place[chunk.id_] not in self.dropped, "a chunk of a dropped episode"
            assert chunk.env_t_started == self.returned.get(chunk.id_, 0), "chunks don't join"
            self.returned[chunk.id_] = chunk.env_t

    def _check_complete(self) -> None:
        """All steps were returned."""
        returned = {self.place[id_]: t for id_, t in self.returned.items()}
        for env_index, tapes in enumerate(self.tapes):
            for tape in tapes:
                place = env_index, tape.number
                if place not in self.dropped:
                    assert returned.get(place, 0) == len(tape.ticks) - 1, f"episode {place}: not all was returned"

    def _check_whole(self, chunks: list[Any], episodes: int, before: list[list[int]], one_each: bool) -> None:
        """Check that a call returned this many whole episodes and began no others: none is chosen by its length."""
        ids = {chunk.id_ for chunk in chunks}
        places = {self.place[id_] for id_ in ids}
        assert len(ids) == len(places) == episodes
        for id_ in ids:
            of_episode = [chunk for chunk in chunks if chunk.id_ == id_]
            assert of_episode[0].env_t_started == 0
            assert of_episode[-1].is_done
        assert not one_each or {env_index for env_index, _ in places} == set(range(self.world.num_envs))
        if not self.world.is_batch:  # envs in arrays go on while they rest
            begun = {
                (env_index, tape.number)
                for env_index, tapes in enumerate(self.tapes)
                for tape in tapes
                if len(tape.ticks) > 1 and not any(before[env_index][tape.number : tape.number + 1])
            }
            assert places == begun, (places, begun)

    def _check_amount(self, call: dict[str, Any], steps: list[int], before: list[list[int]]) -> None:
        """As much as was asked for, and not a round of all envs more."""
        world = self.world
        wanted = call.get("num_timesteps", world.fragment * world.num_envs)
        if world.count_steps_by == "env_steps":
            assert wanted <= sum(steps) < wanted + world.num_envs, (wanted, steps)
            if world.num_splits == 1 and not world.is_async:
                assert len(set(steps)) == 1, steps
        else:
            made = 0
            for tapes, done in zip(self.tapes, before, strict=True):
                done = [*done, *[0] * (len(tapes) - len(done))]
                made += sum(len(t.actions) for tape, n in zip(tapes, done, strict=True) for t in tape.ticks[n:-1])
            most = world.num_envs * len(world.agents)
            assert wanted <= made < wanted + most or made == wanted == 0, (wanted, made)

    def _check_order(self, chunks: list[Any]) -> None:
        last_ones = {
            chunk.id_: i for i, chunk in enumerate(chunks)
        }.values()  # where an agent came again, there are more
        chunks = [chunks[i] for i in sorted(last_ones)]
        running = [self.place[chunk.id_][0] for chunk in chunks if not chunk.is_done]
        over = [self._tape_of(chunk).ticks[-1].order for chunk in chunks if chunk.is_done]
        assert self.world.respawn or running == sorted(running), "running episodes come in env order"
        if not self.world.is_async and self.world.num_splits == 1:
            assert over == sorted(over), "finished episodes come in the order of finishing"

    def _between(self) -> None:
        """Act like a learner between two calls."""
        if self.rng.random() < 0.3:
            self.world.weights_seq_no += 1
            weights = {name: {"weight": np.float32(self.world.weights_seq_no)} for name in self.world.options}
            self.runner.set_weights(weights, weights_seq_no=self.world.weights_seq_no)
        if self.rng.random() < 0.4:
            self._check_metrics()

    def _check_metrics(self) -> None:
        got, world = self.runner.get_metrics(), self.world
        all_tapes = [tape for tapes in self.tapes for tape in tapes]
        env_steps = sum(len(tape.ticks) - 1 for tape in all_tapes)
        agents = Counter(str(agent) for tape in all_tapes for tick in tape.ticks for agent in tick.actions or ())
        if not (world.is_batch and world.drops):  # envs in arrays go on while they rest
            assert got["num_env_steps_sampled_lifetime"] == env_steps
            assert got["num_env_steps_sampled"] == env_steps - self.reported["env_steps"]
            assert got["num_agent_steps_sampled_lifetime"] == dict(agents)
        self.reported["env_steps"] = env_steps
        finished = [(chunk, tape) for chunk, tape, _ in self.chunks if chunk.is_done]
        assert got["num_episodes_lifetime"] == len(finished)
        assert got["num_episodes"] == len(finished) - self.reported["episodes"]
        self.reported["episodes"] = len(finished)
        if not world.drops:
            self._check_unattributed(got)
        if finished:
            last = finished[-world.window :]
            lengths = [len(tape.ticks) - 1 for _, tape in last]
            returns = [self._attributed(chunk.id_, tape) for chunk, tape in last]
            for name, numbers in ("len", lengths), ("return", returns):
                for how, of in ("mean", np.mean), ("min", np.min), ("max", np.max):
                    key = f"episode_{name}_{how}"
                    assert np.isclose(got[key], of(numbers)), (key, got[key], numbers)

    def _attributed(self, id_: str, tape: Tape) -> float:
        """Return the sum of rewards on transitions of an episode that is over."""
        return sum(
            follow(tape, agent).attributed(self._cuts(id_), self.world.late_rewards) for agent in self.world.agents
        )

    def _cuts(self, id_: str | None) -> list[tuple[int, int]]:
        """Return (its end, the env step at which it was returned) for each chunk of an episode."""
        return [(chunk.env_t, returned_at) for chunk, _, returned_at in self.chunks if chunk.id_ == id_]

    def _check_unattributed(self, got: dict[str, Any]) -> None:
        """Check that every reward is on a transition, may still reach one, or is reported as unattributed."""
        self.unattributed += got["unattributed_reward"]
        expected = 0.0
        for env_index, tapes in enumerate(self.tapes):
            for tape in tapes:
                (id_,) = [id_ for id_, place in self.place.items() if place == (env_index, tape.number)] or [None]
                cuts = self._cuts(id_)
                for agent in self.world.agents:
                    expected += follow(tape, agent).unattributed_by(cuts, self.world.late_rewards)
        assert np.isclose(self.unattributed, expected), (self.unattributed, expected)

    def _check_joined(self) -> None:
        """Chunks that are put together, or came through a pipe, are what they were."""
        world = self.world
        by_id: dict[str, list[Any]] = {}
        for chunk, *_ in self.chunks:
            by_id.setdefault(chunk.id_, []).append(chunk)
        for chunks in by_id.values():
            copies = pickle.loads(pickle.dumps(chunks))
            if self.rng.random() < 0.3:
                self.check(copies[-1], *next(rest for chunk, *rest in self.chunks if chunk is chunks[-1]))
            if world.respawn or world.late_rewards == "accumulate":
                continue
            for chunk in copies[1:]:
                copies[0].concat_episode(chunk)
            with noted(f"episode {self.place[copies[0].id_]}, joined"):
                ChunkCheck(world, self._tape_of(copies[0]), copies[0], world.lookback, copies[0].env_t).run()
