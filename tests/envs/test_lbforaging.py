"""The bundled Level-Based Foraging: step by step what lbforaging says, and episodes that begin as by its rules."""

from collections import Counter
from itertools import permutations, product
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from support.exhaustive import further
from support.foraging import DEFAULTS, ForagingTwins, make_original, random_options
from support.random_cases import number_of_cases

from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import env_creator
from fastmarl.envs.foraging_task import ForagingTask
from fastmarl.envs.lbforaging import LevelBasedForaging
from fastmarl.errors import ConfigError, EnvCheckError

CASES = number_of_cases(2, most=400)  # random options
NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)


def spaces_of(env):
    return {agent: (env.get_observation_space(agent), env.get_action_space(agent)) for agent in env.possible_agents}


def assert_spaces_are_its(batch, original):
    ours = {agent: (batch.observation_spaces[agent], batch.action_spaces[agent]) for agent in batch.possible_agents}
    assert ours == spaces_of(original)


@pytest.mark.slow
@pytest.mark.needs("lbforaging")
@pytest.mark.parametrize(
    "options",
    [
        {"players": 3, "field_size": (10, 10), "max_num_food": 3, "force_coop": True, "penalty": 0.1},
        {"players": 4, "field_size": (5, 5), "max_num_food": 4, "normalize_reward": False, "penalty": 1 / 3},
        {"players": 3, "field_size": (12, 7), "max_num_food": 3, "sight": 3, "observe_agent_levels": False},
        {"sight": 0, "max_food_level": 1, "max_episode_steps": 7},
        {"players": 3, "min_player_level": [1, 0, 2], "max_player_level": [1, 2, 7], "min_food_level": [1, 3],
         "max_food_level": [4, 3]},
        {"players": 4, "grid_observation": True, "observe_agent_levels": False, "field_size": (5, 4), "penalty": 0.5},
        *further([
            {},
            {"force_coop": True},
            {"players": 5, "field_size": (9, 9), "max_num_food": 5, "sight": 2, "max_episode_steps": 100},
            {"players": 1, "min_player_level": 2, "max_player_level": 3, "max_food_level": 3},
            {"players": 3, "grid_observation": True, "sight": 2, "field_size": (6, 9), "force_coop": True},
        ]),
    ],
    ids=repr,
)  # fmt: skip
def test_it_is_lbforagings(options, rng):
    """To the last bit of every observation and reward."""
    twins = ForagingTwins(options, 3, rng, seed=5)
    assert_spaces_are_its(twins.batch, twins.originals[0])
    assert twins.originals[0].unwrapped.n_agents == len(twins.batch.possible_agents)
    twins.play(60)
    twins.play(250, twins.forage)
    assert twins.episodes > 3
    assert twins.truncated == twins.agent_ends == 0
    assert twins.loads > 3, "they hardly found food"
    assert twins.joint_loads > 0 or options.get("players") == 1 or "sight" in options
    assert (twins.penalties > 3) == ("penalty" in options)


@pytest.mark.slow
@pytest.mark.needs("lbforaging")
def test_it_is_lbforagings_with_any_options(rng):
    loads = 0
    for _ in range(CASES):
        options = random_options(rng)
        twins = ForagingTwins(options, 2, rng, seed=int(rng.integers(2**31)))
        assert_spaces_are_its(twins.batch, twins.originals[0])
        twins.play(40)
        twins.play(120, twins.forage)
        loads += twins.loads
    assert loads > 0


@pytest.mark.slow
@pytest.mark.needs("lbforaging")
def test_names_mean_the_same_as_in_lbforaging():
    import lbforaging

    kwargs = {name: spec.kwargs for name, spec in gym.registry.items() if name.startswith("Foraging-")}
    with mock.patch.object(lbforaging, "register") as register:
        lbforaging.register_grid_envs()
    kwargs |= {call.kwargs["id"]: call.kwargs["kwargs"] for call in register.call_args_list[::7]}
    assert len(kwargs) > 2000
    for name, theirs in kwargs.items():
        task = ForagingTask.named(name)
        ours = {option: getattr(task, option) for option in theirs} | {"sight": task.reach}
        assert ours == theirs, name
        assert task.normalize_reward and task.observe_agent_levels


@pytest.mark.needs("lbforaging")
@pytest.mark.parametrize("name", ["Foraging-8x8-2p-2f-coop-v3", "Foraging-2s-10x10-3p-3f-v3"])
def test_a_name_makes_spaces_as_the_adapter_does(name):
    batch = env_creator("fastmarl.lbforaging")(EnvContext({"name": name}, 0, num_envs=4))
    assert batch.num_envs == 4
    assert_spaces_are_its(batch, as_multi_agent_env(env_creator(f"lbforaging:{name}")({})))


def test_options_override_those_of_the_name():
    task = ForagingTask.named("Foraging-2s-9x9-3p-4f-coop-ind-pen-v3", max_episode_steps=9, sight=None)
    assert (task.players, task.field_size, task.max_num_food, task.reach) == (3, (9, 9), 4, 9)
    assert (task.force_coop, task.max_food_level, task.penalty, task.max_episode_steps) == (True, 1, 0.1, 9)


@pytest.mark.parametrize(
    ("players", "actions", "moved"),
    [
        ([(0, 0), (0, 2)], [EAST, WEST], [(0, 0), (0, 2)]),  # to one cell: no player moves
        ([(0, 0), (0, 1)], [EAST, WEST], [(0, 1), (0, 0)]),  # past each other
        ([(0, 0), (0, 1)], [EAST, NONE], [(0, 0), (0, 1)]),
        ([(0, 0), (0, 1)], [EAST, LOAD], [(0, 0), (0, 1)]),
        ([(0, 0), (0, 1)], [EAST, EAST], [(0, 1), (0, 2)]),
        ([(0, 1), (0, 2), (0, 4)], [EAST, EAST, WEST], [(0, 2), (0, 2), (0, 4)]),  # into one who does not get away
        ([(0, 0), (7, 7), (3, 2)], [NORTH, EAST, EAST], [(0, 0), (7, 7), (3, 2)]),  # border, and food
        ([(0, 0), (7, 7), (3, 2)], [SOUTH, NORTH, SOUTH], [(1, 0), (6, 7), (4, 2)]),
    ],
)
def test_players_that_can_move(players, actions, moved):
    batch = LevelBasedForaging(1, players=len(players), max_num_food=1)
    out = batch.new_arrays()
    batch.reset(np.arange(1), out)
    batch.players[0, :, :2], batch.foods[0] = players, [3, 3, 2]
    batch.step({"agents": np.array([actions])}, out)
    assert [tuple(cell) for cell in batch.players[0, :, :2].tolist()] == moved


def test_an_episode_is_over_when_the_last_food_is_loaded():
    batch = LevelBasedForaging(2, max_num_food=2, penalty=0.25)
    out = batch.new_arrays()
    batch.reset(np.arange(2), out)
    batch.players[:], batch.foods[:] = [[2, 3, 1], [4, 3, 2]], [[3, 3, 3], [6, 6, 1]]
    batch.foods[1, 1, 2], batch.food_spawned[:] = 0, [4, 3]
    batch.step({"agents": np.array([[LOAD, NONE]] * 2)}, out)
    assert out.groups["agents"].rewards.tolist() == [[-0.25, 0.0]] * 2
    out = batch.new_arrays()
    batch.step({"agents": np.array([[LOAD, LOAD]] * 2)}, out)
    assert out.groups["agents"].rewards.tolist() == [[0.25, 0.5], [1 / 3, 2 / 3]]
    assert out.terminated.tolist() == [False, True]
    assert not out.truncated.any()


# How an episode begins


def dealt(lowest, highest, count):
    """Levels -> how likely they are: bounds are dealt, and a level is drawn from each."""
    pairs = list(permutations(zip(np.broadcast_to(lowest, count), np.broadcast_to(highest, count), strict=True)))
    chances = Counter()
    for bounds in pairs:
        ranges = [range(low, high + 1) for low, high in bounds]
        for drawn in product(*ranges):
            chances[drawn] += 1 / len(pairs) / np.prod([len(levels) for levels in ranges])
    return chances


def is_near(cell, other):
    down, across = abs(cell[0] - other[0]), abs(cell[1] - other[1])
    return max(down, across) <= 1 or (down, across) in [(0, 2), (2, 0)]


def laid(levels, cells, foods=()):
    """(set of (row, column, level), how likely), with food laid on some of these cells, one after the other."""
    free = [cell for cell in cells if not any(is_near(cell, food) for food in foods if food[2])]
    if not levels or not free:
        yield frozenset(food for food in foods if food[2]), 1.0
        return
    for cell in free:
        for laid_foods, chance in laid(levels[1:], cells, (*foods, (*cell, levels[0]))):
            yield laid_foods, chance / len(free)


def beginnings(options):
    """(players as (row, column, level), set of foods) -> how likely."""
    options = {**DEFAULTS, **options}
    rows, columns = options["field_size"]
    stands = list(permutations(product(range(rows), range(columns)), options["players"]))
    chances = Counter()
    for levels, chance in dealt(options["min_player_level"], options["max_player_level"], options["players"]).items():
        highest = options["max_food_level"]
        highest = sum(sorted(levels)[:3]) if highest is None else highest
        lowest = highest if options["force_coop"] else options["min_food_level"]
        of_food = dealt(lowest, highest, options["max_num_food"])
        for cells in stands:
            players = tuple((*cell, level) for cell, level in zip(cells, levels, strict=True))
            inner = [cell for cell in product(range(1, rows - 1), range(1, columns - 1)) if cell not in cells]
            for food_levels, of_levels in of_food.items():
                for foods, of_foods in laid(food_levels, inner):
                    chances[players, foods] += chance * of_levels * of_foods / len(stands)
    assert sum(chances.values()) == pytest.approx(1.0)
    return chances


def begun(players, foods):
    """As a key of `beginnings()`."""
    return tuple(map(tuple, players)), frozenset(tuple(food) for food in foods if food[2])


def levels_alone(beginning):
    """Return the levels of a result of `beginnings()`, without the cells."""
    players, foods = beginning
    return tuple(level for *_, level in players), tuple(sorted(level for *_, level in foods))


def assert_as_likely(counts, chances):
    """Compare by chi-squared; beginnings, in order, are grouped until five are expected."""
    assert set(counts) <= set(chances)
    n, errors, expected, seen = counts.total(), [], 0.0, 0
    for key in sorted(chances, key=repr):
        expected, seen = expected + n * chances[key], seen + counts[key]
        if expected >= 5:
            errors.append((seen - expected) ** 2 / expected)
            expected, seen = 0.0, 0
    assert len(errors) > 3
    assert sum(errors) < len(errors) + 5 * (2 * len(errors)) ** 0.5, "5 standard deviations"


BEGINNINGS = {  # options, and what is looked at
    "places": ({"field_size": (3, 3), "max_num_food": 1}, lambda beginning: beginning),
    "two foods": (
        {"players": 1, "field_size": (5, 5), "min_food_level": [0, 1], "max_food_level": [1, 2]},
        lambda beginning: beginning,
    ),
    "no room": (
        {"players": 1, "field_size": (5, 6), "sight": 1, "max_num_food": 4, "max_food_level": 1},
        lambda beginning: beginning[1],
    ),
    "levels": (
        {"players": 4, "field_size": (3, 3), "max_num_food": 1, "min_player_level": [1, 1, 2, 3],
         "max_player_level": [1, 3, 2, 3], "force_coop": True},
        levels_alone,
    ),
    "levels of food": (
        {"players": 1, "field_size": (5, 5), "min_player_level": 2, "max_player_level": 4, "min_food_level": [2, 1]},
        levels_alone,
    ),
}  # fmt: skip


def folded(chances, key):
    folded = Counter()
    for beginning, chance in chances.items():
        folded[key(beginning)] += chance
    return folded


@pytest.mark.slow
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_episodes_begin_as_the_rules_say(kind):
    n, (options, key) = 30_000, BEGINNINGS[kind]
    batch = LevelBasedForaging(n, **options)
    batch.reset(np.arange(n), batch.new_arrays(), seeds=range(n))
    counts = Counter(map(begun, batch.players.tolist(), batch.foods.tolist()))
    assert_as_likely(folded(counts, key), folded(beginnings(options), key))
    cells = batch.foods[:, :, 0] * options["field_size"][1] + batch.foods[:, :, 1]
    assert (np.diff(cells, axis=1) >= 0).all(), "foods are sorted by cell"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("lbforaging")
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_these_rules_are_the_originals(kind):
    options, key = BEGINNINGS[kind]
    env, counts = make_original(options).unwrapped, Counter()
    for seed in range(500):
        for player in env.players:
            player.position = None  # as in a new one
        env.reset(seed=seed)
        foods = [(*cell, env.field[cell]) for cell in zip(*env.field.nonzero(), strict=True)]
        counts[begun([(*player.position, player.level) for player in env.players], foods)] += 1
    assert_as_likely(folded(counts, key), folded(beginnings(options), key))


# What is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "Foraging-8x8-v3"}, r"such as 'Foraging-8x8-2p-3f-v3' .* got 'Foraging-8x8-v3'"),
        ({"field_size": 8}, r"field_size must be \(rows, columns\), each at least 3, got 8"),
        ({"field_size": (8, 2)}, "each at least 3"),
        ({"max_num_food": 0}, "at least 1, got 2, 0 and 50"),
        ({"sight": -1}, "sight must be at least 0, or None for the whole field, got -1"),
        ({"sight": 0, "grid_observation": True}, "sight must be at least 1"),
        ({"players": 10, "field_size": (3, 3)}, "at most the number of cells, 9, got 10"),
        ({"min_player_level": 3}, "min_player_level must be at least 0 and at most max_player_level, got 3 and 2"),
        ({"min_food_level": -1}, "min_food_level must be at least 0"),
        ({"min_food_level": [1, 2, 3]}, r"must be a number or a list of length 2, got \[1, 2, 3\]"),
        ({"min_food_level": 3}, "min_food_level must be at most 2, the lowest possible sum"),
        ({"field_size": (8, 5)}, "use a square field, or a sight of at most 2"),
        ({"field_size": (5, 8), "sight": 3}, "use a square field, or a sight of at most 2"),
    ],
)
def test_options_with_which_the_original_fails_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        LevelBasedForaging(1, **options)


@pytest.mark.parametrize("of_task", [{}, {"name": "Foraging-8x8-2p-3f-v3"}])
def test_an_unknown_option_is_named(of_task):
    with pytest.raises(EnvCheckError, match=r"cannot create .*lbforaging .* unexpected keyword argument 'foods'"):
        env_creator("fastmarl.lbforaging")(EnvContext({**of_task, "foods": 3}, 0))
