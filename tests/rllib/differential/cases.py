"""The cases by name; `world` and `case` fill in what a case does not care about."""

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Any

from rllib.differential import known_envs, mappings, spaces
from rllib.differential.configs import CONV, LSTM, Setup
from rllib.differential.runs import CHANGES, Call, Case, Change, GetMetrics, Make, Remap, Sample, SetState
from rllib.differential.worlds import MIXED_SUMS, REWARDS, Rules

METRICS = GetMetrics()
CALLS: tuple[Call, ...] = (
    Sample(num_timesteps=11),
    METRICS,
    SetState(seq_no=1),
    Sample(num_timesteps=5),
    Sample(),
    SetState(seq_no=4, lifetime=1000),
    Sample(num_timesteps=20),
    METRICS,
    Sample(num_timesteps=9, force_reset=True),
    Sample(num_timesteps=9),
    METRICS,
)
EPISODES: tuple[Call, ...] = (
    Sample(num_episodes=1),
    Sample(num_timesteps=6),
    METRICS,
    Sample(num_episodes=4),
    Sample(num_episodes=2),
    METRICS,
)
BATTLE: tuple[Call, ...] = (Sample(num_timesteps=20), METRICS, Sample(num_timesteps=9), METRICS)
STRINGS = tuple(f"agent_{i}" for i in range(6))
COLLIDING = (16, 0, 8, 24, -1, -2)
"""Integers that fall on one another in small sets."""
NAMES = tuple(Enum("Name", [(name, name) for name in STRINGS], type=str))
"""Strings with a type of their own, as users have them; not as StrEnum."""
MIXED = ("a", ("team", 1), 0, ("team", 2), frozenset({3}), "1")

LATE = {"at_reset": 0.4, "joins": 0.3, "pays_absent": 0.3}
WAITING = {"style": "sparse", "pays_waiting": 0.5}
TURNS = {"style": "turns", "pays_waiting": 0.3}
DEATHS = {"dies": 0.15, "max_steps": 15}
WILD = {**LATE, **WAITING, **DEATHS, "quiet": 0.1, "stillborn": 0.05, "shuffled": True, "infos": "some"}


def world(agents: int | tuple[Hashable, ...] = 3, **rules: Any) -> Rules:
    """A world of agents 0, 1, ... or with given ids, which belong to "p0" and "p1" by turns."""
    ids = tuple(range(agents)) if isinstance(agents, int) else agents
    return Rules(agents=ids, group_of={agent: f"p{i % 2}" for i, agent in enumerate(ids)}, **rules)


def one_space(obs: str = "f32", action: str = "discrete", agents: int = 3, **rules: Any) -> Rules:
    """A world where all have the same kinds of spaces."""
    kinds = {"obs_kinds": dict.fromkeys(("p0", "p1"), obs), "action_kinds": dict.fromkeys(("p0", "p1"), action)}
    return world(agents, **kinds, **rules)


def case(
    rules: Rules | None = None,
    calls: Iterable[Call] = CALLS,
    *,
    expects_fast: bool = True,
    worker_index: int | None = 1,
    raises: str | None = None,
    **setup: Any,
) -> Case:
    made = Setup(rules=rules if rules or "env" in setup else world(), **{"num_envs": 2, **setup})
    return Case(setup=made, calls=tuple(calls), expects_fast=expects_fast, worker_index=worker_index, raises=raises)


def both(kind: str) -> dict[str, str]:
    return dict.fromkeys(("p0", "p1"), kind)


def _sizes() -> dict[str, Case]:
    cases = {}
    for agents in (1, 2, 8, 100):
        for envs in (1, 3, 8):
            calls = CALLS if agents < 100 else (Sample(num_timesteps=3 * envs), METRICS, Sample(num_timesteps=2 * envs))
            rules = world(agents, infos="some", **(DEATHS if agents > 2 else {}))
            cases[f"{agents} agents, {envs} envs"] = case(rules, calls, num_envs=envs)
    rules = world(100, **WILD)
    cases["100 wild agents"] = case(rules, (Sample(num_timesteps=8), METRICS, Sample(num_timesteps=8)), num_envs=2)
    return cases


def _protocols() -> dict[str, Case]:
    """Return cases of all that the protocol allows envs, with ids of all types."""
    kinds: dict[str, dict[str, Any]] = {
        "together": {},
        "late": LATE,
        "waiting": WAITING,
        "turns": TURNS,
        "deaths": DEATHS,
        "deaths unseen": {**DEATHS, "last_words": 0.0},
        "deaths while waiting": {**DEATHS, **WAITING},
        "wild": WILD,
        "few at reset": {**WILD, "at_reset": 0.05},
        "stillborn": {**LATE, "stillborn": 0.3},
        "stillborn that come back": {"at_reset": 0.3, "stillborn": 0.5, "returns": 1.0, "flags": "full"},
        "truncated": {"end": "truncated"},
        "truncated, waiting": {**WAITING, "end": "truncated"},
        "truncated one by one": {"end": "truncated_each", "flags": "full"},
        "truncated survivors": {**DEATHS, "end": "truncated_each"},
        "both ends": {**DEATHS, "end": "both", "flags": "full"},
        "only __all__": {**WAITING, "flags": "only_all"},
        "flags repeated": {**WILD, "flags": "repeated"},
        "full flags": {**WILD, "flags": "full"},
        "numpy flags": {**DEATHS, "flags": "full", "numpy_flags": True},
        "no __all__ in truncateds": {**DEATHS, "truncated_has_all": False},
        "one step each": {"max_steps": 1},
    }
    cases = {}
    for name, rules in kinds.items():
        for label, ids in (("ints", COLLIDING), ("strings", STRINGS), ("mixed", MIXED)):
            if label == "ints" or name in ("wild", "late", "deaths"):
                cases[f"{name}, {label}"] = case(world(ids, **rules), num_envs=2)
    return cases


def _payments() -> dict[str, Case]:
    cases = {}
    for kind in REWARDS:
        # What RLlib makes of the sum of such rewards while an agent waits depends on who else is named in a step.
        cases[f"rewards {kind}"] = case(world(rewards=(kind,), **({} if kind in MIXED_SUMS else WAITING)))
    cases["rewards of all kinds"] = case(world(4, rewards=tuple(REWARDS), **DEATHS))
    for kind in ("some", "arrays", "reused", "empty"):
        cases[f"infos {kind}"] = case(world(infos=kind, common_info=kind != "empty", **WAITING))
    return cases


def _calls() -> dict[str, Case]:
    """Ways to call sample()."""
    waiting = world(4, **WAITING, **DEATHS)
    plain = (Sample(), METRICS, Sample(), Sample(), METRICS)
    switching = [Sample(num_timesteps=7, explore=bool(i % 2)) for i in range(4)]
    random = [Sample(num_timesteps=7, random_actions=True, force_reset=i == 0) for i in range(3)]
    forced = [Sample(num_timesteps=7, force_reset=True) for _ in range(3)]
    cases = {
        "episodes": case(waiting, EPISODES, num_envs=3),
        "episodes, no seed": case(waiting, EPISODES, num_envs=3, seed=None),
        "complete_episodes": case(waiting, plain, num_envs=3, batch_mode="complete_episodes"),
        "truncate_episodes": case(waiting, plain, num_envs=3, fragment=4),
        "fragment auto": case(waiting, plain, num_envs=3, num_env_runners=2, fragment="auto", batch=50),
        "agent_steps": case(waiting, num_envs=3, count_steps_by="agent_steps"),
        "agent_steps, complete": case(waiting, plain, count_steps_by="agent_steps", batch_mode="complete_episodes"),
        "no exploration": case(waiting, num_envs=3, explore=False),
        "explore switches": case(waiting, switching),
        "random actions": case(one_space(action="dict", **WAITING), [*random, METRICS], normalize=False),
        "random, then module": case(waiting, [*random, METRICS, *forced]),
        "random episodes": case(waiting, [Sample(num_episodes=3, random_actions=True), METRICS]),
        "force_reset": case(waiting, [*forced, METRICS, *forced]),
        "no episodes": case(waiting, [Sample(num_episodes=0), METRICS, Sample(num_timesteps=5)]),
        "single steps": case(waiting, [*[Sample(num_timesteps=1)] * 12, METRICS], num_envs=1),
        "metrics never read": case(waiting, [Sample(num_timesteps=15)] * 3),
        "metrics read twice": case(waiting, [METRICS, Sample(num_timesteps=30), METRICS, METRICS]),
        "evaluation": case(waiting, EPISODES, in_evaluation=True, explore=False),
        "no worker": case(waiting, worker_index=None, seed=7),
        "driver": case(waiting, worker_index=0),
        "one of two workers": case(waiting, num_env_runners=2, worker_index=2),
        "old weights": case(waiting, [SetState(seq_no=5), Sample(num_timesteps=5), SetState(seq_no=3), *forced]),
        "forced weights": case(waiting, [Sample(num_timesteps=5), SetState(seq_no=0), Sample(num_timesteps=5)]),
        "new env": case(waiting, [Sample(num_timesteps=15), Make("env"), Sample(num_timesteps=15), METRICS]),
        "new module": case(waiting, [Sample(num_timesteps=15), Make("module"), Sample(num_timesteps=15), METRICS]),
        "both numbers": case(calls=[Sample(num_timesteps=1, num_episodes=1)], raises="AssertionError"),
        "negative": case(calls=[Sample(num_timesteps=-1)], raises="AssertionError"),
    }
    return cases


def _options() -> dict[str, Case]:
    wild = world(5, **WILD)
    cases = {
        **{f"lookback {n}": case(wild, lookback=n) for n in (2, 3, 10)},
        "lookback 0": case(world(5, **DEATHS), lookback=0),
        "window 1": case(wild, window=1),
        "checked": case(world(4, infos="some"), checked=True),
        "checked, no seed": case(world(4), checked=True, seed=None),
        "no seed": case(wild, seed=None),
        "lists": case(wild, to_numpy=False, expects_fast=False),
        "one module": case(world(4, **WAITING), modules={"p0": "default"}, mapping="name"),
        "a module for nobody": case(world(4, **WAITING), modules={f"p{i}": "default" for i in range(3)}),
        "five modules": case(world(9, **DEATHS), modules={f"p{i}": "default" for i in range(5)}, mapping="name"),
        "callbacks": case(wild, callbacks="all"),
        "callback at the end of sample()": case(wild, callbacks="sample"),
        "callbacks at ends": case(wild, callbacks="ends"),
        **{
            f"{kind} in callbacks, {name}": case(rules, (*CALLS, *EPISODES), callbacks=kind, num_envs=2)
            for kind in (
                "numbers",
                "everything",
                "everything at end",
                "rewards and actions",
                "writer",
                "counters",
                "renumberer",
            )
            for name, rules in {"wild": wild, "waiting": world(4, infos="some", **WAITING)}.items()
        },
        "callback functions": case(wild, (*CALLS, *EPISODES), callbacks="functions"),
        "arrays reused": case(world(4, reuses_arrays=True, **WAITING)),
        "actions grabbed, own copy": case(one_space(action="box", grabs_actions=True)),
    }
    for i, rules in enumerate(({"failing_steps": (9, 30)}, {"failing_steps": (1,)}, {"failing_resets": (2, 3)})):
        cases[f"failures {i}"] = case(world(4, **WAITING, **rules), num_envs=1, restarts=True)
        cases[f"failures {i}, callbacks"] = case(world(4, **rules), num_envs=1, restarts=True, callbacks="all")
    failing = world(4, failing_steps=(9,))
    cases["failure without restart"] = case(failing, num_envs=1, raises="RuntimeError")
    return cases


def _mappings() -> dict[str, Case]:
    """Mapping functions that read the episode, and such that come while episodes are running."""
    worlds = {"late": world(5, **LATE), "deaths": world(5, **DEATHS), "wild": world(5, **WILD)}
    cases = {}
    for kind in mappings.BY_EPISODE:
        for name, rules in worlds.items():
            cases[f"mapping by {kind}, {name}"] = case(rules, (*CALLS, *EPISODES), mapping=kind)
        long = [Sample(num_timesteps=9), Remap(kind), *[Sample(num_timesteps=9)] * 4, METRICS]
        cases[f"{kind} comes later"] = case(world(5, max_steps=15, **LATE), long)
    for kind in ("renamer", "remapper"):
        for name, rules in worlds.items():
            calls = (*CALLS, *EPISODES)
            cases[f"{kind}, mapping by id, {name}"] = case(rules, calls, mapping="id", callbacks=kind, num_envs=3)
    rules = world(4, infos="some", obs_kinds=both("nested"), action_kinds=both("discrete"), **WAITING)
    cases["mapping by all there is, nested"] = case(rules, mapping="all there is", modules=both("memory"), lookback=3)
    return cases


def _changes() -> dict[str, Case]:
    """Return cases of changes while episodes are running, which continue in RLlib's loop until the next reset."""
    late, waiting = world(5, max_steps=15, **LATE, **WAITING), world(4, infos="some", **WAITING)
    deaths = world(5, **DEATHS)
    plain: tuple[Call, ...] = (Sample(num_timesteps=7), METRICS, Sample(num_timesteps=7))
    reset = Sample(num_timesteps=9, force_reset=True)
    cases = {}
    for what in CHANGES:
        # Callbacks are not shown agents that ended right before the change.
        unseen = "callback" in what or "function" in what
        for name, rules in {"late": late, "waiting": waiting, **({} if unseen else {"deaths": deaths})}.items():
            calls = (*plain, Change(what), *plain, METRICS)
            goes_on = "callback" in what or "function" in what
            cases[f"{what}, {name}"] = case(rules, calls, num_envs=3, expects_fast=goes_on)
        calls = (*plain, Change(what), *plain, reset, METRICS, *EPISODES)
        cases[f"{what}, then reset"] = case(one_space(action="box", **WAITING), calls)
        calls = (*plain, Change(what), *plain, METRICS)
        recurrent = both("memory")
        cases[f"{what}, recurrent"] = case(late, calls, modules=recurrent, expects_fast=goes_on)
    coming = (Change("function added"), *plain, Change("function removed"), *plain, reset, *plain, METRICS)
    cases["function comes and goes"] = case(late, (*plain, *coming))
    return cases


def _spaces() -> dict[str, Case]:
    """All observation and action spaces, with default modules where RLlib's take them."""
    cases = {}
    for kind in spaces.OBSERVATIONS:
        rules = one_space(kind, **WAITING)
        cases[f"obs {kind}, own module"] = case(rules, modules=both("any"))
        if kind in spaces.OF_NUMBERS:
            cases[f"obs {kind}, read in callbacks"] = case(rules, modules=both("any"), callbacks="everything at end")
        cases[f"obs {kind}, noting module"] = case(rules, modules=both("noting"))
        if kind in spaces.FLAT:
            cases[f"obs {kind}"] = case(rules)
        if kind in spaces.TO_FLATTEN:
            cases[f"obs {kind}, flattened"] = case(rules, connectors=("flatten",))
    cases["obs pixels"] = case(one_space("pixels"), model_config=CONV)
    for kind in spaces.ACTIONS:
        rules = one_space("f32", kind, **WAITING, **DEATHS)
        cases[f"action {kind}"] = case(rules)
        fails = {"dict": "RuntimeError", "tuple": "ValueError"}.get(kind)  # shapes of log probabilities
        cases[f"action {kind}, no exploration"] = case(rules, explore=False, raises=fails)
        cases[f"action {kind}, clipped"] = case(rules, normalize=False, clip=True)
        cases[f"action {kind}, read in callbacks"] = case(rules, callbacks="everything at end")
        cases[f"action {kind}, as is"] = case(rules, normalize=False)
    kinds = {"obs_kinds": {"p0": "f32", "p1": "f64"}, "action_kinds": {"p0": "box", "p1": "multidiscrete"}}
    cases["spaces by group"] = case(world(5, **kinds, **WILD))
    return cases


def _modules() -> dict[str, Case]:
    rules, boxes = world(5, **WILD), one_space("f32", "box", agents=5, **WILD)
    cases = {}
    for kind in ("any", "noting", "extras", "retyped", "odd_names", "own_actions", "heuristic", "memory"):
        cases[f"module {kind}"] = case(rules, modules=both(kind), num_envs=3)
        cases[f"module {kind}, boxes"] = case(boxes, modules=both(kind))
        cases[f"module {kind}, no exploration"] = case(rules, modules=both(kind), explore=False)
        cases[f"module {kind} and default"] = case(rules, modules={"p0": "default", "p1": kind})
        cases[f"module {kind}, callbacks"] = case(rules, modules=both(kind), callbacks="all")
    for name, options in {"": {}, ", waiting": WAITING, ", turns": TURNS, ", wild": WILD}.items():
        cases[f"lstm{name}"] = case(world(4, **options), model_config=LSTM)
    at_random = [
        Sample(num_timesteps=7, random_actions=True) for _ in range(3)
    ]  # no states; RLlib can't mix these steps
    calls = (*at_random, METRICS, Sample(num_timesteps=7, force_reset=True), Sample(num_timesteps=7), METRICS)
    cases["lstm, random at first"] = case(world(3, **TURNS), calls, model_config=LSTM)
    cases["module memory, random at first"] = case(world(3, **TURNS), calls, modules=both("memory"))
    singly = [*[Sample(num_timesteps=1)] * 8, METRICS]
    cases["module memory, single steps"] = case(
        world(4, max_steps=14, **WAITING), singly, modules=both("memory"), lookback=3, num_envs=2
    )
    cases["lstm, boxes"] = case(one_space("f32", "box", **WAITING), EPISODES, model_config=LSTM)
    cases["lstm and own module"] = case(rules, modules={"p0": "default", "p1": "any"}, model_config=LSTM)
    cases["lstm, no exploration"] = case(rules, model_config=LSTM, explore=False)
    return cases


def _connectors() -> dict[str, Case]:
    """RLlib's own connectors, and such as users write."""
    cases = {}
    worlds = {"": {}, ", waiting": WAITING, ", late deaths": {**LATE, **DEATHS}, ", wild": WILD}
    chains: tuple[tuple[str, ...], ...] = (
        ("mean_std",), ("frozen_mean_std",), ("previous", "flatten"), ("frames",), ("flatten", "mean_std"),
        ("own",), ("own, longer",), ("own, joint", "mean_std"), ("mean_std", "own, curious"),
        ("own, as a piece", "previous", "flatten"), ("own, joint", "frames"),
    )  # fmt: skip
    for names in chains:
        obs, kind = ("frame", "any") if "frames" in names else ("f32", "default")
        for label, rules in worlds.items():
            setup = {"connectors": names, "lookback": 4, "modules": both(kind)}
            cases[f"{' '.join(names)}{label}"] = case(one_space(obs, agents=4, **rules), **setup)
    return {**cases, **_connectors_in_context()}


def _connectors_in_context() -> dict[str, Case]:
    """With callbacks, recurrent modules, other observations, ways to call sample(), failures."""
    cases = {}
    rules, wild = one_space(agents=4, infos="some", **WAITING), one_space(agents=5, **WILD)
    for names in (("mean_std",), ("previous", "flatten"), ("own",), ("flatten", "own, curious")):
        label = " ".join(names)
        for callbacks in ("all", "numbers", "everything", "everything at end", "rewards and actions", "writer"):
            cases[f"{label}, {callbacks} in callbacks"] = case(wild, connectors=names, callbacks=callbacks, lookback=3)
        cases[f"{label}, recurrent"] = case(rules, connectors=names, modules=both("memory"), num_envs=3)
        cases[f"{label}, LSTM"] = case(wild, connectors=names, model_config=LSTM)
        cases[f"{label}, episodes"] = case(wild, EPISODES, connectors=names, num_envs=3)
        cases[f"{label}, lookback 0"] = case(one_space(agents=4, **DEATHS), connectors=names, lookback=0)
        cases[f"{label}, failures"] = case(
            one_space(agents=4, failing_steps=(9, 30)),
            connectors=names,
            num_envs=1,
            restarts=True,
            callbacks="everything",
        )
        cases[f"{label}, mapping by all there is"] = case(wild, connectors=names, mapping="all there is")
    for kind in ("f64", "changing", "strided", "readonly", "says32gives64"):
        for name in ("mean_std", "own", "flatten"):
            cases[f"{name}, obs {kind}"] = case(one_space(kind, **WAITING), connectors=(name,))
    for name in ("std", "mean", "frozen_mean_std"):
        cases[f"{name}, episodes"] = case(wild, EPISODES, connectors=(name, "mean_std"), num_envs=3)
    some = one_space("frame", agents=4, **WAITING)
    cases["flatten some"] = case(some, connectors=("flatten some",), modules=both("any"))
    for kind in ("float32", "int", "all"):
        rewards = tuple(REWARDS) if kind == "all" else (kind,)
        together = one_space(agents=4, rewards=rewards, infos="some")
        cases[f"previous in a dict, rewards {kind}"] = case(together, modules=both("any"), connectors=("previous",))
        cases[f"previous, rewards {kind}"] = case(together, connectors=("previous", "flatten"), callbacks="everything")
    random = [Sample(num_timesteps=7, random_actions=True, force_reset=i == 0) for i in range(3)]
    for names in (("mean_std",), ("previous", "flatten"), ("own, longer",)):
        cases[f"{' '.join(names)}, random, then module"] = case(
            rules, [*random, METRICS, Sample(num_timesteps=9, force_reset=True), METRICS], connectors=names
        )
    plain: tuple[Call, ...] = (Sample(num_timesteps=7), METRICS, Sample(num_timesteps=7))
    for names in (("mean_std",), ("frames",), ("own",)):
        for what in ("connector added", "function added"):
            obs, kind = ("frame", "any") if "frames" in names else ("f32", "default")
            given = {"connectors": names, "modules": both(kind), "lookback": 4, "expects_fast": "function" in what}
            world_of = one_space(obs, agents=4, max_steps=15, **LATE, **WAITING)
            cases[f"{names[0]}, then {what}"] = case(world_of, (*plain, Change(what), *plain, METRICS), **given)
    return cases


def _known_envs() -> dict[str, Case]:
    def known(env: type, config: dict[str, Any], **setup: Any) -> Case:
        return case(env=env, env_config=config, **{"mapping": "name", **setup})

    return {
        "cartpole": known(known_envs.CartPoles, {"num_agents": 3}, checked=True),
        "cartpole, episodes": known(known_envs.CartPoles, {"num_agents": 4}, calls=EPISODES, num_envs=3),
        "pendulum": known(known_envs.Pendulums, {"num_agents": 2}),
        "spread": known(known_envs.Spread, {}, calls=(*CALLS, *EPISODES), checked=True),
        "spread, continuous": known(known_envs.Spread, {"continuous_actions": True}),
        "tag": known(known_envs.Tag, {}, mapping="role"),
        "speaker and listener": known(known_envs.SpeakerListener, {}, mapping="role"),
        "battle": known(known_envs.Battle, {}, calls=BATTLE, modules=both("any")),
    }


CASES: dict[str, Case] = {
    **_sizes(),
    **_protocols(),
    **_payments(),
    **_calls(),
    **_options(),
    **_mappings(),
    **_changes(),
    **_spaces(),
    **_modules(),
    **_connectors(),
    **_known_envs(),
}
