"""All algorithms of `fastmarl train` in all worlds: they learn from what happened, or refuse in one sentence.

Environments write down in ledgers what they send and receive; the oracle reads these with lists and dicts.
"""

import signal
from dataclasses import dataclass, replace

import pytest
from support.exhaustive import further
from support.ledgered.watched import WatchedIPPO, WatchedMAPPO, WatchedRecurrentIPPO
from support.ledgered.watched_teams import WatchedEPyMARL, WatchedIQL, WatchedQ
from support.ledgered.worlds import WORLDS
from support.training_runs import assert_equal_runs

import fastmarl
from fastmarl.cli.runs import example
from fastmarl.cli.train import main

NUM_ENVS, UPDATES = 2, 2


@dataclass(frozen=True)
class Variant:
    """An algorithm with options, env steps of an update, and what watches it."""

    algorithm: str
    watched: type
    options: tuple[str, ...] = ()
    fragment: int = 25


VARIANTS = {
    "ippo": Variant("ippo", WatchedIPPO, ("--lambda", "0.7")),
    "mappo": Variant("mappo", WatchedMAPPO, ("--lambda", "0.8", "--fragment", "20"), 20),
    "iql": Variant("iql", WatchedIQL),
    "vdn": Variant("vdn", WatchedQ),
    "qmix": Variant("qmix", WatchedQ),
    "epymarl": Variant("epymarl", WatchedEPyMARL, ("--fragment", "20"), 20),
    "recurrent_ippo": Variant("recurrent_ippo", WatchedRecurrentIPPO, fragment=64),
    "qmix, memory": Variant("qmix", WatchedQ, ("--memory",)),
    "ippo, policies": Variant("ippo", WatchedIPPO, ("--policies", "each")),
    "epymarl, central": Variant("epymarl", WatchedEPyMARL, ("--fragment", "20", "--critic", "central"), 20),
    "epymarl, gru": Variant("epymarl", WatchedEPyMARL, ("--fragment", "20", "--gru"), 20),
    "recurrent_ippo, memoryless": Variant(
        "recurrent_ippo", WatchedRecurrentIPPO, ("--memoryless", "--lambda", "0.9"), 64
    ),
}
ONE_POLICY = [name for name in VARIANTS if name != "ippo, policies"]
NOT_DISCRETE = ("masks of several choices", "several choices", "continuous actions", "actions of two parts")
REFUSED = {
    **{(name, "unequal observations"): "have different spaces" for name in ONE_POLICY},
    **{(name, "unequal actions"): "have different spaces" for name in ONE_POLICY},
    **{
        (name, world): "Q-networks need a Discrete action space"
        for name in ("iql", "vdn", "qmix", "qmix, memory")
        for world in NOT_DISCRETE
    },
    ("mappo", "no state"): "mappo needs an env with state(), which returns the global state as one array",
}
CELLS = [(name, world) for name in VARIANTS for world in WORLDS]
CHEAP = [
    name for name in VARIANTS if not name.startswith("recurrent_ippo") and name != "epymarl, gru"
]  # its updates are longer
IN_CI = {
    *((CHEAP[i % len(CHEAP)], world) for i, world in enumerate(WORLDS)),
    *(("recurrent_ippo", world) for world in ("macro-actions of 20 steps", "masked turns")),
    *(("recurrent_ippo, memoryless", world) for world in ("joins", "dict observations")),
    *(("qmix, memory", world) for world in ("masked turns", "joins")),
    *(("epymarl, gru", world) for world in ("masked turns", "joins")),
}


# Whether a resumed run is equal depends on the algorithm more than on the world: one of each, in other worlds.
RESUMED = {
    next(cell for cell in CELLS if cell[0] == name and cell in IN_CI and cell not in REFUSED) for name in VARIANTS
}


class Interrupted:
    """A learner that a signal interrupts in its first update."""

    def __init__(self, learner):
        self.get_state, self.set_state, self.learner = learner.get_state, learner.set_state, learner

    def learn(self, episodes):
        signal.raise_signal(signal.SIGINT)
        return self.learner.learn(episodes)


@pytest.fixture(autouse=True)
def same_memory(monkeypatch):
    monkeypatch.setattr("fastmarl.training.loop.keep_freed_memory", bool)  # it would, in all tests to come


@pytest.mark.parametrize(
    ("name", "world", "is_resumed"),
    [
        *((*cell, cell in RESUMED) for cell in CELLS if cell in IN_CI),
        *further((*cell, True) for cell in CELLS if cell not in RESUMED),
    ],
)
def test_updates_equal_the_ledger_and_resumed_runs_are_equal(name, world, is_resumed, tmp_path, capsys):
    variant, cls = VARIANTS[name], WORLDS[world]
    fastmarl.register_env("ledgered", cls)
    algorithm = example(variant.algorithm).ALGORITHM
    steps = NUM_ENVS * max(UPDATES * variant.fragment, cls.least_steps)
    options = ["--env", "ledgered", "--num-envs", NUM_ENVS, "--steps", steps, "--hiddens", 8, "--episodes", 1]
    argv = [*map(str, options), "--no-plot", *variant.options, *cls.options]
    made = []

    def watched(runner, args, num_updates):
        made.append(variant.watched(algorithm.make_learner(runner, args, num_updates), runner, args))
        return made[-1]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    code = main(replace(algorithm, make_learner=watched), [*argv, "--folder", str(whole)])
    output, errors = capsys.readouterr()
    if (name, world) in REFUSED:
        assert code == 1 and len(errors.splitlines()) == 1 and REFUSED[name, world] in errors, errors
        assert not whole.exists() and output == ""
        return
    assert code == 0, errors
    assert made[-1].rows_learnt
    if not is_resumed:
        return
    make = algorithm.make_learner
    interrupted = replace(algorithm, make_learner=lambda *args: Interrupted(make(*args)))
    assert main(interrupted, [*argv, "--folder", str(cut)]) == 128 + signal.SIGINT
    assert main(algorithm, ["--resume", str(cut), "--trust"]) == 0
    _, errors = capsys.readouterr()
    assert "bit-identical" not in errors
    assert_equal_runs(cut, whole)
