"""Whom a step names, against plain sets, lists and dicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastmarl.core.native._step_keys import StepKeys, count_steps, ended_unobserved, names_others, places_in_set_order

AGENTS = st.sampled_from(["a", "b", "c", "agent_10", 1, 2.5, ("x", 1)])
LISTS = st.lists(AGENTS, unique=True)
OBS = st.dictionaries(AGENTS, st.integers())
FLAGS = st.dictionaries(st.one_of(AGENTS, st.just("__all__")), st.sampled_from([False, False, True, 0, 1]))
STEPS = st.tuples(OBS, OBS, FLAGS, FLAGS)


@pytest.mark.slow
@given(before=STEPS, data=st.data())
def test_same_keys_where_ending_agents_are_observed(before, data):
    after = data.draw(st.one_of(STEPS, st.just(tuple(dict(part) for part in before))))
    keys = StepKeys()
    assert not keys.same(*after)
    keys.remember(*before)
    obs, _, *flags = after
    same = [list(part) for part in after] == [list(part) for part in before]
    ended = {agent for part in flags for agent, flag in part.items() if flag and agent != "__all__"}
    assert keys.same(*after) == (same and ended <= obs.keys())
    keys.forget()
    assert not keys.same(*after)


@pytest.mark.slow
@given(before=STEPS, data=st.data())
def test_fewer_keys_in_the_same_order(before, data):
    kept = data.draw(st.sets(AGENTS))
    fewer = tuple({agent: value for agent, value in part.items() if agent in kept} for part in before)
    after = data.draw(st.one_of(STEPS, st.just(fewer)))
    keys = StepKeys()
    assert not keys.fewer(*after)
    keys.remember(*before)
    assert keys.fewer(*fewer)
    in_order = [[agent for agent in part if agent in of_step] for part, of_step in zip(before, after, strict=True)]
    assert not keys.fewer(*after) or in_order == [list(of_step) for of_step in after]


def test_an_equal_key_is_the_same():
    keys = StepKeys()
    keys.remember({(1, "x"): 0}, {}, {}, {})
    assert keys.same({(1, "".join("x")): 0}, {}, {}, {})
    assert keys.same({(1.0, "x"): 0}, {}, {}, {})
    assert not keys.same({(2, "x"): 0}, {}, {}, {})


@pytest.mark.slow
@given(known=st.sets(AGENTS), dicts=st.lists(FLAGS, max_size=5))
def test_names_others(known, dicts):
    assert names_others(known, *dicts) == any(set(part) - known - {"__all__"} for part in dicts)


@pytest.mark.slow
@given(agents=LISTS, obs=OBS, terminateds=FLAGS, truncateds=FLAGS)
def test_ended_unobserved(agents, obs, terminateds, truncateds):
    want = {a for a in agents if a not in obs and (terminateds.get(a) or truncateds.get(a))}
    assert ended_unobserved(dict.fromkeys(agents, 0), obs, terminateds, truncateds) == want


@given(agents=LISTS, obs=OBS, unseen=st.sets(AGENTS), own_order=st.booleans())
def test_places_in_set_order(agents, obs, unseen, own_order):
    unseen -= obs.keys()
    stepped = [agent for agent in agents if agent in obs or agent in unseen]
    in_order = [agent for agent in (stepped if own_order else set(stepped)) if agent in obs]
    want = [list(obs).index(agent) for agent in in_order]
    places = places_in_set_order(agents, obs, unseen, own_order)
    if want == list(range(len(obs))):
        assert places is None
    else:
        assert places.dtype == "int32"
        assert places.tolist() == want


def test_a_sets_order_is_not_a_lists():
    """For small ints, the order of a set is known for any hash seed. A set literal in a .pyc file may differ."""
    obs = {9: 0, 1: 0, 2: 0}
    assert list(set(obs)) != [9, 1, 2]
    assert places_in_set_order([9, 1, 2], obs, set(), False).tolist() == [list(obs).index(a) for a in set(obs)]
    assert places_in_set_order([9, 1, 2], obs, set(), True) is None


@given(observed=LISTS, n=st.integers(1, 5))
def test_count_steps(observed, n):
    module_of = {agent: "odd" if i % 2 else "even" for i, agent in enumerate(observed)}
    agents, modules = {"a": 7}, {"even": 1}
    count_steps(tuple(observed), n, module_of, agents, modules)
    assert agents == {"a": 7} | {agent: n + 7 * (agent == "a") for agent in observed}
    n_odd = len(observed) // 2
    assert modules == {"even": 1 + n * (len(observed) - n_odd)} | ({"odd": n * n_odd} if n_odd else {})
