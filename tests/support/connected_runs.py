"""Runners with connectors beside the oracle's."""

import random
from dataclasses import replace

import numpy as np

from fastmarl.connectors import stack_frames
from support.compare import SideBySide, all_columns, leaves
from support.connected import N_FRAMES, ConnectedReference, connected_options, side_by_side
from support.worlds import make_world


def _fits(world):
    """The connectors' module must have agents, and no call may drop what was counted in an order of its own."""
    return world.keeps_everything and set(world.module_of.values()) == set(world.obs_kinds)


SEEDS = [seed for seed in range(200_000, 200_060) if _fits(make_world(random.Random(seed)))]


def seeds_of_lone_agents():
    """Return the seeds of worlds with one env and one agent."""
    worlds = {seed: make_world(random.Random(seed)) for seed in range(200_000, 200_600)}
    return [seed for seed, world in worlds.items() if _fits(world) and world.num_envs == len(world.agents) == 1]


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


def assert_equals_oracle(both, *, metrics=True):
    for call in both.world.calls:
        for chunk, expected in both.sample(call):
            for agent, want in expected.agents.items():
                _check(both.oracle, chunk.agent_episodes[agent], want)
        arrived = {module: len(serials) for module, serials in both.oracle.arrived.items()}
        assert {module: n for module, n in both.counts().items() if n} == arrived
    both.assert_same_actions()
    if metrics:
        both.assert_same_metrics()  # returns as the env sent them


def _check(oracle, got, want):
    assert (got.lookback, got.t_started, len(got)) == (want.lookback, want.t_started, want.steps)
    columns = all_columns(got, want.lookback)
    _assert_same_numbers(side_by_side(columns["obs"]), oracle.record_of(want))
    assert columns["rewards"].tolist() == want.rewards
    assert columns["serial"].tolist() == want.obs[:-1]
    seen = oracle.seen_in(want)
    _assert_same_numbers(side_by_side(stack_frames(got, N_FRAMES)), seen)
    _assert_same_numbers(got.get_extra_model_outputs("saw"), seen[:-1])
    some = [len(got), 0, -1]
    _assert_same_numbers(side_by_side(stack_frames(got, N_FRAMES, some)), seen[some])
    for leaf, space_leaf in zip(leaves(columns["obs"]), leaves(got.observation_space.sample()), strict=True):
        assert (leaf.dtype, leaf.shape[1:]) == (space_leaf.dtype, space_leaf.shape)
