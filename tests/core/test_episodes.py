"""Chunks of episodes: joined, sliced, saved, and what they say of themselves."""

import copy
import itertools
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import (
    ACTION_SPACES,
    OBS_SPACES,
    AgentHistory,
    History,
    chunks,
    everything,
    histories,
    make_chunk,
    make_part,
    same,
)
from support.random_cases import number_of_cases

from fastmarl.core.episodes.sources import ArraySource
from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode
from fastmarl.errors import EpisodeError


@st.composite
def cut_points(draw):
    """A history with where its sampling was cut, and the lookback."""
    history = draw(histories())
    inner = draw(st.sets(st.integers(1, history.env_t - 1))) if history.env_t > 1 else set()
    return history, [0, *sorted(inner), history.env_t], draw(st.integers(0, 4))


@pytest.mark.slow
@given(cut_points())
@settings(max_examples=number_of_cases(80))
def test_joined_chunks_equal_the_undivided_episode(cuts):
    history, points, lookback = cuts
    pieces = [make_chunk(history, begin, end, lookback) for begin, end in itertools.pairwise(points)]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined.concat_episode(piece)
    joined.validate()
    whole = make_chunk(history)
    assert same(everything(joined), everything(whole))
    assert joined.get_return(True) == whole.get_return(True)


@pytest.mark.slow
@given(cut_points())
@settings(max_examples=number_of_cases(80))
def test_a_slice_is_the_chunk_that_would_have_been(cuts):
    history, points, lookback = cuts
    for agent in [agent for agent, one in history.agents.items() if len(one.env_ts) < 2]:
        del history.agents[agent]  # of an agent without a transition an episode knows nothing but that it's there
    begin, end = points[len(points) // 2 - 1], points[len(points) // 2]
    whole = make_chunk(history)
    piece = whole.slice(slice(begin, end), len_lookback_buffer=lookback)
    piece.validate()
    cut = make_chunk(history, begin, end, lookback)
    assert same(everything(piece), everything(cut))
    assert end < history.env_t or piece.get_return(True) == cut.get_return(True)
    if len(points) > 2:
        again = whole[: points[1]]
        again.concat_episode(whole[points[1] :])
        assert same(everything(again), everything(whole))


@pytest.mark.slow
@given(chunks())
@settings(max_examples=number_of_cases(50))
def test_state_and_pickle_bring_back_the_same(pair):
    _, chunk = pair
    state = chunk.get_state()
    restored = MultiAgentEpisode.from_state(state, observation_space=OBS_SPACES, action_space=ACTION_SPACES)
    for other in (restored, pickle.loads(pickle.dumps(chunk)), copy.deepcopy(chunk)):
        assert same(everything(other), everything(chunk))
        assert [part.observation_space for part in other.agent_episodes.values()] == [
            part.observation_space for part in chunk.agent_episodes.values()
        ]
        assert other.get_return(True) == chunk.get_return(True)


def waiting_history(**agents):
    """A history in which "ann" acts in every step of 6; `agents` has the others."""
    return History(6, {"ann": AgentHistory(list(range(7)), dict.fromkeys(range(1, 7), 1.0)), **agents})


@pytest.fixture
def chunk():
    """Env steps 2 to 6: "cy" acted at 0, and waits for its next observation until 4."""
    history = waiting_history(cy=AgentHistory([0, 4, 5], {1: 0.5, 2: 0.5, 3: 1.0, 4: 2.0, 5: 8.0, 6: 16.0}))
    return make_chunk(history, 2, 6, 1)


def test_numbers(chunk):
    assert (len(chunk), chunk.env_steps(), chunk.agent_steps()) == (4, 4, 6)
    assert chunk.get_return() == 4 + 4 + 8
    assert chunk.get_return(include_hanging_rewards=True) == 4 + 4 + 8 + 16
    assert chunk.agent_ids == {"ann", "cy"}
    assert chunk.agent_t_started == {"ann": 2, "cy": 0}
    assert chunk.agent_episode_ids == {"ann": "e_ann", "cy": "e_cy"}
    assert chunk.get_agents_that_stepped() == chunk.get_agents_to_act() == {"ann"}
    assert chunk.module_for("cy") == "p0"
    assert chunk.is_numpy and chunk.is_finalized and chunk.is_reset and not chunk.is_done
    assert chunk.to_numpy() is chunk.finalize() is chunk
    assert [(part.t_started, part.t, part.lookback) for part in chunk.agent_episodes.values()] == [(2, 6, 1), (0, 2, 0)]
    assert chunk.get_common_infos()[3] == {"common": 3}


def test_an_action_before_the_chunk_is_at_a_negative_index(chunk):
    assert chunk.get_rewards(-2, neg_index_as_lookback=True) == {"cy": 4.0}
    assert chunk.get_rewards(agent_ids="cy")["cy"].tolist() == [8.0]
    assert chunk.get_rewards(agent_ids="cy", env_steps=False)["cy"].tolist() == [4.0, 8.0]


def test_flags_are_kept_apart():
    history = waiting_history(**{"cy": AgentHistory([0, 1], {1: 1.0}, terminated=True)})
    history.truncated = history.agents["ann"].truncated = True
    chunk = make_chunk(history)
    assert chunk.get_terminateds() == {"ann": False, "cy": True, "__all__": False}
    assert chunk.get_truncateds() == {"ann": True, "cy": False, "__all__": True}
    assert chunk.is_done and chunk.get_agents_to_act() == set()
    cut = chunk[:3]
    assert cut.get_terminateds() == {"ann": False, "cy": True, "__all__": False}
    assert cut.get_truncateds() == {"ann": False, "cy": False, "__all__": False}
    later = chunk[3:]
    assert later.get_truncateds() == {"ann": True, "__all__": True}


def test_everything_is_a_view():
    source = make_part(waiting_history(), "ann", 0, 6, 0).column
    rewards, observations = source("rewards").data, source("observations").data
    part = SingleAgentEpisode.of(
        agent_id=0, module_id="p", multi_agent_episode_id="e", observation_space=None, action_space=None,
        source=ArraySource(observations=observations, env_ts=np.arange(7), actions=rewards, rewards=rewards),
        lookback=0, t_started=0,
    )  # fmt: skip
    chunk = MultiAgentEpisode.of_agents(id_="e", agent_episodes={0: part}, env_t_started=0, env_t=6)
    views = [
        chunk.get_rewards()[0],
        chunk.get_rewards(slice(2, 4))[0],
        part.get_rewards(),
        part.get_rewards(slice(1, None, 2)),
        chunk[2:].agent_episodes[0].get_rewards(),
    ]
    assert all(np.shares_memory(view, rewards) for view in views)
    assert np.shares_memory(chunk.get_observations()[0], observations)
    assert torch.from_numpy(chunk.get_rewards(slice(None, None, -1))[0]).tolist() == rewards[::-1].tolist()
    before = rewards.copy()
    chunk.get_rewards([0, 1], fill=9.0)[0][:] = -1
    np.testing.assert_array_equal(rewards, before)


def test_a_slice_has_custom_data_of_its_own(chunk):
    chunk.custom_data["seen"] = 1
    part = chunk[1:]
    part.custom_data["more"] = 2
    assert (chunk.custom_data, part.custom_data) == ({"seen": 1}, {"seen": 1, "more": 2})


def test_agent_ids_may_be_tuples():
    parts = {agent: make_part(waiting_history(), "ann", 0, 6, 0) for agent in [(0, 1), 0, 1]}
    chunk = MultiAgentEpisode.of_agents(id_="e", agent_episodes=parts, env_t_started=0, env_t=6)
    assert pickle.loads(pickle.dumps(chunk)).get_agents_to_act() == {(0, 1), 0, 1}
    assert list(chunk.get_rewards(agent_ids=(0, 1))) == [(0, 1)]
    assert list(chunk.get_rewards(agent_ids=[0, 1])) == [0, 1]
    assert list(chunk.get_rewards(agent_ids={0, "unknown"})) == [0]
    assert list(chunk.get_rewards(agent_ids=(1, 0))) == [0, 1]
    assert list(chunk.get_rewards(agent_ids=[])) == [(0, 1), 0, 1]


def with_spaces(observation_space, observations, action_space, actions):
    n = len(actions)
    return SingleAgentEpisode.of(
        agent_id=0, module_id="p", multi_agent_episode_id="e", observation_space=observation_space,
        action_space=action_space, lookback=0, t_started=0,
        source=ArraySource(observations=observations, env_ts=np.arange(n + 1), actions=actions, rewards=np.zeros(n)),
    )  # fmt: skip


def test_one_hot_counts_observations_from_the_spaces_start_and_raw_actions_from_zero():
    space = gym.spaces.Discrete(3, start=5)
    part = with_spaces(space, np.array([5, 7, 6]), space, np.array([0, 2]))
    assert part.get_observations(one_hot_discrete=True).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert part.get_actions(one_hot_discrete=True).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert part.get_actions(slice(1, 3), fill=0, one_hot_discrete=True).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert part.get_actions(-1, one_hot_discrete=True).dtype == np.float32


def test_one_hot_of_nested_spaces():
    space = gym.spaces.Dict({"m": gym.spaces.MultiDiscrete([2, 3]), "b": gym.spaces.Box(0, 9, (1,), np.float32)})
    observations = {"m": np.array([[1, 0], [0, 2]]), "b": np.ones((2, 1), np.float32)}
    part = with_spaces(space, observations, gym.spaces.Discrete(2), np.array([1]))
    got = part.get_observations(one_hot_discrete=True)
    assert got["m"].tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert got["b"] is observations["b"] or got["b"].tolist() == [[1], [1]]
    assert part.get_observations(5, fill=0, one_hot_discrete=True)["m"].tolist() == [0] * 5


def test_one_hot_needs_a_space():
    part = with_spaces(None, np.zeros(2), None, np.zeros(1))
    with pytest.raises(ValueError, match="needs the space"):
        part.get_actions(one_hot_discrete=True)


def test_fill_keeps_the_shape_of_outputs_and_the_fill_value(chunk):
    part = chunk.agent_episodes["ann"]
    assert part.get_extra_model_outputs("y", slice(4, 6), fill=-1).tolist() == [[-1, -1], [-1, -1]]
    assert part.get_rewards(slice(-99, 99), neg_index_as_lookback=True, fill=0.5).shape == (198,)
    assert part.get_rewards(99, fill=0.5) == 0.5
    assert np.isnan(part.get_rewards([99], fill=np.nan)).all()


def test_outputs_that_only_some_modules_give():
    history = waiting_history(cy=AgentHistory([0, 4], {4: 1.0}))
    chunk = make_chunk(history)
    part = chunk.agent_episodes["cy"]
    chunk.agent_episodes["cy"] = with_spaces(None, np.zeros(2), None, np.zeros(1))
    assert list(chunk.get_extra_model_outputs("x")) == list(chunk.get_extra_model_outputs()) == ["ann"]
    with pytest.raises(KeyError, match=r"'z'.*'x', 'y'"):
        chunk.get_extra_model_outputs("z")
    with pytest.raises(KeyError, match="'z'"):
        part.get_extra_model_outputs("z")


def test_joining_chunks_of_which_one_lacks_an_output():
    first, second = with_spaces(None, np.zeros(3), None, np.zeros(2)), make_part(waiting_history(), "ann", 1, 4, 1)
    second.id_ = first.id_
    first.concat_episode(second)
    assert np.isnan(first.get_extra_model_outputs("x")[:2]).all()
    assert first.get_extra_model_outputs("x")[2:].tolist() == [3.0, 4.5]


def test_data_dict():
    history = waiting_history(cy=AgentHistory([0, 2, 5], {2: 1.0, 5: 2.0}, truncated=True))
    data = make_chunk(history, 1, 6, 0).agent_episodes["cy"].get_data_dict()
    assert data.pop("obs")["m"].tolist() == [[0, 1], [2, 3]]
    assert {key: np.asarray(values).tolist() for key, values in data.items()} == {
        "terminateds": [False, False],
        "truncateds": [False, True],
        "t": [0, 1],
        "eps_id": ["e_cy", "e_cy"],
        "infos": [{}, {}],
        "actions": [[0, 19], [2, 17]],
        "rewards": [1.0, 2.0],
        "x": [0.0, 3.0],
        "y": [[0.0, 1.0], [2.0, 1.0]],
    }


def test_print_and_repr(chunk, capsys):
    chunk.agent_episodes[1] = chunk.agent_episodes.pop("cy")
    chunk.print()
    assert capsys.readouterr().out.splitlines() == [
        "env_t  1  2  3  4  5  6",
        "ann    x  x  x  x  x  x",
        "1               x  x",
    ]
    assert "env_t=2..6" in repr(chunk) and "'e_ann'" in repr(chunk.agent_episodes["ann"])


def test_module_of_an_agent_that_has_not_joined(chunk):
    with pytest.raises(KeyError, match="'new' has no transition"):
        chunk.module_for("new")
    asked = []
    chunk.agent_to_module_mapping_fn = lambda agent, episode: asked.append(agent) or "p7"
    assert chunk.module_for("new") == chunk.module_for("new") == "p7"
    assert asked == ["new"]


def test_agents_without_a_transition_are_known():
    history = waiting_history(cy=AgentHistory([6], {}), one=AgentHistory([4], {5: 0.25, 6: 0.25}))
    history.agents[1] = history.agents.pop("one")
    chunk = make_chunk(history, 4, 6)
    assert chunk.agent_ids == {"ann"}
    assert chunk.get_agents_to_act() == {"ann", "cy"}
    assert chunk.get_return(True) - chunk.get_return() == 0.5


def test_an_agent_that_comes_again_cannot_be_joined():
    first = make_chunk(waiting_history(cy=AgentHistory([0, 2], {2: 1.0}, terminated=True)), 0, 3)
    again = make_chunk(waiting_history(cy=AgentHistory([3, 5], {5: 1.0})), 3, 6)
    before = everything(first)
    with pytest.raises(EpisodeError, match=r"'cy'.*rejoined"):
        first.concat_episode(again)
    assert same(everything(first), before)


@pytest.mark.parametrize("change", [{"id_": "f"}, {"env_t_started": 4}, {"env_t_started": 2}])
def test_only_the_next_chunk_can_be_joined(change):
    first, second = make_chunk(waiting_history(), 0, 3), make_chunk(waiting_history(), 3, 6)
    for name, value in change.items():
        setattr(second, name, value)
    with pytest.raises(EpisodeError, match="can't be followed by"):
        first.concat_episode(second)


def test_a_done_episode_cannot_be_joined():
    first, second = make_chunk(waiting_history(), 0, 3), make_chunk(waiting_history(), 3, 6)
    first.is_truncated = True
    with pytest.raises(EpisodeError, match="done=True"):
        first.concat_episode(second)


def test_joining_leaves_arrays_handed_out_before_alone(chunk):
    part = make_part(waiting_history(), "ann", 0, 3, 0)
    rewards = part.get_rewards()
    part.concat_episode(make_part(waiting_history(), "ann", 2, 6, 1))
    assert (len(rewards), len(part.get_rewards()), len(part)) == (3, 6, 6)


@pytest.mark.parametrize("column", ["observations", "infos", "actions", "rewards", "x"])
def test_a_state_with_a_short_column_is_refused(column):
    state = make_chunk(waiting_history()).get_state()
    part = state["agent_episodes"][0]
    columns = part["extra_model_outputs"] if column == "x" else part
    columns[column] = columns[column][:-1]
    with pytest.raises(EpisodeError, match=rf"'ann': expected \d items of {column}, got \[\d\]"):
        SingleAgentEpisode.from_state(part)


@pytest.mark.parametrize("where", ["env_t", "rewards"])
def test_a_state_that_lacks_something_is_refused(where):
    state = make_chunk(waiting_history()).get_state()
    del (state if where == "env_t" else state["agent_episodes"][0])[where]
    with pytest.raises(EpisodeError, match=f"has no '{where}'"):
        MultiAgentEpisode.from_state(state)


@pytest.mark.parametrize("env_ts", [[0, 1, 2, 2, 4, 5, 6], [0, 1, 2, 3, 4, 5, 7]])
def test_env_steps_that_cannot_be_are_refused(env_ts):
    state = make_chunk(waiting_history()).get_state()
    state["agent_episodes"][0]["env_ts"] = np.array(env_ts)
    with pytest.raises(EpisodeError, match=r"must be strictly increasing|expected transitions that end within"):
        MultiAgentEpisode.from_state(state)


def test_wrong_use(chunk):
    part = chunk.agent_episodes["ann"]
    for episode in (chunk, part):
        with pytest.raises(NotImplementedError, match="slice"):
            episode[0]
        with pytest.raises(NotImplementedError, match="must be 1, got 2"):
            episode[::2]
        with pytest.raises(TypeError):
            episode.get_rewards("all")
    with pytest.raises(ValueError, match="env_steps=False"):
        chunk.get_rewards(env_steps=False, return_list=True)


def test_slices_of_one_agents_steps():
    part = make_part(waiting_history(), "ann", 0, 6, 2)
    piece = part[1:3]
    assert (piece.t_started, piece.t, piece.lookback, piece.is_done) == (3, 5, 2, False)
    assert piece.get_observations(slice(-2, None), neg_index_as_lookback=True).tolist() == [1, 2, 3, 4, 5]
    assert part.slice(slice(-2, None), len_lookback_buffer=9).get_observations(-6) == 1
    assert len(part[3:1]) == 0 and part[9:].get_observations().tolist() == [6]
    part.is_terminated = True
    assert part[2:].is_terminated and not part[:3].is_terminated
