"""From the fast way to RLlib's own loop, and back again, between two calls."""

from typing import Any

import numpy as np
import tree
from ray.rllib.core.columns import Columns

from fastmarl.rllib.connectors.frames import StackedFrames
from fastmarl.rllib.sampling.core import Core
from fastmarl.rllib.sampling.episode_events import EpisodeEvents
from fastmarl.rllib.sampling.to_module import ToModule
from fastmarl.rllib.store.records import ChunkNumbers


def hand_over(core: Core, events: EpisodeEvents, autoreset: list[bool], to_module: ToModule, explore: bool) -> None:
    """Set RLlib's runner up as if its own loop had sampled up to now.

    Args:
        events: has the running episodes as callbacks know them.
        autoreset: per env, whether it is to be reset instead of stepped.
        to_module: has what pieces made of the last observations, upon which the modules act next.
    """
    runner = core.runner
    runner._ongoing_episodes = [events.whole_episode(record) for record in core.running()]
    for episode in runner._ongoing_episodes:
        episode.resume_clock()
    for record in core.running():
        events.complete_earlier_chunks(record)
    runner.env._autoreset_envs = np.array(autoreset, np.bool_)
    batch: Any = {}
    frames = core.connectors.frames
    for piece in [*([] if frames is None else [frames.piece]), *core.to_module.default]:  # others have run
        batch = piece(
            rl_module=runner.module,
            batch=batch,
            episodes=runner._ongoing_episodes,
            explore=explore,
            shared_data=runner._shared_data,
        )
        if frames is not None and piece is frames.piece:
            batch[Columns.OBS].update(_as_before(core, frames))
    runner._cached_to_module = to_module.hand_over(batch) if core.to_module.makes_batches else batch


def _as_before(core: Core, frames: StackedFrames) -> dict[tuple, list[Any]]:
    """The stacks that were made before the cut, when the episodes reached back further, as RLlib's batch has them."""
    table, store, stacks = core.table, core.store, dict[tuple, list[Any]]()
    id_of = [record.id_ for record in core.running()]
    for module, module_id in enumerate(store.module_ids):
        lanes = store.blocks[module].lane_R[store.acting_from[module] : store.rows[module].n].tolist()
        for place, lane in enumerate(lanes):
            key = id_of[table.env_L[lane]], table.agent_ids[lane], module_id
            stacks[key] = [tree.map_structure(lambda leaf, i=place: leaf[i], frames.of(module))]
    return stacks


def take_back(runner: Any, finished: list[list[ChunkNumbers]]) -> None:
    """Take over the episodes that ended in RLlib's loop and are not in the metrics yet, in numbers.

    All envs are about to be reset, and at that RLlib forgets the earlier chunks of such episodes.
    """
    finished += [[ChunkNumbers.of(episode)] for episode in runner._done_episodes_for_metrics]
    runner._done_episodes_for_metrics.clear()
