"""Modules that come and go while episodes run, against an oracle of who should act for whom."""

import random
import weakref
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, note, settings
from support.compare import assert_same_chunk, join
from support.policies import Numbered, PoliciesSideBySide, PolicyOracle
from support.random_cases import number_of_cases
from support.worlds import ACTION_KINDS, OBS_KINDS, World, make_world

IDS = ("m0", "m1", "m2", "m3")


class Always(dict):
    """Every key has the same value: all modules of the world are of one kind."""

    def __init__(self, value: str):
        super().__init__()
        self.value = value

    def __missing__(self, key: Hashable) -> str:
        return self.value


class Changes:
    """A random sequence of changes, made to the runner and to the oracle, which come to each of them by themselves."""

    def __init__(self, rng: random.Random, world: World):
        self.seed, self.world = rng.random(), world
        self.has_memory = rng.random() < 0.3
        self.modules: dict[int, weakref.ref] = {}
        mapping, numbers = self._mapping(rng, ("m0", "m1")), {"m0": 0, "m1": 1}
        modules = {module_id: self._module(number) for module_id, number in numbers.items()}
        self.both = PoliciesSideBySide(world, mapping, modules, self._ended_in_oracle)
        self.both.ended_in_runner = self._ended_in_runner
        self.in_callbacks = world.keeps_everything and rng.random() < 0.4
        self.ends = {"runner": count(), "oracle": count()}

    @property
    def oracle(self) -> PolicyOracle:
        return self.both.oracle

    def both_sides(self, when: Any) -> None:
        self._in_runner(when)
        self._in_oracle(when)

    def _ended_in_runner(self) -> None:
        if self.in_callbacks:
            self._in_runner(("end", next(self.ends["runner"])))

    def _ended_in_oracle(self) -> None:
        if self.in_callbacks:
            self._in_oracle(("end", next(self.ends["oracle"])))

    def _draw(self, when: Any, ids: list[str]) -> tuple[str, str, dict | None, int]:
        """(kind of change, module id, new mapping or None, number of the new module): the same for the same input."""
        rng = random.Random(f"{self.seed} {when} {ids}")
        absent = [module_id for module_id in IDS if module_id not in ids]
        kinds = ["nothing", "map", "replace"] + ["add"] * bool(absent) + ["remove"] * (len(ids) > 1)
        kind = rng.choice(kinds)
        module_id = rng.choice(absent if kind == "add" else ids)
        left = [other for other in ids if (kind, other) != ("remove", module_id)] + [module_id] * (kind == "add")
        mapping = self._mapping(rng, left) if kind in ("map", "remove") or rng.random() < 0.5 else None
        return kind, module_id, mapping, rng.randrange(10, 1 << 20)

    def _in_runner(self, when: Any) -> None:
        runner = self.both.runner
        kind, module_id, mapping, number = self._draw(when, sorted(runner.module))
        function = None if mapping is None else lambda agent, episode: mapping[agent]
        if kind == "map":
            runner.set_policy_mapping_fn(function)
        elif kind == "remove":
            runner.remove_module(module_id, new_agent_to_module_mapping_fn=function)
        elif kind in ("add", "replace"):
            module = self._module(number)
            arguments = {"new_agent_to_module_mapping_fn": function, "override": kind == "replace"}
            runner.add_module(module_id, module, **arguments)

    def _in_oracle(self, when: Any) -> None:
        oracle = self.oracle
        kind, module_id, mapping, number = self._draw(when, sorted(oracle.numbers))
        if kind in ("remove", "replace"):
            oracle.remove(module_id)
        if kind in ("add", "replace"):
            oracle.numbers[module_id] = number
        if kind != "nothing" and mapping is not None:
            oracle.mapping = mapping

    def _mapping(self, rng: random.Random, ids: Any) -> dict[Hashable, str]:
        return {agent: rng.choice(list(ids)) for agent in self.world.agents}

    def _module(self, number: int) -> Numbered:
        kinds = self.world.obs_kinds["any"], self.world.action_kinds["any"]
        module = Numbered(number, *kinds, self.has_memory)
        self.modules[number] = weakref.ref(module)
        return module


def one_kind_of_module(world: World, rng: random.Random) -> World:
    kinds = Always(rng.choice(OBS_KINDS)), Always(rng.choice(ACTION_KINDS))
    return replace(world, obs_kinds=kinds[0], action_kinds=kinds[1])


def check(world: World, rng: random.Random) -> None:
    changes = Changes(rng, world)
    both, oracle = changes.both, changes.oracle
    chunks = defaultdict(list)
    for i, call in enumerate(world.calls):
        for chunk, expected in both.sample(call):
            assert_same_chunk(world, chunk, expected)
            assert_right_module_acted(chunk, oracle.chosen[expected.id_], changes.has_memory)
            chunks[expected.id_].append(chunk)
        changes.both_sides(("call", i))
        assert list(both.runner.module) == list(both.runner.config.policies)
        assert sorted(both.runner.module) == sorted(oracle.numbers)
    both.assert_same_actions()
    if world.keeps_everything and not world.respawn:
        for episode in oracle.finished:
            whole = oracle.whole(episode)
            assert_same_chunk(world, join(chunks[whole.id_]), whole)
    assert_removed_ones_are_freed(changes)


def assert_right_module_acted(chunk: Any, chosen: dict, has_memory: bool) -> None:
    for agent, part in chunk.agent_episodes.items():
        everything = {"indices": slice(-part.lookback if part.lookback else 0, None), "neg_index_as_lookback": True}
        numbers = part.get_extra_model_outputs("number", **everything)
        assert set(numbers.tolist()) == {chosen[agent][1]}, agent
        if has_memory:
            steps = part.get_extra_model_outputs("state_in", **everything)["steps"]
            first = part.t_started - part.lookback
            assert steps[:, 0].tolist() == list(range(first, first + len(steps))), agent


def assert_removed_ones_are_freed(changes: Changes) -> None:
    """Once no episode is left that began before they were removed."""
    runner = changes.both.runner
    runner.sample(num_timesteps=0, force_reset=True)
    alive = {number for number, module in changes.modules.items() if module() is not None}
    given_first = {0, 1}  # in the config that the runner was made from, which the user may hold
    assert alive - given_first == set(changes.oracle.numbers.values()) - given_first


@pytest.mark.slow
@pytest.mark.parametrize("group", range(number_of_cases(4, most=10)))
def test_every_agent_is_acted_for_by_the_module_of_its_episode(group):
    for seed in range(group * 4, (group + 1) * 4):
        rng = random.Random(seed)
        try:
            check(one_kind_of_module(make_world(rng), rng), rng)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_the_same_in_small_worlds(rng):
    world = one_kind_of_module(make_world(rng, small=True), rng)
    note(repr(world))
    check(world, rng)
