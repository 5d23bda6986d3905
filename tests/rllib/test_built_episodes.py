"""Episodes built by the same calls of RLlib's class and of ours: they answer the same.

Where RLlib is wrong the comparison steps aside, and says why; tests/core/test_building.py has these cases.
"""

import copy

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibSingleAgentEpisode
from support.histories import everything, histories, make_chunk, same, stack
from support.random_cases import number_of_cases
from support.rllib_histories import COLUMNS, INDICES, answer, arguments, equal, is_sane, play, play_chunks

from fastmarl.batches import columns
from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode, from_rllib, to_rllib

OF_OBSERVATIONS = ("observations", "infos")


def stacked(answers, what):
    """RLlib's answers of lists as arrays, which ours are from the start."""
    if what == "infos" or not isinstance(answers, dict):
        return answers
    return {agent: stack(items) if isinstance(items, list) else items for agent, items in answers.items()}


def assert_same_answers(theirs, ours, what, indices, **options):
    want, got = (answer(each, what, indices, **options) for each in (theirs, ours))
    assume(want is not KeyError)  # it raises where an agent has acted, and has no step yet
    want = want if options.get("return_list") else stacked(want, what)
    assert equal(got, want), (got, want)


@given(histories(stays=True), st.sampled_from(COLUMNS), INDICES, st.booleans())
@settings(max_examples=number_of_cases(100))
def test_getters_with_actions_that_wait_for_an_answer(history, what, indices, as_list):
    theirs, ours = play(history), play(history, MultiAgentEpisode)
    as_list = as_list and not isinstance(indices, int)
    assume(is_sane(indices, False, 0 if as_list else None, 0, 0, ours.env_t + (what in OF_OBSERVATIONS)))
    assert_same_answers(theirs, ours, what, indices, return_list=as_list)


@given(histories(stays=True))
@settings(max_examples=number_of_cases(50))
def test_all_else(history):
    theirs, ours = play(history), play(history, MultiAgentEpisode)
    for name in ("env_t", "env_t_started", "agent_ids", "is_done", "is_terminated", "is_truncated", "is_reset"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("env_steps", "agent_steps", "get_return", "get_terminateds", "__len__", "get_agents_to_act",
                 "get_agents_that_stepped"):  # fmt: skip
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    assert ours.get_return(True) == theirs.get_return(True)
    assert {agent: steps.data for agent, steps in ours.env_t_to_agent_t.items()} == {
        agent: steps.data for agent, steps in theirs.env_t_to_agent_t.items()
    }
    for agent, part in ours.agent_episodes.items():
        other = theirs.agent_episodes[agent]
        for name in ("t", "t_started", "is_done", "is_terminated", "is_truncated", "is_reset", "module_id", "agent_id"):
            assert getattr(part, name) == getattr(other, name), name
        assert len(part) == len(other)


@given(histories(stays=True))
@settings(max_examples=number_of_cases(40))
def test_the_columns_are_those_of_recorded_episodes(history):
    built, recorded = play(history, MultiAgentEpisode), make_chunk(history)
    built.id_ = "e"
    for part in built.agent_episodes.values():
        part.multi_agent_episode_id = "e"
    got, want = everything(built), everything(recorded)
    with_steps = {str(agent) for agent, part in built.agent_episodes.items() if len(part)}
    got["parts"] = {agent: part for agent, part in got["parts"].items() if agent in with_steps}
    assert same(got["parts"], want["parts"])
    if len(with_steps) == 1:  # others have different spaces, and one module
        assert same(columns([built]), columns([recorded]))
    again = copy.deepcopy(built)
    assert same(everything(again), everything(built))
    assert same(everything(MultiAgentEpisode.from_state(built.get_state())), everything(built))


@st.composite
def cut_histories(draw):
    """(history, {env step: lookback} where it is cut): all are there from the start, and none ends before the end."""
    history = draw(histories(done=False, max_env_t=12))
    for one in history.agents.values():
        first = one.env_ts[0]
        if first:  # RLlib pads those who come in a later chunk by the episode's time
            one.env_ts.insert(0, 0)
            one.rewards |= dict.fromkeys(range(1, first + 1), 0.5)
    times = draw(st.sets(st.integers(1, history.env_t), max_size=3))
    return history, {t: draw(st.integers(1, 3)) for t in times}  # without a lookback, RLlib loses who waits


@given(cut_histories(), st.sampled_from(COLUMNS), st.data())
@settings(max_examples=number_of_cases(80))
def test_cuts(cut_history, what, data):
    history, cuts = cut_history
    chunks = [play_chunks(history, cls, cuts) for cls in (RLlibEpisode, MultiAgentEpisode)]
    for theirs, ours in zip(*chunks, strict=True):
        assert (ours.env_t_started, ours.env_t, len(ours)) == (theirs.env_t_started, theirs.env_t, len(theirs))
        assert ours.agent_ids == theirs.agent_ids
        assert ours.get_agents_to_act() == theirs.get_agents_to_act()
        for agent, part in ours.agent_episodes.items():
            other = theirs.agent_episodes[agent]
            assert (part.t, part.t_started, len(part)) == (other.t, other.t_started, len(other))
            before = {"indices": slice(-part.lookback, None), "neg_index_as_lookback": True}
            if what != "extra_model_outputs":
                got, want = (getattr(each, f"get_{what}")(**before) for each in (part, other))
                assert equal(got, stack(want) if want and what != "infos" else want)
        if what not in OF_OBSERVATIONS and ours.env_t_started:
            continue  # 57 in docs/differences.md: RLlib leaves out a step; test_cut_and_joined_is_uncut has ours
        end = len(ours) + (what in OF_OBSERVATIONS)
        indices = data.draw(st.none() | st.integers(-end, end - 1) if end else st.none())
        assert_same_answers(theirs, ours, what, indices)


@given(cut_histories())
@settings(max_examples=number_of_cases(50))
def test_cut_and_joined_is_uncut(cut_history):
    history, cuts = cut_history
    first, *others = play_chunks(history, MultiAgentEpisode, cuts)
    uncut = play(history, MultiAgentEpisode)
    for other in others:
        first.concat_episode(other)
    first.id_ = uncut.id_
    for part in (*first.agent_episodes.values(), *uncut.agent_episodes.values()):
        part.multi_agent_episode_id = "e"
    assert same(everything(first), everything(uncut))
    assert same(first.get_actions(), uncut.get_actions())
    assert same(first.get_rewards(), uncut.get_rewards())


@given(histories(always=True, done=False), st.data())
@settings(max_examples=number_of_cases(50))
def test_the_constructor(history, data):
    begin = data.draw(st.integers(0, history.env_t - 1))
    lookback = data.draw(st.integers(0, begin))
    agents = history.agents
    options = {
        **arguments(history, begin, lookback),
        "agent_module_ids": dict.fromkeys(agents, "p0"),
        "agent_episode_ids": {agent: f"e_{agent}" for agent in agents},
        "terminateds": {next(iter(agents)): True, "__all__": False},
    }
    theirs, ours = RLlibEpisode(**options), MultiAgentEpisode(**options)
    assert ours.get_terminateds() == theirs.get_terminateds()
    of_runner = make_chunk(history, begin, history.env_t, lookback)
    of_runner.agent_episodes[next(iter(agents))].is_terminated = True
    assert same(everything(ours)["parts"], everything(of_runner)["parts"])
    for agent, part in ours.agent_episodes.items():
        other = theirs.agent_episodes[agent]
        assert (part.t, part.t_started, part.id_, len(part)) == (other.t, other.t_started, other.id_, len(other))


@given(histories(stays=True, done=False), st.sampled_from(["observations", "actions", "rewards"]), st.data())
@settings(max_examples=number_of_cases(50))
def test_setters(history, what, data):
    theirs, ours = play(history), play(history, MultiAgentEpisode)
    agent = data.draw(st.sampled_from(list(history.agents)))
    part = ours.agent_episodes[agent]
    n = len(part) + (what == "observations")
    assume(n)
    index = data.draw(st.integers(-n, n - 1) | st.slices(n).filter(lambda each: each.step in (None, 1)))
    made = {"observations": history.observation, "actions": history.action, "rewards": lambda agent, t: t / 2}[what]
    item = made(agent, 17)
    new = item if isinstance(index, int) else [item] * len(range(*index.indices(n)))
    for episode in (theirs, ours):
        getattr(episode, f"set_{what}")(new_data={agent: new}, at_indices=index)
    want, got = (getattr(each.agent_episodes[agent], f"get_{what}")() for each in (theirs, ours))
    assert equal(got, stack(want))


def test_one_agents_episode():
    ours, theirs = SingleAgentEpisode("one"), RLlibSingleAgentEpisode("one")
    for episode in (ours, theirs):
        episode.add_env_reset(np.array([0.0, 1.0]), {"x": 1})
        for t in range(1, 5):
            episode.add_env_step(np.full(2, t), t, 0.5 * t, {"t": t}, extra_model_outputs={"q": t}, terminated=t == 4)
        episode.set_rewards(new_data=[7.0, 8.0], at_indices=slice(1, 3))
        episode.set_extra_model_outputs(key="q", new_data=9, at_indices=-1)
    theirs.to_numpy()
    for name in (
        "get_observations",
        "get_infos",
        "get_actions",
        "get_rewards",
        "get_return",
        "__len__",
        "get_data_dict",
    ):
        assert equal(getattr(ours, name)(), getattr(theirs, name)()), name
    for name in ("t", "t_started", "is_done", "is_terminated", "is_truncated", "id_", "is_reset"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert equal(dict(ours.get_sample_batch()), dict(theirs.get_sample_batch()))
    assert ours.get_duration_s() > 0
    for name in ("observations", "infos", "actions", "rewards"):
        mine, others = getattr(ours, name), getattr(theirs, name)
        assert equal(mine.data, others.data) and len(mine) == len(others) and mine.lookback == others.lookback
        assert equal(mine[1], others[1]) and equal(mine[-2:], others[-2:]), name
    assert list(ours.extra_model_outputs) == list(theirs.extra_model_outputs)


def test_batches_of_rllib():
    theirs, ours = RLlibEpisode("e"), MultiAgentEpisode("e")
    for episode in (theirs, ours):
        episode.add_env_reset(observations={"a": 0.0, "b": 0.0})
        episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 0, "b": 1}, {"a": 1.0, "b": 2.0})
    want, got = theirs.to_numpy().get_sample_batch(), ours.get_sample_batch()
    assert type(got) is type(want) and got.env_steps() == want.env_steps()
    for agent in "ab":
        batches = [dict(each.policy_batches[agent]) for each in (got, want)]
        for batch in batches:
            del batch["eps_id"]  # random in RLlib
        assert equal(*batches)


@given(histories(stays=True))
@settings(max_examples=50)
def test_a_converted_episode_shows_waiting_rewards_and_actions(history):
    theirs, converted = play(history).to_numpy(), to_rllib(play(history, MultiAgentEpisode))
    assert equal(converted.get_rewards(-1), theirs.get_rewards(-1))
    # One that is no scalar is flattened by RLlib where it has arrays.
    assert equal(converted.get_actions(-1, "ann"), theirs.get_actions(-1, "ann"))
    assert converted.get_return(True) == theirs.get_return(True)


def test_from_rllib_refuses_ours():
    with pytest.raises(ValueError, match="expected an RLlib MultiAgentEpisode"):
        from_rllib(MultiAgentEpisode())
