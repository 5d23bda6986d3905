"""The bundled connect four: PettingZoo's, move by move, and its own way to begin."""

import numpy as np
import pytest
from support.twins import Twins

from fastmarl.bench.bare_envs import bare_envs
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.envs.connect_four import ConnectFour


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 5])
@pytest.mark.needs("pettingzoo")
def test_connect_four_is_pettingzoo_s(num_envs):
    from pettingzoo.classic.connect_four import connect_four

    def begin(e, original, seed):
        return original.reset(seed=0)[0]

    def act(e, agent, obs):
        """Some players stay in few columns, so that games end in all ways."""
        legal = np.flatnonzero(obs["action_mask"])
        return int(rng.choice(legal[: rng.integers(1, 8)] if e % 2 else legal))

    rng = np.random.default_rng(0)
    batch = ConnectFour(num_envs)
    originals = [as_multi_agent_env(connect_four.env()) for _ in range(num_envs)]
    assert batch.observation_spaces == originals[0].unwrapped.observation_spaces
    assert batch.action_spaces == originals[0].unwrapped.action_spaces
    twins = Twins(batch, originals, begin, seed=3)
    twins.play(1500 // num_envs, act)
    assert twins.episodes > 30


def lines_of_four():
    """All 69, as lists of (row, column)."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        for row in range(6):
            for column in range(7):
                line = [(row + k * down, column + k * right) for k in range(4)]
                if all(0 <= r < 6 and 0 <= c < 7 for r, c in line):
                    yield line


@pytest.mark.parametrize("n_stones", [4, 3])
def test_every_line_of_four_wins_connect_four_and_three_do_not(n_stones):
    """Whichever of its stones falls last; a stone of the other player makes three of four."""
    cases = [
        (line, last)
        for line in lines_of_four()
        for last in (line[:1] if line[0][1] == line[1][1] else line)  # in a column, the upmost
    ]
    env = ConnectFour(len(cases))
    out = env.new_arrays()
    env.reset(np.arange(len(cases)), out)
    for board, (line, (row, column)) in zip(env.boards, cases, strict=True):
        board[row + 1 :, column] = 1
        board[tuple(np.transpose(line))] = 0
        board[line[-1] if line[-1] != (row, column) else line[0]] = 0 if n_stones == 4 else 1
        board[row, column] = -1
    out = env.new_arrays()
    env.step({"players": np.array([[column, 0] for _, (_, column) in cases])}, out)
    assert len(cases) == 24 * 4 + 21 + 24 * 4  # in rows, in columns, on diagonals
    assert all(board[cell] == 0 for board, (_, cell) in zip(env.boards, cases, strict=True))
    assert (out.terminated == (n_stones == 4)).all()
    assert (out.groups["players"].rewards == ([1.0, -1.0] if n_stones == 4 else 0.0)).all()


def test_a_full_board_of_connect_four_is_a_tie_and_a_full_column_loses():
    env = ConnectFour(2)
    out = env.new_arrays()
    env.reset(np.arange(2), out)
    assert out.groups["players"].present.tolist() == [[True, False]] * 2
    in_turn = [left + k for left in (0, 2, 4) for k in (0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0)]
    for t, column in enumerate([*in_turn, 6, 6, 6, 6, 6, 6]):
        out = env.new_arrays()
        env.step({"players": np.array([[column, column], [0, 0]])}, out)
        assert out.terminated[0] == (t == 41)
        assert out.terminated[1] == (t >= 6)
        if t == 6:
            assert out.groups["players"].rewards[1].tolist() == [-1.0, 0.0]
            assert out.groups["players"].obs["action_mask"][1].tolist() == [[0, 1, 1, 1, 1, 1, 1]] * 2
    assert not out.groups["players"].rewards[0].any()
    assert out.groups["players"].present[0].all()
    assert not out.groups["players"].obs["action_mask"][0].any()


def test_a_bare_loop_counts_each_turn_of_connect_four_once():
    loop = bare_envs([ConnectFour(3)], 0, 0.0)
    assert loop.agent_steps == loop.env_steps > 0


def test_connect_four_begins_after_random_moves_without_a_winner():
    env = ConnectFour(2000, random_moves=12)
    out = env.new_arrays()
    env.reset(np.arange(2000), out, seeds=range(2000))
    n_stones = (env.boards >= 0).sum(axis=(1, 2))
    players = out.groups["players"]
    assert (np.bincount(n_stones, minlength=13) > 100).all()
    assert ((env.boards == 0).sum(axis=(1, 2)) == (n_stones + 1) // 2).all()
    assert (players.present == (np.arange(2) == n_stones[:, None] % 2)).all()
    for line in lines_of_four():
        stones = env.boards[(slice(None), *np.transpose(line))]
        assert not ((stones >= 0) & (stones == stones[:, :1])).all(axis=1).any()
    e = np.flatnonzero(n_stones == 7)[0]
    own_and_others = np.stack([env.boards[e] == 1, env.boards[e] == 0], -1)
    np.testing.assert_array_equal(players.obs["observation"][e, 1], own_and_others)
    again = env.boards.copy()
    env.reset(np.arange(2000), env.new_arrays(), seeds=range(2000))
    np.testing.assert_array_equal(env.boards, again)
    env.reset(np.arange(2000), env.new_arrays())
    assert (env.boards != again).any()
