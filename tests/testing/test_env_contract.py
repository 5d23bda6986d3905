"""One body for every kind of environment: reset() and step() keep the protocol. And the small envs for tests."""

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.real_envs import KINDS, MORE_STEPS, STEPS, params, steps_of
from support.real_envs import pytestmark as pytestmark

from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.form import check_reset_result, check_step_result
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.envs.values import random_action
from fastmarl.core.spaces.masks import action_mask
from fastmarl.errors import EnvCheckError
from fastmarl.testing import CountingEnv, DyingAgentsEnv, ReusingEnv, ScriptedEnv, TurnBasedEnv
from fastmarl.testing.check import check_env

# What comes after reset(seed) depends on where players stood before, and on how long it is till the next zombie comes.
KNOWN_FAULTS = {"lbforaging": {"seed"}, "knights_archers_zombies": {"seed"}}
# The last observation is the one before, the same array; state() raises once a walker has died.
KNOWN_NOTES = {"hanabi": {"aliased state"}, "multiwalker": {"state"}}


@pytest.fixture(params=params(KINDS))
def kind(request):
    return request.param


@pytest.fixture
def make(kind):
    """Makes envs of one kind; those that are made are closed."""
    made = []

    def make():
        creator, env_config = KINDS[kind]
        made.append(as_multi_agent_env(env_creator(creator)(env_config)))
        return made[-1]

    yield make
    for env in made:
        env.close()


def actions_for(spaces, obs, infos, alive):
    """Random and legal, of those that are observed and alive."""
    return {
        agent: random_action(spaces[agent][1], action_mask(observation, infos.get(agent)))
        for agent, observation in obs.items()
        if agent in alive
    }


@pytest.mark.slow
def test_reset_and_step_keep_the_protocol(make, kind):
    env = make()
    possible = list(env.possible_agents)
    assert len(possible) == len(set(possible)) > 0
    spaces = {agent: env_spaces(env, agent) for agent in possible}
    for i, (_, action_space) in enumerate(spaces.values()):
        action_space.seed(i)
    episodes, over = 0, True
    for env_t in range(steps_of(kind, MORE_STEPS.get(kind, STEPS))):
        if over:
            result = env.reset(seed=0) if env_t == 0 else env.reset()
            check_reset_result(result, 0)
            (obs, infos), alive = result, set(possible)
            assert obs, "somebody begins"
        result = env.step(actions_for(spaces, obs, infos, alive))
        check_step_result(result, 0, env_t)
        obs, rewards, terminateds, truncateds, infos = result
        for part in result:
            assert set(part) <= {*possible, "__all__", "__common__"}
        assert not {"__all__", "__common__"} & (set(obs) | set(rewards))
        assert set(obs) <= alive, "who has finished is not observed again"
        for agent, observation in obs.items():
            assert spaces[agent][0].contains(observation), f"{agent}: {observation} in {spaces[agent][0]}"
        assert all(np.isfinite(reward) for reward in rewards.values())
        assert all(isinstance(info, dict) for info in infos.values())
        alive -= {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        over = terminateds["__all__"] or truncateds.get("__all__", False)
        episodes += over
    assert episodes > 0, "no episode ended"
    assert env.possible_agents == possible


@pytest.mark.slow
def test_the_same_seed_and_actions_bring_the_same(make):
    first, second = make(), make()
    spaces = {agent: env_spaces(first, agent) for agent in first.possible_agents}
    obs, infos = first.reset(seed=3)
    second.reset(seed=3)
    alive, over = set(first.possible_agents), False
    for _ in range(20):
        if over:
            break
        actions = actions_for(spaces, obs, infos, alive)
        one, other = first.step(actions), second.step(actions)
        obs, _, terminateds, truncateds, infos = one
        assert one[1:4] == other[1:4]
        assert list(obs) == list(other[0])
        for agent, observation in obs.items():
            assert_same(observation, other[0][agent])
        alive -= {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        over = terminateds["__all__"] or truncateds.get("__all__", False)


@pytest.mark.slow
def test_check_env_finds_nothing(make, kind):
    steps = steps_of(kind, MORE_STEPS.get(kind, STEPS))
    report = check_env(make(), steps=steps)
    assert not {problem.kind for problem in report.problems} - KNOWN_FAULTS.get(kind, set()), str(report)
    assert not {note.kind for note in report.notes} - KNOWN_NOTES.get(kind, set()), str(report)
    assert report.env_steps == steps


@pytest.mark.needs("Box2D")
def test_agents_of_multiwalker_die_one_by_one():
    """Else the runs above would not see agents leave."""
    env = as_multi_agent_env(env_creator(KINDS["multiwalker"][0])(KINDS["multiwalker"][1]))
    rng = np.random.default_rng(0)
    numbers = set()
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over and len(numbers) < 2:
            numbers.add(len(obs))
            actions = {agent: rng.uniform(-1, 1, 4).astype(np.float32) for agent in obs}
            obs, _, terminateds, truncateds, _ = env.step(actions)
            over = terminateds["__all__"] or truncateds.get("__all__")
            obs = {agent: observation for agent, observation in obs.items() if not terminateds[agent]}
    env.close()
    assert numbers >= {3, 2}


# The small environments


def clocks(env, steps):
    """Who is observed at each env step, after the observations were compared with the clock."""
    seen = []
    result = env.reset()
    for env_t in range(steps + 1):
        for observation in result[0].values():
            assert observation.tolist() == [env_t] * 4
        seen.append(sorted(result[0]))
        result = env.step(dict.fromkeys(result[0], 0))
    return seen


def test_small_envs_observe_whom_they_say():
    assert clocks(CountingEnv(2, 3), 3) == [["agent_0", "agent_1"]] * 4
    assert clocks(TurnBasedEnv(2, 3), 3) == [["agent_0"], ["agent_1"], ["agent_0"], ["agent_0", "agent_1"]]
    dying = DyingAgentsEnv({"a": [(0, 9)], "b": [(1, 2), (4, 9)]}, 5)
    assert clocks(dying, 5) == [["a"], ["a", "b"], ["a", "b"], ["a"], ["a", "b"], ["a", "b"]]


def test_small_envs_pay_and_end_as_they_say():
    turns = TurnBasedEnv(2, 3)
    turns.reset()
    assert [turns.step({})[1] for _ in range(2)] == [{"agent_0": 1, "agent_1": -0.5}, {"agent_1": 2, "agent_0": -0.5}]
    dying = DyingAgentsEnv({"a": [(0, 9)], "b": [(1, 2)]}, 3)
    dying.reset()
    steps = [dying.step({}) for _ in range(3)]
    assert [rewards for _, rewards, *_ in steps] == [{"a": 1}, {"a": 1, "b": 1}, {"a": 1}]
    assert [flags.get("b", False) for _, _, flags, _, _ in steps] == [False, True, False]
    assert [flags["__all__"] for _, _, _, flags, _ in steps] == [False, False, True]


def test_a_script_is_played_over_and_over():
    reset, step = ({"a": 0}, {}), ({"b": 1}, {}, {"__all__": True}, {}, {})
    env = ScriptedEnv([reset, step, step], gym.spaces.Discrete(9), gym.spaces.Discrete(2))
    assert env.possible_agents == ["a", "b"]
    assert [env.reset(), env.step({"a": 1}), env.reset(), env.step({})] == [reset, step, reset, step]
    assert env.actions == [{"a": 1}, {}]
    with pytest.raises(EnvCheckError, match="a script must start with"):
        ScriptedEnv([step], gym.spaces.Discrete(9), gym.spaces.Discrete(2))


def test_reusing_env_overwrites_observations_infos_and_actions():
    kept = np.array([1, 2], np.uint8), np.array([True])
    env = ReusingEnv(
        ScriptedEnv([({"a": kept[0]}, {"a": {"deep": [kept[1]]}})], gym.spaces.Discrete(9), gym.spaces.Discrete(2))
    )
    obs, infos = env.reset()
    snapshots = []
    for _ in range(2):
        env.reset()
        snapshots.append([obs["a"].tolist(), infos["a"]["deep"][0].tolist()])
    assert snapshots[0] != [[1, 2], [True]]
    assert snapshots[0] != snapshots[1], "each further call writes again"
    assert [array.tolist() for array in kept] == [[1, 2], [True]], "the env inside keeps its own"
    counting = ReusingEnv(CountingEnv(1))
    counting.reset()
    actions = {"agent_0": np.zeros(2, np.float32)}
    counting.step(actions)
    assert actions["agent_0"].all()
