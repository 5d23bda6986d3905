"""Batches of a world's episodes, step by step, in lists and dicts: what `fastmarl.batches` should return."""

from collections import defaultdict
from typing import Any

import numpy as np

from fastmarl.core.spaces.structs import flatten_struct
from support.replay import encode_actions, leaves, recorded
from support.runner import AgentChunk, Chunk
from support.worlds import World

Pair = tuple[Any, Chunk]  # a returned chunk and what it should be


def by_module(pairs: list[Pair]) -> dict[str, list[tuple[int, Any, AgentChunk]]]:
    """Module -> (index of the chunk, agent, its part), in order of the chunks and of their agents."""
    parts = defaultdict(list)
    for chunk, (got, want) in enumerate(pairs):
        for agent in got.agent_episodes:
            parts[want.agents[agent].module].append((chunk, agent, want.agents[agent]))
    return parts


def flat(pairs: list[Pair]) -> dict[str, dict[str, list]]:
    """As `columns()`; observations are serial numbers."""
    batches = {}
    for module, parts in by_module(pairs).items():
        batch: dict[str, list] = defaultdict(list)
        for _, agent, part in parts:
            for i in range(part.lookback, len(part.rewards)):
                is_last = i == len(part.rewards) - 1
                batch["obs"].append(part.obs[i])
                batch["new_obs"].append(part.obs[i + 1])
                batch["actions"].append(part.actions[i])
                batch["rewards"].append(part.rewards[i])
                batch["terminateds"].append(is_last and part.terminated)
                batch["truncateds"].append(is_last and part.truncated)
            batch["seq_lens"].append(part.steps)
            batch["final_obs"].append(part.obs[-1])
            batch["agent_id"].append(agent)
        batches[module] = batch
    return batches


def cut(pairs: list[Pair], max_seq_len: int, burn_in: int) -> dict[str, list[dict]]:
    """As `sequences()`: a dict for each; its "rows" are the steps' row numbers in `flat()`, or None in a lookback."""
    batches = {}
    for module, parts in by_module(pairs).items():
        found, row = [], 0
        for _, _, part in parts:
            steps = [*([None] * part.lookback), *range(row, row + part.steps)]
            row += part.steps
            for begin in range(part.lookback, len(steps), max_seq_len):
                end = min(begin + max_seq_len, len(steps))
                first = max(begin - burn_in, 0)
                found.append({
                    "obs": part.obs[first:end],
                    "actions": part.actions[first:end],
                    "rewards": part.rewards[first:end],
                    "terminateds": [part.terminated and i == len(steps) - 1 for i in range(first, end)],
                    "truncateds": [part.truncated and i == len(steps) - 1 for i in range(first, end)],
                    "loss_mask": [i >= begin for i in range(first, end)],
                    "final_obs": part.obs[end],
                    "rows": steps[first:end],
                })  # fmt: skip
        batches[module] = found
    return batches


def aligned(pairs: list[Pair], members: dict[str, list]) -> dict[str, dict[tuple, dict]]:
    """As `aligned()`: group -> (env step since the reset, chunk, slot) -> what the agent there did.

    Under (None, chunk, slot): its last observation and when that came.
    """
    groups: dict[str, dict[tuple, dict]] = defaultdict(dict)
    for group, agents in members.items():
        for chunk, (_, want) in enumerate(pairs):
            for slot, agent in enumerate(agents):
                if agent not in want.agents:
                    continue
                part = want.agents[agent]
                for i in range(part.lookback, len(part.rewards)):
                    is_last = i == len(part.rewards) - 1
                    groups[group][part.env_ts[i], chunk, slot] = {
                        "obs": part.obs[i],
                        "actions": part.actions[i],
                        "rewards": part.rewards[i],
                        "terminateds": is_last and part.terminated,
                        "truncateds": is_last and part.truncated,
                    }
                groups[group][None, chunk, slot] = {"final_obs": part.obs[-1], "env_t": part.env_ts[-1]}
    return groups


def advantages(
    rewards: list[float], values: list[float], last_value: float, gamma: float, lambda_: float
) -> list[float]:
    """Return the advantages of one trajectory, computed backwards."""
    found, advantage, after = [], 0.0, last_value
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * after - value + gamma * lambda_ * advantage
        after = value
        found.append(advantage)
    return found[::-1]


def assert_column(got: Any, world: World, module: str, name: str, serials: list) -> None:
    """A column of observations, actions or plain numbers, in the dtypes of the spaces."""
    if name.endswith("obs"):
        want = recorded(world, module, serials)
    elif name == "actions":
        want = encode_actions(world.action_kinds[module], serials)
    else:
        want = np.array(serials)
    for one, other in zip(leaves(got), leaves(want), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        np.testing.assert_array_equal(one, other, name)


def assert_same_bits(got: dict[str, dict], want: dict[str, dict]) -> None:
    """Names and their order, structures, dtypes, shapes and bits are equal, and `got` may be written to."""
    assert list(got) == list(want)
    for module, batch in want.items():
        assert list(got[module]) == list(batch)
        for name, column in batch.items():
            for one, other in zip(flatten_struct(got[module][name]), flatten_struct(column), strict=True):
                (path, leaf), (other_path, expected) = one, other
                assert (path, leaf.dtype, leaf.shape) == (other_path, expected.dtype, expected.shape), (module, name)
                assert leaf.flags.writeable and leaf.flags.c_contiguous == expected.flags.c_contiguous, (module, name)
                if leaf.dtype == object:
                    assert leaf.tolist() == expected.tolist(), (module, name)
                else:
                    assert leaf.tobytes() == expected.tobytes(), (module, name)
