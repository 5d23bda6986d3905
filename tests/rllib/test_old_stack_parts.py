"""Parts of the old stack's sampler, each against what it stands for in RLlib."""

from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.evaluation.postprocessing import discount_cumsum
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement

from fastmarl.core.kernels.returns import discounted_sums
from fastmarl.rllib.old_stack.output_rows import OutputRows
from fastmarl.rllib.old_stack.trajectory import Views

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
    rows = OutputRows(lambda: holders)
    for step in range(1500):
        first = rows.add(columns(3 * step, 3), 3)
        for i, holder in enumerate(holders):
            holder.pending = first + i
            if step % 7 == i:
                holder.rows.append(holder.pending)
    for i, holder in enumerate(holders):
        expected = [3 * step + i for step in range(1500) if step % 7 == i]
        assert rows.take(ACTIONS, np.array(holder.rows)).tolist() == expected
        assert rows.take("values", np.array(holder.rows)).dtype == np.float32
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
    rows = OutputRows(list)
    rows.add(columns(0, 2), 2)
    assert rows.fits({**columns(2, 2), **changed}, 2) == fits


@pytest.mark.parametrize(
    ("more", "is_plain"),
    [
        ({}, True),
        ({"new_obs": ViewRequirement("obs", shift=1, used_for_compute_actions=False)}, True),
        ({"prev_actions": ViewRequirement("actions", shift=-1)}, False),
        ({"before": ViewRequirement("obs", shift="-3:-1")}, False),
        ({"sparse": ViewRequirement("obs", shift=0, batch_repeat_value=2)}, False),
        ({"t": ViewRequirement("t")}, False),
        ({"t": ViewRequirement("t", used_for_compute_actions=False)}, True),
        ({"state_in_0": ViewRequirement("state_out_0", shift=0, used_for_compute_actions=False)}, False),
    ],
)
def test_which_views_are_plain(more, is_plain):
    assert (Views({"obs": ViewRequirement(), **more}).problem is None) == is_plain


def test_views_without_observations_are_not_plain():
    assert Views({"rewards": ViewRequirement(used_for_compute_actions=False)}).problem is not None
