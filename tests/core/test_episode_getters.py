"""The episodes' getters against indexing of plain lists; tests/rllib compares them with RLlib's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories import AgentHistory, History, chunks, leaves, make_part, same, stack
from support.random_cases import number_of_cases

from fastmarl.core.spaces.structs import map_struct
from fastmarl.episodes import SingleAgentEpisode

COLUMNS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")
BOUND = st.none() | st.integers(-14, 14)
SLICES = st.builds(slice, BOUND, BOUND, st.sampled_from([None, None, 1, 2, 3, -1, -2]))
INDICES = st.none() | st.integers(-14, 14) | st.lists(st.integers(-14, 14), max_size=5) | SLICES
FAR = 100


def lookups(indices, neg, first, origin, end, filled):
    """(times that are asked for, whether it is one): by indexing plain lists. None: outside, and an error."""
    pad = FAR if filled else 0
    times = list(range(first - pad, end + pad))

    def place(index):
        return index + pad + (origin - first if index >= 0 or neg else end - first)

    if indices is None:
        return list(range(origin, end)), False
    if isinstance(indices, int):
        time = indices + (origin if indices >= 0 or neg else end)
        return ([time] if filled or first <= time < end else None), True
    if isinstance(indices, list):
        asked = [lookups(index, neg, first, origin, end, filled)[0] for index in indices]
        return None if None in asked else [time for (time,) in asked], False
    step = 1 if indices.step is None else indices.step
    start = (origin - first if step > 0 else end - first - 1) + pad if indices.start is None else place(indices.start)
    stop = (end - first if step > 0 else origin - first - 1) + pad if indices.stop is None else place(indices.stop)
    if step > 0:
        return times[max(start, 0) : max(stop, 0) : step], False
    return [times[i] for i in range(min(start, len(times) - 1), max(stop, -1), step)], False


def item_of(history, agent, what, part, i):
    t = part.env_ts().tolist()[i]
    return {
        "observations": lambda: history.observation(agent, t),
        "infos": lambda: history.info(agent, t),
        "actions": lambda: history.action(agent, t),
        "rewards": lambda: history.agents[agent].reward(history.agents[agent].env_ts.index(t)),
        "extra_model_outputs": lambda: history.extras(agent, t),
    }[what]()


def filled_like(item, what, fill):
    return fill if what == "infos" else map_struct(lambda leaf: np.full_like(leaf, fill), item)


def batch(items, what):
    return items if what == "infos" else stack(items)


def call(episode, what, *args, **kwargs):
    if what == "extra_model_outputs":
        args = (None, *args)
    return getattr(episode, f"get_{what}")(*args, **kwargs)


@pytest.mark.slow
@given(chunks(), st.sampled_from(COLUMNS), INDICES, st.booleans(), st.sampled_from([None, None, 0, 7]))
@settings(max_examples=number_of_cases(100))
def test_agent_steps_match_lists(pair, what, indices, neg, fill):
    history, chunk = pair
    for agent, part in chunk.agent_episodes.items():
        end = len(part.env_ts()) - (what not in ("observations", "infos"))
        asked, single = lookups(indices, neg, 0, part.lookback, end, fill is not None)
        kwargs = {"neg_index_as_lookback": neg, "fill": fill}
        if asked is None:
            with pytest.raises(IndexError, match=r"is outside the recorded|`fill`"):
                call(part, what, indices, **kwargs)
            continue
        got = call(part, what, indices, **kwargs)
        one = item_of(history, agent, what, part, 0)
        want = [item_of(history, agent, what, part, i) if 0 <= i < end else filled_like(one, what, fill) for i in asked]
        if single or want:
            assert same(got, want[0] if single else batch(want, what)), (got, want)
        else:
            assert all(len(leaf) == 0 for leaf in leaves(got))


@pytest.mark.slow
@given(chunks(), st.sampled_from(COLUMNS), INDICES, st.booleans(), st.sampled_from([None, None, 0, 7]), st.booleans())
@settings(max_examples=number_of_cases(150))
def test_env_steps_match_lists(pair, what, indices, neg, fill, as_list):
    history, chunk = pair
    parts = chunk.agent_episodes
    end = chunk.env_t + (what in ("observations", "infos"))
    first = min([chunk.env_t_started - chunk.lookback, *(part.env_ts()[0] for part in parts.values())])
    asked, single = lookups(indices, neg, first, chunk.env_t_started, end, as_list or fill is not None)
    kwargs = {"neg_index_as_lookback": neg, "fill": fill, "return_list": as_list}
    if parts and ((as_list and single) or asked is None):
        with pytest.raises(TypeError if as_list else IndexError):
            call(chunk, what, indices, **kwargs)
        return
    rows = {agent: dict(zip(part.env_ts().tolist()[: None if what in ("observations", "infos") else -1],
                            range(99), strict=False)) for agent, part in parts.items()}  # fmt: skip
    table = [
        {
            agent: item_of(history, agent, what, part, rows[agent][t])
            if t in rows[agent]
            else filled_like(item_of(history, agent, what, part, 0), what, fill)
            for agent, part in parts.items()
            if t in rows[agent] or fill is not None
        }
        for t in asked or []
    ]
    got = call(chunk, what, indices, **kwargs)
    if as_list:
        assert same(got, table if parts else [])
    else:
        columns = {agent: [step[agent] for step in table if agent in step] for agent in parts}
        want = {agent: items[0] if single else batch(items, what) for agent, items in columns.items() if items}
        assert same(got, want), (got, want)


def test_a_slice_without_fill_is_shortened_on_both_sides():
    part = make_part(History(6, {"ann": AgentHistory(list(range(7)), dict.fromkeys(range(1, 7), 1.0))}), "ann", 0, 6, 2)
    assert part.get_observations(slice(-99, 99), neg_index_as_lookback=True).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert part.get_observations(slice(-5, 99, 3), neg_index_as_lookback=True).tolist() == [0, 3, 6]
    assert part.get_observations(slice(99, -99, -3), neg_index_as_lookback=True).tolist() == [6, 3, 0]
    assert part.get_observations(slice(7, 9)).tolist() == part.get_observations(slice(3, 1)).tolist() == []


def test_index_errors_say_which_indices_have_items():
    part = SingleAgentEpisode(agent_id="ann")
    part.add_env_reset(np.zeros(2))
    for recorded in ("empty", "0 to 0"):
        with pytest.raises(IndexError, match=rf"index 5 .* range \({recorded}\)"):
            part.get_rewards(5)
        part.add_env_step(np.zeros(2), 0, 1.0)
