"""Where classes with options are imported from: their names say all, so that any process can make them.

`MultiAgentEpisode__01_45` is the episode class with the corrections 01 and 45, `MultiAgentEnvRunner__exact__01_45` the
runner class. Thus pickles refer to such a class by name, as to any other.
"""

from functools import cache
from typing import Any

EPISODE = "MultiAgentEpisode"
RUNNER = "MultiAgentEnvRunner"
SAMPLERS = ("exact", "fast")


def __getattr__(name: str) -> Any:
    kind, *rest = name.split("__")
    try:
        if kind == EPISODE and len(rest) == 1:
            return _episode_variant(name, _numbers(rest[0]))
        if kind == RUNNER and len(rest) == 2 and rest[0] in SAMPLERS:
            return _runner_variant(name, rest[0], _numbers(rest[1]))
    except ValueError:
        pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def episode_name(fixes: frozenset[str]) -> str:
    """Name in this module of the episode class with these corrections (at least one)."""
    return f"{EPISODE}__{'_'.join(sorted(fixes))}"


def runner_name(fixes: frozenset[str], sampler: str) -> str:
    """Name in this module of the runner class with these options."""
    return f"{RUNNER}__{sampler}__{'_'.join(sorted(fixes)) or 'none'}"


def own_runner_class() -> type:
    """Found when asked for, as the runner's module imports this one."""
    from fastmarl.rllib.runner import MultiAgentEnvRunner

    return MultiAgentEnvRunner


def runner_members(origin: type, fixes: frozenset[str], sampler: str) -> dict[str, Any]:
    """Class attributes of a runner class with options."""
    from fastmarl.rllib.episodes.episode import episode_class

    return {
        "__doc__": origin.__doc__,
        "fixes": fixes,
        "sampler": sampler,
        "episode_class": episode_class(fixes),
        "variant_of": origin,
    }


def _numbers(joined: str) -> frozenset[str]:
    """Corrections named in a class's name. ValueError unless it is the name that we would give."""
    from fastmarl.rllib.fixes import FIXES

    numbers = [] if joined == "none" else joined.split("_")
    if any(number not in FIXES for number in numbers) or numbers != sorted(set(numbers)):
        raise ValueError(joined)
    return frozenset(numbers)


@cache
def _episode_variant(name: str, fixes: frozenset[str]) -> type:
    from fastmarl.rllib.episodes.episode import EPISODE_FIXES, MultiAgentEpisode

    if not fixes or not fixes <= EPISODE_FIXES:
        raise ValueError(name)
    members = {"__module__": __name__, "__slots__": (), "__doc__": MultiAgentEpisode.__doc__, "fixes": fixes}
    return type(name, (MultiAgentEpisode,), members)


@cache
def _runner_variant(name: str, sampler: str, fixes: frozenset[str]) -> type:
    origin = own_runner_class()
    return type(name, (origin,), {"__module__": __name__, **runner_members(origin, fixes, sampler)})
