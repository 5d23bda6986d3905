"""Actions outside of their space are refused before a batch of envs gets them."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.exhaustive import further
from support.replayed import record
from support.scripted import Says, counting, scripted

import fastmarl
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.native._finite import first_outside
from fastmarl.core.spaces.values import choice_ranges
from fastmarl.errors import ModuleOutputError, RecordingError

RWARE = {"name": "rware-tiny-2ag-v2", "msg_bits": 1}
NEGATIVE = gym.spaces.Discrete(4, start=-3)
PAIR = gym.spaces.MultiDiscrete([3, 4], np.int8, start=[-1, 9])
NESTED = gym.spaces.Dict({"x": gym.spaces.Discrete(2), "y": gym.spaces.Tuple([gym.spaces.MultiBinary(2)])})
UNBOUND = {"normalize_actions": False, "clip_actions": False}


class Batch(ArrayEnv):
    """Two groups, which keep the actions that they got."""

    def __init__(self, num_envs, **spaces):
        box = gym.spaces.Box(-1, 1, (3,), np.float32)
        super().__init__(
            num_envs, {name: [f"{name}0", f"{name}1"] for name in spaces}, dict.fromkeys(spaces, box), spaces
        )
        self.acted = []

    def reset(self, env_indices, out, *, seeds=None):
        pass

    def step(self, actions, out):
        self.acted.append({name: np.copy(action) for name, action in actions.items()})


def sample(env, module, mapping=None, **options):
    config = fastmarl.EnvRunnerConfig(env=env, num_envs_per_env_runner=3, policies={"p": module}, seed=0,
                                      policy_mapping_fn=mapping, **options)  # fmt: skip
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.sample(num_timesteps=30)
        return runner.env.envs[0]


@pytest.mark.parametrize("action", [-1, np.nan, None, *further([10**8, -(2**63), 1.5])])
@pytest.mark.parametrize(
    ("name", "env_config", "n"),
    [
        ("connect_four", None, 7),
        ("simple_spread", None, 5),
        ("simple_tag", None, 5),
        ("gridworld", None, 5),
        ("cart_pole", None, 2),
        ("lbforaging", {"name": "Foraging-8x8-2p-1f-v3"}, 6),
        ("rware", {"name": "rware-tiny-2ag-v2"}, 5),
    ],
)
def test_bundled_envs_never_get_an_action_out_of_range(name, env_config, n, action):
    """Action None: the first number that is too high."""
    found = n if action is None else action
    tag = {
        "policies": {"p": Says(actions=found), "q": Says(actions=0)},
        "policy_mapping_fn": lambda agent, episode: "pq"["agent" in agent],
    }
    options = {"policies": {"p": Says(actions=found)}} | (tag if name == "simple_tag" else {})
    config = fastmarl.EnvRunnerConfig(env=f"fastmarl.{name}", env_config=env_config or {}, seed=0, **options)
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        pytest.raises(ModuleOutputError, match=r"module 'p': (expected .* got|.*NaN or inf in its action)"),
    ):
        runner.sample(num_timesteps=30)


@pytest.mark.parametrize("bad", [[5, 0], [0, 2], [-1, 0]])
def test_each_number_of_an_action_has_its_range(bad):
    with pytest.raises(
        ModuleOutputError, match=rf"got \[ *{bad[0]} +{bad[1]}\]; values must be from \[0 0\] to \[4 1\]"
    ):
        sample("fastmarl.rware", Says(actions=bad), env_config=RWARE)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (NEGATIVE, [0, 3], [-1, 4]),
        (PAIR, [[0, 0], [2, 3]], [[3, 0], [0, 4], [-1, 0]]),
        (gym.spaces.MultiBinary([2, 1]), [[[0], [1]]], [[[0], [2]], [[-1], [0]]]),
        (NESTED, [{"x": 1, "y": ([0, 1],)}], [{"x": 2, "y": ([0, 1],)}, {"x": 1, "y": ([0, 2],)}]),
        (gym.spaces.MultiDiscrete([]), [np.zeros(0, np.int64)], []),
    ],
)
def test_batches_of_ones_own_are_guarded_alike(space, good, bad):
    for action in good:
        sample(lambda config: Batch(config.num_envs, a=space), Says(actions=action))
    for action in bad:
        with pytest.raises(ModuleOutputError, match=r"'p': expected an action of .* for agent 'a0' of env 0, got"):
            sample(lambda config: Batch(config.num_envs, a=space), Says(actions=action))


def test_only_agents_of_a_group_count_for_its_space():
    """One module has the agents of two groups."""
    spaces = {"a": gym.spaces.Discrete(3), "b": gym.spaces.Discrete(9)}

    chosen = torch.tensor([2] * 6 + [8] * 6)
    module = Says(gym.spaces.Box(-1, 1, (3,), np.float32), spaces["b"], actions=lambda obs: chosen[: len(obs)])
    acted = sample(lambda config: Batch(config.num_envs, **spaces), module).acted[-1]
    assert (acted["a"] == 2).all() and (acted["b"] == 8).all()
    chosen[4] = 3
    with pytest.raises(ModuleOutputError, match=r"Discrete\(3\) for agent 'a0' of env 2, got 3"):
        sample(lambda config: Batch(config.num_envs, **spaces), module)


def test_bounds_of_a_box_are_those_of_the_options():
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    for options, got in (({}, 1), (UNBOUND | {"clip_actions": True}, 1), (UNBOUND, 7)):
        env = sample(
            lambda config: Batch(config.num_envs, a=space), Says(actions=[7.0, 0.0], action_space=space), **options
        )
        assert (env.acted[-1]["a"] == [got, 0]).all()


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3), gym.spaces.Discrete(3, start=1), gym.spaces.MultiDiscrete([3])]
)
def test_choices_with_a_fraction_are_refused_for_every_env(space):
    env = scripted(counting(), action_space=space)
    sample(env, Says(actions=np.full(space.shape, 2.0)))
    with pytest.raises(ModuleOutputError, match=r"'p': expected integer actions .* got float64"):
        sample(env, Says(actions=np.full(space.shape, 1.5)))


def test_a_batch_never_gets_them_from_a_record_either(tmp_path):
    record(tmp_path, lambda config: Batches(config.num_envs, n=7), steps=20)
    with pytest.raises(
        RecordingError, match=r"agent 'a[01]' has the recorded action [3-6], which is not in Discrete\(3\)"
    ):
        fastmarl.replay(tmp_path, 0, env=lambda config: Batches(config.num_envs, n=3))


class Batches(Batch):
    """Episodes of 10 steps."""

    seeds_each_episode = True

    def __init__(self, num_envs, n):
        super().__init__(num_envs, a=gym.spaces.Discrete(n))
        self.t = np.zeros(num_envs, int)

    def reset(self, env_indices, out, *, seeds=None):
        self.t[env_indices] = 0

    def step(self, actions, out):
        self.t += 1
        out.terminated[:] = self.t == 10


def test_the_first_row_outside_is_found(rng):
    for shape in ((), (1,), (3,), (2, 20), (0,)):
        space = gym.spaces.MultiDiscrete(np.full(shape, 5), start=rng.integers(-3, 3, shape)) if shape else NEGATIVE
        least, most = choice_ranges(space)
        n = least.size
        for dtype in (np.int64, np.int8):
            values = rng.integers(least.reshape(shape), most.reshape(shape) + 1, (9, *shape)).astype(dtype)
            assert first_outside(values, least, most) == -1 == first_outside(values[:0], least, most)
            for row in range(9) if n else ():
                spoiled = values.copy().reshape(9, n)
                spoiled[row, -1] = (least - 1)[-1]
                spoiled[row + 1 :] = most + 1
                for array in (spoiled, np.asfortranarray(spoiled)):
                    assert first_outside(array, least, most) == row
    with pytest.raises(ValueError, match="2 numbers a row"):
        first_outside(np.zeros((4, 3), np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64))
