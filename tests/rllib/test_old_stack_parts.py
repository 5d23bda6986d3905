"""Parts of the old stack's sampler, each against what it stands for in RLlib."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from ray.rllib.evaluation.postprocessing import discount_cumsum
from ray.rllib.models.torch.torch_action_dist import TorchCategorical
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement
from rllib.old_stack.cases import CASES
from rllib.old_stack.runs import differences, play
from torch import nn

from fastmarl.core.kernels.returns import discounted_sums
from fastmarl.rllib import RolloutWorker
from fastmarl.rllib.inference.lstm_step import quick_layers
from fastmarl.rllib.old_stack.output_rows import OutputRows
from fastmarl.rllib.old_stack.views import Views

ACTIONS = SampleBatch.ACTIONS


@pytest.mark.parametrize("n", [1, 2, 3, 500])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("gamma", [0.0, 0.9405, 1.0])
def test_discounted_sums_have_the_bits_of_rllibs(rng, n, dtype, gamma):
    values = (rng.normal(size=n) * 10).astype(dtype)
    sums = np.empty(n)
    discounted_sums(values, gamma, sums)
    assert sums.tobytes() == np.ascontiguousarray(discount_cumsum(values, gamma)).tobytes()


def columns(first, n):
    return {ACTIONS: np.arange(first, first + n, dtype=np.int32), "values": np.full((n, 2), first, np.float64)}


def test_rows_of_outputs_outlive_moves():
    """More rows than there is memory for, of which some are needed to the end."""
    holders = [SimpleNamespace(rows=[], pending=-1) for _ in range(3)]
    rows = OutputRows(lambda: holders, True)
    for step in range(1500):
        first = rows.add(columns(3 * step, 3), 3)
        for i, holder in enumerate(holders):
            holder.pending = first + i
            if step % 7 == i:
                holder.rows.append(holder.pending)
    for i, holder in enumerate(holders):
        expected = [3 * step + i for step in range(1500) if step % 7 == i]
        assert rows.take(ACTIONS, np.array(holder.rows)).tolist() == expected
        assert rows.take("values", np.array(holder.rows)).tolist() == [[value - i] * 2 for value in expected]
        assert rows.row(holder.pending)[ACTIONS] == 3 * 1499 + i


@pytest.mark.parametrize(
    ("changed", "fits"),
    [
        ({}, True),
        ({"values": np.zeros((2, 3))}, False),
        ({"values": np.zeros((2, 2), np.float32)}, False),
        ({"values": np.zeros((3, 2))}, False),
        ({"more": np.zeros(2)}, False),
    ],
)
def test_outputs_of_another_kind_do_not_fit(changed, fits):
    rows = OutputRows(list, True)
    rows.add(columns(0, 2), 2)
    assert rows.fits({**columns(2, 2), **changed}, 2) == fits


@pytest.mark.parametrize("flattens", [True, False])
def test_rows_of_nested_actions(flattens):
    rows = OutputRows(list, flattens)
    actions = {"a": np.arange(3, dtype=np.int32), "b": np.arange(6, dtype=np.float32).reshape(3, 2)}
    rows.add({ACTIONS: actions, "values": np.zeros(3)}, 3)
    taken = rows.take(ACTIONS, np.array([2, 0]))
    if flattens:
        assert taken.tolist() == [[2, 4, 5], [0, 0, 1]]
    else:
        assert taken["a"].tolist() == [2, 0]
        assert taken["b"].tolist() == [[4, 5], [0, 1]]
    assert rows.taken([1])[ACTIONS]["b"].tolist() == [[2, 3]]
    row = rows.row(1)
    assert [*row] == [ACTIONS, "values"]
    assert row[ACTIONS]["a"] == 1
    assert row[ACTIONS]["b"].tolist() == [2, 3]


@pytest.mark.parametrize(("more", "problem"), [
    ({}, None),
    ({"new_obs": ViewRequirement("obs", shift=1, used_for_compute_actions=False)}, None),
    ({"prev_actions": ViewRequirement("actions", shift=-1), "actions": ViewRequirement(space=Discrete(2))}, None),
    ({"before": ViewRequirement("obs", shift="-3:-1")}, None),
    ({"sparse": ViewRequirement("obs", shift=0, batch_repeat_value=2)}, None),
    ({"t": ViewRequirement("t")}, None),
    ({"prev_actions": ViewRequirement("actions", shift=-1)}, "it requests 'prev_actions', but not 'actions'"),
    ({"infos": ViewRequirement()}, "it requests 'infos' as an input"),
    ({"later": ViewRequirement("obs", shift=1)}, "it requests 'later' of later steps as an input"),
    ({"unroll_id": ViewRequirement(shift=-1)}, "it requests 'unroll_id' of other steps"),
    ({"state_in_0": ViewRequirement("state_out_0", shift=-1)}, "it requests 'state_in_0', but is not recurrent"),
])  # fmt: skip
def test_which_views_are_left_to_rllib(more, problem):
    assert Views(policy_with({"obs": ViewRequirement(), **more})).problem == problem


def test_views_without_observations_are_left_to_rllib():
    views = Views(policy_with({"rewards": ViewRequirement(used_for_compute_actions=False)}))
    assert views.problem == "it does not request observations"


def policy_with(requirements):
    return SimpleNamespace(view_requirements=requirements, config={}, is_recurrent=lambda: False)


def test_replaced_draws_are_called(monkeypatch):
    """With a model whose own call computes the logits."""
    case = CASES["model: noting"]
    drawn = play(case)
    monkeypatch.setattr(TorchCategorical, "sample", lambda self: self.deterministic_sample())
    want, got = play(case), play(case, RolloutWorker)
    assert [*differences(drawn, want)]
    assert not [*differences(want, got)]


def test_quick_layers_leave_nothing_behind():
    layers = [nn.Linear(2, 2) for _ in range(3)]
    with pytest.raises(ArithmeticError), quick_layers({layer: SimpleNamespace(forward=abs) for layer in layers}):  # noqa: PT012
        assert layers[0](-1.0) == 1.0
        layers[1].forward = round  # by user code
        del layers[2].forward
        raise ArithmeticError
    assert ["forward" in vars(layer) for layer in layers] == [False, True, False]
    assert layers[1].forward is round
