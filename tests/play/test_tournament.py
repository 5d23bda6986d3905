"""fastmarl.tournament(): who plays whom, how often and where; what follows from the games; and real games."""

import csv
import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.batched import Batched
from support.differences import assert_same
from support.modules import Always, Normed

import fastmarl
from fastmarl.connectors import MeanStdFilter
from fastmarl.errors import ConfigError
from fastmarl.play.arena.matches import schedule
from fastmarl.play.arena.standings import Tournament

FILTER = MeanStdFilter()
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


class Duel(fastmarl.MultiAgentEnv):
    """A game of two sides whose agents each choose a number once, in `length` steps.

    Each agent receives its own number minus half the other side's sum; the first side also gets a bonus between 0 and 1
    that depends on the seed of the reset.
    """

    def __init__(self, config):
        self.n, self.length = config.get("n", 1), config.get("length", 1)
        self.possible_agents = [f"{side}{k}" for side in ("left", "right") for k in range(self.n)]
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(10))

    def reset(self, *, seed=None, options=None):
        self.t, self.bonus = 0, float(np.random.default_rng(seed).random())
        return self._observations(), {}

    def step(self, actions):
        self.t += 1
        sums = {side: sum(a for agent, a in actions.items() if agent.startswith(side)) for side in ("left", "right")}
        rewards = {agent: float(action) for agent, action in actions.items()}
        for agent in actions:
            other = "right" if agent.startswith("left") else "left"
            rewards[agent] += self.bonus * agent.startswith("left") - sums[other] / 2
        done = self.t == self.length
        return self._observations(), rewards, {"__all__": done}, {"__all__": False}, {}

    def _observations(self):
        return {agent: np.full(2, 0.5, np.float32) for agent in self.possible_agents}


class Legal(fastmarl.RLModule):
    """The first legal action (`pick` 0) or the last one (-1)."""

    def __init__(self, pick, **kwargs):
        super().__init__(**kwargs)
        self.pick = pick

    def _forward(self, batch, **kwargs):
        masks = batch["obs"]["action_mask"].numpy()
        return {"actions": np.array([np.flatnonzero(mask)[self.pick] for mask in masks])}


def numbers(*each):
    return {f"p{number}": Always(number) for number in each}


def play(players, env=Duel, **options):
    return fastmarl.tournament(players, env, **{"episodes": 4, **options})


# Who plays whom.


@pytest.mark.parametrize(("num_players", "episodes"), [(2, 2), (3, 4), (7, 10)])
def test_all_pairs_play_equally_often_on_both_sides(num_players, episodes):
    games = schedule(num_players, episodes)
    for i, j in itertools.permutations(range(num_players), 2):
        assert (games == (i, j)).all(1).sum() == episodes // 2
    assert len(games) == episodes * num_players * (num_players - 1) // 2


@pytest.mark.parametrize("num_envs", [1, 3, 64])
def test_each_game_is_played_by_its_players_on_their_sides(num_envs):
    found = play(numbers(0, 3, 5, 9), num_envs_per_env_runner=num_envs, env_config={"length": 3})
    bonus = np.array([np.random.default_rng(seed).random() for seed in found.reset_seeds])
    chosen = np.array([0, 3, 5, 9])[found.players]
    np.testing.assert_allclose(found.payoffs[:, 0], 3 * (chosen[:, 0] - chosen[:, 1] / 2 + bonus))
    np.testing.assert_allclose(found.payoffs[:, 1], 3 * (chosen[:, 1] - chosen[:, 0] / 2))
    assert (found.lengths == 3).all()
    assert len(set(found.reset_seeds)) == len(found.reset_seeds) == 24
    assert (found.games == 4 * (1 - np.eye(4, dtype=int))).all()
    assert found.names == ("p0", "p3", "p5", "p9") and found.sides == ("left0", "right0")


def test_one_forward_pass_acts_for_all_games_of_a_player():
    players = numbers(1, 2, 3)
    play(players, episodes=8)
    assert [module.most_rows for module in players.values()] == [16, 16, 16]


def test_sides_may_be_teams():
    found = play(numbers(1, 4), env_config={"n": 3}, sides={f"{s}{k}": s for s in ("left", "right") for k in range(3)})
    bonus = np.array([np.random.default_rng(seed).random() for seed in found.reset_seeds])
    assert found.sides == ("left", "right")
    expected = np.array([3 * 1 - 3 * 12 / 2, 3 * 4 - 3 * 3 / 2])[found.players[:, 0]] + 3 * bonus
    np.testing.assert_allclose(found.payoffs[:, 0], expected)


def test_a_player_may_have_a_module_for_each_side():
    players = {"both": {"left0": Always(9), "right0": Always(0)}, "one": Always(5)}
    found = play(players, env_config={"length": 1})
    assert found.wins[0, 1] == found.wins[1, 0] == 2  # the first wins on the left, and loses on the right


def test_a_module_may_play_against_itself_under_two_names():
    module = Always(4)
    found = play({"a": module, "b": module}, episodes=6)
    np.testing.assert_allclose(found.payoffs[:, 1], 2.0)
    assert found.wins[0, 1] == found.wins[1, 0] == 3  # the bonus of the left side decides


def test_the_same_seed_gives_the_same_games():
    spec = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [4]})
    first, again, other = (play({"a": spec, "b": spec}, episodes=50, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.payoffs, again.payoffs)
    assert first.reset_seeds == again.reset_seeds != other.reset_seeds
    assert len({*first.payoffs[:, 1]}) > 3
    assert play({"a": spec, "b": spec}, seed=None).reset_seeds == (None,) * 4


def test_payoffs_are_those_of_separate_runners_with_the_same_seeds():
    players, by_side = numbers(0, 4, 7), ("left0", "right0")
    found = play(players, num_envs_per_env_runner=5)
    for game in range(len(found.players)):
        first, second = (found.names[k] for k in found.players[game])
        modules = dict(zip(by_side, (players[first], players[second]), strict=True))
        alone = fastmarl.evaluate(
            modules, Duel, episodes=1, seeds=[found.reset_seeds[game]], policy_mapping_fn=lambda agent, episode: agent
        )
        assert [alone.by_agent[agent].mean for agent in by_side] == found.payoffs[game].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"env": lambda config: Batched([Duel(config) for _ in range(config.num_envs)], ["left0", "right0"])},
        {"worker_num_splits": 2},
        {"gym_env_vectorize_mode": "async", "num_env_workers": 2, "env_worker_start_method": "fork"},
    ],
    ids=["batch", "splits", "workers"],
)
def test_the_envs_may_be_stepped_in_any_way(options):
    found = play(numbers(0, 4, 7), num_envs_per_env_runner=4, **{"env": Duel, **options})
    bonus = np.array([np.random.default_rng(seed).random() for seed in found.reset_seeds])
    chosen = np.array([0, 4, 7])[found.players]
    np.testing.assert_allclose(found.payoffs[:, 0], chosen[:, 0] - chosen[:, 1] / 2 + bonus, rtol=1e-6)


def test_calls_are_of_bounded_size_and_report_progress(monkeypatch):
    monkeypatch.setattr("fastmarl.play.arena.matches.GAMES_OF_ENV", 3)
    progress = []
    play(numbers(1, 2, 3), num_envs_per_env_runner=4, on_progress=progress.append)
    assert progress == [12]
    play(numbers(1, 2, 3), num_envs_per_env_runner=1, on_progress=progress.append)
    assert progress == [12, 3, 3, 3, 3]


def test_agents_that_respawn_are_counted_in_one_game():
    class Respawning(Duel):
        def step(self, actions):
            obs, rewards, dones, *rest = super().step(actions)
            return obs, rewards, {**dones, "left0": self.t == 2}, *rest

    found = play(numbers(2, 4), Respawning, env_config={"length": 5}, respawn=True)
    assert found.lengths.tolist() == [5] * 4
    assert found.payoffs[0, 1] == pytest.approx(4 * 5 - 2 / 2 * 4)  # in the step of its death, it does not act


class Shown(fastmarl.RLModule):
    """Chooses 5 where it sees what a filter has made of 0.5, else 0."""

    def _forward(self, batch, **kwargs):
        return {"actions": np.where(batch["obs"].numpy().mean(1) == 0.5, 0, 5)}


def test_runners_play_with_their_learned_connectors_and_learn_nothing(monkeypatch):
    def observed():
        return runner.env_to_module["default_policy"].connectors[0].stats[0].get_state()

    config = fastmarl.EnvRunnerConfig(env=Duel, policies={"default_policy": Shown()}, env_to_module_connector=FILTER)
    counts = []
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.sample(num_episodes=5)
        before, stop = observed(), fastmarl.MultiAgentEnvRunner.stop

        def stop_and_count(made):
            counts.extend(each.connectors[0].stats[0].get_state()["count"] for each in made.env_to_module.values())
            stop(made)

        monkeypatch.setattr(fastmarl.MultiAgentEnvRunner, "stop", stop_and_count)
        found = play({"trained": runner, "plain": Shown(), "four": Always(4)}, episodes=6)
        assert_same(observed(), before)
        assert before["count"] > 0
        assert counts == [before["count"]]
        runner.sample(num_episodes=1)
    assert found.ranking() == ["trained", "four", "plain"]


def test_modules_play_that_deepcopy_refuses():
    config = fastmarl.EnvRunnerConfig(env=Duel, rl_module_spec=fastmarl.RLModuleSpec(Normed))
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        net = runner.module["default_policy"].net
        net(torch.ones(1, 2)).sum().backward()  # the weight has a history now
        policy = fastmarl.Policy.from_runner(runner)
        found = play({"runner": runner, "policy": policy, "nine": Always(9)}, episodes=6)
        assert net.weight_g.grad is not None and not net.weight.is_leaf
    assert found.ranking()[0] == "nine"


def test_policies_play_as_the_runners_that_they_are_of():
    config = fastmarl.EnvRunnerConfig(env=Duel, policies={"default_policy": Shown()}, env_to_module_connector=FILTER)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.sample(num_episodes=5)
        policy = fastmarl.Policy.from_runner(runner)
        of_runner = play({"trained": runner, "plain": Shown(), "four": Always(4)}, episodes=6)
    of_policy = play({"trained": policy, "plain": Shown(), "four": Always(4)}, episodes=6)
    assert_same(of_policy.payoffs, of_runner.payoffs)


def test_the_modules_of_a_runner_are_left_alone():
    """They may be on another device than those that play."""
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=Duel, policies={"one": Always(3)})) as runner:
        assert play({"runner": runner, "four": Always(4)}).games[0, 1] == 4
        assert runner.module["one"].most_rows == 0


def test_players_that_were_trained_with_different_options_need_a_word():
    def player(**options):
        config = fastmarl.EnvRunnerConfig(env=Duel, policies={"default_policy": Always(4)}, **options)
        with fastmarl.MultiAgentEnvRunner(config) as runner:
            return fastmarl.Policy.from_runner(runner)

    players = {"a": player(), "b": player(reward_scale=0.5), "plain": Always(1)}
    with pytest.raises(ConfigError, match=r"reward_scale=1.0 and 'b' with 0.5; choose one with reward_scale="):
        play(players)
    assert play(players, reward_scale=1.0).games[0, 1] == 4


def test_a_runner_with_a_module_for_each_side_plays():
    config = fastmarl.EnvRunnerConfig(
        env=Duel,
        policies={"left0": Always(9), "right0": Always(3)},
        policy_mapping_fn=lambda agent, episode: agent,
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        found = play({"sided": runner, "five": Always(5)})
    assert found.wins[0, 1] == found.wins[1, 0] == 2


def test_policies_with_memory_play():
    spec = fastmarl.RLModuleSpec(model_config={"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]})
    found = play({"a": spec, "b": spec, "c": Always(1)}, env_config={"length": 4}, num_envs_per_env_runner=2)
    assert found.games.sum() == 24


# What follows from the games.


def made_of(games, prior=1.0):
    """A Tournament of (first, second, payoff of the first, payoff of the second)."""
    players, payoffs = np.array([game[:2] for game in games]), np.array([game[2:] for game in games], float)
    names = tuple("abcdef"[: players.max() + 1])
    return Tournament(
        names=names,
        sides=(0, 1),
        players=players,
        payoffs=payoffs,
        lengths=np.ones(len(games), int),
        reset_seeds=(None,) * len(games),
        prior=prior,
    )


def test_matrices_of_games_without_a_sum_of_zero():
    found = made_of([(0, 1, 3, 1), (0, 1, 1, 1), (1, 0, 5, 0), (1, 0, 4, 4), (0, 2, 1, 2), (2, 0, 0, 7)])
    nan = math.nan
    np.testing.assert_array_equal(found.games, [[0, 4, 2], [4, 0, 0], [2, 0, 0]])
    np.testing.assert_array_equal(found.wins, [[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(found.draws, [[0, 2, 0], [2, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found.payoff_matrix, [[nan, 2, 4], [2.75, nan, nan], [1, nan, nan]])
    errors = found.payoff_standard_errors
    assert errors[0, 1] == pytest.approx(math.sqrt((2 / 2 + 8 / 2) / 4))  # variances 2 (of 3, 1) and 8 (of 0, 4)
    assert errors[1, 0] == pytest.approx(math.sqrt((0 + 0.5 / 2) / 4))
    assert np.isnan(errors[0, 2]) and np.isnan(errors[0, 0])


def test_results_decided_by_the_side_are_no_error_of_the_mean():
    found = made_of([(0, 1, 1, -1)] * 5 + [(1, 0, 1, -1)] * 5)
    assert found.payoff_matrix[0, 1] == found.payoff_standard_errors[0, 1] == 0
    np.testing.assert_allclose(found.ratings, 0, atol=1e-9)


def test_a_player_that_wins_everything_has_a_finite_rating():
    found = play(numbers(1, 5, 9), episodes=10)
    assert found.ranking() == ["p9", "p5", "p1"]
    assert np.isfinite(found.ratings).all()
    assert found.wins[2].tolist() == [10, 10, 0]
    with pytest.raises(ConfigError, match="infinite"):
        play(numbers(1, 5, 9), prior=0).ratings  # noqa: B018


def test_the_order_of_players_changes_nothing():
    found, reverse = (play(numbers(*each), episodes=6) for each in ((1, 5, 6), (6, 5, 1)))
    np.testing.assert_allclose(reverse.ratings[::-1], found.ratings, atol=1e-6)
    np.testing.assert_array_equal(reverse.wins[::-1, ::-1], found.wins)


def test_table_and_file(tmp_path):
    found = play(numbers(1, 5, 9), episodes=10)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["p9", "p5", "p1"]
    assert lines[2].split()[-4:] == ["20", "20", "0", "0"]
    found.to_csv(tmp_path / "pairs.csv")
    rows = list(csv.DictReader((tmp_path / "pairs.csv").read_text().splitlines()))
    assert [(row["player"], row["opponent"]) for row in rows] == list(itertools.permutations(found.names, 2))
    for row in rows:
        i, j = found.names.index(row["player"]), found.names.index(row["opponent"])
        assert [int(row[key]) for key in ("games", "wins", "draws", "losses")] == [10, 10 * (i > j), 0, 10 * (i < j)]
        assert float(row["payoff"]) == found.payoff_matrix[i, j]
        assert float(row["rating"]) == found.ratings[i]


@pytest.mark.slow
@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("num_players", [2, 25])
def test_the_picture_is_drawn(tmp_path, num_players):
    games = [(i, j, i, j) for i, j in itertools.permutations(range(num_players), 2)]
    found = made_of(games) if num_players < 7 else play({f"p{k}": Always(k % 10) for k in range(25)}, episodes=2)
    found.plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.needs("matplotlib")
def test_names_in_the_picture_are_no_formulas(tmp_path):
    play({r"$\pay_$": Always(1), "a$b$": Always(2)}, episodes=2).plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").exists()


# Real games.

OLD_API = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")


@pytest.mark.slow
@pytest.mark.needs("pettingzoo")
@OLD_API
def test_tictactoe_is_won_by_the_first_to_move():
    spec = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [8]})
    found = play({"first": Legal(0), "last": Legal(-1), "net": spec}, "pettingzoo.classic.tictactoe_v3", episodes=40)
    assert (found.payoffs.sum(1) == 0).all() and (np.abs(found.payoffs) <= 1).all()
    assert found.lengths.min() >= 5 and found.lengths.max() <= 9
    np.testing.assert_allclose(found.payoff_matrix[0, 1], -found.payoff_matrix[1, 0])
    # Cells 0, 1, 2 are a column, and one player has them before the other has 8, 7, 6: the first to move wins.
    assert found.wins[0, 1] == found.wins[1, 0] == 20 and found.payoff_standard_errors[0, 1] == 0


@pytest.mark.slow
@pytest.mark.needs("pettingzoo")
@OLD_API
def test_connect_four_and_rock_paper_scissors():
    found = play({"first": Legal(0), "last": Legal(-1)}, "pettingzoo.classic.connect_four_v3", episodes=10)
    assert found.wins.sum() + found.draws[0, 1] == 10 and (found.payoffs.sum(1) == 0).all()
    found = play({"rock": Always(0), "paper": Always(1), "scissors": Always(2)}, "pettingzoo.classic.rps_v2")
    rounds = found.lengths[0]
    assert (np.abs(found.payoffs[:, 0]) == np.abs(found.payoffs[0, 0])).all() and rounds > 1
    assert found.wins.tolist() == [[0, 0, 4], [4, 0, 0], [0, 4, 0]]
    np.testing.assert_allclose(found.ratings, 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.needs("pyspiel")
def test_games_of_openspiel():
    found = play({"first": Legal(0), "last": Legal(-1)}, "openspiel.kuhn_poker", episodes=400)
    assert np.abs(found.payoffs.sum(1)).max() == 0
    # Who always passes loses its ante of 1 to who always bets, whatever the cards.
    assert found.payoff_matrix[0, 1] == -1 and found.payoff_standard_errors[0, 1] == 0
    same = play({"a": Legal(-1), "b": Legal(-1)}, "openspiel.kuhn_poker", episodes=400)
    assert abs(same.payoff_matrix[0, 1]) < 4 * same.payoff_standard_errors[0, 1]  # 2 for the higher card


# What can go wrong.


@pytest.mark.parametrize(
    ("players", "options", "message"),
    [
        ({"a": Always(1)}, {}, "at least two players"),
        ({}, {}, "at least two players"),
        ([Always(1), Always(2)], {}, "a dict, name -> player, of at least two players"),
        ({"a": Always(1), 2: Always(1)}, {}, r"player names must be strings, got \[2\]"),
        ({"a": Always(1), "b": None}, {}, "expected a torch.nn.Module"),
        ({"a/x": Always(1), "a": {"x": Always(1)}}, {}, "must be unique"),
        (numbers(1, 2), {"episodes": 0}, "an even integer >= 2, half of them on each side, got 0"),
        (numbers(1, 2), {"episodes": 3}, "an even integer"),
        (numbers(1, 2), {"episodes": 2.0}, "an even integer"),
        (numbers(1, 2), {"prior": -1}, "prior"),
        (numbers(1, 2), {"policies_to_train": ["p1"], "return_only_policies_to_train": True}, "leave these out"),
        (numbers(1, 2), {"env_to_module_connector": FILTER}, "leave these out"),
        (numbers(1, 2), {"restart_failed_sub_environments": True}, "leave these out"),
        (numbers(1, 2), {"env_config": {"n": 2}}, "needs two sides, got 4"),
        (numbers(1, 2), {"sides": {"left0": "x", "right0": "x"}}, r"needs two sides, got 1: \['x'\]"),
        (numbers(1, 2), {"sides": {"left0": 0, "other": 1}}, "agent 'right0' has no side"),
        (numbers(1, 2), {"sides": ["left0", "right0"]}, r"sides must be a dict, .* function, got \['left0', "),
        (numbers(1, 2), {"sides": {"left0": [1], "right0": [2]}}, r"must be hashable, .* got {'left0': \[1\]"),
        ({"a": {"left0": Always(1)}, "b": Always(2)}, {}, "a module for each|needs one for each of the sides"),
    ],
)
def test_impossible_arguments(players, options, message):
    with pytest.raises(ConfigError, match=message):
        play(players, **options)


@pytest.mark.parametrize("empty", ["all", "every other"])
def test_a_game_without_acting_players_is_drawn(empty):
    class Late(Duel):
        number = 0

        def reset(self, *, seed=None, options=None):
            self.number += 1
            self.agents = [] if empty == "all" or self.number % 2 else self.possible_agents
            return super().reset(seed=seed)

        def _observations(self):
            return {agent: np.zeros(2, np.float32) for agent in self.agents}

    found = play(numbers(1, 5), Late, episodes=8, num_envs_per_env_runner=1)
    drawn = 8 if empty == "all" else 4
    assert found.games[0, 1] == 8 and found.draws[0, 1] == drawn and found.wins[1, 0] == 8 - drawn
    assert np.count_nonzero((found.payoffs == 0).all(1)) == drawn and found.lengths.tolist() == [1] * 8


def test_agents_with_different_spaces_need_modules_with_spaces():
    class Uneven(Duel):
        def __init__(self, config):
            super().__init__(config)
            self.action_spaces["right0"] = gym.spaces.Discrete(4)

    with pytest.raises(ConfigError, match="must have an observation_space and an action_space"):
        play(numbers(1, 2), Uneven)
    big, small = ({"observation_space": BOX, "action_space": gym.spaces.Discrete(n)} for n in (10, 4))
    players = {f"p{k}": {"left0": Always(k, **big), "right0": Always(k, **small)} for k in (1, 3)}
    assert play(players, Uneven).ranking() == ["p3", "p1"]


class Broken(Always):
    def _forward(self, batch, **kwargs):
        raise RuntimeError("out of order")


class Interrupting(Always):
    def _forward(self, batch, **kwargs):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("module", "error"), [(Broken(1), RuntimeError), (Interrupting(1), KeyboardInterrupt)])
def test_nothing_is_left_running_by_a_player_that_fails(monkeypatch, module, error):
    stopped, stop = [], fastmarl.MultiAgentEnvRunner.stop
    monkeypatch.setattr(fastmarl.MultiAgentEnvRunner, "stop", lambda runner: (stopped.append(runner), stop(runner)))
    with pytest.raises(error):
        play({"good": Always(1), "bad": module})
    assert len(stopped) == 1


def test_rewards_that_are_in_no_payoff_warn():
    class Late(Duel):
        def _observations(self):
            return {"left0": np.zeros(2, np.float32)}

        def step(self, actions):
            obs, rewards, *rest = super().step(actions)
            return obs, {**rewards, "right0": -1.0}, *rest

    with pytest.warns(UserWarning, match="a total reward of -4 belongs to no transition"):
        found = play(numbers(1, 2), Late)
    assert (found.payoffs[:, 1] == 0).all()


def test_modules_are_left_in_their_mode():
    players = numbers(1, 2)
    players["p1"].eval()
    play(players)
    assert [module.training for module in players.values()] == [False, True]
