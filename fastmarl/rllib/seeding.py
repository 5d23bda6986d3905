"""Seeds of environments, where corrections of RLlib's are on: 04, 05, 06 and 50."""

from typing import Any

import numpy as np


def env_seeds(runner: Any, seed: int | None) -> int | list[int] | None:
    """What the vector env is reset with, where RLlib would reset it with `seed`.

    04: no two envs of any runners have the same seed. 05: only the first reset is seeded. 06: without a configured
    seed, the first reset takes one from the system, so that the envs differ.
    """
    fixes = runner.fixes
    if runner._was_seeded and "05" in fixes:
        return None
    if runner._seed is None:
        return _spawned([], runner.num_envs) if "06" in fixes and not runner._was_seeded else seed
    if seed is not None and "04" in fixes:
        return _spawned(_origin(runner), runner.num_envs)
    return seed


def seed_action_spaces(runner: Any) -> None:
    """50: actions at random depend on the seed, too. Without one nothing is done."""
    if runner._seed is None:
        return
    seeds = iter(_spawned([*_origin(runner), 1], 4096))
    for env in runner.env.envs:
        for agent_id in env.unwrapped.possible_agents:
            env.unwrapped.get_action_space(agent_id).seed(next(seeds, None))


def _origin(runner: Any) -> list[int]:
    return [int(runner.config.seed), int(runner.worker_index or 0), int(runner.config.in_evaluation)]


def _spawned(entropy: list[int], n: int) -> list[int]:
    """Seeds that overlap with those of another origin by chance only; of the system's entropy if there is none."""
    sequence = np.random.SeedSequence(entropy or None)
    return [int(child.generate_state(1)[0]) for child in sequence.spawn(n)]
