"""Actions for envs, made by columns, against RLlib's functions called for each agent."""

from typing import Any

import numpy as np
import pytest
import tree  # type: ignore[import-untyped]
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.utils.spaces.space_utils import (
    clip_action,
    get_base_struct_from_space,
    unbatch,
    unsquash_action,
)

from fastmarl.core.store.block import leaves_of
from fastmarl.rllib.inference.env_actions import RLlibEnvActions

SPACES: dict[str, Space] = {
    "discrete": Discrete(3),
    "box": Box(-2.0, np.array([1.0, 7.0], np.float32)),
    "double_box": Box(-2.0, 3.0, (2,), np.float64),
    "scalar_box": Box(-2.0, 3.0, ()),
    "half_open_box": Box(np.array([-1.0, -np.inf], np.float32), 1.0),
    "whole_box": Box(-3, 4, (2,), np.int8),
    "multi": MultiDiscrete([2, 3]),
    "dict": Dict({"b": Box(-1.0, 0.5, (2, 2)), "a": Discrete(2)}),
    "tuple": Tuple((Discrete(2), Box(0.0, 9.0, (1,)), Dict({"c": Box(-1.0, 3.0, ())}))),
}
NEARLY = 1e-7  # Gymnasium's boxes are equal if their bounds are that close


class Taken:
    """Keeps what a ModuleActions would be given."""

    def set_arrays(self, first: int, arrays: np.ndarray) -> None:
        self.actions = list(arrays)

    def set_values(self, first: int, values: list[Any]) -> None:
        self.actions = values


def taken(actions: RLlibEnvActions, columns: Any, agents: list[Any]) -> list[Any]:
    """Return the action of each row."""
    actions.rows = Taken()  # type: ignore[assignment]
    for agent_id in agents:
        actions.add_agent(agent_id)
    actions.set(0, leaves_of({"actions": columns}), lambda: agents)
    return actions.rows.actions  # type: ignore[attr-defined,no-any-return]


def widened(space: Space) -> Space:
    """An action space with bounds a little farther apart."""
    if isinstance(space, Dict):
        return Dict({key: widened(part) for key, part in space.items()})
    if isinstance(space, Tuple):
        return Tuple([widened(part) for part in space])
    if isinstance(space, Box) and space.dtype.kind == "f":
        return Box(space.low * (1 + NEARLY), space.high * (1 + NEARLY), dtype=space.dtype.type)
    return space


def raw_actions(space: Space, n: int, rng: np.random.Generator) -> Any:
    """Rows such as modules give: beyond the bounds, and not of the space's dtype."""

    def of(leaf: Space) -> np.ndarray:
        if isinstance(leaf, Box):
            return rng.normal(0, 2, (n, *leaf.shape)).astype(np.float32)
        return np.stack([np.asarray(leaf.sample()) for _ in range(n)]).astype(np.int32)

    return tree.map_structure(of, get_base_struct_from_space(space))


def expected(rows: list[Any], structs: list[Any], change: Any, boxed: bool) -> list[Any]:
    """Return the action that RLlib's pieces give to each agent."""
    if boxed:
        rows = [tree.map_structure(np.asarray, row) for row in rows]
    return rows if change is None else [change(*each) for each in zip(rows, structs, strict=True)]


def assert_same(want: Any, got: Any) -> None:
    tree.assert_same_structure(want, got)
    for a, b in zip(tree.flatten(want), tree.flatten(got), strict=True):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(
    name=st.sampled_from(sorted(SPACES)),
    n=st.integers(1, 5),
    kind=st.sampled_from([None, unsquash_action, clip_action]),
    boxed=st.booleans(),
    odd_one=st.sampled_from([None, "nearly", "wider"]),
    seed=st.integers(0, 2**16),
)
def test_columns(name: str, n: int, kind: Any, boxed: bool, odd_one: str | None, seed: int) -> None:
    rng, space = np.random.default_rng(seed), SPACES[name]
    spaces = [space] * n
    if odd_one is not None:
        spaces[-1] = widened(space) if odd_one == "nearly" else widened(widened(widened(space)))
    structs = {i: get_base_struct_from_space(each) for i, each in enumerate(spaces)}
    actions = RLlibEnvActions(
        structs, normalize=kind is unsquash_action, clip=kind is clip_action, adds_start=False, boxed=boxed
    )
    columns = raw_actions(space, n, rng)
    want = expected(unbatch(columns), list(structs.values()), kind, boxed)
    for each, got in zip(want, taken(actions, columns, list(structs)), strict=True):
        assert_same(each, got)


def test_envs_get_copies(rng: np.random.Generator) -> None:
    """An env that writes to its action changes neither the stored one nor those of other agents."""
    columns = raw_actions(SPACES["dict"], 2, rng)
    before = unbatch(columns)
    actions = RLlibEnvActions({}, normalize=False, clip=False, adds_start=False, boxed=False)
    first, second = taken(actions, columns, [0, 1])
    first["b"][...] = 9
    assert_same(before, unbatch(columns))
    assert_same(before[1], second)


def test_rows_of_another_shape_than_the_space(rng: np.random.Generator) -> None:
    """A module of one's own may give numbers where the space has arrays: RLlib's function stretches each."""
    struct = Box(np.array([-1.0, -2.0], np.float32), 5.0)
    actions = RLlibEnvActions({0: struct, 1: struct}, normalize=True, clip=False, adds_start=False, boxed=False)
    column = rng.normal(size=2).astype(np.float32)
    for value, got in zip(column, taken(actions, column, [0, 1]), strict=True):
        assert_same(unsquash_action(value, struct), got)


def test_an_agent_without_a_space() -> None:
    """RLlib looks its space up and fails; so does ours."""
    actions = RLlibEnvActions({0: SPACES["box"]}, normalize=True, clip=False, adds_start=False, boxed=False)
    with pytest.raises(KeyError, match="1"):
        taken(actions, np.zeros((2, 2), np.float32), [0, 1])
