"""The bundled compiled envs: step by step what their originals in Python say, with a stream of draws for each env."""

from importlib import import_module

import numpy as np
import pytest
from support.bundled import BUNDLED
from support.exhaustive import further
from support.gridworld import PlainGridWorld, SplitMix64
from support.teams import TEAMS
from support.twins import Twins

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.registry import env_creator
from fastmarl.envs.cart_pole import CartPole
from fastmarl.envs.connect_four import ConnectFour
from fastmarl.envs.gridworld import GridWorld
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.envs.simple_tag import SimpleTag
from fastmarl.envs.streams import below, new_streams, random_bits, seed_streams, uniform
from fastmarl.errors import ConfigError, EnvCheckError


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**64 + 5])
def test_streams_are_splitmix64(seed):
    streams, plain = new_streams(3), SplitMix64(seed % 2**64)
    seed_streams(streams, np.array([1]), [seed])
    others = streams[[0, 2]].copy()
    for _ in range(20):
        assert random_bits(streams, 1) == plain.next()
        assert uniform(streams, 1, -1.0, 3.0) == plain.uniform(-1.0, 3.0)
        assert below(streams, 1, 7) == plain.below(7)
    assert (streams[[0, 2]] == others).all()


def test_draws_are_even():
    streams = new_streams(1)
    seed_streams(streams, np.array([0]), [0])
    numbers = np.array([uniform(streams, 0, 0.0, 1.0) for _ in range(20_000)])
    for counts in (np.histogram(numbers, 10, (0, 1))[0], np.bincount([below(streams, 0, 10) for _ in range(20_000)])):
        assert len(counts) == 10
        assert ((counts - 2000) ** 2 / 2000).sum() < 30  # chi-squared with 9 degrees of freedom: 1 in 2,000
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03


CROWDED = {"num_agents": 12, "size": 6, "num_food": 9, "num_hazards": 5, "view": 1, "max_steps": 30}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_envs", "options"),
    [
        (4, {}),
        *further([(1, {}), (2, CROWDED)]),
        (3, {"num_agents": 1, "size": 3, "num_food": 0, "num_hazards": 1, "view": 4}),
        (2, {"num_agents": 2, "size": 2, "num_food": 2, "num_hazards": 0, "max_steps": 7}),
    ],
)
def test_gridworld_follows_its_rules(num_envs, options):
    def begin(e, original, seed):
        return original.reset(seed=seed)[0]

    batch = GridWorld(num_envs, **options)
    originals = [PlainGridWorld(options) for _ in range(num_envs)]
    assert batch.observation_spaces["agent_0"] == originals[0].observation_space
    twins = Twins(batch, originals, begin, seed=7)
    twins.play(500)
    assert twins.episodes > 3
    assert options.get("num_hazards") == 0 or twins.agent_ends > 10
    if num_envs == 4:
        assert 0 < twins.truncated < twins.episodes


OF_MPE2 = {"simple_spread_v3": (SimpleSpread, "landmarks"), "simple_tag_v3": (SimpleTag, "obstacles")}


def place(world, positions, landmarks):
    for bodies, places in ((world.agents, positions), (world.landmarks, landmarks)):
        for body, position in zip(bodies, places, strict=True):
            body.state.p_pos = position.copy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_envs", "options"),
    [
        ("simple_spread_v3", 1, {}),
        ("simple_spread_v3", 3, {"N": 1, "max_cycles": 3}),
        ("simple_spread_v3", 1, {"N": 6, "continuous_actions": True, "local_ratio": 1.0}),
        ("simple_tag_v3", 1, {}),
        ("simple_tag_v3", 3, {"num_good": 1, "num_adversaries": 1, "num_obstacles": 0, "max_cycles": 3}),
        ("simple_tag_v3", 1, {"num_good": 3, "num_adversaries": 5, "num_obstacles": 1, "continuous_actions": True}),
        *further(
            [
                ("simple_spread_v3", 2, {"N": 7, "local_ratio": 0.0, "max_cycles": 60}),
                ("simple_spread_v3", 3, {"continuous_actions": True, "local_ratio": 0.3}),
                ("simple_tag_v3", 4, {"max_cycles": 60}),
                ("simple_tag_v3", 2, {"num_good": 4, "num_adversaries": 2, "num_obstacles": 5}),
                ("simple_tag_v3", 3, {"continuous_actions": True, "max_cycles": 40}),
            ]
        ),
    ],
)
@pytest.mark.needs("mpe2")
def test_particles_are_mpe2s(name, num_envs, options):
    """To the last bit of every observation and reward."""
    kind, landmarks = OF_MPE2[name]

    def begin(e, original, seed):
        original.reset(seed=0)
        place(original.unwrapped.world, batch.positions[e], getattr(batch, landmarks)[e])
        return {agent: original.unwrapped.observe(agent) for agent in original.possible_agents}

    batch, module = kind(num_envs, **options), import_module(f"mpe2.{name}")
    originals = [as_multi_agent_env(module.parallel_env(**options)) for _ in range(num_envs)]
    bare = originals[0].unwrapped
    assert batch.possible_agents == bare.possible_agents
    assert batch.observation_spaces == bare.observation_spaces
    assert batch.action_spaces == bare.action_spaces
    assert batch.state_space == bare.state_space
    twins = Twins(batch, originals, begin, seed=3)
    rewards = set()
    for _ in range(10):
        twins.play(40)
        np.testing.assert_array_equal(batch.state(), [original.unwrapped.state() for original in originals])
        rewards |= {reward for group in twins.out.groups.values() for reward in group.rewards.ravel()}
    assert twins.episodes == twins.truncated > num_envs
    assert len(rewards) > 1 or kind is SimpleTag, "all rewards were equal"


@pytest.mark.needs("mpe2")
def test_simple_tag_s_collisions_speeds_and_fines_are_mpe2s():
    """In the steps above such cases are a matter of luck: here all agents are close or far out, and fast."""
    import mpe2.simple_tag_v3

    batch = SimpleTag(100, num_good=2)
    original = mpe2.simple_tag_v3.parallel_env(num_good=2)
    out, rng = batch.new_arrays(), np.random.default_rng(0)
    batch.reset(np.arange(100), out, seeds=range(100))
    scale = np.linspace(0.1, 3.0, 100)[:, None, None]
    batch.positions *= scale
    batch.obstacles *= scale
    batch.velocities[:] = rng.normal(size=batch.velocities.shape)
    before = zip(batch.positions.copy(), batch.velocities.copy(), strict=True)
    actions = {name: rng.integers(0, 5, (100, len(agents))) for name, agents in batch.groups.items()}
    batch.step(actions, out)
    for e, of_env in enumerate(before):
        original.reset(seed=0)
        world = original.unwrapped.world
        positions, velocities = of_env
        place(world, positions, batch.obstacles[e])
        for agent, velocity in zip(world.agents, velocities, strict=True):
            agent.state.p_vel = velocity
        by_agent = zip(batch.possible_agents, np.concatenate([taken[e] for taken in actions.values()]), strict=True)
        obs, rewards, *_ = original.step(dict(by_agent))
        for name, agents in batch.groups.items():
            np.testing.assert_array_equal(out.groups[name].obs[e], [obs[agent] for agent in agents])
            np.testing.assert_array_equal(out.groups[name].rewards[e], [rewards[agent] for agent in agents])
    assert len(set(out.groups["adversaries"].rewards[:, 0])) > 2
    fines = -out.groups["good agents"].rewards % 10
    assert ((fines > 0) & (fines < 1)).any() and ((fines > 1) & (fines < 10)).any()
    speeds = np.linalg.norm(batch.velocities, axis=-1)
    assert (abs(speeds[:, :3] - 1.0) < 1e-9).sum() > 50 and (abs(speeds[:, 3:] - 1.3) < 1e-9).sum() > 20


@pytest.mark.parametrize("name", OF_MPE2)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.needs("mpe2")
def test_agents_in_the_same_place_push_each_other_nowhere_that_is_a_number(name):
    """Compare with mpe2, which does the same."""
    kind, landmarks = OF_MPE2[name]
    batch, original = kind(1), import_module(f"mpe2.{name}").parallel_env()
    out = batch.new_arrays()
    batch.reset(np.arange(1), out, seeds=[0])
    original.reset(seed=0)
    batch.positions[0, 1] = batch.positions[0, 0]
    world = original.unwrapped.world
    place(world, batch.positions[0], getattr(batch, landmarks)[0])
    for _ in range(3):
        batch.step({name: np.zeros((1, len(agents)), np.int64) for name, agents in batch.groups.items()}, out)
        original.step(dict.fromkeys(original.possible_agents, 0))
        positions = [agent.state.p_pos for agent in world.agents]
        np.testing.assert_array_equal(batch.positions[0], positions)
    assert np.isnan(batch.positions[0, :2]).all() and not np.isnan(batch.positions[0, 2:]).any()


def test_far_agents_do_not_push_each_other_and_touching_ones_do():
    """In the steps above, collisions are a matter of luck."""
    env = SimpleSpread(2, N=2)
    out = env.new_arrays()
    env.reset(np.arange(2), out)
    env.positions = [[[0.0, 0.0], [0.2, 0.0]], [[0.0, 0.0], [1.2, 0.0]]]
    env.landmarks = np.zeros_like(env.landmarks)
    env.step({"agents": np.zeros((2, 2), np.int64)}, out)
    assert env.velocities[:, :, 0].tolist() == [pytest.approx([-1.0, 1.0]), [0.0, 0.0]]
    covered = -np.linalg.norm(env.positions[:, :, None] - env.landmarks[:, None], axis=-1).min(axis=1).sum(axis=1)
    assert not env.landmarks.any()
    np.testing.assert_allclose(out.groups["agents"].rewards, [[0.5 * covered[0] - 0.5] * 2, [0.5 * covered[1]] * 2])


def trace(env, seeds, steps, actions, disturbed=()):
    """Return each env's results as bytes, step by step; disturbed envs are reset in between and act differently."""
    results = [[] for _ in range(env.num_envs)]
    rng = np.random.default_rng(0)

    def note(out, env_indices):
        for e in env_indices:
            for group in out.groups.values():
                parts = [group.rewards, group.terminated, group.truncated]
                parts += list(group.obs.values()) if isinstance(group.obs, dict) else [group.obs]
                results[e].append(b"".join(part[e].tobytes() for part in parts))

    out = env.new_arrays()
    env.reset(np.arange(env.num_envs), out, seeds=seeds)
    note(out, range(env.num_envs))
    for t in range(steps):
        out = env.new_arrays()
        mine = {name: array[t, seeds].copy() for name, array in actions.items()}
        for array in mine.values():
            array[list(disturbed)] = rng.permutation(array[list(disturbed)])
        env.step(mine, out)
        over = out.terminated | out.truncated
        note(out, range(env.num_envs))
        over[list(disturbed)] |= rng.random(len(disturbed)) < 0.3
        if over.any():
            out = env.new_arrays()
            env.reset(np.flatnonzero(over), out)
            note(out, np.flatnonzero(over))
    return results


@pytest.mark.parametrize("kind", BUNDLED)
def test_episodes_depend_on_the_seed_of_their_env_alone(kind):
    """Not on how many there are, on which place an env has, on what others do and when these are reset."""
    make, rng = BUNDLED[kind], np.random.default_rng(1)
    actions = {}  # by group: [step, seed, agent]
    for name, agents in make(1).groups.items():
        space = make(1).action_spaces[agents[0]]
        space.seed(0)
        pool = np.array([space.sample() for _ in range(64)])
        actions[name] = pool[rng.integers(0, 64, (200, 5, len(agents)))]
    together = trace(make(5), [0, 1, 2, 3, 4], 200, actions)
    ends_alike = kind.startswith(("simple", "rware"))
    assert len(set(map(len, together))) > 1 or ends_alike, "all were reset at the same times"
    for seed in range(5):
        assert trace(make(1), [seed], 200, actions) == [together[seed]]
    assert trace(make(3), [4, 0, 2], 200, actions) == [together[4], together[0], together[2]]
    disturbed = trace(make(5), [0, 1, 2, 3, 4], 200, actions, disturbed=[1, 3])
    assert [disturbed[e] == together[e] for e in range(5)] == [True, False, True, False, True]
    assert len({results[0] for results in together}) == 5, "other seeds begin otherwise"


@pytest.mark.parametrize("kind", BUNDLED)
def test_without_seeds_every_run_is_another(kind):
    """In the first observations of ten episodes: of one, two runs of connect four may well begin on an empty board."""
    firsts = set()
    for _ in range(3):
        env = BUNDLED[kind](2)
        seen = [b"", b""]
        for _ in range(10):
            out = env.new_arrays()
            env.reset(np.arange(2), out)
            obs = next(iter(out.groups.values())).obs
            seen = [
                old + (obs["observation"] if isinstance(obs, dict) else obs)[e].tobytes() for e, old in enumerate(seen)
            ]
        firsts |= set(seen)
    assert len(firsts) == 6


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: CartPole(1, 0), "num_agents and max_episode_steps must be at least 1, got 0 and 500"),
        (lambda: SimpleSpread(1, local_ratio=1.5), "local_ratio between 0 and 1, got 3, 25, 1.5"),
        (lambda: SimpleTag(1, num_good=0), "must be >= 1 and num_obstacles >= 0, got 0, 3, 25 and 2"),
        (lambda: SimpleTag(1, num_obstacles=-1), "got 1, 3, 25 and -1"),
        (lambda: ConnectFour(1, random_moves=21), "random_moves must be between 0 and 20, got 21"),
        (lambda: GridWorld(1, view=0), "must be >= 1"),
        (lambda: GridWorld(1, size=3), "4 agents, 8 food and 3 hazards need one cell each, but there are only 9"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_a_bundled_env_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(
        EnvCheckError, match=r"no environment 'fastmarl.cartpole': bundled are .*did you mean 'fastmarl.c"
    ):
        env_creator("fastmarl.cartpole")


@pytest.mark.parametrize(
    ("name", "env_config", "n_agents"),
    [
        ("fastmarl.cart_pole", {"num_agents": 2}, 2),
        ("fastmarl.simple_spread", {"N": 4, "continuous_actions": True}, 4),
        ("fastmarl.simple_tag", {"num_good": 2, "continuous_actions": True}, 5),
        ("fastmarl.gridworld", {"num_hazards": 9}, 4),
        ("fastmarl.lbforaging", {"name": "Foraging-2s-6x6-3p-2f-coop-v3", "max_episode_steps": 20}, 3),
        ("fastmarl.connect_four", {"random_moves": 3}, 2),
        ("fastmarl.rware", {"name": "rware-tiny-4ag-v2", "max_steps": 20}, 4),
    ],
)
def test_bundled_envs_are_sampled_by_name(name, env_config, n_agents):
    options = {"num_envs_per_env_runner": 6, "model_config": {"fcnet_hiddens": [8]}, "seed": 0}
    options |= TEAMS if name == "fastmarl.simple_tag" else {}
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=name, env_config=env_config, **options))
    episodes = runner.sample(num_episodes=12)
    finished = [episode for episode in episodes if episode.is_done]
    assert len(finished) >= 12
    assert len(finished[0].agent_episodes) == n_agents
    if name in ("fastmarl.gridworld", "fastmarl.connect_four"):
        for episode in episodes:
            for part in episode.agent_episodes.values():
                masks = part.get_observations()["action_mask"][:-1]
                assert np.take_along_axis(masks, part.get_actions()[:, None], 1).all(), "illegal moves were made"
    if name == "fastmarl.connect_four":
        assert all(episode.get_return() == 0 for episode in finished)
        assert any(episode.agent_episodes["player_1"].get_return() == 1 for episode in finished)
    if name == "fastmarl.gridworld":
        assert any(len({len(part) for part in episode.agent_episodes.values()}) > 1 for episode in finished)
    if name == "fastmarl.cart_pole":
        assert all(part.get_return() == len(part) for episode in episodes for part in episode.agent_episodes.values())
    runner.stop()
