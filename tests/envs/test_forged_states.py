"""States of bundled envs from files of strangers: compiled code gets none that could lead it out of its arrays."""

import numpy as np
import pytest
from support.bundled import BUNDLED, begun, play
from support.differences import assert_same

import fastmarl
from fastmarl.checkpoint import load_state, save_state
from fastmarl.errors import CheckpointError, ConfigError

LARGE = 2**31 - 1


def forged(env, name, at, value):
    state = env.get_state()
    state[name][at] = value
    return state


@pytest.mark.parametrize("kind", BUNDLED)
def test_states_of_played_envs_are_taken(kind, rng):
    env, other = begun(kind), BUNDLED[kind](3)
    for _ in range(20):
        play(env, 11, rng)
        other.set_state(env.get_state())
        assert_same(other.get_state(), env.get_state())


@pytest.mark.parametrize("kind", BUNDLED)
def test_each_array_has_its_limits(kind):
    """Numbers that compiled code only calculates with need none; all integers and flags but random streams do."""
    env = begun(kind)
    for name, limits in env.state_arrays.items():
        array = getattr(env, name)
        assert (limits is None) == (array.dtype.kind == "f" or name == "_streams"), name
        if limits is None or array.dtype == np.bool_:
            continue
        low, high = limits[0], np.max(limits[1])
        for number in {low - 1, high + 1, np.iinfo(array.dtype).min, np.iinfo(array.dtype).max}:
            if low <= number <= high or number < np.iinfo(array.dtype).min:  # of an unsigned type
                continue
            state = forged(env, name, (1, *(-1,) * (array.ndim - 1)), number)
            with pytest.raises(ConfigError, match=rf"^{name} in the state of .* must be .* env 1, got {number}"):
                env.set_state(state)


@pytest.mark.parametrize(
    ("kind", "forge", "problem"),
    [
        ("cart_pole", lambda state: state.pop("_t"), r"the state of CartPole must have .* missing: \['_t'\]"),
        ("cart_pole", lambda state: state.update(_t=[0, 0, 0]), "_t in .* must be an array of dtype int64"),
        ("cart_pole", lambda state: state.update(_t=state["_t"][:2]), r"shape \(3,\), got int64 \(2,\)"),
        ("cart_pole", lambda state: state.update(_t=state["_t"].astype(">i8")), "dtype int64"),
        ("gridworld", lambda state: state["_lives_EA"].view(np.uint8)[1].fill(2), "_lives_EA .* env 1, got 2"),
        ("gridworld", lambda state: state["_cells_EC"][1].fill(0), "in env 1, walls are misplaced"),
        ("gridworld", lambda state: np.place(state["_cells_EC"][1], state["_cells_EC"][1] == 2, 3), "in env 1, walls"),
        ("gridworld", lambda state: state["_agent_EA"][1].fill(state["_agent_EA"][1, 0]), "in env 1, living agents"),
        ("gridworld", lambda state: state["_hazard_EH"][1].fill(state["_hazard_EH"][1, 0]), "in env 1, living agents"),
        ("gridworld", lambda state: state["_agent_EA"][1].fill(0), "in env 1, living agents and hazards"),
        ("lbforaging", lambda state: state["food_spawned"].fill(0), "in env 0, there is food but food_spawned is 0"),
        ("rware", lambda state: state["_cell_EA"][1].fill(state["_cell_EA"][1, 0]), "in env 1, robots are not"),
        ("rware", lambda state: state["_agent_at_EC"][1].fill(0), "in env 1, robots are not"),
        ("rware", lambda state: state["_agent_at_EC"][1, :1].fill(1), "in env 1, robots are not"),
        ("rware", lambda state: state["_shelf_at_EC"][1].fill(1), "in env 1, shelves are not"),
        ("rware", lambda state: state["_shelf_at_EC"][1].sort(), "in env 1, a shelf is neither"),
        ("rware", lambda state: state["_load_EA"][1].fill(1), "in env 1, a shelf is neither"),
        ("rware", lambda state: state["_is_requested_ES"][1].fill(True), "in env 1, the number of requested shelves"),
    ],
)
def test_inconsistent_states_are_refused_and_change_nothing(kind, forge, problem):
    env = begun(kind)
    before, state = env.get_state(), env.get_state()
    state["_streams"] += np.uint64(1)
    forge(state)
    with pytest.raises(ConfigError, match=problem):
        env.set_state(state)
    assert_same(env.get_state(), before)


def test_robots_stand_in_the_warehouse_alone():
    env = begun("rware")
    state = env.get_state()
    state["_agent_at_EC"][1, state["_cell_EA"][1, 0]] = 0
    state["_cell_EA"][1, 0], state["_agent_at_EC"][1, 0] = 0, 1  # its neighbour above would be before the array
    with pytest.raises(ConfigError, match="in env 1, robots are not on separate cells"):
        env.set_state(state)


@pytest.mark.parametrize("kind", BUNDLED)
def test_forged_states_are_refused_or_lead_to_legal_ones(kind, rng):
    env, taken = begun(kind), 0
    for _ in range(60):
        play(env, 5, rng)
        before, state = env.get_state(), env.get_state()
        for name in rng.choice([name for name in state if state[name].size], 2):
            spoil(state[name].reshape(-1), rng)
        try:
            env.set_state(state)
        except ConfigError:
            assert_same(env.get_state(), before)
            continue
        taken += 1
        play(env, 25, rng)
        env.set_state(env.get_state())
    assert taken > 0


def spoil(array, rng):
    """Change an element or exchange two; array is a view of one axis."""
    i, j = rng.integers(len(array), size=2)
    if rng.random() < 0.5:
        array[[i, j]] = array[[j, i]]
    elif array.dtype == np.bool_:
        array.view(np.uint8)[i] = rng.integers(4)
    else:
        array[i] = np.array(rng.choice([-LARGE, -1, 0, 1, 2, 3, 7, 42, 10_000, LARGE])).astype(array.dtype)


@pytest.mark.parametrize("env", ["fastmarl.gridworld", "fastmarl.rware"])
def test_a_forged_checkpoint_is_refused_and_the_runner_keeps_its_state(env, tmp_path):
    options = {"env": env, "seed": 0, "num_envs_per_env_runner": 2, "model_config": {"fcnet_hiddens": [4]}}
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options)) as runner:
        runner.sample(num_timesteps=6)
        runner.save_to_path(tmp_path)
        state = load_state(tmp_path)
        of_batch = state["running_episodes"]["envs"][0]
        of_batch["_agent_EA" if "_agent_EA" in of_batch else "_cell_EA"][1] = 10**8
        save_state(tmp_path / "forged", state)
        before = runner.get_state("running_episodes")["running_episodes"]["envs"]
        with pytest.raises(CheckpointError, match=r"the runner keeps its state: .* of env 1, got 100000000"):
            runner.restore_from_path(tmp_path / "forged")
        assert_same(runner.get_state("running_episodes")["running_episodes"]["envs"], before)
        runner.restore_from_path(tmp_path / "forged", component="rl_module")
        runner.restore_from_path(tmp_path)
        runner.sample(num_timesteps=6)
