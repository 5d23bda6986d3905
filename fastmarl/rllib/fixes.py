"""Optional corrections of RLlib defects.

Defects that make RLlib raise errors, or lose or leak data, are always corrected. The corrections in this module change
data returned incorrectly by RLlib; by default, such data remains bit-identical to RLlib. See docs/differences.md.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.utils import _gym_env_creator
from ray.tune.registry import ENV_CREATOR, _global_registry

from fastmarl.core.errors import ConfigError

FIXES = {  # number, as in docs/differences.md -> alias
    "01": "true_flags",  # a time limit truncates agents and episode instead of terminating them
    "04": "distinct_seeds",  # no two environments of all runners get the same seed
    "05": "seed_once",  # only the first reset of a runner is seeded, not every call with num_episodes
    "06": "unseeded_differ",  # without a seed, environments differ from each other
    "07": "stable_rows",  # the order of agents in a batch does not depend on PYTHONHASHSEED
    "14": "time_maps",  # an agent that joins a continued chunk is found at the correct env steps
    "18": "count_actions",  # agent and module steps are actions taken, not observations
    "21": "common_infos",  # infos["__common__"] is kept, in custom_data["__common__"][env_t]
    "28": "discrete_start",  # the start of a Discrete action space is added to actions passed to environments
    "45": "mixed_flags",  # an agent truncated after others died is not terminated (goes with 01)
    "46": "distinct_names",  # agents whose ids have the same text (1 and "1") have separate metrics
    "50": "seeded_random",  # random actions depend on the seed
    "59": "first_episodes",  # num_episodes returns the first episodes to begin, not the first to end
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
        raise ConfigError(f'fixes must be "all" or a collection of names, got the string {fixes!r}; try {{{fixes!r}}}')
    number_of = {alias: number for number, alias in FIXES.items()} | {number: number for number in FIXES}
    names = list(fixes)
    if unknown := [name for name in names if name not in number_of]:
        known = ", ".join(f"{number} ({alias})" for number, alias in FIXES.items())
        raise ConfigError(f"unknown fixes {unknown}; what can be switched is {known}; all else is always corrected")
    numbers = frozenset(number_of[name] for name in names)
    return numbers | SAME_FLAGS if numbers & SAME_FLAGS else numbers


class VectorIndex:
    """Counter of created envs; `next` is the vector index of the next one."""

    def __init__(self) -> None:
        self.next = 0


def numbered(env: Any, index: VectorIndex) -> Callable[[EnvContext], Any]:
    """Return a function that creates the configured env as in RLlib, but with a separate context for each env.

    Gymnasium deep-copies its registry entries, and a deep copy of a function is the function itself.

    Args:
        env: `config.env`: a class, a function, or a name known to Ray or Gymnasium.
        index: Vector index of the next env, which the function increments.
    """

    def make(shared: EnvContext) -> Any:
        context = shared.copy_with_overrides(vector_index=index.next)
        index.next += 1
        if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env):
            return _global_registry.get(ENV_CREATOR, env)(context)
        return _gym_env_creator(env_context=context, env_descriptor=env)

    return make


def env_seeds(runner: Any, seed: int | None, *, configured: int | None, is_first: bool) -> int | list[int] | None:
    """Return the seeds for resetting the vector env, where RLlib would use `seed`.

    04: no two envs of all runners get the same seed. 05: only the first reset is seeded. 06: without a configured seed,
    the seeds of the first reset come from system entropy, so that envs differ.

    Args:
        runner: The runner.
        seed: Seed used by RLlib for this reset.
        configured: Seed of the runner.
        is_first: True if no env was reset before.
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
    """Return n seeds that collide with seeds of other entropy only by chance. If empty, system entropy is used."""
    sequence = np.random.SeedSequence(entropy or None)
    return [int(child.generate_state(1)[0]) for child in sequence.spawn(n)]
