"""Episodes come back from Parquet files bit-identical, over random worlds."""

import random
from collections import Counter

import numpy as np
import pytest
from support.exactly import assert_same_episodes
from support.masked_env import MaskedEnv
from support.random_cases import RandomCases
from support.tapes.worlds import World

import fastmarl
from fastmarl.batches import columns
from fastmarl.core.spaces.columns import Columns
from fastmarl.offline import ParquetReader, ParquetWriter

pytestmark = pytest.mark.needs("pyarrow")
USUAL, FROM = 12, 31  # few worlds from there have all that is counted
CASES = RandomCases(usual=USUAL)
GROUPS = max(1, CASES.n // USUAL)


def played(world: World) -> list[list]:
    """Return the results of each call of the world's runner."""
    runner = fastmarl.MultiAgentEnvRunner(world.config())
    try:
        return [runner.sample(**call) for call in world.calls()]
    finally:
        runner.stop()


def read(path) -> list:
    return [episode for some in ParquetReader(path).iter_episodes() for episode in some]


def write(path, calls: list[list], rng: random.Random, **options) -> None:
    with ParquetWriter(path, **options) as writer:
        for chunks in calls:
            writer.write(chunks)
            if rng.random() < 0.2:
                writer.flush()


def check(seed: int, path, seen: Counter) -> None:
    world, rng = World(seed), random.Random(seed)
    calls = played(world)
    chunks = [chunk for call in calls for chunk in call]
    for chunk in chunks:  # in all the states in which a chunk may be
        kind = rng.choice(("unread", "unread", "read", "built", "compacted"))
        _ = {"read": lambda c: c.env_t, "built": lambda c: c.agent_episodes, "compacted": lambda c: c.compact()}.get(
            kind, lambda c: None
        )(chunk)
        if kind == "built" and rng.random() < 0.2:
            chunk.custom_data["told"] = {"by": (rng.random(), np.float32(0.1)), 7: float("nan")}
    options = {
        "max_rows_per_file": rng.choice((1, 7, 50, 100_000)),
        "compression": rng.choice(("zstd", "lz4", "none")),
        "next_obs": rng.random() < 0.3,
    }
    write(path, calls, rng, **options)
    assert_same_episodes(read(path), chunks)
    count(chunks, seen)


def count(chunks: list, seen: Counter) -> None:
    """Count the features of the worlds that have occurred."""
    for chunk in chunks:
        parts = chunk.agent_episodes.values()
        seen["nobody's chunk"] += not chunk.agent_episodes
        seen["respawned"] += bool(chunk.chunk.respawned)
        seen["waits with a reward"] += any(chunk.chunk.hanging_rewards.values())
        seen["cut"] += not chunk.is_done
        seen["infos of those who wait"] += bool(chunk.get_waiting_infos())
        seen["env states"] += chunk.env_states is not None
        for part in parts:
            seen["lookback"] += part.lookback > 0
            seen["died alone"] += part.is_done and not chunk.is_done
            seen["infos"] += any(part.source.infos())
            seen["states"] += Columns.STATE_OUT in part.source.extra_keys()
            seen["masks"] += Columns.ACTION_MASK in part.source.extra_keys()
            seen["nested"] += isinstance(part.source.observations(), (dict, tuple))
            seen["ids that are no text"] += not isinstance(part.agent_id, str)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_episodes_are_read_back_exactly(group, tmp_path):
    seen: Counter = Counter()
    for seed in (FROM + i for i in CASES.batch(group, GROUPS)):
        try:
            check(seed, tmp_path / str(seed), seen)
        except BaseException as error:
            error.add_note(f"World({seed})")
            raise
    if CASES.n == USUAL and not CASES.first:  # else this could pass for want of trouble
        assert len(seen) == 13 and min(seen.values()) > 0, dict(seen)


@pytest.mark.parametrize("columns_written", [["action_logp"], []], ids=str)
def test_action_masks_are_always_written(columns_written, tmp_path):
    config = fastmarl.EnvRunnerConfig(env=MaskedEnv, env_config={"space": "discrete", "place": "info"}, seed=0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        episodes = runner.sample(num_timesteps=20)
    write(tmp_path, [episodes], random.Random(0), columns=columns_written)
    written, sampled = columns(read(tmp_path))["default_policy"], columns(episodes)["default_policy"]
    assert np.array_equal(written["action_mask"], sampled["action_mask"]) and not sampled["action_mask"].all()
    (batch,) = ParquetReader(tmp_path).iter_batches(module_id="default_policy", batch_size=len(sampled["actions"]))
    assert np.array_equal(batch["action_mask"], sampled["action_mask"])
