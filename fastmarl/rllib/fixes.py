"""Which of RLlib's defects are corrected on request.

What RLlib raises on, loses or leaks is always put right; that needs no option. Here are the corrections of data that
RLlib returns and that are merely wrong: by default they stay as RLlib has them, to the bit. See docs/differences.md.
"""

from collections.abc import Iterable
from typing import Literal

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
