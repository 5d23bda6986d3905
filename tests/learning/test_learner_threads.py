"""PPOLearner with several threads: minibatches in parts, whose results do not depend on the number of threads."""

import copy
import os
import threading

import numpy as np
import pytest
import torch
from support.ppo import BOX_ACTIONS, MASKED, make_batch, make_module

from fastmarl.core.nets import row_threads
from fastmarl.core.spaces.structs import map_struct
from fastmarl.errors import ConfigError
from fastmarl.learning import PPOLearner, compiled_rows

ROWS = 5000  # of which a minibatch has 8 parts


def recurrent_batch(module, n=200, length=25):
    rows = {name: map_struct(lambda leaf: leaf.unflatten(0, (n, length)), column)
            for name, column in make_batch(make_module(), n * length).items()}  # fmt: skip
    return rows | {"state_in": map_struct(lambda leaf: torch.randn(n, *leaf.shape), module.get_initial_state())}


CASES = {
    "shared": lambda: (module := make_module(), make_batch(module, ROWS)),
    "masks": lambda: (module := make_module(obs=MASKED, vf_share_layers=False), make_batch(module, ROWS)),
    "numbers": lambda: (module := make_module(actions=BOX_ACTIONS, free_log_std=True), make_batch(module, ROWS)),
    "no values": lambda: (module := make_module(), make_batch(module, ROWS)),
    "memory": lambda: (module := make_module(use_lstm=True, lstm_cell_size=8), recurrent_batch(module)),
}


def learner_of(module, **options):
    defaults = {"lr": 1e-2, "epochs": 2, "num_minibatches": 1, "generator": torch.Generator().manual_seed(0)}
    return PPOLearner(copy.deepcopy(module), **{**defaults, **options})


@pytest.mark.parametrize("case", CASES)
def test_results_do_not_depend_on_the_number_of_threads(case):
    module, batch = CASES[case]()
    options = {"vf_coeff": 0.0 if case == "no values" else 0.5, "kl_coeff": 0.0}
    shape = batch["action_logp"].shape
    batch["loss_mask"] = torch.rand(shape) < torch.linspace(0, 1.2, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    learners = [learner_of(module, num_threads=n, **options) for n in (1, 2, 3, 8, None)]
    by_autograd = learner_of(module, compiled=False, **options)
    for _ in range(2):
        stats = [learner.update(batch) for learner in learners]
        assert all(each == stats[0] for each in stats)
        assert stats[0] == pytest.approx(by_autograd.update(batch), rel=1e-3, abs=1e-4)
    assert all(torch.equal(each.parameters, learners[0].parameters) for each in learners)
    off = (learners[0].parameters - by_autograd.parameters).abs()
    assert learners[0].backend == "compiled" and off.median() < 1e-5 and off.mean() < 1e-4


def test_small_minibatches_begin_no_threads(monkeypatch):
    monkeypatch.setattr(row_threads, "BlockThreads", None)
    module = make_module()
    learner_of(module, num_threads=8).update(make_batch(module, 1199))


def test_threads_end_with_the_update():
    module, batch = CASES["shared"]()
    learner = learner_of(module, num_threads=4)
    learner.update(batch)
    assert not [each.name for each in threading.enumerate() if "fastmarl-rows" in each.name]
    batch["advantages"][7] = torch.nan
    with pytest.raises(Exception, match="'advantages' in row 7"):
        learner.update(batch)
    assert not [each.name for each in threading.enumerate() if "fastmarl-rows" in each.name]


def test_a_forked_process_has_threads_of_its_own():
    module, batch = CASES["shared"]()
    learner = learner_of(module, num_threads=2)
    learner.update(batch)
    twin = learner_of(module, num_threads=2)
    twin.update(batch)
    twin.update(batch)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        learner.update(batch)
        os.write(writer, learner.parameters.detach().numpy().tobytes())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert sent == twin.parameters.detach().numpy().tobytes()


def test_a_number_below_1_is_an_error():
    with pytest.raises(ConfigError, match="num_threads must be at least 1, got 0"):
        learner_of(make_module(), num_threads=0)


@pytest.mark.parametrize("n_counted", [0, 3])
def test_parts_without_rows_that_count(monkeypatch, n_counted):
    """The sum is divided by the number of all rows that count, in whichever part they are."""
    monkeypatch.setattr(compiled_rows, "ROWS_OF_PART", 50)
    module = make_module()
    batch = make_batch(module, 400)
    batch["loss_mask"] = torch.arange(400) < n_counted
    parts, whole = learner_of(module), learner_of(module)
    got = parts.update(batch)
    monkeypatch.setattr(compiled_rows, "MOST_PARTS", 1)
    assert got == pytest.approx(whole.update(batch), rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(parts.parameters.detach(), whole.parameters.detach(), atol=1e-5)
