"""Which of RLlib's defects are corrected on request.

What RLlib raises on, loses or leaks is always put right; that needs no option. Here are the corrections of data that
RLlib returns and that are merely wrong: by default they stay bit-identical to RLlib's. See docs/differences.md.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.utils import _gym_env_creator
from ray.tune.registry import ENV_CREATOR, _global_registry

from fastmarl.core.errors import ConfigError

FIXES = {  # number, as in docs/differences.md -> a name that says what is right afterwards; may be used in its place
    "01": "true_flags",  # a time limit truncates agents and episode, it terminates none
    "04": "distinct_seeds",  # no two environments of all runners get the same seed
    "05": "seed_once",  # a runner's first reset is seeded, not every call with num_episodes
    "06": "unseeded_differ",  # without a seed, environments differ from each other
    "07": "stable_rows",  # the order of agents in a batch does not depend on PYTHONHASHSEED
    "14": "time_maps",  # an agent that joins a continued chunk is found at its own env steps
    "18": "count_actions",  # agent and module steps are actions taken, not observations
    "21": "common_infos",  # infos["__common__"] is kept, in custom_data["__common__"][env_t]
    "28": "discrete_start",  # the start of a Discrete action space is added to what environments get
    "45": "mixed_flags",  # who is truncated after others died is not terminated (one with 01)
    "46": "distinct_names",  # agents whose ids have the same text (1 and "1") have metrics of their own
    "50": "seeded_random",  # random actions depend on the seed
    "59": "first_episodes",  # num_episodes returns those that begin first, not those that end first
}
SAME_FLAGS = frozenset(("01", "45"))  # two symptoms of one cause


def parse_fixes(fixes: Literal["all"] | Iterable[str]) -> frozenset[str]:
    """Numbers of the corrections that are asked for.

    Args:
        fixes: "all", or numbers ("01") and aliases ("true_flags").

    Raises:
        ConfigError: a name is not known.
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
    """The place of the env that is made next."""

    def __init__(self) -> None:
        self.next = 0


def numbered(env: Any, index: VectorIndex) -> Callable[[EnvContext], Any]:
    """Return a function that makes the configured env, as RLlib does, from a context of its own.

    It is a function, so that Gymnasium, which copies deeply what it has registered, leaves it as it is.

    Args:
        env: `config.env`: a class, a function, or a name known to Ray or Gymnasium.
        index: counted on.
    """

    def make(shared: EnvContext) -> Any:
        context = shared.copy_with_overrides(vector_index=index.next)
        index.next += 1
        if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env):
            return _global_registry.get(ENV_CREATOR, env)(context)
        return _gym_env_creator(env_context=context, env_descriptor=env)

    return make


def env_seeds(runner: Any, seed: int | None) -> int | list[int] | None:
    """Return the seeds to reset the vector env with, where RLlib would reset it with `seed`.

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
