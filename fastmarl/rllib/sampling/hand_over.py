"""From the fast way to RLlib's own loop, and back again, between two calls."""

from typing import Any

import numpy as np

from fastmarl.rllib.recording.records import ChunkNumbers
from fastmarl.rllib.sampling.core import Core
from fastmarl.rllib.sampling.episode_events import EpisodeEvents


def hand_over(core: Core, events: EpisodeEvents, autoreset: list[bool], pieces: list[Any], explore: bool) -> None:
    """Set RLlib's runner up as if its own loop had sampled up to now.

    Args:
        events: has the running episodes as callbacks know them.
        autoreset: per env, whether it is to be reset instead of stepped.
        pieces: of the env-to-module connector pipeline in the last call; what they make of the last observations is
            what the modules act upon next.
    """
    runner = core.runner
    runner._ongoing_episodes = [events.whole_episode(record) for record in core.running()]
    for episode in runner._ongoing_episodes:
        episode.resume_clock()
    for record in core.running():
        events.complete_earlier_chunks(record)
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
    finished += [[ChunkNumbers.of(episode)] for episode in runner._done_episodes_for_metrics]
    runner._done_episodes_for_metrics.clear()
