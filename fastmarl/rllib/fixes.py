"""Optional corrections of RLlib defects.

Defects that raise errors, or lose or leak data, are always corrected. The corrections in this module change data that
RLlib returns incorrectly; without them, this data is bit-identical to RLlib's. See docs/differences.md.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.utils import _gym_env_creator
from ray.tune.registry import ENV_CREATOR, _global_registry

from fastmarl.core.errors import ConfigError

FIXES = {  # number, as in docs/differences.md -> alias
    "01": "true_flags",  # time limits truncate agents and episodes instead of terminating them
    "04": "distinct_seeds",  # all environments of all runners get different seeds
    "05": "seed_once",  # only the first reset of a runner is seeded, not every call with num_episodes
    "06": "unseeded_differ",  # without a seed, environments differ from each other
    "07": "stable_rows",  # the order of agents in a batch does not depend on PYTHONHASHSEED
    "14": "time_maps",  # agents that join a continued chunk are recorded at the correct env steps
    "18": "count_actions",  # agent and module steps count actions, not observations
    "21": "common_infos",  # infos["__common__"] is kept, in custom_data["__common__"][env_t]
    "28": "discrete_start",  # the start of a Discrete action space is added to actions passed to environments
    "45": "mixed_flags",  # agents truncated after others died are not terminated (enabled together with 01)
    "46": "distinct_names",  # agents whose ids print alike (1 and "1") have separate metrics
    "50": "seeded_random",  # random actions depend on the seed
    "59": "first_episodes",  # num_episodes returns the first episodes to start, not the first to finish
}
SAME_FLAGS = frozenset(("01", "45"))  # two symptoms of the same cause


def parse_fixes(fixes: Literal["all"] | Iterable[str]) -> frozenset[str]:
    """Return the numbers of the requested corrections.

    Args:
        fixes: "all", or numbers ("01") and aliases ("true_flags").

    Raises:
        ConfigError: If a number or alias is unknown.
    """
    if fixes == "all":
        return frozenset(FIXES)
    if isinstance(fixes, str):
        raise ConfigError(f'fixes must be "all" or a collection of names, got the string {fixes!r}; pass {{{fixes!r}}}')
    number_of = {alias: number for number, alias in FIXES.items()} | {number: number for number in FIXES}
    names = list(fixes)
    if unknown := [name for name in names if name not in number_of]:
        known = ", ".join(f"{number} ({alias})" for number, alias in FIXES.items())
        raise ConfigError(f"unknown fixes {unknown}; choose from {known}; all other corrections are always on")
    numbers = frozenset(number_of[name] for name in names)
    return numbers | SAME_FLAGS if numbers & SAME_FLAGS else numbers


class VectorIndex:
    """Counter of created envs; `next` is the vector index of the next one."""

    def __init__(self) -> None:
        self.next = 0


def numbered(env: Any, index: VectorIndex) -> Callable[[EnvContext], Any]:
    """Return a function that creates the configured env as in RLlib, but with a separate context for each env.

    This works although Gymnasium deep-copies its registry entries, because deepcopy() does not copy functions.

    Args:
        env: `config.env`: a class, a function, or a name known to Ray or Gymnasium.
        index: Counter that the function increments for each env.
    """

    def make(shared: EnvContext) -> Any:
        context = shared.copy_with_overrides(vector_index=index.next)
        index.next += 1
        if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env):
            return _global_registry.get(ENV_CREATOR, env)(context)
        return _gym_env_creator(env_context=context, env_descriptor=env)

    return make


def env_seeds(runner: Any, seed: int | None, *, configured: int | None, is_first: bool) -> int | list[int] | None:
    """Return the seeds with which to reset the vector env, in place of RLlib's `seed`.

    04: all envs of all runners get different seeds. 05: only the first reset is seeded. 06: without a configured seed,
    the seeds of the first reset come from system entropy, so envs differ.

    Args:
        runner: The runner.
        seed: Seed used by RLlib for this reset.
        configured: Seed of the runner.
        is_first: True for the first reset.
    """
    fixes = runner.fixes
    if not is_first and "05" in fixes:
        return None
    if configured is None:
        return _spawned([], runner.num_envs) if "06" in fixes and is_first else seed
    if seed is not None and "04" in fixes:
        return _spawned(_origin(runner), runner.num_envs)
    return seed


def seed_action_spaces(runner: Any) -> None:
    """Seed the action spaces with the configured seed, so that random actions also depend on it (50)."""
    seeds = iter(_spawned([*_origin(runner), 1], 4096))
    for env in runner.env.envs:
        for agent_id in env.unwrapped.possible_agents:
            env.unwrapped.get_action_space(agent_id).seed(next(seeds, None))


def _origin(runner: Any) -> list[int]:
    return [int(runner.config.seed), int(runner.worker_index or 0), int(runner.config.in_evaluation)]


def _spawned(entropy: list[int], n: int) -> list[int]:
    """Spawn n seeds from `entropy`, or from system entropy if it is empty; different entropy, different seeds."""
    sequence = np.random.SeedSequence(entropy or None)
    return [int(child.generate_state(1)[0]) for child in sequence.spawn(n)]
