"""Gymnasium envs with agents in Tuples and Dicts: against the same env stepped plainly, and small ones with scripts."""

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.optional import params

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.gymnasium_joint import DictGymnasiumEnv, TupleGymnasiumEnv
from fastmarl.errors import EnvCheckError
from fastmarl.testing.check import check_env


def steps_of(game, steps):
    """Episodes of rware are long."""
    return 2 * steps if "rware" in game else steps


TUPLES = {
    "lbforaging, 2 agents": ("lbforaging:Foraging-8x8-2p-3f-v3", {}),
    "lbforaging, 4 agents": ("lbforaging:Foraging-5x5-4p-3f-v3", {}),
    "rware": ("rware:rware-tiny-2ag-v2", {}),
    "rware, messages": ("rware:rware-tiny-2ag-v2", {"msg_bits": 2}),
}
DICTS = {
    "multigrid": ("multigrid.envs:MultiGrid-Empty-5x5-v0", {"agents": 2}),
    "multigrid, one by one": (
        "multigrid.envs:MultiGrid-Empty-5x5-v0",
        {"agents": 3, "success_termination_mode": "all"},
    ),
}
GAMES = {**TUPLES, **DICTS}
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def package_of(game):
    return game.split(",")[0]


def make(game):
    name, options = GAMES[game]
    return gym.make(name, disable_env_checker=True, **options)


def adapter_of(game):
    return DictGymnasiumEnv if game in DICTS else TupleGymnasiumEnv


@pytest.mark.parametrize("game", params(GAMES, package_of))
def test_they_are_recognised(game):
    env = make(game)
    adapter = as_multi_agent_env(env)
    assert type(adapter) is adapter_of(game)
    assert adapter.env is env and adapter.unwrapped is env.unwrapped
    n = len(env.observation_space)
    assert adapter.possible_agents == adapter.agents == list(range(n))
    for agent in range(n):
        space, action_space = env_spaces(adapter, agent)
        assert action_space is env.action_space[agent]
        assert game in DICTS or space is env.observation_space[agent]
    with pytest.raises(EnvCheckError, match=f"get_observation_space\\({n}\\) raised"):
        env_spaces(adapter, n)


# Against the env itself


def plainly(obs, agent):
    """An agent's observation as the adapter should have it; multigrid's missions are texts with a number."""
    if not isinstance(obs[agent], dict):
        return obs[agent]
    return {**obs[agent], "mission": np.zeros(1, np.int64)}


class Plain:
    """An env of Gymnasium stepped plainly, and who of its agents is still there."""

    def __init__(self, game):
        self.env, self.n = make(game), len(make(game).action_space)
        self.is_dict = game in DICTS

    def reset(self, seed):
        obs, _ = self.env.reset(seed=seed)
        self.alive = list(range(self.n))
        return {agent: plainly(obs, agent) for agent in self.alive}

    def step(self, actions):
        """(observations, rewards and flags by agent of those that were there, whether the episode is over)."""
        joint = dict(enumerate(actions)) if self.is_dict else tuple(actions)
        obs, rewards, terminated, truncated, _ = self.env.step(joint)
        result = (
            {agent: plainly(obs, agent) for agent in self.alive},
            {agent: rewards[agent] for agent in self.alive},
        )
        if not self.is_dict:
            return *result, {}, terminated or truncated
        ended = {agent: terminated[agent] or truncated[agent] for agent in self.alive}
        self.alive = [agent for agent in self.alive if not ended[agent]]
        return *result, ended, not self.alive


def joint_actions(spaces, rng):
    for space in spaces:
        space.seed(int(rng.integers(2**31)))
    while True:
        yield [action.item() if np.ndim(action) == 0 else action for action in (space.sample() for space in spaces)]


@pytest.mark.slow
@pytest.mark.parametrize("game", params(GAMES, package_of))
def test_it_is_the_same_game(game, rng):
    plain, ours = Plain(game), adapter_of(game)(make(game))
    actions = joint_actions([ours.get_action_space(agent) for agent in range(plain.n)], rng)
    over, episodes, total, seen_alone = True, 0, 0.0, False
    for _ in range(steps_of(game, 1000)):
        if over:
            seed = int(rng.integers(1000)) if episodes % 2 == 0 else None
            assert_same(plain.reset(seed), ours.reset(seed=seed)[0])
        joint, alive = next(actions), plain.alive
        assert ours.agents == alive
        obs, rewards, ended, over = plain.step(joint)
        result = ours.step({agent: joint[agent] for agent in alive})
        assert all(type(part) is dict for part in result)
        assert_same(obs, result[0])
        assert result[1] == rewards
        terminateds, truncateds = result[2:4]
        assert terminateds["__all__"] or truncateds["__all__"] or not over
        assert {agent: terminateds.get(agent) or truncateds.get(agent) for agent in ended} == ended
        assert (terminateds["__all__"] or truncateds["__all__"]) == over
        assert not any(result[4].values())
        seen_alone |= not over and any(ended.values())
        episodes, total = episodes + over, total + sum(rewards.values())
    assert episodes >= 4
    assert total > 0 or "rware" in game
    assert seen_alone == (game == "multigrid, one by one")


@pytest.mark.slow
@pytest.mark.parametrize("game", params(GAMES, package_of))
def test_check_env_finds_nothing(game):
    report = check_env(lambda env_config: adapter_of(game)(make(game)), steps=steps_of(game, 300))
    problems = report.problems
    if "lbforaging" in game:  # where its agents begin hangs on where they were in the episode before
        problems = [problem for problem in problems if problem.kind != "seed"]
    assert not problems, str(report)
    assert not report.notes, str(report)
    assert report.episodes and report.env_steps == steps_of(game, 300)


@pytest.mark.parametrize("game", params(["lbforaging, 2 agents", "multigrid"], package_of))
@pytest.mark.filterwarnings("ignore:.*(The reward returned|Expects `(terminated|truncated)` signal):UserWarning")
@pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")  # multigrid's arrays, since Gymnasium 1.4
def test_gymnasiums_checker_lets_them_through(game):
    name, options = GAMES[game]
    env, plain = adapter_of(game)(gym.make(name, **options)), adapter_of(game)(make(game))
    assert_same(env.reset(seed=1)[0], plain.reset(seed=1)[0])
    assert_same(env.step({0: 1, 1: 2}), plain.step({0: 1, 1: 2}))


# Sampling


class Recorder(gym.Wrapper):
    """Adds what comes out of an env to `episodes`, each as [(observations, rewards or None), ...]."""

    def __init__(self, env, episodes):
        super().__init__(env)
        self._episodes = episodes

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self._episode = [(obs, None)]
        self._episodes.append(self._episode)
        return obs, info

    def step(self, action):
        result = self.env.step(action)
        self._episode.append(result[:2])
        return result


def fingerprint(observations, rewards):
    """Return the bytes of one agent's [T + 1] observations, a list or stacked, and its [T] rewards."""
    parts = observations if isinstance(observations, list) else [observations]
    if isinstance(parts[0], dict):
        parts = [part[key] for key in ("image", "direction") for part in parts]
    return b"".join(np.asarray(part).tobytes() for part in parts), tuple(rewards)


@pytest.mark.slow
@pytest.mark.parametrize("game", params([*TUPLES, "multigrid"], package_of))
def test_the_runner_records_every_episode(game):
    recorded = []
    config = fastmarl.EnvRunnerConfig(
        env=lambda env_config: adapter_of(game)(Recorder(make(game), recorded)), num_envs_per_env_runner=4, seed=0
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    chunks = runner.sample(num_timesteps=1000)
    expected, got, total = Counter(), Counter(), 0.0
    for episode in recorded:
        for agent in range(len(episode[0][0])) if len(episode) > 1 else ():
            rewards = [rewards[agent] for _, rewards in episode[1:]]
            expected[fingerprint([obs[agent] for obs, _ in episode], rewards)] += 1
            total += sum(rewards)
    for chunk in chunks:
        for part in chunk.agent_episodes.values():
            got[fingerprint(part.get_observations(), part.get_rewards())] += 1
    assert sum(chunk.env_steps() for chunk in chunks) == 1000
    assert got == expected
    assert sum(chunk.get_return() for chunk in chunks) == pytest.approx(total)
    runner.stop()


# Small ones


class Script(gym.Env):
    """Plays back what step() returns; `actions` are those that it got.

    Args:
        spaces: (observation space, action space).
        obs: of every step, all agents'.
        script: (rewards, terminated, truncated, info) of each step.
    """

    def __init__(self, spaces, obs, *script):
        self.observation_space, self.action_space = spaces
        self.obs, self.script, self.actions, self.info = obs, script, [], {}

    def reset(self, *, seed=None, options=None):
        self.given, self.left = (seed, options), list(self.script)
        return self.obs, self.info

    def step(self, action):
        self.actions.append(action)
        return self.obs, *self.left.pop(0)


ZEROS = [np.full(2, i, np.float32) for i in range(3)]
NO, YES, KEEP = [False] * 3, [True] * 3, (0, False, False, {})
SPACES = gym.spaces.Tuple([BOX] * 3), gym.spaces.Tuple([DISCRETE] * 3)


def tuples(*script, spaces=SPACES):
    env = TupleGymnasiumEnv(Script(spaces, tuple(ZEROS), *script))
    env.reset()
    return env


def dicts(*script, obs=None, observation_space=BOX):
    spaces = (gym.spaces.Dict(dict.fromkeys(range(3), space)) for space in (observation_space, DISCRETE))
    env = DictGymnasiumEnv(Script(tuple(spaces), obs or dict(enumerate(ZEROS)), *script))
    env.reset()
    return env


def test_agents_end_one_by_one():
    env = tuples(
        ([1, 2, 3], [False, True, False], NO, {}),
        ((0, 0, 5), NO, np.array([True, False, False]), {"seen": 1}),
        (np.array([4.0, 0.0, 6.0]), (False, True, True), YES, {}),
    )
    for _ in range(2):  # another episode begins with all of them
        assert list(env.reset()[0]) == env.agents == [0, 1, 2]
        obs, rewards, terminateds, truncateds, infos = env.step({2: 2, 1: 1, 0: 0})
        assert all(obs[i] is ZEROS[i] for i in range(3)) and list(obs) == [0, 1, 2], "nothing is copied"
        assert (rewards, infos) == ({0: 1, 1: 2, 2: 3}, {})
        assert terminateds == {0: False, 1: True, 2: False, "__all__": False}
        assert truncateds == {0: False, 1: False, 2: False, "__all__": False}
        assert env.agents == [0, 2]
        obs, rewards, terminateds, truncateds, infos = env.step({0: 1, 2: 2})
        assert list(obs) == [0, 2]
        assert (rewards, infos) == ({0: 0, 2: 5}, {"__common__": {"seen": 1}})
        assert terminateds == {0: False, 2: False, "__all__": False}
        assert truncateds == {0: True, 2: False, "__all__": False}
        obs, rewards, terminateds, truncateds, infos = env.step({2: 1})
        assert list(obs) == [2]
        assert rewards == {0: 4, 2: 6}, "the options decide about rewards after the end"
        assert terminateds == {2: True, "__all__": False}
        assert truncateds == {2: True, "__all__": True}
        assert env.agents == []
    assert env.env.actions == [(0, 1, 2), (1, 0, 2), (0, 0, 1)] * 2


@pytest.mark.parametrize("terminated", [YES, True])
def test_the_last_ones_terminate(terminated):
    *_, terminateds, truncateds, _ = tuples((0, terminated, False, {})).step(dict.fromkeys(range(3), 0))
    assert terminateds["__all__"] is True and truncateds == {"__all__": False}


@pytest.mark.parametrize(("make_env", "some"), [(tuples, [True, False, False]), (dicts, {0: True, 1: False, 2: False})])
def test_a_time_limit_ends_it_for_all(make_env, some):
    env = make_env(KEEP, (0, some, False, {}))
    limited = type(env)(gym.wrappers.TimeLimit(env.env, 2))
    limited.reset(seed=5)
    assert env.env.given == (5, None)
    *_, terminateds, truncateds, _ = limited.step(dict.fromkeys(range(3), 0))
    assert (terminateds, truncateds) == ({"__all__": False}, {"__all__": False})
    *_, terminateds, truncateds, _ = limited.step(dict.fromkeys(range(3), 0))
    assert terminateds == {0: True, 1: False, 2: False, "__all__": False}
    assert truncateds == {"__all__": True}


def test_a_time_limit_ends_it_where_flags_are_for_all():
    env = TupleGymnasiumEnv(gym.wrappers.TimeLimit(Script(SPACES, ZEROS, KEEP, (0, np.True_, False, {})), 2))
    env.reset()
    assert env.step({0: 0, 1: 0, 2: 0})[2:4] == ({"__all__": False}, {"__all__": False})
    terminateds, truncateds = env.step({0: 0, 1: 0, 2: 0})[2:4]
    assert terminateds["__all__"] is truncateds["__all__"] is True


def test_each_present_agent_gets_the_reward_of_the_team():
    env = tuples((0.5, [False, True, False], NO, {}), (np.float64(0.25), NO, NO, {}))
    assert env.step({0: 0, 1: 0, 2: 0})[1] == {0: 0.5, 1: 0.5, 2: 0.5}
    assert env.step({0: 0, 2: 0})[1] == {0: 0.25, 2: 0.25}


@pytest.mark.parametrize(
    ("space", "idle"),
    [
        (gym.spaces.Discrete(3, start=-4), -4),
        (gym.spaces.MultiDiscrete([2, 3], start=[1, 0]), np.array([1, 0])),
        (gym.spaces.MultiBinary(2), np.zeros(2, np.int8)),
        (gym.spaces.Box(np.float32([-1, 2]), np.float32([1, 3])), np.float32([0, 2])),
        (gym.spaces.Dict(a=DISCRETE, b=gym.spaces.Tuple([BOX])), {"a": 0, "b": (np.zeros(2, np.float32),)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_agents_that_have_ended_get_the_idle_action(space, idle):
    spaces = SPACES[0], gym.spaces.Tuple([space] * 3)
    env = tuples((0, [True, False, False], NO, {}), KEEP, spaces=spaces)
    action = space.sample()
    env.step(dict.fromkeys(range(3), action))
    env.step({1: action, 2: action})
    got = env.env.actions[-1]
    assert_same(got[0], idle)
    assert space.contains(got[0])
    assert got[1] is action and got[2] is action


def test_agents_that_have_ended_get_some_action_without_an_idle_one():
    space = gym.spaces.Text(4, min_length=2)
    env = tuples((0, [True, False, False], NO, {}), KEEP, spaces=(SPACES[0], gym.spaces.Tuple([space] * 3)))
    env.step(dict.fromkeys(range(3), "abc"))
    env.step({1: "abc", 2: "abc"})
    assert space.contains(env.env.actions[-1][0])


def test_actions_and_values_of_the_wrong_agents_are_errors():
    env = tuples(([1, 2], False, False, {}), (0, [True], False, {}))
    with pytest.raises(ValueError, match=r"expected actions of agents \[0, 1, 2\], got actions of \[0, 2\]"):
        env.step({0: 0, 2: 0})
    for wrong in (r"\[1, 2\]", r"\[True\]"):
        with pytest.raises(EnvCheckError, match=f"expected 3 values, one per agent, from Script, got {wrong}"):
            env.step({0: 0, 1: 0, 2: 0})


def test_dicts_by_agent():
    own = {0: True, 1: True, 2: True, "__all__": False}
    env = dicts(
        ({0: 1, 2: 0.5}, {0: False, 1: np.True_}, {}, {0: {"a": 1}, 1: {}}),
        (2, dict.fromkeys(range(3), False), {}, {"episode": 7}),
        ({0: 0, 1: 3, 2: 0}, own, {}, {1: {"late": 1}, "__common__": {}}),
    )
    obs, rewards, terminateds, truncateds, infos = env.step({0: 1, 1: 1, 2: 1})
    assert list(obs) == [0, 1, 2] and obs[1] is ZEROS[1]
    assert (rewards, infos) == ({0: 1, 2: 0.5}, {0: {"a": 1}, 1: {}})
    assert (terminateds, truncateds) == ({0: False, 1: True, "__all__": False}, {"__all__": False})
    obs, rewards, _, _, infos = env.step({0: 2, 2: 2})
    assert list(obs) == [0, 2]
    assert (rewards, infos) == ({0: 2, 2: 2}, {"__common__": {"episode": 7}})
    obs, rewards, terminateds, truncateds, infos = env.step({0: 1, 2: 1})
    assert (rewards, infos) == ({0: 0, 1: 3, 2: 0}, {"__common__": {}})
    assert terminateds == {0: True, 2: True, "__all__": False}, "what the env says of the episode holds"
    assert truncateds == {"__all__": False}
    assert env.env.actions == [{0: 1, 1: 1, 2: 1}, {0: 2, 1: 0, 2: 2}, {0: 1, 1: 0, 2: 1}]


class Text(np.ndarray):
    """A number that compares as a text does."""

    def __eq__(self, other):
        return str(other) == "text"


class TextSpace(gym.spaces.MultiDiscrete):
    def contains(self, x):
        return isinstance(x, Text)


@pytest.mark.parametrize(("nvec", "numbers"), [([4], np.array(3)), ([4, 5], np.array([3, 2]))])
def test_numbered_texts_are_observed_as_their_numbers(nvec, numbers):
    space = gym.spaces.Dict(box=BOX, text=TextSpace(nvec), plain=gym.spaces.MultiDiscrete([2]))
    obs = {"box": ZEROS[0], "text": numbers.view(Text), "plain": np.array([1])}
    env = dicts(KEEP, obs=dict.fromkeys([0, 2], obs), observation_space=space)
    plain = env.get_observation_space(0)
    assert type(plain["text"]) is gym.spaces.MultiDiscrete and plain["text"].nvec.tolist() == nvec
    assert plain["plain"] is space["plain"] and plain["box"] is BOX
    for observations in (env.reset()[0], env.step(dict.fromkeys(range(3), 0))[0]):
        assert list(observations) == [0, 2]
        for observation in observations.values():
            assert type(observation["text"]) is np.ndarray
            assert observation["text"].tolist() == np.atleast_1d(numbers).tolist()
            assert observation["box"] is ZEROS[0] and plain.contains(observation)
    assert type(obs["text"]) is Text, "the env's own stays as it is"


def test_the_runner_records_the_end_of_each_agent():
    late = ((1.0, 0, 2.0), NO, NO, {})

    def creator(env_config):
        return tuples(([1, 10, 100], [False, True, False], NO, {}), late, ([3, 0, 0], YES, NO, {}))

    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=creator, seed=0))
    (episode,) = runner.sample(num_episodes=1)
    rewards = {agent: part.get_rewards().tolist() for agent, part in episode.agent_episodes.items()}
    assert rewards == {0: [1, 1, 3], 1: [10], 2: [100, 2, 0]}
    assert [part.is_terminated for part in episode.agent_episodes.values()] == [True] * 3
    assert episode.is_terminated and not episode.is_truncated
    runner.stop()


def spaced(observation_space, action_space, **attributes):
    return type("Spaced", (gym.Env,), {"observation_space": observation_space, "action_space": action_space,
                                       **attributes})()  # fmt: skip


BY_INT, BY_NAME = gym.spaces.Dict({0: BOX, 1: BOX}), gym.spaces.Dict({"a": BOX, "b": BOX})


@pytest.mark.parametrize(
    "env",
    [
        gym.Env(),
        spaced(BOX, DISCRETE),
        spaced(SPACES[0], DISCRETE),
        spaced(SPACES[0], gym.spaces.Tuple([DISCRETE] * 2)),
        spaced(gym.spaces.Tuple([]), gym.spaces.Tuple([])),
        spaced(*SPACES, possible_agents=[0, 1, 2]),
        spaced(BY_INT, BOX),
        spaced(BY_INT, gym.spaces.Dict({0: DISCRETE})),
        spaced(BY_NAME, BY_NAME),
        spaced(gym.spaces.Dict(), gym.spaces.Dict()),
        spaced(BY_INT, BY_INT, get_observation_space=lambda self, agent: BOX),
        TupleGymnasiumEnv(Script(SPACES, ())),
    ],
)
def test_others_are_left_alone(env):
    assert not TupleGymnasiumEnv.adapts(env)
    assert not DictGymnasiumEnv.adapts(env)


def test_the_rest_is_the_envs():
    env = tuples()
    env.env.render, env.env.close = (lambda: "picture"), (lambda: env.env.actions.append("closed"))
    assert env.render() == "picture"
    env.close()
    assert env.env.actions == ["closed"]
    assert repr(env) == f"TupleGymnasiumEnv({env.env!r})"
    env.env.info = {"level": 1}
    assert env.reset(seed=3, options={"size": 2})[1] == {"__common__": {"level": 1}}
    assert env.env.given == (3, {"size": 2})
