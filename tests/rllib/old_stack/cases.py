"""Cases by name: what users of the old stack configure, and what its sampler does in rare moments."""

from typing import Any

from rllib.differential.worlds import Rules
from rllib.old_stack.calls import (
    AddPolicy,
    Ask,
    Call,
    Change,
    Learn,
    Remap,
    RemovePolicy,
    Restore,
    Sample,
    SetGlobals,
    SetWeights,
    SyncFilters,
)
from rllib.old_stack.changes import CHANGES
from rllib.old_stack.runs import Case
from rllib.old_stack.setups import Setup

METRICS = Ask("get_metrics")
STATE = Ask("get_state")
CALLS: tuple[Call, ...] = (
    Sample(),
    METRICS,
    SetWeights(seq_no=1, timestep=30),
    Sample(),
    Sample(),
    SetWeights(seq_no=1, timestep=31),
    METRICS,
    STATE,
    Sample(with_count=True),
)
ROUGH: dict[str, Any] = {"style": "sparse", "at_reset": 0.5, "joins": 0.5, "dies": 0.1, "pays_waiting": 0.5}


def rules(agents: int = 3, groups: int = 2, obs: str = "f32", action: str = "discrete", **more: Any) -> Rules:
    """A world with this many agents, taken in turn by groups p0, p1 and p2; all have the same spaces."""
    names = tuple(f"agent_{i}" for i in range(agents))
    kinds = [f"p{i}" for i in range(groups)]
    return Rules(
        agents=names,
        group_of={name: kinds[i % groups] for i, name in enumerate(names)},
        obs_kinds=more.pop("obs_kinds", dict.fromkeys(kinds, obs)),
        action_kinds=more.pop("action_kinds", dict.fromkeys(kinds, action)),
        **more,
    )


def case(
    world: Rules | None = None,
    calls: tuple[Call, ...] = CALLS,
    raises: str | None = None,
    twin: bool = False,
    **setup: Any,
) -> Case:
    world = world or rules()
    setup.setdefault("policies", dict.fromkeys(world.obs_kinds, "default"))
    return Case(setup=Setup(rules=world, **setup), calls=calls, raises=raises, twin=twin)


def both(kind: str) -> dict[str, str]:
    return {"p0": kind, "p1": kind}


WORLDS = {
    "one agent": case(rules(1, 1)),
    "two agents, three envs": case(rules(2), num_envs=3),
    "five agents, eight envs": case(rules(5), num_envs=8),
    "twenty agents": case(rules(20), num_envs=2),
    "agents come and go": case(rules(5, **ROUGH), num_envs=3),
    "turns": case(rules(3, style="turns", pays_waiting=0.5), num_envs=2),
    "no agent at times": case(rules(3, style="sparse", quiet=0.4, pays_waiting=0.5)),
    "agents die with last words": case(rules(5, dies=0.2, last_words=1.0), num_envs=2),
    "agents die without last words": case(rules(5, dies=0.2, last_words=0.0), num_envs=2),
    "agents die again and again": case(rules(4, dies=0.2, flags="repeated"), num_envs=2),
    "only all": case(rules(4, flags="only_all", style="sparse")),
    "all flags": case(rules(4, flags="full", dies=0.1, numpy_flags=True)),
    "truncated": case(rules(3, end="truncated", style="sparse")),
    "each truncated": case(rules(3, end="truncated_each")),
    "both ends": case(rules(3, end="both", style="sparse")),
    "stillborn": case(rules(5, stillborn=0.3, returns=0.5, joins=0.4, at_reset=0.4), num_envs=2),
    "paid before they are there": case(rules(4, pays_absent=0.5, joins=0.3, at_reset=0.4)),
    "episodes of one step": case(rules(3, max_steps=1)),
    "shuffled": case(rules(6, shuffled=True, **ROUGH), num_envs=2),
    "dead come back": case(rules(3, splits=True, returns=0.7, dies=0.4), raises="ValueError"),
    "infos": case(rules(4, infos="some", common_info=True), callbacks="steps"),
    "infos with arrays": case(rules(4, infos="arrays", style="sparse")),
    "one info again and again": case(rules(4, infos="reused")),
    "empty infos": case(rules(4, infos="empty")),
    "arrays again and again": case(rules(4, reuses_arrays=True, style="sparse"), num_envs=2),
    "takes actions": case(rules(3, grabs_actions=True, action="multidiscrete"), raises="ValueError"),
    "rewards of all kinds": case(rules(5, rewards=("float", "float32", "float64", "int", "int64"))),
    "rewards are arrays": case(rules(3, rewards=("array",), style="sparse", pays_waiting=1.0)),
    "rewards of 0": case(rules(3, rewards=("zero", "minus_zero"))),
    "no rewards": case(rules(3, rewards=("none",)), raises="TypeError"),
    "a step fails": case(rules(3, failing_steps=(9,)), raises="ValueError"),
    "a reset fails": case(rules(3, failing_resets=(3,), max_steps=4), raises="ValueError"),
    "steps fail, envs restart": case(rules(3, failing_steps=(4, 17, 18)), restarts=True, callbacks="all", num_envs=2),
    "resets fail, envs restart": case(
        rules(3, failing_resets=(4, 5), max_steps=4), restarts=True, callbacks="all", num_envs=2
    ),
    "envs that do not close": case(rules(3, failing_steps=(7,)), env="closing", restarts=True, raises="OSError"),
    "infos of others": case(rules(4, infos="some", style="sparse"), env="unheld", raises="ValueError"),
    "no flag for all": case(env="forgetful", raises="ValueError"),
    "lists": case(env="lists"),
    "not for training": case(rules(4, max_steps=6), env="untrained", num_envs=2),
    "observations leave their space": case(rules(4, 1), env="leaving", raises="ValueError"),
    "odd rewards": case(rules(4, style="sparse", pays_waiting=0.5), env="odd"),
    "rewards are rows": case(rules(4, style="sparse", pays_waiting=0.5), env="rows", raises="ValueError"),
    "spaces found out": case(infers_spaces=True),
}
BATCHES = {
    "complete episodes": case(rules(4, dies=0.1), batch_mode="complete_episodes", num_envs=3),
    "complete episodes, by agent steps": case(
        batch_mode="complete_episodes", count_steps_by="agent_steps", fragment=20
    ),
    "by agent steps": case(rules(5, **ROUGH), count_steps_by="agent_steps", num_envs=3),
    "by agent steps, all together": case(rules(5), count_steps_by="agent_steps", fragment=4),
    "fragments of one step": case(fragment=1, num_envs=2),
    "steps without agents": case(rules(3, **ROUGH), fragment=1, num_envs=2, raises="AssertionError"),
    "fragments of twenty steps": case(rules(3, max_steps=5), fragment=20),
    "compressed": case(compress=True),
    "compressed as a whole": case(compress="bulk"),
    "written to files": case(rules(3, infos="some"), output="out"),
    "written by a writer": case(output="noting"),
    "read by a reader": case(reader="wrapped"),
    "no env": case(
        calls=(METRICS, Sample(), SetWeights(), METRICS), worker_index=0, has_env=False, raises="ValueError"
    ),
    "the first batch for ever": case(fake_sampler=True),
    "moving means of times": case(ema=0.1),
    "the local worker": case(worker_index=0, num_env_runners=0),
    "the third worker": case(worker_index=3, num_env_runners=3),
    "two workers": case(rules(3, **ROUGH), twin=True, callbacks="all"),
    "two workers with one policy": case(rules(3, 1), twin=True, batch_mode="complete_episodes", model="lstm"),
    "for evaluation": case(in_evaluation=True),
    "without a seed": case(seed=None),
    "inputs postprocessed": case(postprocess_inputs=True),
}
SPACES = {
    **{
        f"observations: {kind}": case(rules(3, obs=kind))
        for kind in ("f64", "u8", "discrete", "multidiscrete", "multibinary", "dict", "tuple", "strided")
    },
    "observations: nested": case(rules(3, obs="nested"), raises="ValueError"),
    "observations: readonly": case(rules(3, obs="readonly", style="sparse")),
    "observations: of another dtype": case(rules(3, obs="says32gives64")),
    "observations: pixels": case(rules(2, obs="pixels", max_steps=3), model="convolutions", calls=CALLS[:4]),
    **{
        f"actions: {kind}": case(rules(3, action=kind))
        for kind in ("start", "multidiscrete", "box", "box64", "unbounded", "half", "dict", "tuple")
    },
    "actions not flat: dict": case(rules(3, action="dict"), flat_actions=False),
    "actions not normalized": case(rules(3, action="half"), normalize=False),
    "actions clipped": case(rules(3, action="half"), normalize=False, clip_actions=True),
    "actions normalized and clipped": case(rules(3, action="tuple"), clip_actions=True),
    "rewards clipped by sign": case(rules(3, rewards=("float", "int", "zero")), clip_rewards=True),
    "rewards clipped": case(rules(3, rewards=("float", "int")), clip_rewards=0.5),
    "rewards not clipped": case(clip_rewards=False),
    "no preprocessors: dict": case(rules(3, obs="dict"), preprocessors="off"),
    "no preprocessors: f32": case(preprocessors="off"),
    "no preprocessors by preference": case(preprocessors="none"),
    "different spaces": case(
        rules(4, obs_kinds={"p0": "dict", "p1": "f32"}, action_kinds={"p0": "box", "p1": "discrete"}), num_envs=2
    ),
    "different spaces found out": case(
        rules(4, obs_kinds={"p0": "u8", "p1": "f32"}, action_kinds={"p0": "discrete", "p1": "start"}),
        infers_spaces=True,
        mapping="plain",
    ),
}
FILTERED = (Sample(), SyncFilters(), Sample(), SyncFilters(flush=False), STATE, Sample(), METRICS)
FILTERS = {
    "mean and deviation": case(rules(4, dies=0.1), FILTERED, observation_filter="MeanStdFilter", num_envs=2),
    "mean and deviation, with locks": case(calls=FILTERED, observation_filter="ConcurrentMeanStdFilter"),
    "mean and deviation of dicts": case(rules(3, obs="dict"), FILTERED, observation_filter="MeanStdFilter"),
    "mean and deviation, no preprocessors": case(
        calls=FILTERED, observation_filter="MeanStdFilter", preprocessors="off"
    ),
    "mean and deviation of dicts, no preprocessors": case(
        rules(3, obs="dict"), FILTERED, observation_filter="MeanStdFilter", preprocessors="off", raises="TypeError"
    ),
    "mean and deviation in evaluation": case(
        calls=(Sample(), Change("policies in evaluation"), Sample(), Change("policies in training"), Sample()),
        observation_filter="MeanStdFilter",
    ),
}
MODEL_CASES = {
    f"model: {model}": case(rules(3, **ROUGH), model=model, num_envs=2)
    for model in ("relu", "lstm", "attention", "noting", "stacked")
}
MODEL_CASES |= {
    f"model: {model}": case(rules(3, action="box", **ROUGH), model=model, num_envs=2)
    for model in ("lstm, previous", "attention, previous")
}
MODEL_CASES |= {
    f"model: {model}": case(rules(3, style="sparse"), model=model)
    for model in ("remembering", "foreseeing", "repeating", "recurrent", "prying", "switching", "sequences")
}
MODEL_CASES |= {
    "model: free_log_std": case(rules(3, action="box"), model="free_log_std"),
    "previous actions of Discrete": case(model="lstm, previous", raises="TypeError"),
    "model: greedy": case(model="greedy"),
    "lstm beside none": case(models={"p1": "lstm"}, num_envs=2),
    "lstm of dicts": case(rules(3, obs="dict"), model="lstm"),
    "lstm, complete episodes": case(model="lstm", batch_mode="complete_episodes"),
}
POLICY_CASES = {
    **{f"algorithm: {name}": case(rules(3, **ROUGH), algorithm=name, fragment=8) for name in ("appo", "impala", "dqn")},
    "algorithm: sac": case(rules(3, action="box"), algorithm="sac"),
    "algorithm: sac, discrete": case(algorithm="sac"),
    "algorithm: impala, lstm": case(algorithm="impala", model="lstm", fragment=8),
    "dqn beside sac": case(
        rules(4, action_kinds={"p0": "discrete", "p1": "box"}), algorithm="sac", policies={"p0": "sac", "p1": "default"}
    ),
    **{
        f"policy: {kind}": case(rules(4, infos="some", **ROUGH), policies={"p0": kind, "p1": "default"}, num_envs=2)
        for kind in (
            "noting",
            "peers",
            "editing",
            "extras",
            "bare",
            "sampling",
            "distributing",
            "heuristic",
            "overriding",
        )
    },
    "policy: misnaming": case(rules(3), policies=both("misnaming"), raises="KeyError"),
    "policy: nested": case(policies={"p0": "nested", "p1": "default"}),
    "policy: counting": case(policies={"p0": "counting", "p1": "heuristic"}),
    "policy: failing": case(policies={"p0": "failing", "p1": "default"}, raises="ArithmeticError"),
    "policy: noting, with a state": case(rules(3, action="box"), policies=both("noting"), model="lstm, previous"),
    "policy: default": case(rules(3, 1), policies={"default_policy": "default"}, mapping="plain", infers_spaces=True),
    "exploration: stochastic": case(explorations=both("stochastic")),
    "exploration: random at first": case(explorations=both("random at first")),
    "exploration: random": case(rules(3, action="box"), explorations=both("random")),
    "exploration: epsilon": case(algorithm="dqn", explorations=both("epsilon"), num_envs=2),
    "exploration: soft q": case(algorithm="dqn", explorations=both("soft q")),
    "exploration: parameter noise": case(algorithm="dqn", explorations=both("parameter noise")),
    "exploration: curiosity": case(explorations={"p0": "curiosity"}, worker_index=0, num_env_runners=0),
    "exploration: noting": case(explorations={"p0": "noting"}, num_envs=2),
    "no exploration": case(explore=False),
    "one policy without exploration": case(unexploring=("p1",)),
}
MAPPED = (Sample(), Remap("env"), Sample(), Remap("random"), Sample(), Sample(), METRICS)
GROWING: tuple[Call, ...] = (
    Sample(),
    AddPolicy("p9", mapping="episode"),
    Sample(),
    SetWeights(seq_no=2),
    Sample(),
    RemovePolicy("p9", mapping="plain"),
    METRICS,
    STATE,
)
CHANGING = {
    **{
        f"mapping: {kind}": case(rules(4, max_steps=5), mapping=kind, num_envs=2)
        for kind in ("plain", "env", "episode", "time", "random")
    },
    "mapping: raising": case(rules(3, max_steps=4), mapping="raising", raises="ArithmeticError"),
    "mapping: unknown": case(mapping="unknown", raises="KeyError"),
    "mapped otherwise": case(rules(4, max_steps=5), MAPPED, num_envs=2),
    "mapped by the episode, as users do": case(
        rules(4, max_steps=4), (*CALLS, Remap("plain"), *CALLS), mapping="episode"
    ),
    "a policy more": case(rules(4, max_steps=4), GROWING),
    "a policy more, of its own kind": case(
        rules(4, max_steps=4), (Sample(), AddPolicy("p9", "noting", "episode"), Sample(), Sample(), METRICS)
    ),
    "a policy less": case(
        rules(4), (Sample(), RemovePolicy("p1", mapping="time"), Sample(), METRICS), raises="KeyError"
    ),
    "a policy less between episodes": case(
        rules(4, max_steps=7), (Sample(), RemovePolicy("p1", mapping="time"), Sample(), METRICS), mapping="env"
    ),
    "a name twice": case(calls=(AddPolicy("p1"), Sample()), raises="KeyError"),
    "state set": case(calls=(Sample(), Restore(), Sample(), METRICS), observation_filter="MeanStdFilter", model="lstm"),
    **{
        f"changed: {what}": case(
            rules(4, max_steps=5), (Sample(), Change(what), Sample(), METRICS, Sample()), num_envs=2
        )
        for what in CHANGES
        if what not in ("connectors reset", "random again")
    },
    "changed: random again": case(
        calls=(Sample(), Change("random again"), Sample(), Sample()), explorations=both("stochastic")
    ),
    "changed: connectors reset": case(
        calls=(Sample(), Change("connectors reset"), Sample(), METRICS), raises="ValueError"
    ),
    "envs asked": case(calls=(Change("each env"), Sample(), Ask("get_spaces"), Ask("get_weights"))),
    "global time": case(
        calls=(SetGlobals(50), Sample(), SetGlobals(20), Sample()), explorations=both("random at first")
    ),
    "weights of one policy": case(calls=(Sample(), SetWeights(only=("p1",)), Sample(), Sample())),
    "old weights again": case(
        calls=(SetWeights(seq_no=3), SetWeights(seq_no=3), Sample(), SetWeights(seq_no=2), Sample())
    ),
    "learns": case(calls=(Learn(), Sample(), Learn(), METRICS), num_envs=2),
    "learns with lstm": case(calls=(Learn(), Sample(), Learn(), METRICS), model="lstm", num_envs=2),
    "learns dqn": case(calls=(Learn(), Sample(), Learn()), algorithm="dqn", num_envs=2),
    "metrics before anything": case(calls=(METRICS, Sample(), METRICS, METRICS)),
}
CALLED = {
    **{
        f"callbacks: {kind}": case(rules(4, infos="some", common_info=True, **ROUGH), callbacks=kind, num_envs=2)
        for kind in (
            "all",
            "ends",
            "steps",
            "collectors",
            "postprocessors",
            "sample editors",
            "extra batches",
            "learner",
        )
    },
    **{
        f"callbacks: {kind}": case(rules(4, max_steps=3), callbacks=kind, raises="LookupError")
        for kind in ("raising", "raising at ends", "raising afterwards")
    },
    "callbacks: several": case(rules(4, max_steps=3), callbacks="several", num_envs=2),
    "callbacks of complete episodes": case(
        rules(4, dies=0.2), callbacks="all", batch_mode="complete_episodes", model="lstm"
    ),
    "callbacks of many envs": case(rules(2, max_steps=4), callbacks="all", num_envs=8, fragment=3),
}
OTHER_ENVS = {
    "one agent of Gymnasium's": case(
        rules(1, 1), env="one agent", policies={"default_policy": "default"}, infers_spaces=True, num_envs=2
    ),
    "one agent of Gymnasium's, callbacks": case(
        rules(1, 1),
        env="one agent",
        policies={"default_policy": "default"},
        model="noting",
        callbacks="all",
        num_envs=3,
    ),
    "overruled": case(rules(4), env="overruled", num_envs=2),
}

CASES: dict[str, Case] = {
    **WORLDS,
    **BATCHES,
    **SPACES,
    **FILTERS,
    **MODEL_CASES,
    **POLICY_CASES,
    **CHANGING,
    **CALLED,
    **OTHER_ENVS,
}

SENSITIVE = case(
    rules(5, infos="some", common_info=True, max_steps=6, dies=0.1, style="sparse", pays_waiting=0.5),
    (*CALLS, METRICS),
    num_envs=2,
    callbacks="all",
    observation_filter="MeanStdFilter",
    model="lstm",
    output="out",
)
"""A case in which everything occurs that the broken workers spoil."""
