"""PettingZoo's AECEnv: turns, dead steps, rewards that wait, against PettingZoo's own loop."""

import importlib
import itertools
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.optional import needed

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.aec import AECPettingZooEnv
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.envs.values import random_action
from fastmarl.core.spaces.masks import action_mask

# PettingZoo's change of registries warns on import, and a poker table when it is made.
AECEnv = needed("pettingzoo").AECEnv
pytestmark = [
    pytest.mark.needs("pettingzoo"),
    pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning"),
]

GAMES = ("tictactoe_v3", "connect_four_v3", "leduc_holdem_v4", "texas_holdem_no_limit_v6", "hanabi_v5", "rps_v2")
TURNS = 400


def make(name, **options):
    return importlib.import_module(f"pettingzoo.classic.{name}").env(**options)


class Player:
    """Chooses legal actions at random; two of the same seed choose alike."""

    def __init__(self, env):
        self.spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
        for i, space in enumerate(self.spaces.values()):
            space.seed(i)

    def __call__(self, agent, observation, info):
        return random_action(self.spaces[agent], action_mask(observation, info))


def played_by_pettingzoo(env, player, seed):
    """(agent, observation, reward, terminated, truncated) of every turn of one episode."""
    env.reset(seed=seed)
    turns = []
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        turns.append((agent, observation, reward, terminated, truncated))
        env.step(None if terminated or truncated else player(agent, observation, info))
    return turns


def played_by_us(env, player, seed):
    """Play a game through our adapter; also returns the numbers of agents observed in each step."""
    obs, infos = env.reset(seed=seed)
    rewards, terminateds, truncateds, turns, numbers = dict.fromkeys(obs, 0), {}, {"__all__": False}, [], [len(obs)]
    while True:
        ended = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        assert list(obs) == list(rewards)
        turns += [
            (agent, value, rewards[agent], agent in terminateds and terminateds[agent], truncateds.get(agent, False))
            for agent, value in obs.items()
        ]
        if "__all__" in ended:
            return turns, numbers
        (agent,) = obs.keys() - ended
        action = player(agent, obs[agent], infos[agent])
        obs, rewards, terminateds, truncateds, infos = env.step({agent: action})
        numbers.append(len(obs))


@pytest.mark.parametrize("name", GAMES)
def test_turns_are_pettingzoos(name):
    theirs, ours = make(name), AECPettingZooEnv(make(name))
    their_player, our_player = Player(theirs), Player(ours.env)
    n_turns = seed = 0
    while n_turns < TURNS:
        want = played_by_pettingzoo(theirs, their_player, seed)
        got, numbers = played_by_us(ours, our_player, seed)
        assert [turn[0] for turn in got] == [turn[0] for turn in want]
        assert_same([turn[1] for turn in got], [turn[1] for turn in want])
        assert [turn[2:] for turn in got] == [turn[2:] for turn in want]
        n_ended = sum(terminated or truncated for *_, terminated, truncated in want)
        assert sum(numbers) == len(want), "turns of the dead are no steps of their own"
        assert len(numbers) == len(want) - n_ended + 1
        n_turns, seed = n_turns + len(want), seed + 1


def test_a_player_may_move_twice_running():
    env = AECPettingZooEnv(make("texas_holdem_no_limit_v6"))
    player = Player(env.env)
    again = 0
    for seed in range(200):
        turns, _ = played_by_us(env, player, seed)
        movers = [agent for agent, *_, terminated, truncated in turns if not (terminated or truncated)]
        again += sum(one == other for one, other in itertools.pairwise(movers))
    assert again > 0


class Countdown(AECEnv):
    """Two agents take turns; each gets a reward for the other's turn. All end after `length` turns and stay listed."""

    metadata: ClassVar = {"name": "countdown"}

    def __init__(self, length=3, truncates=False):
        self.possible_agents = ["a", "b"]
        self.length, self.truncates = length, truncates

    def observation_space(self, agent):
        return gym.spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.turn = 0
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        return np.array([self.turn], np.float32)

    def step(self, action):
        if action is not None:
            self.turn += 1
            self._cumulative_rewards[self.agent_selection] = 0
            self.agent_selection = "b" if self.agent_selection == "a" else "a"
            self._cumulative_rewards[self.agent_selection] += self.turn
            if self.turn == self.length:
                (self.truncations if self.truncates else self.terminations).update(a=True, b=True)
        else:
            self.agent_selection = "b" if self.agent_selection == "a" else "a"


@pytest.mark.parametrize("truncates", [False, True])
def test_agents_that_stay_listed_when_all_are_done(truncates):
    env = as_multi_agent_env(Countdown(2, truncates))
    assert isinstance(env, AECPettingZooEnv)
    assert list(env.reset()[0]) == ["a"]
    assert env.step({"a": 0})[1:4] == ({"b": 1}, {"__all__": False}, {})
    obs, rewards, terminateds, truncateds, _ = env.step({"b": 0})
    assert (list(obs), rewards) == (["a", "b"], {"a": 2, "b": 0})
    assert terminateds == {"a": not truncates, "b": not truncates, "__all__": not truncates}
    assert truncateds == {"a": truncates, "b": truncates, "__all__": truncates}


class KeepsItsOwnAccounts(Countdown):
    """Its `last()` says rewards that are not where PettingZoo's own looks for them; its `env` is none."""

    def __init__(self):
        super().__init__()
        self.env = object()

    def last(self, observe=True):
        self._cumulative_rewards = self.accounts
        answer = super().last(observe)
        self.accounts = self.__dict__.pop("_cumulative_rewards")
        return answer

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.accounts = self.__dict__.pop("_cumulative_rewards")

    def step(self, action):
        self._cumulative_rewards = self.accounts
        super().step(action)
        self.accounts = self.__dict__.pop("_cumulative_rewards")


def test_envs_with_accounts_of_their_own():
    expected, played = [], []
    for env, results in ((Countdown(), expected), (KeepsItsOwnAccounts(), played)):
        adapted = as_multi_agent_env(env)
        adapted.reset()
        results += [adapted.step({agent: 0})[1:4] for agent in "aba"]
    assert played == expected


class ManyStayListed(Countdown):
    """All but one of many end after the first turn, and still get a turn each before the last one acts again."""

    def __init__(self, n):
        super().__init__()
        self.possible_agents = list(range(n))

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agent_selection = 0

    def step(self, action):
        self.terminations.update(dict.fromkeys(self.agents[1:], True))
        self.agent_selection = (self.agent_selection + 1) % len(self.agents)


def test_one_lives_among_many_that_stay_listed():
    env = as_multi_agent_env(ManyStayListed(1500))
    env.reset()
    assert [len(env.step({0: 0})[0]) for _ in range(3)] == [1500, 1, 1]


def test_actions_out_of_turn_are_errors():
    env = AECPettingZooEnv(Countdown())
    env.reset()
    with pytest.raises(ValueError, match=r"expected an action of agent 'a', whose turn it is, got actions of \['b'\]"):
        env.step({"b": 0})


def test_sampled_games_are_legal_and_complete():
    """Connect four: no action fills a full column, a turn is one agent's step, and one's win is the other's loss."""
    creator = env_creator("pettingzoo.classic.connect_four_v3")
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=creator, num_envs_per_env_runner=16, seed=0, model_config={"fcnet_hiddens": [16]})
    )
    finished = 0
    for _ in range(2):
        episodes = runner.sample(num_timesteps=4000)
        metrics = runner.get_metrics()
        assert metrics["num_env_steps_sampled"] == sum(metrics["num_agent_steps_sampled"].values()) == 4000
        for episode in episodes:
            for part in episode.agent_episodes.values():
                actions = np.asarray(part.get_actions())
                masks = part.get_observations()["action_mask"][: len(actions)]
                assert masks[np.arange(len(actions)), actions].all()
            if episode.is_done:
                finished += 1
                rewards = [part.get_rewards()[-1] for part in episode.agent_episodes.values()]
                assert sorted(rewards) in ([-1, 1], [0, 0])
    assert finished > 200
