"""Episodes to RLlib's class and back: every getter gives the same on both sides."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from support.histories import histories, make_chunk
from support.random_cases import number_of_cases
from support.rllib_histories import COLUMNS, INDICES, as_returned, equal, pairs, play

import fastmarl
from fastmarl.batches import add_gae, add_n_step_returns, add_returns, aligned, columns, sequences
from fastmarl.episodes import from_rllib, to_rllib
from fastmarl.errors import BatchError, EpisodeError
from fastmarl.offline import ParquetWriter
from fastmarl.rllib.episodes import MultiAgentEpisode as DropInEpisode


@st.composite
def chunks(draw):
    """One of ours, with a lookback, agents that wait and agents that are done."""
    history = draw(histories(stays=True))
    begin = draw(st.integers(0, history.env_t - 1))
    return make_chunk(history, begin, draw(st.integers(begin + 1, history.env_t)), draw(st.integers(0, begin)))


def all_of(part, what):
    """A column with its lookback."""
    indices = slice(-_lookback(part), None)
    keys = ["x", "y"] if what == "extra_model_outputs" else [None]
    getter = getattr(part, f"get_{what}")
    return [getter(*([key] if key else []), indices=indices, neg_index_as_lookback=True) for key in keys]


def _lookback(part):
    return part.observations.lookback if hasattr(part, "observations") else part.lookback


def assert_same(ours, theirs):
    names = ("id_", "env_t_started", "env_t", "is_terminated", "is_truncated", "agent_ids", "custom_data")
    for name in names:
        assert getattr(theirs, name) == getattr(ours, name), name
    for name in ("env_steps", "agent_steps", "get_return", "get_terminateds"):
        assert getattr(theirs, name)() == getattr(ours, name)(), name
    for agent, part in ours.agent_episodes.items():
        other = theirs.agent_episodes[agent]
        for name in ("id_", "agent_id", "module_id", "t", "t_started", "is_terminated", "is_truncated", "is_numpy"):
            assert getattr(other, name) == getattr(part, name), name
        assert theirs.module_for(agent) == ours.module_for(agent)
        for what in COLUMNS:
            assert equal(all_of(part, what), all_of(other, what)), what


@given(chunks())
@settings(max_examples=number_of_cases(100))
def test_chunks_are_the_same_there_and_back(ours):
    ours.custom_data["kept"] = [1]
    theirs = to_rllib(ours)
    assert_same(ours, theirs)
    back = from_rllib(theirs)
    assert_same(back, theirs)
    assert {agent: part.env_ts().tolist() for agent, part in back.agent_episodes.items()} == {
        agent: part.env_ts().tolist() for agent, part in ours.agent_episodes.items()
    }
    assert (len(back), back.lookback) == (len(ours), ours.lookback)


@given(pairs(), st.sampled_from(COLUMNS), INDICES)
@settings(max_examples=number_of_cases(100))
def test_env_steps_are_those_of_rllibs_own_episodes(pair, what, indices):
    own, ours = pair
    key = ["x"] if what == "extra_model_outputs" else []
    answers = []
    for episode in (own, to_rllib(ours), to_rllib(from_rllib(own))):
        try:
            answers.append(getattr(episode, f"get_{what}")(*key, indices))
        except Exception as error:
            answers.append(type(error))
    assert equal(answers[1], answers[0])
    assert equal(answers[2], answers[0])


@given(histories(stays=True))
@settings(max_examples=number_of_cases(40))
def test_an_episode_of_lists_stays_as_it_is(history):
    theirs = play(history)
    before = copy.deepcopy(theirs)
    ours = from_rllib(theirs)
    assert not theirs.is_numpy
    assert equal(theirs.get_observations(), before.get_observations())
    assert ours.get_return(include_hanging_rewards=True) == theirs.get_return(include_hanging_rewards=True)
    ids = {agent: part.id_ for agent, part in ours.agent_episodes.items()}
    assert ids == {agent: theirs.agent_episodes[agent].id_ for agent in ids}
    returned = as_returned(theirs)
    assert set(ids) == set(returned.agent_episodes)
    for agent, part in ours.agent_episodes.items():
        assert part.env_ts().tolist() == history.agents[agent].env_ts
        for what in COLUMNS:
            assert equal(all_of(part, what), all_of(returned.agent_episodes[agent], what)), what


def test_an_agent_that_ended_unobserved_has_one_step_for_that():
    theirs = RLlibEpisode(id_="e")
    theirs.add_env_reset(observations={"a": 0.0, "b": 0.0})
    theirs.add_env_step({"a": 1.0, "b": 1.0}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0})
    theirs.add_env_step({"a": 2.0}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, terminateds={"b": True, "__all__": False})
    theirs.add_env_step({"a": 3.0}, {"a": 0}, {"a": 1.0})
    assert len(theirs.env_t_to_agent_t["b"].data) == 5
    ours = from_rllib(theirs)
    assert {agent: part.env_ts().tolist() for agent, part in ours.agent_episodes.items()} == {
        "a": [0, 1, 2, 3],
        "b": [0, 1, 2],
    }


def test_chunks_of_a_runner_with_memory():
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.cart_pole", model_config={"use_lstm": True, "fcnet_hiddens": [8], "lstm_cell_size": 4}, seed=0
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    for episode in runner.sample(num_timesteps=30) + runner.sample(num_timesteps=30):
        theirs = to_rllib(episode)
        for agent, part in episode.agent_episodes.items():
            other = theirs.agent_episodes[agent]
            assert set(other.extra_model_outputs) == set(part.extra_model_output_keys)
            assert equal(other.extra_model_outputs["state_out"].data, part.source.extra("state_out"))
        assert_same_arrays(from_rllib(theirs), episode)
    runner.stop()


def assert_same_arrays(back, episode):
    for agent, part in episode.agent_episodes.items():
        for name in ("observations", "env_ts", "actions", "rewards"):
            np.testing.assert_array_equal(back.agent_episodes[agent].get_state()[name], part.get_state()[name])


def test_arrays_there_may_be_written_into():
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="fastmarl.cart_pole", seed=0))
    (episode,) = runner.sample(num_episodes=1)
    before = copy.deepcopy(episode.get_state())
    for part in to_rllib(episode).agent_episodes.values():
        part.rewards.data[:] = 99
        part.observations.data[:] = 99
    for was, part in zip(before["agent_episodes"], episode.get_state()["agent_episodes"], strict=True):
        np.testing.assert_array_equal(part["rewards"], was["rewards"])
        np.testing.assert_array_equal(part["observations"], was["observations"])
    runner.stop()


@given(pairs())
@settings(max_examples=20)
def test_an_episode_without_env_steps_is_refused(pair):
    theirs, _ = pair
    for buffer in theirs.env_t_to_agent_t.values():
        buffer.data = []
    if theirs.agent_episodes:
        with pytest.raises(EpisodeError, match="expected the env steps of all"):
            from_rllib(theirs)


def test_without_ray_it_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env="fastmarl.cart_pole", seed=0))
    (episode,) = runner.sample(num_episodes=1)
    monkeypatch.setattr("fastmarl.core.objects.rllib_classes.import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'ray\[rllib\]'"):
        to_rllib(episode)
    runner.stop()


TAKERS = {
    "columns": columns,
    "sequences": lambda episodes: sequences(episodes, max_seq_len=5),
    "aligned": aligned,
    "to_rllib": lambda episodes: to_rllib(episodes[0]),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("kind", [RLlibEpisode, DropInEpisode])
def test_functions_given_rllibs_episodes_say_how_to_convert_them(taker, kind):
    with pytest.raises(EpisodeError, match=rf"\.{kind.__name__}; convert .*fastmarl.episodes.from_rllib\(\)"):
        TAKERS[taker]([kind(), kind()])


@pytest.mark.needs("pyarrow")
def test_a_writer_given_rllibs_episodes_says_how_to_convert_them(tmp_path):
    with ParquetWriter(tmp_path) as writer, pytest.raises(EpisodeError, match=r"from_rllib\(\)"):
        writer.write([RLlibEpisode()])


def test_other_things_that_are_no_episodes_are_named():
    with pytest.raises(EpisodeError, match=r"builtins\.dict; pass the episodes that sample"):
        columns([{}])
    with pytest.raises(EpisodeError, match=r"expected an RLlib MultiAgentEpisode, got a builtins\.list"):
        from_rllib([])


@pytest.mark.parametrize("add", [
    lambda batch: add_gae(batch, gamma=0.9, lambda_=0.9, value_fn=len),
    lambda batch: add_returns(batch, gamma=0.9),
    lambda batch: add_n_step_returns(batch, n_step=1, gamma=0.9, value_fn=len),
])  # fmt: skip
@pytest.mark.parametrize(("batch", "found"), [({"p0": {}}, r"a dict with keys \['p0'\]"), ([RLlibEpisode()], "a list")])
def test_estimates_take_one_modules_batch(add, batch, found):
    with pytest.raises(BatchError, match=rf"expected the batch of a single module.*columns\(episodes\).*got {found}"):
        add(batch)
