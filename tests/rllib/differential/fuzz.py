"""Random cases: worlds, configs and calls, each from its seed alone."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rllib.differential import spaces
from rllib.differential.batch_pieces import PLACES, TO_ENV
from rllib.differential.callbacks import READERS
from rllib.differential.cases import COLLIDING, MIXED, NAMES, STRINGS
from rllib.differential.configs import LSTM, SMALL, Setup
from rllib.differential.mappings import BY_EPISODE
from rllib.differential.runs import Call, Case, GetMetrics, Make, Put, Remap, Sample, SetState
from rllib.differential.worlds import MIXED_SUMS, REWARDS, Rules

IDS = (tuple(range(6)), COLLIDING, STRINGS, NAMES, MIXED)
GROUPS = ("p0", "p1", "p2")
OWN_MODULES = ("any", "any", "noting", "extras", "retyped", "own_actions", "heuristic", "memory")


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    agents = tuple(rng.sample(rng.choice(IDS), rng.randint(1, 6)))
    obs_kinds, action_kinds, modules = _kinds(rng, most=len(agents))
    rules = _rules(rng, agents, obs_kinds, action_kinds)
    setup = _setup(rng, rules, modules)
    return Case(
        setup=setup,
        calls=tuple(_calls(rng, setup)),
        expects_fast=setup.to_numpy,
        worker_index=rng.choice((None, 1, 1, 2) if setup.num_env_runners else (None, 0)),
    )


def switching_case(seed: int) -> Case:
    """A random case whose calls go on with running episodes in another mode: exploring, not exploring, at random.

    RLlib's own episodes can't take all of that, but CorrectedLoop's can.
    """
    case = random_case(seed)
    rng = random.Random(f"modes of {seed}")
    assert case.setup.rules is not None
    rules = replace(case.setup.rules, max_steps=rng.choice((9, 30, 200)), failing_steps=(), failing_resets=())
    kinds = {*rules.action_kinds.values()}
    modes: list[dict[str, bool]] = [{"explore": True}]
    if not {*spaces.NESTED_ACTIONS} & kinds:
        modes.append({"explore": False})
    if "scalar" not in kinds:  # RLlib's modules answer with arrays of shape (1,) there
        modes.append({"random_actions": True})
    calls = [Sample(num_timesteps=rng.choice((1, 5, 12, 20)), **rng.choice(modes)) for _ in range(rng.randint(4, 8))]
    setup = replace(case.setup, rules=rules, restarts=False)
    return replace(case, setup=setup, calls=(*calls, GetMetrics()))


def rewriting_case(seed: int) -> Case:
    """A random case whose callbacks, or whose runner's subclass, rewrite what was recorded."""
    case, rng = random_case(seed), random.Random(f"rewriting of {seed}")
    assert case.setup.rules is not None
    rewards = tuple(kind for kind in case.setup.rules.rewards if kind != "none") or ("float",)
    rules = replace(case.setup.rules, rewards=rewards)
    is_subclass = rng.random() < 0.2
    setup = replace(
        case.setup, rules=rules, to_numpy=True, callbacks=case.setup.callbacks if is_subclass else f"rewriter {seed}"
    )
    return replace(case, setup=setup, is_subclass=is_subclass, expects_fast=True)


def _kinds(rng: random.Random, most: int) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Kinds of observation spaces, action spaces and modules by group; those of a group go together."""
    groups = GROUPS[: min(most, rng.choice((1, 2, 2, 3)))]
    obs_kinds, action_kinds, modules = {}, {}, {}
    same = rng.random() < 0.5
    for group in groups:
        if same and modules:
            obs_kinds[group], action_kinds[group] = obs_kinds["p0"], action_kinds["p0"]
            another = _module_for(rng, obs_kinds["p0"], action_kinds["p0"])
            modules[group] = rng.choice((modules["p0"], another))
            continue
        own = rng.random() < 0.4
        obs_kinds[group] = rng.choice(("f32", "f32", *spaces.OBSERVATIONS) if own else ("f32", "f32", *spaces.FLAT))
        action_kinds[group] = rng.choice(("discrete", *(spaces.SIMPLE_ACTIONS if own else spaces.ACTIONS)))
        modules[group] = rng.choice(OWN_MODULES) if own else "default"
    return obs_kinds, action_kinds, modules


def _module_for(rng: random.Random, obs_kind: str, action_kind: str) -> str:
    """Any module that takes these spaces."""
    kinds = OWN_MODULES if action_kind in spaces.SIMPLE_ACTIONS else ()
    return rng.choice((*kinds, *("default",) * 2 * (obs_kind in spaces.FLAT)))


def random_rules(
    rng: random.Random, agents: tuple, obs_kinds: dict[str, str], action_kinds: dict[str, str],
    reward_kinds: Sequence[str], *, of: type[Rules] = Rules, **own: Any,
) -> Any:  # fmt: skip
    """Rules of a world of these agents and groups; what is `own` is not drawn."""
    groups = [*obs_kinds]
    style = rng.choice(("together", "together", "sparse", "turns"))
    drawn: dict[str, Any] = {
        "seed": rng.randrange(1000),
        "max_steps": rng.choice((1, 2, 5, 9, 14, 30)),
        "style": style,
        "at_reset": rng.choice((1.0, 1.0, 0.6, 0.1)),
        "joins": rng.choice((1.0, 0.3, 0.1)),
        "dies": rng.choice((0.0, 0.0, 0.05, 0.3)),
        "last_words": rng.choice((1.0, 0.5, 0.0)),
        "quiet": rng.choice((0.0, 0.0, 0.2)) if style != "together" else 0.0,
        "stillborn": rng.choice((0.0, 0.0, 0.1)),
        "returns": rng.choice((0.0, 0.5)),
        "end": rng.choice(("terminated", "truncated", "truncated_each", "both")),
        "flags": rng.choice(("sparse", "full", "repeated", "only_all")),
        "numpy_flags": rng.random() < 0.2,
        "truncated_has_all": rng.random() < 0.8,
        "shuffled": rng.random() < 0.5,
        "rewards": tuple(rng.sample(reward_kinds, rng.choice((1, 1, 2, len(reward_kinds))))),
        "pays_waiting": rng.choice((0.0, 0.5, 1.0)),
        "pays_absent": rng.choice((0.0, 0.0, 0.4)),
        "infos": rng.choice(("none", "some", "arrays", "reused", "empty")),
        "common_info": rng.random() < 0.2,
        "reuses_arrays": rng.random() < 0.3,
    }
    group_of = {agent: groups[i % len(groups)] for i, agent in enumerate(agents)}
    return of(agents=agents, group_of=group_of, obs_kinds=obs_kinds, action_kinds=action_kinds, **{**drawn, **own})


def random_failures(rng: random.Random, chance: float, first_reset: int = 1) -> dict[str, tuple[int, ...]]:
    """Rules about calls that fail, with this chance that there are any."""
    if rng.random() >= chance:
        return {}
    return {"failing_steps": tuple(rng.sample(range(1, 40), 2)), "failing_resets": (rng.randrange(first_reset, 9),)}


def _rules(rng: random.Random, agents: tuple, obs_kinds: dict[str, str], action_kinds: dict[str, str]) -> Rules:
    own = {"splits": rng.random() < 0.1, **random_failures(rng, 0.08)}
    rules = random_rules(rng, agents, obs_kinds, action_kinds, sorted(REWARDS), **own)
    if rules.style == "together":
        return rules
    # What RLlib makes of a sum of such rewards while an agent waits depends on who else is named in a step.
    kept = tuple(kind for kind in rules.rewards if kind not in MIXED_SUMS)
    return replace(rules, rewards=kept or ("float",))


def _setup(rng: random.Random, rules: Rules, modules: dict[str, str]) -> Setup:
    defaults_only = set(modules.values()) == {"default"}
    same = len(set(rules.obs_kinds.values())) == len(set(rules.action_kinds.values())) == 1
    plain = set(rules.obs_kinds.values()) <= {"f32"} and defaults_only
    nested = bool(set(spaces.NESTED_ACTIONS) & set(rules.action_kinds.values()))
    lists_kept = rng.random() < 0.04
    return Setup(
        rules=rules,
        modules=modules,
        model_config=LSTM if not nested and rng.random() < 0.2 else SMALL,
        mapping=rng.choice(("group", "name", *BY_EPISODE)) if same else "group",
        connectors=_connectors(rng) if plain and rng.random() < 0.4 else (),
        callbacks=rng.choice(("none",) * 8 + READERS),
        num_envs=1 if rules.failing_steps else rng.choice((1, 1, 2, 3, 5)),  # 03
        num_env_runners=rng.choice((0, 0, 2)),
        fragment=rng.randint(1, 9),
        batch_mode=rng.choice(("truncate_episodes",) * 3 + ("complete_episodes",)),
        count_steps_by=rng.choice(("env_steps", "env_steps", "agent_steps")),
        explore=nested or rng.random() < 0.8,
        lookback=rng.choice((1, 1, 1, 2, 3, 10)),
        normalize=rng.random() < 0.7,
        clip=rng.random() < 0.3,
        seed=rng.choice((None, 0, 3, 12345)),
        in_evaluation=rng.random() < 0.1,
        checked=rng.random() < 0.15 and not rules.failing_steps and not set(rules.rewards) & {"none"},
        restarts=bool(rules.failing_steps),
        to_numpy=not lists_kept,
        window=rng.choice((1, 3, 100)),
    )


def piece_case(seed: int) -> Case:
    """A random case with connector pieces that have a part in batches."""
    case, rng = random_case(seed), random.Random(f"pieces of {seed}")
    assert case.setup.rules is not None
    nested = bool({*spaces.NESTED_ACTIONS} & {*case.setup.rules.action_kinds.values()})
    is_plain = {*case.setup.rules.obs_kinds.values()} <= {"f32", "f64"}
    usual = [name for name in TO_ENV if name not in PLACES and not (nested and name == "epsilon")]
    usual = [name for name in usual if is_plain or name != "reads observations"]
    to_env = tuple(rng.sample(usual, rng.choice((0, 1, 1, 2))))
    to_module = rng.choice(((), ("bonus",), ("bonus of all",), ("noting", "bonus"), ("noting",)))
    put: list[Call] = [Put(name, PLACES[name]) for name in ("logits", "for env, last") if rng.random() < 0.2]
    put += [Put(rng.choice(("noting", "bonus last")))] if rng.random() < 0.3 else []
    put += [Put("noting", rng.randint(0, 7))] if rng.random() < 0.3 else []
    setup = replace(case.setup, to_env=to_env, connectors=(*to_module, *case.setup.connectors))
    return replace(case, setup=setup, calls=(*put, *case.calls))


def _connectors(rng: random.Random) -> tuple[str, ...]:
    """Some in any order; what makes observations of another form comes once, and what it is made flat again by."""
    names = rng.sample(("mean_std", "frozen_mean_std", "own", "own, joint", "own, curious", "own, as a piece"), 3)
    names = names[: rng.choice((0, 1, 1, 2, 3))]
    longer = rng.choice(((), (), ("flatten",), ("own, longer",), ("previous", "flatten")))
    place = rng.randint(0, len(names))
    if longer[:1] in (("own, longer",), ("previous",)):
        place = len(names)  # the others are made for observations of the env's shape
    return (*names[:place], *longer, *names[place:])


def _calls(rng: random.Random, setup: Setup) -> list[Call]:
    """About four samples, with metrics and new weights in between.

    A call begins with a reset where RLlib could not go on: where random actions and those of modules, or log
    probabilities of both kinds, would come into one episode, and after an env failed in a call for episodes.
    """
    assert setup.rules is not None
    one_explore = set(spaces.ONE_EXPLORE) & set(setup.rules.action_kinds.values())
    calls: list[Call] = []
    seq_no, was_random, must_reset = 0, False, True
    for _ in range(rng.randint(3, 5)):
        is_random = rng.random() < 0.1
        explore = None if one_explore or rng.random() < 0.7 else rng.random() < 0.5
        options: dict[str, Any] = {"explore": explore, "random_actions": True if is_random else None}
        must_reset = must_reset or is_random != was_random
        if rng.random() < 0.2:
            calls.append(Sample(num_episodes=rng.randint(0, 4), **options))
            must_reset = bool(setup.rules.failing_steps)
        elif rng.random() < 0.2 and not must_reset:
            calls.append(Sample(**options))
            must_reset = bool(setup.rules.failing_steps)
        else:
            reset = True if must_reset or rng.random() < 0.1 else None
            calls.append(Sample(num_timesteps=rng.choice((1, 5, 12, 20, 40)), force_reset=reset, **options))
            must_reset = False
        was_random = is_random
        if rng.random() < 0.5:
            calls.append(GetMetrics())
        if rng.random() < 0.3:
            seq_no += rng.choice((-1, 1, 2))
            calls.append(SetState(seq_no=max(seq_no, 0), lifetime=rng.choice((None, 500))))
        if setup.mapping in BY_EPISODE and {"p0", "p1"} <= {*setup.modules} and rng.random() < 0.1:
            calls.append(Remap(rng.choice(sorted(BY_EPISODE))))
        if rng.random() < 0.03:
            calls.append(Make(rng.choice(("env", "module"))))
    return [*calls, GetMetrics()]
