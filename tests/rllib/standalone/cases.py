"""Random cases: worlds, options and calls, each from its seed alone."""

import random
from dataclasses import dataclass, replace
from typing import Any

from rllib.differential import spaces
from rllib.differential.fuzz import GROUPS, IDS, random_rules
from rllib.standalone.modules import DRAWING, KINDS
from rllib.standalone.worlds import ExactRules

OBSERVATIONS = ("f32", "f32", *(kind for kind in spaces.OBSERVATIONS if kind not in ("image", "pixels")))
ACTIONS = ("discrete", "discrete", "multidiscrete", "box", "box64", "unbounded", "half")
REWARDS = ("float", "float32", "float64", "int", "int64", "zero", "minus_zero")
MAPPINGS = ("group", "group", "name", "place")
FRAMES = 3
CALLBACKS = ("none", "none", "class", "functions", "some", "writer")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of the runner's method of this name."""

    method: str = "sample"
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that two runners are made of, and what they are asked to do."""

    rules: ExactRules
    modules: dict[str, str]
    mapping: str
    connectors: tuple[str, ...]
    callbacks: str
    num_envs: int
    num_env_runners: int
    worker_index: int
    fragment: int | str
    batch: int
    batch_mode: str
    count_steps_by: str
    explore: bool
    lookback: int
    normalize: bool
    clip: bool
    window: int
    keep_float64: bool
    calls: tuple[Call, ...]

    @property
    def together(self) -> bool:
        """True if chunks must be cut at the same steps: RLlib resets an env while others are stepped."""
        return self.num_envs == 1 or self.rules.in_step


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    num_envs = rng.choice((1, 1, 1, 2, 3, 4))
    in_step = rng.random() < (0.5 if num_envs == 1 else 0.75)
    agents = tuple(rng.sample(rng.choice(IDS), rng.randint(1, 5)))
    rules = _rules(rng, agents, in_step)
    groups = [*rules.obs_kinds]
    n_runners = rng.choice((0, 0, 2))
    counts_agents = _is_simple(rules) and rng.random() < 0.5
    together = num_envs == 1 or in_step
    modules = {group: rng.choice(KINDS) for group in groups}
    same = len({*rules.obs_kinds.values()}) == len({*rules.action_kinds.values()}) == 1
    # Draws of MultiDiscrete spaces are not from the common stream.
    drawn = any(modules[g] in DRAWING and rules.action_kinds[g] == "multidiscrete" for g in groups)
    case = Case(
        rules=rules,
        modules=modules,
        mapping=rng.choice(MAPPINGS) if same else "group",
        connectors=_connectors(rng, rules),
        callbacks=rng.choice(CALLBACKS if together else ("class", "some")),
        num_envs=num_envs,
        num_env_runners=n_runners,
        worker_index=rng.choice((1, 2)) if n_runners else rng.choice((0, 1)),
        fragment=rng.choice((1, 2, 3, 5, 9, "auto")),
        batch=rng.choice((7, 16, 40)),
        batch_mode="complete_episodes" if together and rng.random() < 0.15 else "truncate_episodes",
        count_steps_by="agent_steps" if counts_agents else "env_steps",
        explore=not drawn and rng.random() < 0.5,
        lookback=rng.choice((1, 1, 1, 2, 3, 10, 1 - _always_act(rules))),
        normalize=rng.random() < 0.7,
        clip=rng.random() < 0.3,
        window=rng.choice((1, 3, 100)),
        keep_float64=rng.random() < 0.5,
        calls=tuple(_calls(rng, num_envs, together, {*rules.action_kinds.values()} <= {"discrete"})),
    )
    if case.connectors and case.callbacks == "writer":
        case = replace(case, callbacks="class")
    if case.connectors != ("frames",):
        return case
    return replace(case, rules=replace(rules, style="together", quiet=0.0), lookback=max(FRAMES - 1, case.lookback))


def _is_simple(rules: ExactRules) -> bool:
    """All act in every step: then RLlib's count of observations is one of actions."""
    return rules.style == "together" and rules.at_reset == rules.joins == 1.0 and not (rules.dies or rules.quiet)


def _always_act(rules: ExactRules) -> bool:
    """No agent waits. At a cut RLlib forgets the steps of those that do, and its connectors miss them."""
    return rules.style == "together" and not rules.quiet


def _rules(rng: random.Random, agents: tuple, in_step: bool) -> ExactRules:
    groups = GROUPS[: min(len(agents), rng.choice((1, 2, 2, 3)))]
    obs_kind, action_kind, same = rng.choice(OBSERVATIONS), rng.choice(ACTIONS), rng.random() < 0.6
    obs_kinds = {group: obs_kind if same else rng.choice(OBSERVATIONS) for group in groups}
    action_kinds = {group: action_kind if same else rng.choice(ACTIONS) for group in groups}
    own = {"in_step": in_step, "returns": 0.0, "infos": rng.choice(("none", "some", "arrays", "empty"))}
    return random_rules(rng, agents, obs_kinds, action_kinds, REWARDS, of=ExactRules, **own)


def _connectors(rng: random.Random, rules: ExactRules) -> tuple[str, ...]:
    """Choose connectors that both sides have, where RLlib's take the spaces."""
    if rng.random() < 0.6:
        return ()
    if {*rules.obs_kinds.values()} <= {"frame"}:
        return ("frames",)
    if {*rules.action_kinds.values()} <= {"discrete"} and _always_act(rules):
        return ("previous", "flatten")  # without the latter, RLlib's do not fit their own space
    return ("flatten",)


def _calls(rng: random.Random, num_envs: int, together: bool, switches: bool) -> list[Call]:
    """About six samples, with reports, states and changes between them.

    A report comes before every reset: RLlib forgets the earlier chunks of finished episodes at a reset. And a reset
    comes after `make_module()`: RLlib's episodes go on with new modules, ours are dropped.

    Args:
        together: see `Case.together`. Else changes of how agents act would come at different steps.
        switches: whether RLlib's episodes take steps with exploration and without (39).
    """
    calls: list[Call] = []
    seq_no = 0
    made = False
    for _ in range(rng.randint(3, 9)):
        arguments: dict[str, Any] = {}
        if switches and together and rng.random() < 0.2:
            arguments["explore"] = rng.random() < 0.5
        if together and rng.random() < 0.15:
            arguments["num_episodes"] = num_envs * rng.randint(1, 3)
        elif made or rng.random() < 0.8:
            arguments["num_timesteps"] = rng.choice((1, 3, 8, 20, 40)) * num_envs
            if made or rng.random() < 0.1:
                arguments["force_reset"] = True
        if arguments.keys() & {"num_episodes", "force_reset"} or "num_timesteps" not in arguments or rng.random() < 0.4:
            calls.append(Call(method="get_metrics"))
        calls.append(Call(arguments=tuple(arguments.items())))
        if together and rng.random() < 0.3:
            seq_no += rng.choice((0, 1, 2))
            calls.append(Call(method="move_weights", arguments=(("seq_no", rng.choice((0, seq_no, seq_no))),)))
        if rng.random() < 0.2:
            calls.append(Call(method=rng.choice(("get_state", "take_own_state"))))
        made = together and rng.random() < 0.05
        if made:
            calls += [Call(method="get_metrics"), Call(method=rng.choice(("make_env", "make_module")))]
    return [*calls, Call(method="get_metrics"), Call(method="get_state")]
