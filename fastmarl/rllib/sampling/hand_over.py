"""From the fast way to RLlib's own loop, and back again, between two calls."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastmarl.rllib.recording.builder import Builder
from fastmarl.rllib.recording.records import ChunkNumbers
from fastmarl.rllib.sampling.core import Core


@dataclass(frozen=True, slots=True)
class EarlierAgent:
    """One agent in numbers.

    Attributes:
        n_steps: completed ones.
    """

    agent_id: Hashable
    module_id: str
    n_steps: int
    total: Any

    def __len__(self) -> int:
        return self.n_steps

    def get_return(self) -> Any:
        """Sum of its rewards."""
        return self.total


class EarlierChunk:
    """A chunk that was returned before RLlib's loop took over: what RLlib's metrics ask of it is known, and no more."""

    def __init__(self, numbers: ChunkNumbers):
        self._numbers = numbers
        self.agent_episodes = {numbers_of[0]: EarlierAgent(*numbers_of) for numbers_of in numbers.agents}

    def __len__(self) -> int:
        return self._numbers.length

    def get_return(self) -> Any:
        """Sum of all agents' rewards."""
        return sum(agent.total for agent in self.agent_episodes.values())

    def get_duration_s(self) -> float:
        """Seconds."""
        return self._numbers.duration_s

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} of a chunk that sample() returned before this callback was added: only len(), get_return(), "
            "get_duration_s() and agent_episodes are known of it; add callbacks before the first call of sample()"
        )


def hand_over(core: Core, builder: Builder, autoreset: list[bool], pieces: list[Any], explore: bool) -> None:
    """Set RLlib's runner up as if its own loop had sampled up to now.

    Args:
        autoreset: per env, whether it is to be reset instead of stepped.
        pieces: of the env-to-module connector pipeline in the last call; what they make of the last observations is
            what the modules act upon next.
    """
    runner = core.runner
    runner._ongoing_episodes = [_ongoing(core, builder, env_index) for env_index in range(runner.num_envs)]
    runner._ongoing_episodes_for_metrics.clear()
    for record in core.running():
        if record.earlier:
            runner._ongoing_episodes_for_metrics[record.id_] = [EarlierChunk(numbers) for numbers in record.earlier]
    runner.env._autoreset_envs = np.array(autoreset, np.bool_)
    runner._shared_data = {}
    batch: Any = {}
    for piece in pieces:
        batch = piece(
            rl_module=runner.module,
            batch=batch,
            episodes=runner._ongoing_episodes,
            explore=explore,
            shared_data=runner._shared_data,
        )
    runner._cached_to_module = batch


def take_back(runner: Any, finished: list[list[ChunkNumbers]]) -> None:
    """Take over the episodes that ended in RLlib's loop and are not in the metrics yet, in numbers.

    All envs are about to be reset, and at that RLlib forgets the earlier chunks of such episodes.
    """
    for episode in runner._done_episodes_for_metrics:
        agents = [
            (agent_episode.agent_id, agent_episode.module_id, len(agent_episode), agent_episode.get_return())
            for agent_episode in episode.agent_episodes.values()
        ]
        finished.append([ChunkNumbers(len(episode), episode.get_duration_s(), agents)])
    runner._done_episodes_for_metrics.clear()


def _ongoing(core: Core, builder: Builder, env_index: int) -> Any:
    record = core.record_of(env_index)
    make = builder.empty_episode if record.awaits_reset else builder.running_episode
    episode = make(record, record.policy_mapping_fn)
    episode.resume_clock()
    return episode
