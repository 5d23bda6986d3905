"""Episodes that are built by hand, where RLlib's class is wrong, refuses, or has nothing to compare."""

import copy
import pickle

import numpy as np
import pytest
from support.histories import everything, same

from fastmarl.batches import columns
from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode
from fastmarl.errors import EpisodeError


def begun(*agents, **fields):
    episode = MultiAgentEpisode("e", **fields)
    episode.add_env_reset(observations={agent: np.zeros(2, np.float32) for agent in agents})
    return episode


def step(episode, acting="", seen="", rewards=None, **ends):
    """Add a step in which all actions are 1, rewards 1.0, and observations the env step."""
    at = episode.env_t + 1
    observations = {agent: np.full(2, at, np.float32) for agent in seen}
    rewards = dict.fromkeys(acting, 1.0) if rewards is None else rewards
    episode.add_env_step(observations, dict.fromkeys(acting, 1), rewards, **ends)
    return episode


def ends_of(episode):
    return episode.get_terminateds(), episode.get_truncateds()


def test_a_time_limit_is_no_termination():
    episode = step(begun("a", "b"), "ab", "ab", truncateds={"__all__": True})
    assert ends_of(episode) == (
        {"a": False, "b": False, "__all__": False},
        {"a": True, "b": True, "__all__": True},
    )
    episode = step(begun("a", "b"), "ab", "ab", truncateds={"a": True, "b": True})  # RLlib: terminated, and over
    assert not episode.is_done and episode.agent_episodes["a"].is_truncated
    assert not episode.agent_episodes["a"].is_terminated


def test_own_flags_win_over_those_of_the_env():
    episode = step(begun("a", "b"), "ab", "ab", terminateds={"a": True}, truncateds={"__all__": True})
    assert ends_of(episode) == (
        {"a": True, "b": False, "__all__": False},
        {"a": False, "b": True, "__all__": True},
    )


@pytest.mark.parametrize("flags", [{"terminateds": {"b": True}}, {"truncateds": {"b": True}}])
@pytest.mark.parametrize("is_cut", [False, True])
def test_an_agent_that_ends_while_it_waits_has_its_last_observation_again(flags, is_cut):
    episode = step(step(begun("a", "b"), "ab", "a"), "a", "a", rewards={"a": 1.0, "b": 0.5})
    episode = episode.cut(1) if is_cut else episode
    step(episode, "a", "a", rewards={"a": 1.0, "b": 0.25}, **flags)
    steps = episode.agent_episodes["b"]
    assert steps.is_done and steps.get_rewards().tolist() == [1.75]
    assert steps.env_ts().tolist() == [0, 3]
    assert steps.get_observations().tolist() == [[0, 0], [0, 0]]
    assert episode.get_agents_to_act() == {"a"}


def test_rewards_before_the_first_action_belong_to_the_first_transition():
    episode = step(begun("a"), "a", "a", rewards={"a": 1.0, "b": 0.5})
    step(episode, "a", "ab", rewards={"a": 1.0, "b": 0.25})
    assert episode.get_return(True) == 2.75 and episode.get_return() == 2
    assert step(episode, "ab", "ab").get_rewards()["b"].tolist() == [1.75]


def test_a_cut_without_lookback_keeps_waiting_agents():
    first = step(begun("a", "b"), "ab", "a")
    second = first.cut()
    assert (len(second), second.lookback, second.agent_ids) == (0, 0, {"a", "b"})
    assert second.custom_data is not first.custom_data
    step(second, "a", "ab", rewards={"a": 1.0, "b": 0.5})
    assert second.get_rewards()["a"].tolist() == [1]
    assert second.agent_episodes["b"].get_rewards().tolist() == [1.5]
    first.concat_episode(second)
    assert same(everything(first), everything(step(step(begun("a", "b"), "ab", "a"), "a", "ab", {"a": 1.0, "b": 0.5})))


def test_agents_that_join_in_a_later_chunk_are_found_at_their_env_steps():
    second = step(step(step(begun("a"), "a", "a"), "a", "a").cut(1), "a", "ab")
    step(second, "ab", "ab")
    assert second.get_observations(1)["b"].tolist() == [3, 3]
    assert second.get_actions()["b"].tolist() == [1]
    assert second.env_t_to_agent_t["b"].data == ["S", "S", 0, 1]


def test_slices_keep_flags_and_waiting_agents():
    episode = step(step(step(begun("a", "b"), "ab", "a"), "a", "ab"), "ab", "ab", terminateds={"__all__": True})
    head, tail = episode[:1], episode[1:]
    assert head.get_actions()["b"].tolist() == [1] and head.get_agents_to_act() == {"a"}
    assert not head.is_done and tail.is_terminated
    assert [len(part.agent_episodes["b"]) for part in (head, tail)] == [0, 2]
    head.concat_episode(tail)
    assert same(everything(head), everything(episode))
    assert columns([head]).keys() == columns([episode]).keys()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda e: e.add_env_reset(observations={"a": 0}), "is not empty and at env step 1"),
        (lambda e: step(e, "b", "b"), "agent 'b': acts twice on the same observation"),
        (lambda e: step(e, "c", "c"), "agent 'c': acts before its first observation"),
        (lambda e: step(e, "", "a"), "agent 'a': is observed twice without acting in between"),
        (lambda e: step(e, "d", "d"), "agent 'd': has finished and cannot receive more data"),
        (lambda e: step(e, "a", "a", rewards={"d": 1.0}), "agent 'd': has finished"),
        (
            lambda e: e.add_env_step({"a": np.zeros(3)}, {"a": 1}, {}),
            r"observation: expected shape \(2,\), like earlier items",
        ),
        (lambda e: e.add_env_step({"a": {"x": 1}}, {"a": 1}, {}), "observation: expected shape"),
        (lambda e: e.cut(-1), "len_lookback_buffer must be >= 0, got -1"),
        (lambda e: e.agent_episodes["d"].cut(), "has finished; it has no next chunk"),
        (lambda e: e.agent_episodes["d"].add_env_step(0, 0, 0), "has finished; no more steps can be added"),
        (lambda e: e.agent_episodes["a"].add_env_reset(0), "is not empty: it has 2 observations"),
        (lambda e: SingleAgentEpisode().add_env_step(0, 0, 0), "no observation yet; call add_env_reset"),
        (lambda e: SingleAgentEpisode(observations=[0, 1], rewards=[], actions=[]), "expected 1 items of actions"),
        (lambda e: MultiAgentEpisode(observations=[{"a": 0}, {"a": 1}]), "observed again at env step 1 "),
    ],
)
def test_refused_calls_change_nothing(call, text):
    episode = step(begun("a", "b", "d"), "abd", "ad", terminateds={"d": True})
    before = pickle.dumps(everything(episode))
    with pytest.raises(EpisodeError, match=text):
        call(episode)
    assert pickle.dumps(everything(episode)) == before
    assert step(episode, "a", "ab").get_rewards()["b"].tolist() == [1]


def test_nothing_is_added_to_an_episode_that_is_over():
    episode = step(begun("a"), "a", "a", terminateds={"__all__": True})
    for call in (lambda: step(episode, "a", "a"), episode.cut):
        with pytest.raises(EpisodeError, match="has finished, at env step 1"):
            call()


def test_infos_without_an_observation_are_kept():
    episode = begun("a", "b")
    episode.add_env_step(
        {"a": np.zeros(2)}, {"a": 0, "b": 0}, {}, {"a": {"x": 1}, "b": {"y": 2}, "__common__": {"z": 3}}
    )
    assert episode.get_infos()["a"] == [{}, {"x": 1}]
    assert episode.get_waiting_infos() == {"b": {1: {"y": 2}}}
    assert episode.get_common_infos() == {1: {"z": 3}}


def test_values_are_copied_and_columns_get_wider():
    observation = np.zeros(2, np.float32)
    episode = SingleAgentEpisode("one")
    episode.add_env_reset(observation)
    for t in range(20):
        observation[:] = t
        episode.add_env_step(
            observation, t if t < 19 else 0.5, 1, extra_model_outputs={"x": t} if t > 2 else {"y": {"z": t}}
        )
    assert episode.get_observations()[:, 0].tolist() == [0, *range(20)]
    assert episode.get_actions().tolist() == [*range(19), 0.5]
    assert episode.get_extra_model_outputs("x").tolist() == [0, 0, 0, *range(3, 20)]
    assert episode.get_extra_model_outputs("y")["z"].tolist() == [0, 1, 2, *[0] * 17]
    assert episode.get_rewards().dtype == np.float64


def test_pickles_copies_and_states_can_be_added_to():
    episode = step(begun("a", "b"), "ab", "a")
    for other in (
        pickle.loads(pickle.dumps(episode)),
        copy.deepcopy(episode),
        MultiAgentEpisode.from_state(episode.get_state()),
    ):
        step(other, "a", "ab")
        assert other.agent_episodes["b"].get_rewards().tolist() == [1]
        assert len(other) == 2
    assert len(episode) == 1


def test_buffers_are_the_episodes_columns():
    episode = step(step(begun("a"), "a", "a"), "a", "a")
    steps = episode.cut(1).agent_episodes["a"]
    assert (steps.observations.lookback, len(steps.observations), steps.observations.len_incl_lookback()) == (1, 1, 2)
    assert steps.rewards.get(-1, neg_index_as_lookback=True) == 1
    steps.observations[0] = np.full(2, 9)
    steps.actions.set(5, at_indices=-1, neg_index_as_lookback=True)
    assert steps.observations.data.tolist() == [[1, 1], [9, 9]]
    assert steps.actions.data.tolist() == [5]
    assert episode.get_actions()["a"].tolist() == [1, 1]  # a chunk has copies
    assert steps.extra_model_outputs == {}
    assert steps.infos[0] == {} and steps.observations.finalized


def test_one_agents_chunks():
    episode = SingleAgentEpisode("one", agent_id="a", observations=[0, 1, 2, 3], actions=[0, 1, 2], rewards=[0, 1, 2],
                                 t_started=7, len_lookback_buffer=1)  # fmt: skip
    assert (len(episode), episode.t, episode.lookback) == (2, 9, 1)
    following = episode.cut(2)
    following.add_env_step(4, 3, 3.0, truncated=True)
    assert (following.t_started, following.lookback, following.id_, following.agent_id) == (9, 2, "one", "a")
    assert following.get_actions(slice(-2, None), neg_index_as_lookback=True).tolist() == [1, 2, 3]
    episode.concat_episode(following)
    assert episode.get_observations().tolist() == [1, 2, 3, 4] and episode.is_truncated
