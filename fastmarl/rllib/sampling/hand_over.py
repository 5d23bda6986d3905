"""Switches from the fast path to the RLlib loop and back between two calls."""

from typing import Any

import numpy as np
import tree
from ray.rllib.core.columns import Columns

from fastmarl.rllib.connectors.frames import StackedFrames
from fastmarl.rllib.sampling.episode_events import EpisodeEvents
from fastmarl.rllib.sampling.internals import DONE, EARLIER, Internals
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.sampling.to_module import ToModule
from fastmarl.rllib.store.records import ChunkNumbers


def hand_over(parts: Parts, events: EpisodeEvents, autoreset: list[bool], to_module: ToModule, explore: bool) -> None:
    """Set up the RLlib runner as if its loop had done all sampling.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        events: Provides the running episodes as seen by callbacks.
        autoreset: Per env, True if the next step resets the env.
        to_module: Provides the batch made from the last observations by the connector pieces.
        explore: True if the next steps explore.
    """
    runner, internals = parts.runner, parts.internals
    give_back(internals)
    internals.ongoing_episodes = [events.built_episode(record) for record in parts.running()]
    for episode in internals.ongoing_episodes:
        episode.resume_clock()
    for record in parts.running():
        events.complete_earlier_chunks(record)
    runner.env._autoreset_envs = np.array(autoreset, np.bool_)
    batch: Any = {}
    frames = parts.connectors.frames
    for piece in [*([] if frames is None else [frames.piece]), *parts.to_module.default]:  # the others have already run
        batch = piece(
            rl_module=runner.module,
            batch=batch,
            episodes=internals.ongoing_episodes,
            explore=explore,
            shared_data=internals.shared_data,
        )
        if frames is not None and piece is frames.piece:
            batch[Columns.OBS].update(_as_before(parts, frames))
    internals.cached_to_module = to_module.hand_over(batch) if parts.to_module.makes_batches else batch


def _as_before(parts: Parts, frames: StackedFrames) -> dict[tuple, list[Any]]:
    """Return the frame stacks from before the cut, when episodes had a longer lookback, as in the RLlib batch."""
    table, store, stacks = parts.table, parts.store, dict[tuple, list[Any]]()
    id_of = [record.id_ for record in parts.running()]
    for module, module_id in enumerate(store.module_ids):
        lanes = store.blocks[module].lane_R[store.acting_from[module] : store.rows[module].n].tolist()
        for place, lane in enumerate(lanes):
            key = id_of[table.env_L[lane]], table.agent_ids[lane], module_id
            stacks[key] = [tree.map_structure(lambda leaf, i=place: leaf[i], frames.of(module))]
    return stacks


def give_back(internals: Internals) -> None:
    """Move finished episodes that are not yet in the metrics to the attributes of the RLlib loop."""
    done, earlier = internals.loop[DONE], internals.loop[EARLIER]
    for *chunks, last in internals.finished_numbers:
        last.is_done = True
        done.append(last.shown)
        if chunks:
            earlier[last.shown.id_] = [chunk.shown for chunk in chunks]
    internals.finished_numbers.clear()


def take_back(internals: Internals, finished: list[list[ChunkNumbers]]) -> None:
    """Take over the statistics of episodes finished in the RLlib loop but not yet in the metrics.

    RLlib drops the earlier chunks of such episodes at the reset of all envs, which comes next.
    """
    finished += [[ChunkNumbers.of(episode)] for episode in internals.done_episodes_for_metrics]
    internals.done_episodes_for_metrics.clear()
