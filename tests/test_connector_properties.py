"""All connectors at once over random worlds, against lists: agents join, wait, die and come again, in any fragments."""

import random
from dataclasses import replace

import numpy as np
import pytest
from reference.compare import SideBySide, all_columns, leaves
from reference.connected import N_FRAMES, ConnectedReference, connected_options, side_by_side
from reference.worlds import make_world

from fastmarl.connectors import stacked


def _fits(world):
    """The connectors' module must have agents, and no call may drop what was counted in an order of its own."""
    return world.keeps_everything and set(world.module_of.values()) == set(world.obs_kinds)


SEEDS = [seed for seed in range(200_000, 200_060) if _fits(make_world(random.Random(seed)))]


def _is_alone(world):
    return _fits(world) and world.num_envs == len(world.agents) == 1


ALONE = [seed for seed in range(200_000, 200_600) if _is_alone(make_world(random.Random(seed)))]


class Connected(SideBySide):
    def __init__(self, seed, **options):
        world = replace(make_world(random.Random(seed)), declared=True)
        super().__init__(world, **connected_options(world), **options)
        self.oracle = ConnectedReference(world, batched=bool(options.get("batched")))

    def counts(self):
        of_modules = self.runner.get_state("env_to_module_connector")["env_to_module_connector"]
        return {module: state["MeanStdFilter"]["stats"][0]["count"] for module, state in of_modules.items()}


def _assert_same_numbers(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("group", range(6))
def test_records_batches_and_counts_equal_the_oracle(group):
    for seed in SEEDS[group::6]:
        assert_equals_oracle(Connected(seed))


def test_so_do_those_of_a_batch():
    """Of one env with one agent: where more arrive in a step they are counted, and so normalised, in another order."""
    for seed in ALONE:
        assert_equals_oracle(Connected(seed, batched=True))


def assert_equals_oracle(both, *, metrics=True):
    for call in both.world.calls:
        for chunk, expected in both.sample(call):
            for agent, want in expected.agents.items():
                _check(both.oracle, chunk.agent_episodes[agent], want)
        arrived = {module: len(serials) for module, serials in both.oracle.arrived.items()}
        assert {module: n for module, n in both.counts().items() if n} == arrived
    both.assert_same_actions()
    if metrics:
        both.assert_same_metrics()  # returns as paid


def _check(oracle, got, want):
    assert (got.lookback, got.t_started, len(got)) == (want.lookback, want.t_started, want.steps)
    columns = all_columns(got, want.lookback)
    _assert_same_numbers(side_by_side(columns["obs"]), oracle.record_of(want))
    assert columns["rewards"].tolist() == want.rewards
    assert columns["serial"].tolist() == want.obs[:-1]
    seen = oracle.seen_in(want)
    _assert_same_numbers(side_by_side(stacked(got, N_FRAMES)), seen)
    _assert_same_numbers(got.get_extra_model_outputs("saw"), seen[:-1])
    some = [len(got), 0, -1]
    _assert_same_numbers(side_by_side(stacked(got, N_FRAMES, some)), seen[some])
    for leaf, space_leaf in zip(leaves(columns["obs"]), leaves(got.observation_space.sample()), strict=True):
        assert (leaf.dtype, leaf.shape[1:]) == (space_leaf.dtype, space_leaf.shape)


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_who_looks_at_an_episode_sees_the_record_and_does_not_change_it(seed):
    """A callback is given rows in the middle of a tick; they are counted in the same order."""
    seen = {}

    def look(*, episode, **kwargs):
        for agent, part in episode.agent_episodes.items():
            seen[episode.id_, agent, int(part.env_ts()[-1])] = side_by_side(part.get_observations())[-1]

    pairs = [Connected(seed), Connected(seed, callbacks_on_episode_step=look)]
    n_compared = 0
    for call in pairs[0].world.calls:
        for one, other in zip(*(both.runner.sample(**call.kwargs) for both in pairs), strict=True):
            for agent, part in one.agent_episodes.items():
                own, others = (side_by_side(each.get_observations()) for each in (part, other.agent_episodes[agent]))
                np.testing.assert_array_equal(own, others)
                for env_t, row in zip(part.env_ts()[part.lookback :].tolist(), own, strict=True):
                    if (other.id_, agent, env_t) in seen:
                        np.testing.assert_array_equal(seen[other.id_, agent, env_t], row)
                        n_compared += 1
    assert n_compared
