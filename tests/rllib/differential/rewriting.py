"""Callbacks and runners that rewrite what was recorded, at every hook, as their seed says."""

import random
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from rllib.differential import tape

OFTEN, SELDOM = 0.5, 0.15


class Rewriter(RLlibCallback):
    """Rewrites rewards, and now and then other data, of the episode it is given and of chunks that were returned.

    The same seed does the same in every run. What it leaves alone: data whose getters differ from RLlib's (57).
    """

    seed = 0

    def __init__(self) -> None:
        super().__init__()
        rng = random.Random(f"rewriter {self.seed}")
        hooks = ("created", "start", "step", "end", "earlier", "sample_end", "returned")
        self.hooks = {*rng.sample(hooks, rng.randint(1, len(hooks)))}
        self.is_wild = rng.random() < 0.5
        self.numbers: Counter[str] = Counter()
        self.returned: list[Any] = []  # the chunks of the last calls

    def on_episode_created(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        if rng := self._turn("created"):
            episode.custom_data["created"] = rng.random()
        self._rewrite_returned("returned")

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        if rng := self._turn("start"):
            episode.custom_data["start"] = rng.random()
            self._rewrite_observations(rng, episode)
        self._rewrite_returned("returned")

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        if (rng := self._turn("step")) and rng.random() < OFTEN:
            self._rewrite_running(rng, episode)
        if self.numbers["step"] % 5 == 0:
            self._rewrite_returned("returned")

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: Any, **kwargs: Any) -> None:
        if rng := self._turn("end"):
            self._rewrite_running(rng, episode)
        if rng := self._turn("earlier"):
            for chunk in prev_episode_chunks:
                rewrite_chunk(rng, chunk, is_wild=self.is_wild)
        tape.note("callback", "end", tuple(map(_outline, prev_episode_chunks)), _outline(episode))

    def on_sample_end(self, *, samples: list, **kwargs: Any) -> None:
        if rng := self._turn("sample_end"):
            for chunk in samples:
                rewrite_chunk(rng, chunk, is_wild=self.is_wild)
        self._rewrite_returned("returned")
        self.returned = [*self.returned[-3:], *samples]
        tape.note("callback", "sample_end", tuple(map(_outline, samples)))

    def _turn(self, hook: str) -> random.Random | None:
        """Return random numbers for a hook at which this callback rewrites, or None."""
        self.numbers[hook] += 1
        return random.Random(f"{self.seed} {hook} {self.numbers[hook]}") if hook in self.hooks else None

    def _rewrite_returned(self, hook: str) -> None:
        if rng := self._turn(hook):
            for chunk in self.returned:
                if rng.random() < SELDOM:
                    rewrite_chunk(rng, chunk, is_wild=False)

    def _rewrite_running(self, rng: random.Random, episode: Any) -> None:
        for part in episode.agent_episodes.values():
            if len(part) and rng.random() < OFTEN:
                number = rng.choice((0, 2, -1.5, 0.1))
                kind = rng.randrange(4)
                if kind == 0:
                    part.rewards.data[-1] = number
                elif kind == 1:
                    part.set_rewards(new_data=number, at_indices=-1)
                elif kind == 2:
                    part.rewards.data[part.rewards.lookback :] = [number * i for i in range(len(part))]
                else:
                    part.rewards.data[:] = [reward and reward + number for reward in part.rewards.data]
        if self.is_wild and rng.random() < SELDOM:
            episode.custom_data["step"] = rng.random()
            self._rewrite_observations(rng, episode)

    def _rewrite_observations(self, rng: random.Random, episode: Any) -> None:
        for part in episode.agent_episodes.values():
            newest = part.observations.data[-1]
            if self.is_wild and isinstance(newest, np.ndarray) and newest.dtype == np.float32:
                part.observations.data[-1] = newest * np.float32(rng.choice((0.5, 0.25)))


def rewrite_chunk(rng: random.Random, chunk: Any, *, is_wild: bool) -> None:
    """Rewrite a returned chunk's rewards; if `is_wild`, also what else the metrics depend on."""
    for part in chunk.agent_episodes.values():
        if not len(part) or rng.random() < OFTEN:
            continue
        rewards, number = np.asarray(part.get_rewards()), rng.choice((2, -1, 10))
        kind = rng.randrange(4)
        if rewards.dtype == object or kind == 0:
            part.rewards.data = np.full(len(part.rewards.data), number, np.float32)
        elif kind == 1:
            part.set_rewards(new_data=rewards * number, at_indices=slice(0, len(part)))
        elif kind == 2 and part.rewards.data.flags.writeable:
            part.rewards.data[-1:] *= number
        else:
            part.rewards.data = part.rewards.data * 0.5
    if is_wild and rng.random() < OFTEN:
        _rewrite_outline(rng, chunk)


def _rewrite_outline(rng: random.Random, chunk: Any) -> None:
    parts = [*chunk.agent_episodes.items()]
    kind = rng.randrange(5)
    chunk.custom_data["rewritten"] = kind
    if kind == 0:
        chunk.env_t += rng.randint(1, 3)
    elif parts and kind == 1:
        del chunk.agent_episodes[rng.choice(parts)[0]]
    elif parts and kind == 2:
        rng.choice(parts)[1].t += 2
    elif parts and kind == 3:
        rng.choice(parts)[1].module_id = "another"
    elif parts and kind == 4:
        chunk.agent_episodes = dict(parts[: rng.randint(0, len(parts))])


def _outline(chunk: Any) -> tuple:
    return len(chunk), tape.freeze(chunk.get_return()), tuple(map(len, chunk.agent_episodes.values()))


@cache
def rewriter(seed: int) -> type[Rewriter]:
    """Return a callback class for a seed."""
    return type("Rewriter", (Rewriter,), {"seed": seed})


@cache
def rewriting(base: type, seed: int) -> type:
    """Return a subclass of a runner's class that rewrites what its sample() returns."""

    class Rewriting(base):  # type: ignore[misc,valid-type]
        def sample(self, **arguments: Any) -> list[Any]:
            chunks: list[Any] = super().sample(**arguments)
            self.n_calls = getattr(self, "n_calls", 0) + 1
            rng = random.Random(f"runner {seed} {self.n_calls}")
            self.all_chunks = [*getattr(self, "all_chunks", [])[-5:], *chunks]
            for chunk in self.all_chunks if rng.random() < SELDOM else chunks:
                rewrite_chunk(rng, chunk, is_wild=seed % 2 == 0)
            return chunks

    return Rewriting
