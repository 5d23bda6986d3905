"""The cases in which connector pieces such as users write have a part in batches."""

from typing import Any

from rllib.differential.batch_pieces import PLACES, TO_ENV, USUAL_PLACE
from rllib.differential.cases import (
    CALLS,
    DEATHS,
    EPISODES,
    LATE,
    METRICS,
    TURNS,
    WAITING,
    WILD,
    both,
    case,
    one_space,
    world,
)
from rllib.differential.configs import LSTM
from rllib.differential.runs import Call, Case, Change, Put, Sample

WORLDS: dict[str, dict[str, Any]] = {"": {}, ", waiting": WAITING, ", late deaths": {**LATE, **DEATHS}, ", wild": WILD}
PLAIN: tuple[Call, ...] = (Sample(num_timesteps=7), METRICS, Sample(num_timesteps=7))


def _put(*names: str) -> list[Call]:
    """Calls that put module-to-env pieces where they have to stand, the last ones first."""
    return [Put(name, PLACES[name]) for name in sorted(names, key=PLACES.__getitem__, reverse=True)]


def _to_env() -> dict[str, Case]:
    cases = {}
    chains = (("sticky",), ("epsilon",), ("notes", "noting"), ("for env",), ("reads observations",),
              ("noting", "sticky", "epsilon"))  # fmt: skip
    for names in chains:
        for label, rules in WORLDS.items():
            cases[f"{' '.join(names)}{label}"] = case(one_space(agents=4, **rules), to_env=names, num_envs=3)
        for kind in ("box", "multidiscrete", "dict", "tuple"):
            # What its space gives for a nested action has other dtypes in its parts than RLlib's modules give.
            if "epsilon" not in names or kind in ("box", "multidiscrete"):
                rules = one_space("f32", kind, agents=4, **WAITING, **DEATHS)
                cases[f"{' '.join(names)}, {kind}"] = case(rules, to_env=names)
                cases[f"{' '.join(names)}, {kind} as is"] = case(rules, to_env=names, normalize=False)
        for kind in ("extras", "own_actions", "heuristic", "memory"):
            given = {"modules": {"p0": "default", "p1": kind}, "to_env": names}
            cases[f"{' '.join(names)}, module {kind}"] = case(one_space(agents=4, **WILD), **given)
        cases[f"{' '.join(names)}, LSTM"] = case(one_space(agents=4, **WILD), to_env=names, model_config=LSTM)
        cases[f"{' '.join(names)}, no exploration"] = case(world(4, **WAITING), to_env=names, explore=False)
        cases[f"{' '.join(names)}, episodes"] = case(world(4, **WILD), EPISODES, to_env=names, num_envs=3)
        for callbacks in ("all", "numbers", "everything", "writer"):
            given = {"to_env": names, "callbacks": callbacks, "lookback": 3}
            cases[f"{' '.join(names)}, {callbacks} in callbacks"] = case(world(4, **WILD), **given)
    for name, place in PLACES.items():
        for label, rules in WORLDS.items():
            cases[f"{name}{label}"] = case(one_space(agents=4, **rules), [*_put(name), *CALLS], num_envs=3)
        for module in ("extras", "memory"):
            given = {"modules": {"p0": "default", "p1": module}}
            cases[f"{name}, module {module}"] = case(one_space(agents=4, **WILD), [*_put(name), *CALLS], **given)
        calls = [Put("noting", place), *_put(name), *EPISODES]
        cases[f"{name}, noting"] = case(world(4, **WILD), calls, to_env=("sticky",), num_envs=3)
    for place in range(USUAL_PLACE):
        cases[f"noting at {place}"] = case(one_space(agents=4, **WILD), [Put("noting", place), *CALLS], num_envs=3)
        cases[f"noting at {place}, LSTM"] = case(
            one_space(agents=4, **WAITING), [Put("noting", place), *CALLS], model_config=LSTM, to_env=("sticky",)
        )
    return cases


def _to_module() -> dict[str, Case]:
    cases = {}
    for names in (("bonus",), ("bonus of all",), ("noting", "bonus", "noting"), ("own observations",),
                  ("mean_std", "bonus"), ("bonus", "own"), ("bonus", "noting", "previous", "flatten")):  # fmt: skip
        for label, rules in WORLDS.items():
            for module in ("bonus", "memory, bonus"):
                given = {"connectors": names, "modules": both(module), "num_envs": 3, "lookback": 2}
                cases[f"{' '.join(names)}, {module}{label}"] = case(one_space(agents=4, **rules), **given)
        cases[f"{' '.join(names)}, default modules"] = case(one_space(agents=4, **TURNS), connectors=names)
        cases[f"{' '.join(names)}, LSTM, episodes"] = case(
            one_space(agents=4, **WILD), EPISODES, connectors=names, model_config=LSTM, num_envs=3
        )
        given = {"connectors": names, "modules": both("bonus"), "callbacks": "everything"}
        cases[f"{' '.join(names)}, everything in callbacks"] = case(world(4, **WILD), **given)
    for module in ("bonus", "memory, bonus", "default"):
        for label, rules in WORLDS.items():
            calls = [Put("noting"), Put("bonus last"), Put("noting"), *CALLS, *EPISODES]
            cases[f"bonus last, {module}{label}"] = case(world(4, **rules), calls, modules=both(module), num_envs=3)
    random = [Sample(num_timesteps=7, random_actions=True, force_reset=i == 0) for i in range(2)]
    calls = [Put("noting"), *random, Sample(num_timesteps=7, force_reset=True), METRICS]
    cases["noting, at random first"] = case(world(4, **WILD), calls, connectors=("noting",), to_env=("noting",))
    return cases


def _both_ways() -> dict[str, Case]:
    """Pieces of both pipelines, which share data; failures; changes between calls."""
    cases = {}
    names = {"connectors": ("noting", "mean_std", "bonus"), "to_env": ("noting", "sticky", "epsilon")}
    for module in ("default", "bonus", "memory, bonus"):
        for label, rules in WORLDS.items():
            calls = [Put("noting"), *_put("logits"), *CALLS, *EPISODES]
            given = {**names, "modules": both(module), "num_envs": 3}
            cases[f"both ways, {module}{label}"] = case(one_space(agents=5, **rules), calls, **given)
        failing = one_space(agents=4, failing_steps=(9, 30))
        cases[f"both ways, {module}, failures"] = case(failing, **names, num_envs=1, restarts=True)
    late = one_space(agents=5, max_steps=15, **LATE, **WAITING)
    for what in ("connector added", "function added", "actions clipped"):
        for kind, given in {"columns": {}, "whole": {"to_env": ()}}.items():
            first = [Put("bonus last"), Put("noting")] if kind == "whole" else []
            calls = [*first, *PLAIN, Change(what), *PLAIN, METRICS]
            setup: dict[str, Any] = {**names, **given, "modules": both("bonus"), "expects_fast": "function" in what}
            cases[f"both ways, {kind}, then {what}"] = case(late, calls, **setup)
    return cases


PIECE_CASES: dict[str, Case] = {**_to_env(), **_to_module(), **_both_ways()}
assert {*PLACES} < {*TO_ENV}
