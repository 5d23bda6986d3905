"""Random histories in RLlib's episodes and in ours: every getter must return the same.

Cases in which RLlib is wrong are skipped, with a reason; test_episode_getters.py compares these with lists.
"""

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from support.histories import histories, make_chunk
from support.random_cases import number_of_cases
from support.rllib_histories import COLUMNS, FILLS, INDICES, SLICES, answer, arguments, equal, is_sane, pairs, play


@given(pairs(), st.sampled_from(COLUMNS), INDICES, st.booleans(), FILLS, st.booleans())
@settings(max_examples=number_of_cases(100))
def test_env_steps(pair, what, indices, neg, fill, as_list):
    theirs, ours = pair
    as_list = as_list and not isinstance(indices, int)  # an AssertionError or TypeError
    if what in ("infos", "extra_model_outputs") and not (as_list or isinstance(indices, int)):
        fill = None  # it makes arrays of dicts, and can't fill several steps of an extra output
    end = ours.env_t + (what in ("observations", "infos"))
    assume(is_sane(indices, neg, 0 if as_list else fill, 0, 0, end))
    kwargs = {"neg_index_as_lookback": neg, "fill": fill, "return_list": as_list}
    want, got = (answer(episode, what, indices, **kwargs) for episode in (theirs, ours))
    assert equal(got, want), (got, want)


@given(pairs(), st.sampled_from(("observations", "actions")), INDICES, FILLS)
@settings(max_examples=number_of_cases(50))
def test_one_hot(pair, what, indices, fill):
    theirs, ours = pair
    assume(is_sane(indices, False, fill, 0, 0, ours.env_t + (what == "observations")))
    want, got = (answer(episode, what, indices, fill=fill, one_hot_discrete=True) for episode in (theirs, ours))
    assert equal(got, want), (got, want)


@given(pairs(), st.sampled_from(COLUMNS), INDICES, st.booleans(), FILLS, st.booleans())
@settings(max_examples=number_of_cases(100))
def test_agent_steps(pair, what, indices, neg, fill, one_by_one):
    theirs, ours = pair
    assert set(theirs.agent_episodes) == set(ours.agent_episodes)
    kwargs = {"neg_index_as_lookback": neg, "fill": fill}
    for agent, part in ours.agent_episodes.items():
        end = len(part) + (what in ("observations", "infos"))
        if not is_sane(indices, neg, fill, 0, 0, end):
            continue
        if one_by_one or what == "extra_model_outputs":  # by env_steps=False RLlib can't look up these
            want = answer(theirs.agent_episodes[agent], what, indices, **kwargs)
            got = answer(part, what, indices, **kwargs)
        else:
            want, got = (answer(each, what, indices, agent, env_steps=False, **kwargs) for each in (theirs, ours))
        assert equal(got, want), (got, want)


@given(pairs())
@settings(max_examples=number_of_cases(50))
def test_all_else(pair):
    theirs, ours = pair
    for name in ("env_t", "env_t_started", "agent_ids", "is_done", "is_terminated", "is_truncated", "id_"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("env_steps", "agent_steps", "get_return", "get_terminateds", "__len__"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    assert ours.agent_t_started == {agent: theirs.agent_t_started[agent] for agent in theirs.agent_ids}
    assert {agent: ours.module_for(agent) for agent in ours.agent_ids} == dict.fromkeys(ours.agent_ids, "p0")
    assert ours.get_agents_to_act() & ours.agent_ids == theirs.get_agents_to_act()
    assert ours.get_agents_that_stepped() & ours.agent_ids == theirs.get_agents_that_stepped()
    for agent, part in ours.agent_episodes.items():
        other = theirs.agent_episodes[agent]
        for name in ("t", "t_started", "is_done", "is_terminated", "is_truncated", "is_reset", "is_numpy"):
            assert getattr(part, name) == getattr(other, name), name
        for name in ("env_steps", "agent_steps", "get_return", "__len__"):
            assert getattr(part, name)() == getattr(other, name)(), name
        want, got = other.get_data_dict(), part.get_data_dict()
        got["eps_id"] = want["eps_id"]  # RLlib's are random
        assert equal(got, want)


@given(histories(stays=True, done=False))
@settings(max_examples=number_of_cases(40))
def test_return_with_rewards_of_waiting_agents(history):
    assert make_chunk(history).get_return(True) == play(history).get_return(True)


@given(pairs(always=True, done=False), SLICES, st.integers(0, 3))
@settings(max_examples=number_of_cases(50))
def test_slice(pair, slice_, lookback):
    """Agents that wait, and flags, are not compared: RLlib loses what crosses a border, and the flags."""
    theirs, ours = pair
    slice_ = slice(slice_.start, slice_.stop)
    start, stop, _ = slice_.indices(len(ours))
    assume(start < stop)
    want = theirs.slice(slice_, len_lookback_buffer=lookback)
    got = ours.slice(slice_, len_lookback_buffer=lookback)
    assert (got.env_t_started, got.env_t, len(got)) == (want.env_t_started, want.env_t, len(want))
    for agent, part in got.agent_episodes.items():
        other = want.agent_episodes[agent]
        assert (part.t_started, part.t, part.lookback) == (other.t_started, other.t, other.observations.lookback)
        for what in COLUMNS:
            everything = {"indices": slice(-part.lookback, None), "neg_index_as_lookback": True}
            columns = [answer(each, what, **everything) for each in (part, other)]
            if what == "extra_model_outputs":
                columns = [each.get_extra_model_outputs("x", **everything) for each in (part, other)]
            if part.lookback and what != "infos":  # slice() doesn't hand on the infos
                assert equal(*columns), (what, columns)


@st.composite
def chunk_pairs(draw):
    """(RLlib's, ours) chunk with lookback, built from lists by RLlib's constructor, of agents that never wait."""
    history = draw(histories(always=True, done=False))
    begin = draw(st.integers(0, history.env_t - 1))
    lookback = draw(st.integers(0, begin))
    theirs = RLlibEpisode(**arguments(history, begin, lookback))
    return theirs.to_numpy(), make_chunk(history, begin, history.env_t, lookback)


@given(chunk_pairs(), st.sampled_from(COLUMNS), INDICES, st.booleans(), FILLS, st.booleans())
@settings(max_examples=number_of_cases(80))
def test_chunks_with_lookback(pair, what, indices, neg, fill, env_steps):
    theirs, ours = pair
    if what not in ("observations", "infos") and ours.env_t_started:
        env_steps = False  # it compares an agent's absolute step with the length of the chunk, and skips an action
    if what == "infos" or (env_steps and what == "extra_model_outputs"):
        fill = None
    end = len(ours) + (what in ("observations", "infos"))
    assume(is_sane(indices, neg, fill, -ours.lookback, 0, end))
    kwargs = {"neg_index_as_lookback": neg, "fill": fill}
    if env_steps:
        want, got = (answer(each, what, indices, **kwargs) for each in (theirs, ours))
        assert equal(got, want), (got, want)
        return
    for agent, part in ours.agent_episodes.items():
        want, got = (answer(each, what, indices, **kwargs) for each in (theirs.agent_episodes[agent], part))
        assert equal(got, want), (got, want)
