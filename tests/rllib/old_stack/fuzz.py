"""Random cases of the old stack: worlds, configs and calls, each from its seed alone."""

import random
from dataclasses import replace
from enum import Enum
from typing import Any

from rllib.differential.fuzz import random_failures, random_rules
from rllib.differential.worlds import REWARDS, Rules
from rllib.old_stack.callbacks import READERS, WRITERS
from rllib.old_stack.calls import (
    AddPolicy,
    Ask,
    Call,
    Change,
    Remap,
    RemovePolicy,
    Restore,
    Sample,
    SetGlobals,
    SetWeights,
    SyncFilters,
)
from rllib.old_stack.runs import Case
from rllib.old_stack.setups import Setup

STRINGS = [f"agent_{i}" for i in range(20)]
NAMES = [*Enum("Name", [(name, name) for name in STRINGS], type=str)]  # as users have them; not as StrEnum
GROUPS = ("p0", "p1", "p2")
FLAT = ("f32", "f64", "strided", "readonly")
OBSERVATIONS = ("f32", "f32", "f64", "u8", "discrete", "multidiscrete", "multibinary", "dict", "tuple", "strided")
ACTIONS = ("discrete", "discrete", "start", "multidiscrete", "box", "box64", "unbounded", "half", "dict", "tuple")
NESTED = ("dict", "tuple")
PREVIOUS = ("lstm, previous", "attention, previous")
"""Models that take actions: RLlib makes none of them for Discrete."""
STATEFUL = ("lstm", "attention", "recurrent", "prying", *PREVIOUS)
PLAIN_MODELS = ("small", "small", "relu", "noting", "switching", "stacked", "remembering", "foreseeing", "repeating")
OWN_POLICIES = ("noting", "peers", "editing", "extras", "retyped", "bare", "sampling", "distributing")
NUMBERS = tuple(sorted({*REWARDS} - {"none", "array"}))
CHANGES = (
    "no exploration",
    "gradient updates",
    "other columns",
    "other worlds",
    "other callbacks",
    "an action connector less",
    "an action connector more",
    "weights in place",
    "patched policies",
    "each env",
)


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    rules = _rules(rng)
    setup = _setup(rng, rules)
    return Case(setup=setup, calls=tuple(_calls(rng, setup)), twin=rng.random() < 0.05)


def stashing_case(seed: int) -> Case:
    """A random case with one policy more than the policy map keeps; needs Ray.

    It is small, as stashing takes long. No exploration draws from a space: a restored one has a generator that no seed
    determines, in RLlib's worker, too.
    """
    case = random_case(seed)
    capacity = max(len(case.setup.policies) - 1, 1)
    setup = replace(case.setup, capacity=capacity, model="small", models={}, explorations={})
    setup = replace(setup, num_envs=1, fragment=4)
    return replace(case, setup=setup, calls=case.calls[:4], twin=False)


def remote_case(seed: int) -> Case:
    """A random case whose environments are in actors; needs Ray.

    Agents act in every environment at every step: RLlib waits for ever for one in which none does.
    """
    case = random_case(seed)
    rules = replace(case.setup.rules, style="together", at_reset=1.0, quiet=0.0, failing_steps=(), failing_resets=())
    setup = replace(case.setup, rules=rules, env="in an actor", model="small", models={}, num_envs=2)
    return replace(case, setup=replace(setup, remote_envs=True), twin=False)


def _rules(rng: random.Random) -> Rules:
    n_agents = rng.choice((1, 2, 2, 3, 3, 5, 5, 20))
    agents = tuple(rng.sample(rng.choice((STRINGS, STRINGS, STRINGS, NAMES, range(20))), n_agents))
    groups = GROUPS[: min(n_agents, rng.choice((1, 2, 2, 3)))]
    obs_kinds, action_kinds = _kinds(rng, groups)
    infos = rng.choice(("none", "none", "some", "arrays", "reused", "empty"))
    given = {"max_steps": rng.choice((1, 2, 4, 6, 9, 14)), "infos": infos, "truncated_has_all": True}
    if rng.random() < 0.1:
        given["rewards"] = ("array",)
    failures = random_failures(rng, 0.1, first_reset=2)
    return random_rules(rng, agents, obs_kinds, action_kinds, NUMBERS, **given, **failures)


def _kinds(rng: random.Random, groups: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Kinds of observations and actions by group; all have the same in half of the cases."""
    obs = {group: rng.choice(OBSERVATIONS) for group in groups}
    actions = {group: rng.choice(ACTIONS) for group in groups}
    if rng.random() < 0.5:
        obs, actions = dict.fromkeys(groups, obs["p0"]), dict.fromkeys(groups, actions["p0"])
    return obs, actions


def _setup(rng: random.Random, rules: Rules) -> Setup:
    same = len({*rules.obs_kinds.values()}) == len({*rules.action_kinds.values()}) == 1
    algorithm = _algorithm(rng, rules)
    simple = {*rules.obs_kinds.values()} <= {*FLAT} and {*rules.action_kinds.values()} <= {"discrete", "box"}
    model = _model(rng, rules, algorithm, simple)
    fails = bool(rules.failing_steps)
    return Setup(
        rules=rules,
        algorithm=algorithm,
        policies={name: _policy(rng, rules, name, algorithm, model) for name in rules.obs_kinds},
        model=model,
        models={"p0": "lstm"} if model == "small" and algorithm == "ppo" and rng.random() < 0.1 else {},
        explorations=_explorations(rng, rules, algorithm),
        unexploring=("p0",) if rng.random() < 0.1 else (),
        mapping=rng.choice(("plain", "group", "env", "episode", "time", "random") if same else ("plain", "group")),
        callbacks=rng.choice(("none",) * 5 + READERS + WRITERS),
        num_envs=rng.choice((1, 1, 2, 3, 8 if len(rules.agents) < 5 else 2)),
        worker_index=rng.choice((1, 1, 1, 2)),
        num_env_runners=2,
        fragment=_fragment(rng, rules, algorithm),
        batch_mode=rng.choice(("truncate_episodes",) * 3 + ("complete_episodes",)),
        count_steps_by=rng.choice(("env_steps", "env_steps", "agent_steps")),
        explore=rng.random() < 0.85,
        normalize=rng.random() < 0.7,
        clip_actions=rng.random() < 0.3,
        clip_rewards=rng.choice((None, None, None, True, False, 0.5)) if "array" not in rules.rewards else None,
        observation_filter=rng.choice(("NoFilter",) * 5 + ("MeanStdFilter", "ConcurrentMeanStdFilter")),
        preprocessors=rng.choice(("on",) * 8 + ("off", "none")) if simple else "on",
        compress=rng.random() < 0.05,
        output="out" if rng.random() < 0.05 and rules.infos in ("none", "empty", "some") else None,
        seed=rng.choice((None, 0, 3, 12345)),
        in_evaluation=rng.random() < 0.1,
        restarts=fails and rng.random() < 0.8,
        ema=rng.choice((None, None, 0.2)),
    )


def _fragment(rng: random.Random, rules: Rules, algorithm: str) -> int:
    if algorithm in ("appo", "impala"):
        return rng.choice((2, 4, 8))  # V-trace insists on parts of its 32 dummy rows
    return rng.choice((1, 2, 3, 5, 7, 10, 20 if len(rules.agents) < 5 else 4))


def _algorithm(rng: random.Random, rules: Rules) -> str:
    actions, obs = {*rules.action_kinds.values()}, {*rules.obs_kinds.values()}
    names = ["ppo"] * 6 + ["appo", "impala"]
    if actions <= {"discrete"}:
        names += ["dqn", "dqn"]
    if actions <= {"discrete", "box"} and obs <= {*FLAT}:
        names += ["sac"]
    return rng.choice(names)


def _model(rng: random.Random, rules: Rules, algorithm: str, simple: bool) -> str:
    if algorithm in ("dqn", "sac"):
        return "small"
    nested = {*rules.action_kinds.values()} & {*NESTED}
    boxes = {*rules.action_kinds.values()} <= {"box"}
    models: list[str] = [*PLAIN_MODELS] if simple else ["small", "relu"]
    if not nested:
        models += ["lstm", "attention", *(["recurrent", "prying"] if simple else []), *(PREVIOUS if boxes else ())]
    return rng.choice(models)


def _policy(rng: random.Random, rules: Rules, name: str, algorithm: str, model: str) -> str:
    if algorithm != "ppo" or rng.random() < 0.6:
        return "default"
    if rules.action_kinds[name] == "discrete" and model == "small" and rng.random() < 0.2:
        return rng.choice(("heuristic", "counting"))
    if model in STATEFUL:
        return rng.choice(("noting", "peers"))
    return rng.choice(OWN_POLICIES)


def _explorations(rng: random.Random, rules: Rules, algorithm: str) -> dict[str, str]:
    if rng.random() < 0.6 or algorithm == "sac":
        return {}
    kinds = ["epsilon", "soft q"] if algorithm == "dqn" else ["stochastic", "noting"]
    found = {}
    for name, action in rules.action_kinds.items():
        more = ["random at first", "random"] if algorithm != "dqn" and action not in NESTED else []
        found[name] = rng.choice(kinds + more)
    return found


def _calls(rng: random.Random, setup: Setup) -> list[Call]:
    """Some samples, with metrics, new weights and changes in between."""
    calls: list[Call] = []
    seq_no, timestep = 0, 0
    same = setup.mapping not in ("plain", "group") or len(setup.policies) == 1
    alternates = rng.random() < 0.2
    for _ in range(rng.randint(3, 5)):
        if alternates:
            calls.append(Change(rng.choice(("exploration", "no exploration"))))
        calls.append(Sample(with_count=rng.random() < 0.1))
        if rng.random() < 0.5:
            calls.append(Ask("get_metrics"))
        if rng.random() < 0.4:
            seq_no, timestep = seq_no + rng.choice((0, 1)), timestep + rng.randint(0, 40)
            calls.append(SetWeights(seq_no=rng.choice((None, seq_no)), timestep=rng.choice((None, timestep))))
        if rng.random() < 0.1:
            calls.append(SetGlobals(timestep))
        if setup.observation_filter != "NoFilter" and rng.random() < 0.5:
            calls.append(SyncFilters(flush=rng.random() < 0.7))
        if rng.random() < 0.05:
            calls.append(rng.choice((Ask("get_state"), Restore())))
        if rng.random() < 0.1:
            calls.append(Change(rng.choice(CHANGES)))
        if same and rng.random() < 0.1:
            calls += _other_policies(rng)
    return [*calls, Ask("get_metrics")]


def _other_policies(rng: random.Random) -> list[Call]:
    """Another mapping; or a policy more, perhaps for a while."""
    if rng.random() < 0.5:
        return [Remap(rng.choice(("env", "episode", "random")))]
    added: list[Call] = [AddPolicy("p9", mapping=rng.choice(("env", "episode", "random"))), Sample()]
    removed: list[Any] = [RemovePolicy("p9", mapping="env"), Sample()] if rng.random() < 0.4 else []
    return [*added, *removed]
