"""The bundled warehouse: step by step what the package `rware` says, also who goes first where robots meet."""

import random

import numpy as np
import pytest
from support.exhaustive import further
from support.twins import Twins

from fastmarl.envs.rware import Warehouse
from fastmarl.envs.rware_moves import choose_movers, count_followers, new_aims, order_as_set, rank_cells
from fastmarl.envs.rware_tasks import task_named
from fastmarl.errors import ConfigError

CROWDED = {"shelf_columns": 1, "shelf_rows": 2, "column_height": 3, "n_agents": 14, "request_queue_size": 2}
LAYOUT = """
..x..g
.xx...
......
gxx.x.
"""


@pytest.mark.needs("rware")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "noise"),
    [
        ("rware-tiny-4ag-easy-v2", {"reward_type": "global", "normalised_coordinates": True}, 0.1),
        ("rware-tiny-4ag-easy-v2", {"reward_type": "two_stage", "msg_bits": 2}, 0.1),
        ("rware-2s-small-6ag-hard-v2", {"column_height": 3, "max_inactivity_steps": 30}, 0.1),
        ("rware-tiny-2ag-v2", {"layout": LAYOUT, "n_agents": 6, "request_queue_size": 4, "sensor_range": 0}, 0.1),
        ("rware-tiny-2ag-v2", CROWDED | {"max_steps": None}, 0.3),
        ("rware-tiny-1ag-hard-v2", {}, 1.0),  # no requests
        *further(
            [
                ("rware-tiny-2ag-v2", {}, 0.1),
                ("rware-5s-2x1-3h-3ag-1req-twostage-v2", {"max_steps": 40}, 0.1),
                ("rware-medium-19ag-easy-v2", {"sensor_range": 2, "msg_bits": 1}, 1.0),
            ]
        ),
    ],
)
def test_warehouses_are_rwares(name, options, noise):
    """To the last bit of every observation and reward."""
    from support.warehouses import Workers, begin, original

    batch = Warehouse(2, name, **{"max_steps": 90, **options})
    originals = [original(batch.task) for _ in range(2)]
    robots = [Workers(env, np.random.default_rng(e), noise) for e, env in enumerate(originals)]
    twins = Twins(batch, originals, begin, seed=7)
    total = 0.0
    for _ in range(200):
        twins.play(1, lambda e, agent, obs: robots[e].act(agent))
        total += twins.out.groups["robots"].rewards.sum()
        draws = [env.unwrapped._np_random.random.state for env in originals]
        assert batch._streams.tolist() == draws
    assert (twins.episodes >= 4) == (batch.task.max_steps is not None)
    assert twins.truncated == twins.agent_ends == 0
    assert total > 2 or noise > 0.1, "nothing was delivered"


@pytest.mark.needs("rware")
@pytest.mark.slow
def test_robots_that_meet_move_as_rwares(monkeypatch):
    from support.warehouses import Encounters, Whirls, Workers, begin, original

    met = Encounters(monkeypatch)
    batch = Warehouse(2, **CROWDED | {"max_steps": 50})
    originals = [original(batch.task) for _ in range(2)]
    robots = [kind(env, np.random.default_rng(0), 0.2) for kind, env in zip((Whirls, Workers), originals, strict=True)]
    Twins(batch, originals, begin, seed=2).play(250, lambda e, agent, obs: robots[e].act(agent))
    assert met.circles >= 5 and met.swaps >= 30 and met.contests >= 30 and met.longest >= 3, vars(met)


@pytest.mark.needs("rware")
@pytest.mark.parametrize("options", [{}, {"msg_bits": 3, "sensor_range": 2}, {"n_agents": 5}])
def test_spaces_are_those_of_the_adapter(options):
    from support.warehouses import original

    batch = Warehouse(1, **options)
    env = original(batch.task)
    assert batch.possible_agents == env.possible_agents
    for agent in batch.possible_agents:
        for ours, theirs in (
            (batch.observation_spaces[agent], env.get_observation_space(agent)),
            (batch.action_spaces[agent], env.get_action_space(agent)),
        ):
            assert ours == theirs and ours.dtype == theirs.dtype


@pytest.mark.needs("rware")
def test_tasks_have_the_options_that_rware_registers():
    import gymnasium as gym
    import rware  # noqa: F401  # it registers them

    names = [name for name in gym.registry if name.startswith("rware-") and "img" not in name]
    assert len(names) == 4 * 3 * 19
    for name in names:
        theirs = gym.spec(name).kwargs
        ours = vars(task_named(name, {}))
        assert {key: ours[key] for key in theirs} == theirs | {"reward_type": theirs["reward_type"].name.lower()}


def test_all_of_rwares_grammar_of_names_is_read():
    sized, numbered = task_named("rware-3s-small-5h-4ag-hard-v2", {}), task_named("rware-2x7-5h-3ag-9req-global-v2", {})
    assert (sized.sensor_range, sized.shelf_rows, sized.shelf_columns, sized.column_height) == (3, 2, 3, 5)
    assert (sized.n_agents, sized.request_queue_size, sized.reward_type) == (4, 2, "individual")
    assert (numbered.sensor_range, numbered.shelf_rows, numbered.shelf_columns, numbered.column_height) == (1, 2, 7, 5)
    assert (numbered.n_agents, numbered.request_queue_size, numbered.reward_type) == (3, 9, "global")
    assert task_named("rware-tiny-2ag-v2", {"max_steps": 9}).max_steps == 9


@pytest.mark.needs("rware")
def test_members_of_rwares_enums_are_taken():
    from rware.warehouse import ObservationType, RewardType

    options = {"reward_type": RewardType.TWO_STAGE, "observation_type": ObservationType.FLATTENED}
    assert task_named("rware-tiny-2ag-v2", options).reward_type == "two_stage"
    with pytest.raises(ConfigError, match="observation_type must be 'flattened', got 'image'"):
        task_named("rware-tiny-2ag-v2", {"observation_type": ObservationType.IMAGE})


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("rware-tiny-2ag-v1", {}, "unknown task 'rware-tiny-2ag-v1': expected a name such as rware-tiny-2ag-v2"),
        ("rware-huge-2ag-v2", {}, "unknown task"),
        ("rware-1x3-8h-2ag-4req-shared-v2", {}, "unknown task"),
        ("rware-tiny-0ag-v2", {}, "n_agents must be at least 1, got 0"),
        ("rware-tiny-2ag-v2", {"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ("rware-tiny-2ag-v2", {"shelf_columns": 4}, "shelf_columns must be odd"),
        ("rware-tiny-2ag-v2", {"reward_type": "team"}, "one of individual, global, two_stage, got 'team'"),
        ("rware-tiny-2ag-v2", {"n_agents": 200}, "200 robots need one cell each, but there are only 110"),
        ("rware-tiny-2ag-v2", {"request_queue_size": 32}, "less than the number of shelves \\(32\\)"),
        ("rware-tiny-2ag-v2", {"layout": "g.x\nx."}, "lines of equal length"),
        ("rware-tiny-2ag-v2", {"layout": "gox"}, "with the letters g"),
        ("rware-tiny-2ag-v2", {"layout": "..x"}, "must contain a goal"),
        ("rware-tiny-2ag-v2", {"layout": "g.xxx", "normalised_coordinates": True}, "a layout of 1 by 5"),
    ],
)
def test_senseless_options_are_refused(name, options, text):
    with pytest.raises(ConfigError, match=text):
        Warehouse(1, name, **options)


def test_an_option_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'agents'"):
        Warehouse(1, agents=3)


@pytest.mark.parametrize(
    ("targets", "movers"),
    [
        ({(0, 0): (1, 0)}, {(0, 0)}),
        ({(0, 0): (0, 0), (1, 0): (0, 0)}, set()),  # one stays
        ({(0, 0): (1, 0), (1, 0): (0, 0)}, set()),  # no swap
        ({(0, 0): (1, 0), (1, 0): (2, 0), (2, 0): (2, 1)}, {(0, 0), (1, 0), (2, 0)}),
        ({(0, 0): (1, 0), (1, 0): (2, 0), (2, 1): (2, 0)}, {(0, 0), (1, 0)}),  # the longer chain
        ({(0, 0): (1, 0), (1, 0): (1, 1), (1, 1): (0, 1), (0, 1): (0, 0)}, {(0, 0), (1, 0), (1, 1), (0, 1)}),
        (
            {(0, 0): (1, 0), (1, 0): (1, 1), (1, 1): (0, 1), (0, 1): (0, 0), (2, 0): (1, 0)},
            {(0, 0), (1, 0), (1, 1), (0, 1)},
        ),
    ],
)
def test_robots_that_can_move(targets, movers):
    """By (x, y) of robots on three by two cells."""
    assert movers_of(targets, 3, 2) == (movers, False)


def movers_of(targets, width, height):
    """Who moves, and whether chains were tied, by the (x, y) of robots and of the cells they aim at."""
    cells = [(x, y) for y in range(-1, height + 1) for x in range(-1, width + 1)]
    number = {cell: i for i, cell in enumerate(cells)}
    hashes = np.array([hash(cell) % 2**64 for cell in cells], np.uint64)
    aims = new_aims(len(targets), np.array([-width - 2, width + 2, -1, 1]), hashes)
    for array in (aims.moves_A, aims.depth_A, aims.rank_C, aims.order_N, aims.table):
        array[:] = 77
    here, agent_at = np.array([[number[cell] for cell in targets]]), np.zeros((1, len(cells)), np.int32)
    agent_at[0, here[0]] = np.arange(len(targets)) + 1
    aims.target_A[:] = [number[cell] for cell in targets.values()]
    count_followers(0, agent_at, aims)
    is_tied = choose_movers(0, here, agent_at, aims)
    if is_tied:
        rank_cells(0, here, agent_at, aims)
        count_followers(0, agent_at, aims)
        choose_movers(0, here, agent_at, aims)
    return {cell for cell, moves in zip(targets, aims.moves_A, strict=True) if moves}, is_tied


@pytest.mark.needs("networkx")
@pytest.mark.slow
def test_chains_of_equal_length_are_those_that_networkx_finds():
    import networkx as nx

    draw, n_tied = random.Random(0), 0
    for _ in range(1500):
        size = draw.choice([4, 8, 14])
        cells = [(x, y) for y in range(size) for x in range(size)]
        targets = {}
        for x, y in draw.sample(cells, draw.randint(2, 14)):
            near = [cell for cell in ((x, y - 1), (x, y + 1), (x - 1, y), (x + 1, y)) if cell in cells]
            targets[x, y] = draw.choice([(x, y), *near, *near, *near])
        graph, movers = nx.DiGraph(list(targets.items())), set()
        for component in nx.weakly_connected_components(graph):
            subgraph = graph.subgraph(component).copy()
            circles = list(nx.simple_cycles(subgraph))
            path = circles[0] if circles else nx.dag_longest_path(subgraph)
            if not circles or len(path) > 2:
                movers |= set(path) & set(targets)
        ours, is_tied = movers_of(targets, size, size)
        assert ours == movers
        n_tied += is_tied
    assert n_tied > 150


def test_cells_are_ordered_as_in_pythons_sets():
    cells = [(x, y) for y in range(20) for x in range(30)]
    hashes = np.array([hash(cell) % 2**64 for cell in cells], np.uint64)
    draw = random.Random(0)
    for n in [*range(1, 80), *range(1, 80)]:
        numbers = draw.sample(range(len(cells)), n)
        as_set = set()
        for i in numbers:
            as_set.add(cells[i])
        array, table = np.array([*numbers, -5]), np.full(8 * (n + 1) + 1, 77)
        order_as_set(array, n, hashes, table)
        assert [cells[i] for i in array[:n]] == list(as_set)
        assert array[n] == -5 and table[-1] == 77, "more was written than there is room for"
