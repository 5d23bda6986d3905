"""OpenSpiel's games: moves, chance, masks and rewards against a plain loop over pyspiel's states."""

import subprocess
import sys

import numpy as np
import pytest
from support.exhaustive import params
from support.optional import needed

import fastmarl
from fastmarl.core.envs import openspiel
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.openspiel import OpenSpielEnv
from fastmarl.errors import EnvCheckError
from fastmarl.testing.check import check_env

pyspiel = needed("pyspiel")
needed("open_spiel.python.games")  # registers the games that are written in Python
make_observation = needed("open_spiel.python.observation").make_observation
pytestmark = pytest.mark.needs("pyspiel")

SEQUENTIAL = ("tic_tac_toe", "connect_four", "kuhn_poker", "kuhn_poker(players=3)", "leduc_poker", "backgammon")
SIMULTANEOUS = ("goofspiel", "goofspiel(players=3,num_cards=4)", "matrix_rps", "markov_soccer")
REWARDED_DURING_GAMES = ("hanabi", "cliff_walking", "coop_box_pushing", "repeated_leduc_poker")
HIDDEN = ("battleship", "sheriff")  # have no observation tensor, only an information state
GAMES = (*SEQUENTIAL, *SIMULTANEOUS, *REWARDED_DURING_GAMES, *HIDDEN)
IN_PYTHON = ("python_kuhn_poker", "python_liars_poker", "python_tic_tac_toe", "python_dynamic_routing")
# One of each kind: with chance, simultaneous, both, rewarded during games, without observation tensor, in Python.
CHECKED = ("leduc_poker", "goofspiel", "markov_soccer", "cliff_walking", "sheriff", *IN_PYTHON[::3])
EPISODES = 4
STEPS = 600


def seen(state, tensor, player):
    """(tensor of float32, legal actions)."""
    legal = [] if state.is_terminal() else state.legal_actions(player)
    return np.asarray(getattr(state, tensor)(player), np.float32), legal


def with_chance_played_out(state, rng):
    while state.is_chance_node():
        outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
        state.apply_action(outcomes[np.searchsorted(np.cumsum(probabilities), rng.random(), side="right")])
    return state


def played_by_pyspiel(game, tensor, seed, choice):
    """An episode: what each observed player sees, by step, and the rewards and returns after it."""
    rng = np.random.default_rng(seed)
    players = range(game.num_players())
    state = with_chance_played_out(game.new_initial_state(), rng)
    steps = []
    while True:
        acting = players if state.is_terminal() or state.is_simultaneous_node() else [state.current_player()]
        steps.append(({p: seen(state, tensor, p) for p in acting}, state.rewards(), state.returns()))
        if state.is_terminal():
            return steps
        actions = [choice.choice(legal) for _, legal in steps[-1][0].values()]
        if state.is_simultaneous_node():
            state.apply_actions(actions)
        else:
            state.apply_action(actions[0])
        with_chance_played_out(state, rng)


def played_by_us(env, seed, choice):
    """Play a game through our adapter; returns all steps, with rewards as they come."""
    obs, infos = env.reset(seed=seed)
    rewards, terminateds, steps = {}, {"__all__": False}, []
    while True:
        assert infos == {}
        legal = {p: np.flatnonzero(value["action_mask"]).tolist() for p, value in obs.items()}
        steps.append(({p: (value["observation"], legal[p]) for p, value in obs.items()}, rewards))
        if terminateds["__all__"]:
            return steps
        obs, rewards, terminateds, truncateds, infos = env.step({p: choice.choice(legal[p]) for p in obs})
        assert list(terminateds) == ["__all__"]
        assert not any(truncateds.values())


@pytest.mark.parametrize("name", GAMES)
def test_episodes_are_pyspiels(name):
    env = OpenSpielEnv(pyspiel.load_game(name))
    tensor = "information_state_tensor" if name in HIDDEN else "observation_tensor"
    n_moves = n_rewarded = 0
    for seed in range(EPISODES):
        theirs = played_by_pyspiel(pyspiel.load_game(name), tensor, seed, np.random.default_rng(7))
        ours = played_by_us(env, seed, np.random.default_rng(7))
        assert len(ours) == len(theirs)
        sums = dict.fromkeys(env.possible_agents, 0.0)
        for (want, their_rewards, returns), (got, rewards) in zip(theirs, ours, strict=True):
            assert list(got) == list(want), "who is at move is observed, and all in the end"
            for player, (tensor_values, legal) in want.items():
                assert got[player][0].dtype == np.float32
                np.testing.assert_array_equal(got[player][0], tensor_values)
                assert got[player][1] == legal
            assert rewards == {} or any(rewards.values())
            tolerance = 1e-12 if name in REWARDED_DURING_GAMES else 0  # differences of sums of 0.1 are rounded
            assert [rewards.get(p, 0) for p in env.possible_agents] == pytest.approx(
                their_rewards, abs=tolerance, rel=0
            )
            sums = {player: total + rewards.get(player, 0) for player, total in sums.items()}
            assert list(sums.values()) == pytest.approx(returns, abs=tolerance, rel=0)
        assert list(ours[-1][0]) == env.possible_agents
        n_moves += len(ours) - 1
        n_rewarded += sum(any(rewards.values()) for _, rewards in ours[:-1])
    assert n_moves >= EPISODES
    assert (n_rewarded > 0) == (name in REWARDED_DURING_GAMES)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_observations_of_games_in_python_hold_nothing_of_other_states(name):
    """The observers of some write a part of their tensor alone; one that is new has nothing else in it."""
    env = OpenSpielEnv.load(name)
    choice = np.random.default_rng(2)
    for _ in range(EPISODES):
        (obs, _), is_over = env.reset(), False
        while not is_over:
            for player, value in obs.items():
                new = make_observation(env.game)
                new.set_from(env.game_state, player)
                np.testing.assert_array_equal(value["observation"], new.tensor)
            actions = {p: choice.choice(np.flatnonzero(value["action_mask"])) for p, value in obs.items()}
            obs, _, terminateds, _, _ = env.step(actions)
            is_over = terminateds["__all__"]


def test_rewards_follow_returns_that_grow_during_a_game():
    """This game says that its rewards are terminal, and so do State.rewards(); its returns know better."""
    env = OpenSpielEnv.load("python_ant_foraging")
    choice, n_rewarded = np.random.default_rng(1), 0
    for _ in range(20):
        rewards = [rewards for _, rewards in played_by_us(env, 0, choice)]
        assert [
            sum(step.get(player, 0) for step in rewards) for player in env.possible_agents
        ] == env.game_state.returns()
        n_rewarded += sum(map(bool, rewards[:-1]))
    assert n_rewarded > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", params(GAMES + IN_PYTHON, CHECKED))
def test_check_env_finds_nothing(name):
    report = check_env(OpenSpielEnv.load(name), steps=STEPS)
    assert report.ok, str(report)
    assert not report.notes, str(report)
    assert report.env_steps == STEPS
    assert report.episodes > 0


# Seeds


def hands(env, n=12, **seed):
    """Return player 0's first observations of n episodes; the first reset is seeded."""
    first = [env.reset(**seed)[0], *(env.reset()[0] for _ in range(n - 1))]
    return [obs[0]["observation"].tolist() for obs in first]


def test_chance_is_seeded_by_reset_and_goes_on_without_seed():
    env = OpenSpielEnv.load("liars_dice", dice_sides=6)
    dealt = hands(env, seed=5)
    assert dealt == hands(OpenSpielEnv.load("liars_dice", dice_sides=6), seed=5)
    assert dealt == hands(env, seed=5)
    assert dealt != hands(env, seed=6)
    assert len(set(map(tuple, dealt))) > 2, "each episode has its own chance"
    fresh = [hands(OpenSpielEnv.load("liars_dice", dice_sides=6), n=30) for _ in range(2)]
    assert fresh[0] != fresh[1], "without any seed, entropy"


def test_chance_has_its_probabilities():
    """In pig a roll of 1 gives the turn away."""
    env = OpenSpielEnv.load("pig")
    n, busts = 3000, 0
    env.reset(seed=0)
    for _ in range(n):
        env.reset()
        obs, *_ = env.step({0: 0})  # roll
        busts += list(obs) == [1]
    assert abs(busts / n - 1 / 6) < 4 * np.sqrt(5 / 36 / n)


def test_draw_takes_the_last_outcome_when_probabilities_fall_short_of_one():
    env = OpenSpielEnv.load("kuhn_poker")
    env._rng = type("AlmostOne", (), {"random": staticmethod(lambda: np.nextafter(1.0, 0.0))})()
    assert env._draw([(3, 0.1)] * 5 + [(8, 0.1)] * 5) == 8
    env._rng = type("Zero", (), {"random": staticmethod(lambda: 0.0)})()
    assert env._draw([(3, 0.1), (8, 0.9)]) == 3


# Actions


@pytest.mark.parametrize(
    ("name", "actions", "message"),
    [
        ("tic_tac_toe", {0: 9}, r"legal action of player 0, one of \[0, 1, 2, 3, 4, 5, 6, 7, 8\], got 9"),
        ("tic_tac_toe", {0: -1}, "player 0.*got -1"),
        ("tic_tac_toe", {1: 3}, "player 0.*got None"),
        ("matrix_rps", {0: 1, 1: 3}, r"player 1, one of \[0, 1, 2\], got 3"),
        ("matrix_rps", {0: 1}, "player 1.*got None"),
    ],
)
def test_illegal_and_missing_actions_are_refused_and_change_nothing(name, actions, message):
    env = OpenSpielEnv.load(name)
    env.reset(seed=0)
    before = env.render()
    with pytest.raises(ValueError, match=message):
        env.step(actions)
    assert env.render() == before
    env.step({0: 1, 1: 1})


def test_an_action_is_legal_once():
    env = OpenSpielEnv.load("tic_tac_toe")
    env.reset()
    obs, *_ = env.step({0: np.int64(4)})
    assert obs[1]["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    with pytest.raises(ValueError, match=r"player 1.*got 4"):
        env.step({1: 4})


def test_moves_before_reset_or_after_the_end_are_errors():
    env = OpenSpielEnv.load("matrix_rps")
    with pytest.raises(ValueError, match=r"call reset\(\)"):
        env.step({0: 0, 1: 0})
    env.reset()
    env.step({0: 0, 1: 0})
    with pytest.raises(ValueError, match=r"call reset\(\)"):
        env.step({0: 0, 1: 0})
    assert sorted(env.reset()[0]) == [0, 1]


class WaitingState(pyspiel.State):
    """Three simultaneous nodes, at which only player n % 2 has actions."""

    def __init__(self, game):
        super().__init__(game)
        self.applied = []

    def current_player(self):
        return pyspiel.PlayerId.TERMINAL if self.is_terminal() else pyspiel.PlayerId.SIMULTANEOUS

    def _legal_actions(self, player):
        return [1, 2] if len(self.applied) % 2 == player else []

    def _apply_actions(self, actions):
        self.applied.append(list(actions))

    def is_terminal(self):
        return len(self.applied) == 3

    def returns(self):
        return [float(len(self.applied)), 0.25]


class Clock:
    """Observer of the number of moves."""

    def __init__(self):
        self.tensor = np.zeros(1, np.float32)
        self.dict = {"clock": self.tensor}

    def set_from(self, state, player):
        self.tensor[:] = len(state.applied)


class WaitingGame(pyspiel.Game):
    def __init__(self):
        game_type = pyspiel.GameType(
            short_name="waiting",
            long_name="Waiting",
            dynamics=pyspiel.GameType.Dynamics.SIMULTANEOUS,
            chance_mode=pyspiel.GameType.ChanceMode.DETERMINISTIC,
            information=pyspiel.GameType.Information.PERFECT_INFORMATION,
            utility=pyspiel.GameType.Utility.GENERAL_SUM,
            reward_model=pyspiel.GameType.RewardModel.REWARDS,
            max_num_players=2,
            min_num_players=2,
            provides_information_state_string=False,
            provides_information_state_tensor=False,
            provides_observation_string=False,
            provides_observation_tensor=True,
            parameter_specification={},
        )
        game_info = pyspiel.GameInfo(
            num_distinct_actions=3,
            max_chance_outcomes=0,
            num_players=2,
            min_utility=0.0,
            max_utility=3.0,
            utility_sum=None,
            max_game_length=3,
        )
        super().__init__(game_type, game_info, {})

    def new_initial_state(self):
        return WaitingState(self)

    def make_py_observer(self, iig_obs_type=None, params=None):
        return Clock()


def test_players_without_legal_actions_wait_while_others_move():
    env = OpenSpielEnv(WaitingGame())
    obs, _ = env.reset()
    players, rewards = [], []
    for action in (1, 2, 1):
        players.append(list(obs))
        obs, reward, terminateds, *_ = env.step(dict.fromkeys(obs, action))
        rewards.append(reward)
    assert players == [[0], [1], [0]]
    assert env.game_state.applied == [[1, 0], [0, 2], [1, 0]]
    assert rewards == [{0: 1.0, 1: 0.25}, {0: 1.0, 1: 0.0}, {0: 1.0, 1: 0.0}], "who waits is paid, too"
    assert terminateds["__all__"]
    assert [value["observation"].tolist() for value in obs.values()] == [[3], [3]]


# Which games, and of what kind


def test_mean_field_games_are_refused():
    with pytest.raises(EnvCheckError, match="is a mean field game"):
        OpenSpielEnv(pyspiel.load_game("mfg_crowd_modelling"))


@pytest.mark.parametrize("name", ["coin_game", "liars_dice_ir"])
def test_games_without_tensors_are_refused(name):
    with pytest.raises(EnvCheckError, match="neither an observation tensor nor an information state tensor"):
        OpenSpielEnv(pyspiel.load_game(name))


@pytest.mark.skipif("crossword" not in pyspiel.registered_names(), reason="OpenSpiel has such a game from 2.0 on")
def test_games_without_numbered_actions_are_refused():
    with pytest.raises(EnvCheckError, match="does not number its actions"):
        OpenSpielEnv(pyspiel.load_game("crossword"))


def test_observation_is_chosen():
    game = pyspiel.load_game("leduc_poker")
    sizes = [
        OpenSpielEnv(game, kind).get_observation_space(0)["observation"].shape
        for kind in (None, "observation_tensor", "information_state_tensor")
    ]
    assert sizes == [(16,), (16,), (30,)]
    with pytest.raises(EnvCheckError, match=r"must be one of \['observation_tensor'\].*'information_state_tensor'"):
        OpenSpielEnv(pyspiel.load_game("chess"), "information_state_tensor")
    with pytest.raises(EnvCheckError, match="got 'pixels'"):
        OpenSpielEnv(game, "pixels")
    with pytest.raises(EnvCheckError, match="has no flat float32 information"):  # though it claims to provide one
        OpenSpielEnv.load("python_dynamic_routing", observation="information_state_tensor")


@pytest.mark.parametrize("tensor", [np.zeros(1), np.zeros((1, 1), np.float32)], ids=["float64", "2-d"])
def test_tensors_of_another_form_are_refused(tensor, monkeypatch):
    game, observer = WaitingGame(), Clock()
    observer.tensor = tensor
    monkeypatch.setattr(game, "make_py_observer", lambda *args: observer)
    with pytest.raises(EnvCheckError, match=r"the observer of .* has no flat float32 observation_tensor"):
        OpenSpielEnv(game)


def test_load_takes_a_name_and_parameters():
    names = [
        OpenSpielEnv.load("goofspiel", players=3, num_cards=4, imp_info=True).game,
        OpenSpielEnv.load("goofspiel(players=3,num_cards=4,imp_info=True)").game,
    ]
    assert str(names[0]) == str(names[1]) == "goofspiel(imp_info=True,num_cards=4,players=3)"
    inner = OpenSpielEnv.load("turn_based_simultaneous_game", game={"name": "goofspiel", "num_cards": 4})
    assert list(inner.reset(seed=0)[0]) == [0]
    with pytest.raises(EnvCheckError, match=r"Unknown game 'gofspiel'\. Did you mean 'goofspiel' or '[a-z_]+'\?$"):
        OpenSpielEnv.load("gofspiel")
    with pytest.raises(EnvCheckError, match=r"Unknown parameter 'cards'.*returns_type$"):
        OpenSpielEnv.load("goofspiel", cards=4)


def test_load_says_how_to_get_openspiel(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(EnvCheckError, match="pip install open-spiel"):
        OpenSpielEnv.load("chess")


def test_adapts_games_alone():
    assert OpenSpielEnv.adapts(pyspiel.load_game("chess"))
    assert OpenSpielEnv.adapts(pyspiel.load_game("python_kuhn_poker"))
    for other in (object(), "chess", OpenSpielEnv.load("chess"), pyspiel.load_game("chess").new_initial_state()):
        assert not OpenSpielEnv.adapts(other)


@pytest.mark.slow
def test_the_module_does_not_import_openspiel():
    code = """if True:
        import sys
        from fastmarl.core.envs.openspiel import OpenSpielEnv
        assert not OpenSpielEnv.adapts(object())
        assert not {"pyspiel", "open_spiel"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_env_is_taken_as_it_is():
    env = OpenSpielEnv.load("kuhn_poker(players=3)")
    assert as_multi_agent_env(env) is env.unwrapped is env
    assert env.possible_agents == env.agents == [0, 1, 2]
    assert repr(env) == "OpenSpielEnv(kuhn_poker(players=3))"
    for agent in env.possible_agents:
        observation_space, action_space = env_spaces(env, agent)
        assert set(observation_space.spaces) == {"observation", "action_mask"}
        assert action_space.n == 2
    with pytest.raises(EnvCheckError, match="no observation space for agent 3"):
        env_spaces(env, 3)
    env.close()


def test_player_ids_are_pyspiels():
    ids = pyspiel.PlayerId
    assert (openspiel.CHANCE, openspiel.SIMULTANEOUS, openspiel.TERMINAL) == (
        ids.CHANCE,
        ids.SIMULTANEOUS,
        ids.TERMINAL,
    )


# Sampling


class Recorded(OpenSpielEnv):
    """Keeps the returns of the episodes that ended."""

    ended: list

    def step(self, actions):
        result = super().step(actions)
        if result[2]["__all__"]:
            self.ended.append(self.game_state.returns())
        return result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leduc_poker", "kuhn_poker(players=3)", "goofspiel", "repeated_leduc_poker"])
def test_sampling_makes_legal_moves_and_loses_no_reward(name):
    ended = []

    def make(env_config):
        env = Recorded(pyspiel.load_game(name))
        env.ended = ended
        return env

    config = fastmarl.EnvRunnerConfig(env=make, num_envs_per_env_runner=4, seed=0)
    runner = fastmarl.MultiAgentEnvRunner(config)
    episodes = runner.sample(num_timesteps=2000)
    assert sum(map(len, episodes)) >= 2000
    got = [
        [episode.agent_episodes[player].get_return() for player in range(len(ended[0]))]
        for episode in episodes
        if episode.is_done
    ]
    assert len(got) == len(ended) > 10
    assert sorted(got) == sorted(ended)
    assert np.any(ended)
    for episode in episodes:
        for part in episode.agent_episodes.values():
            masks = part.get_observations()["action_mask"][: len(part)]
            assert all(mask[action] == 1 for mask, action in zip(masks, part.get_actions(), strict=True))
