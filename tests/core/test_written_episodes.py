"""Callbacks write to episodes: the record has it, as far as that is possible."""

import copy
import math
import pickle
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.scripted import Step, scripted

import fastmarl
from fastmarl.batches import columns
from fastmarl.connectors import FrameStacking
from fastmarl.episodes import MultiAgentEpisode, SingleAgentEpisode
from fastmarl.errors import EpisodeError

BOX = gym.spaces.Box(-100, 100, (2,), np.float32)
NESTED = gym.spaces.Dict({"x": BOX, "y": gym.spaces.Tuple([gym.spaces.Discrete(50)])})


def turns(space=BOX, see=None):
    """Make an env of 5 steps, in which "fast" is observed in every step, "slow" in every second."""
    both, rewards = ["fast", "slow"], {"fast": 1.0, "slow": 0.5}
    steps = [Step(both[: 2 - t % 2], rewards, truncated=t == 5) for t in range(6)]
    return scripted(steps, space=space, see=see)


TURNS = turns()


def sample(num_timesteps=5, times=1, env=TURNS, **options):
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, seed=0, **options)) as runner:
        episodes = [episode for _ in range(times) for episode in runner.sample(num_timesteps=num_timesteps)]
        return episodes, runner.get_metrics()


def on_step(function):
    return {"callbacks_on_episode_step": lambda episode, **kwargs: function(episode)}


def test_an_episode_is_over_in_its_last_step():
    seen = []

    def look(episode, **kwargs):
        seen.append((episode.env_t, episode.is_done, episode.is_truncated, episode.get_truncateds()["__all__"]))
        assert not episode.is_terminated and episode.get_agents_to_act() <= {"fast", "slow"}
        assert bool(episode.get_agents_to_act()) is not episode.is_done

    sample(12, callbacks_on_episode_start=look, callbacks_on_episode_step=look)
    assert seen == [(t % 6, *[t % 6 == 5] * 3) for t in range(len(seen))] and len(seen) == 15


def test_rewards_are_on_record_in_batches_and_in_metrics():
    def write(episode):
        episode.set_rewards(new_data={"fast": episode.env_t * 10.0}, at_indices=-1)
        assert episode.get_rewards(-1)["fast"] == episode.env_t * 10

    (episode,), metrics = sample(**on_step(write))
    assert episode.get_rewards()["fast"].tolist() == [10, 20, 30, 40, 50]
    assert episode.get_rewards()["slow"].tolist() == [1.0, 1.0, 0.5]
    assert columns([episode])["default_policy"]["rewards"].sum() == 152.5
    assert metrics["episode_return_mean"] == 152.5
    assert metrics["agent_episode_returns_mean"] == {"fast": 150, "slow": 2.5}


@pytest.mark.parametrize("space", [BOX, NESTED])
def test_observations_are_on_record_also_the_last(space):
    written = {"x": np.full(2, 7), "y": (np.int64(3),)} if space is NESTED else [7, 7]
    (episode,), _ = sample(
        env=turns(NESTED, lambda agent, t: {"x": np.full(2, t), "y": (t,)}) if space is NESTED else TURNS,
        **on_step(lambda episode: episode.set_observations(new_data={"fast": written}, at_indices=-1)),
    )
    seen = episode.agent_episodes["fast"].get_observations()
    values = seen["x"] if space is NESTED else seen
    assert values[:, 0].tolist() == [0, 7, 7, 7, 7, 7]
    if space is NESTED:
        assert seen["y"][0].tolist() == [0, 3, 3, 3, 3, 3]
    assert episode.agent_episodes["slow"].env_ts().tolist() == [0, 2, 4, 5]


def test_the_module_acts_upon_written_observations():
    def logits(write):
        options = {"callbacks_on_episode_start": write, "callbacks_on_episode_step": write} if write else {}
        (episode,), _ = sample(explore=False, **options)
        return episode.get_extra_model_outputs("action_dist_inputs")["fast"]

    def write(episode, **kwargs):
        episode.set_observations(new_data={"fast": [9.0, 9.0]}, at_indices=-1)

    written, plain = logits(write), logits(None)
    assert (written == written[0]).all()
    assert not (plain == plain[0]).all()


def test_actions_and_outputs_are_on_record():
    def write(episode):
        episode.set_actions(new_data={"fast": 2}, at_indices=-1)
        episode.set_extra_model_outputs(key="action_logp", new_data={"fast": -7.0}, at_indices=-1)

    (episode,), _ = sample(**on_step(write))
    fast = episode.agent_episodes["fast"]
    assert fast.get_actions().tolist() == [2] * 5
    assert fast.get_extra_model_outputs("action_logp").tolist() == [-7] * 5
    with pytest.raises(KeyError, match="no extra model output 'mine'"):
        sample(**on_step(lambda e: e.set_extra_model_outputs(key="mine", new_data={"fast": 1.0}, at_indices=-1)))


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("fastmarl.simple_spread", {"num_envs_per_env_runner": 2}),
        ("fastmarl.simple_spread", {"num_envs_per_env_runner": 2, "episode_lookback_horizon": 3}),
        (TURNS, {"num_envs_per_env_runner": 3, "env_to_module_connector": lambda *_: [FrameStacking(2)]}),
    ],
)
def test_of_all_kinds_of_envs(env, options):
    def write(episode):
        for steps in episode.agent_episodes.values():
            if len(steps):
                steps.set_rewards(new_data=steps.env_ts()[-1] * 1.0, at_indices=-1)

    episodes, metrics = sample(40, times=3, env=env, **options, **on_step(write))
    assert len(episodes) > 6
    for episode in episodes:
        for steps in episode.agent_episodes.values():
            assert steps.get_rewards().tolist() == steps.env_ts()[steps.lookback + 1 :].tolist()
    assert metrics["episode_return_mean"] > 0


def test_the_lookback_of_a_chunk_is_its_own():
    def write(episode):
        if episode.env_t_started:
            episode.set_rewards(new_data={"fast": 99.0}, at_indices=-1, neg_index_as_lookback=True)

    episodes, metrics = sample(2, times=3, **on_step(write))
    first, second = (episode.agent_episodes["fast"] for episode in episodes[:2])
    assert first.get_rewards().tolist() == [1, 1]
    assert second.get_rewards(slice(-1, None), neg_index_as_lookback=True).tolist() == [99, 1, 1]
    assert metrics["agent_episode_returns_mean"]["fast"] == 5


def test_a_running_episode_shows_all_agents_and_waiting_actions():
    seen = []

    def note(episode, **kwargs):
        seen.append((sorted(episode.agent_ids), episode.get_actions(-1) if episode.env_t else None, len(episode)))
        assert episode.observation_space == dict.fromkeys(episode.agent_ids, BOX)
        assert pickle.loads(pickle.dumps(episode)).open_actions().keys() == episode.open_actions().keys()

    (episode,), _ = sample(callbacks_on_episode_start=note, callbacks_on_episode_step=note)
    assert [(agents, steps) for agents, _, steps in seen[:6]] == [(["fast", "slow"], steps) for steps in range(6)]
    assert [sorted(actions) for _, actions, _ in seen[1:6]] == [["fast", "slow"], ["fast"], ["fast", "slow"],
                                                               ["fast"], ["fast", "slow"]]  # fmt: skip
    assert seen[1][1]["slow"] == episode.agent_episodes["slow"].get_actions(0)


def test_running_episodes_of_array_envs_show_how_they_end():
    seen = []
    note = on_step(lambda episode: seen.append((episode.is_terminated, episode.is_truncated)))
    episodes, _ = sample(60, env="fastmarl.gridworld", env_config={"max_steps": 20}, **note)
    ends = [(episode.is_terminated, episode.is_truncated) for episode in episodes if episode.is_done]
    assert [flags for flags in seen if any(flags)] == ends != []


def test_at_the_end_of_an_episode_and_of_a_call():
    def at_end(episode, **kwargs):
        episode.set_rewards(new_data={"fast": [2.0] * len(episode.agent_episodes["fast"])})

    def after(samples, **kwargs):
        before.append(samples[0].get_rewards()["fast"])
        samples[0].set_rewards(new_data={"slow": 8.0}, at_indices=0)
        samples[0].set_rewards(new_data={"fast": 3.0}, at_indices=0)

    before = []
    (episode,), metrics = sample(callbacks_on_episode_end=at_end, callbacks_on_sample_end=after)
    assert episode.get_rewards()["fast"].tolist() == [3, 2, 2, 2, 2]
    assert columns([episode])["default_policy"]["rewards"].sum() == 11 + 9.5 - 0.0
    assert metrics["agent_episode_returns_mean"]["fast"] == 10  # what was written after the call does not count
    assert before[0].tolist() == [2] * 5  # and arrays of the call stay


def test_connectors_of_rewards():
    options = {"reward_scale": 2.0}
    with pytest.raises(EpisodeError, match="rewards are read-only with reward_scale or clip_rewards"):
        sample(**options, **on_step(lambda e: e.set_rewards(new_data={"fast": 1.0}, at_indices=-1)))
    (episode,), _ = sample(
        **options,
        callbacks_on_episode_end=lambda episode, **kwargs: episode.set_rewards(new_data={"fast": 9.0}, at_indices=-1),
    )
    assert episode.get_rewards()["fast"].tolist() == [2, 2, 2, 2, 9]


@pytest.mark.parametrize(
    ("write", "error", "text"),
    [
        (lambda e: e.add_env_step({}, {}, {}), EpisodeError, "still running in a runner, which adds its steps"),
        (lambda e: e.agent_episodes["fast"].add_env_step(0, 0, 0), EpisodeError, "still running in a runner"),
        (lambda e: e.agent_episodes["fast"].infos.set([{}], at_indices=[0]), EpisodeError, "infos are read-only"),
        (lambda e: e.set_rewards(new_data={"none": 1.0}), KeyError, "no steps of agents"),
        (lambda e: e.set_rewards(new_data={"fast": 1.0}, at_indices=7), IndexError, "no rewards at indices .7."),
        (lambda e: e.set_rewards(new_data={"fast": [1.0] * 9}), IndexError, "expected 1 items in new_data, got 9"),
        (lambda e: e.set_observations(new_data={"fast": [1.0]}, at_indices=0), EpisodeError, "float32 and shape .2,."),
        (
            lambda e: e.set_actions(new_data={"fast": 0.5}, at_indices=0),
            EpisodeError,
            "actions: int64 cannot represent .*0.5",
        ),
    ],
)
def test_invalid_writes_are_errors(write, error, text):
    with pytest.raises(error, match=text):
        sample(**on_step(write))


def grown(**outputs):
    """Return an agent episode with columns of several dtypes, and with these outputs."""
    steps = SingleAgentEpisode(agent_id="a")
    steps.add_env_reset({"x": np.zeros(2, np.int8), "y": (np.float16(0), np.uint64(0))})
    for _ in range(3):
        obs = {"x": np.zeros(2, np.int8), "y": (np.float16(0), np.uint64(0))}
        outputs = {"f": np.float32(0), "i": np.int32(0), "b": np.bool_(False), "t": np.array("abc")} | outputs
        steps.add_env_step(obs, np.int64(0), 0.0, extra_model_outputs=outputs)
    return steps


def observed(**changed):
    return {"x": np.int8([0, 0]), "y": (np.float16(0), np.uint64(0)), **changed}


MISFITS = {
    "too large": ("observations", observed(x=np.array([300, -200])), ".* int8 cannot represent .*300.* of dtype int64"),
    "in a float16": ("observations", observed(y=(7e4, np.uint64(0))), ".* float16 cannot represent .*7"),
    "below zero": ("observations", observed(y=(0.0, -1)), "observations: uint64 cannot represent .*-1"),
    "fraction": ("actions", 0.5, "actions: int64 cannot represent .*0.5"),
    "NaN": ("actions", math.nan, "actions: int64 cannot represent .*nan"),
    "2**63": ("actions", 2**63, "actions: int64 cannot represent .*9223372036854775808"),
    "2**99": ("actions", 2**99, "actions: int64 cannot represent .* of dtype object"),
    "complex": ("rewards", 1 + 2j, "rewards: float64 cannot represent .*1.*2j.* of dtype complex128"),
    "text": ("rewards", "1", "rewards: float64 cannot represent .*'1'"),
    "None": ("rewards", None, "rewards: float64 cannot represent None of dtype object"),
    "to infinity": ("f", 1e300, "f: float32 cannot represent .*1e.300.* of dtype float64"),
    "digits of an integer": ("f", 2**24 + 1, "f: float32 cannot represent .*16777217"),
    "float": ("i", 1e20, "i: int32 cannot represent .*1e.20"),
    "truth": ("b", 2, "b: bool cannot represent .*2"),
    "long text": ("t", "abcd", "t: <U3 cannot represent .*'abcd'"),
}


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("what", MISFITS)
def test_a_value_that_a_column_can_not_hold_is_not_written(what, as_list):
    column, value, text = MISFITS[what]
    steps = grown()
    before = copy.deepcopy(steps.get_state())
    setter = getattr(steps, f"set_{column}", None) or partial(steps.set_extra_model_outputs, key=column)
    with pytest.raises(EpisodeError, match=f"agent 'a', episode '.*', {text}"):
        setter(new_data=[value] if as_list else value, at_indices=[1] if as_list else 1)
    assert_same(steps.get_state(), before)


def test_values_of_other_dtypes_are_written_if_the_column_holds_them():
    steps = grown(o=None)
    steps.set_actions(new_data=[2.0, True], at_indices=[0, 1])
    steps.set_rewards(new_data=[1e300, -math.inf, 2**53], at_indices=[0, 1, 2])
    steps.set_extra_model_outputs(key="f", new_data=[0.1, math.nan, math.inf])
    steps.set_extra_model_outputs(key="b", new_data=1, at_indices=2)
    steps.set_extra_model_outputs(key="o", new_data="anything", at_indices=2)
    assert steps.get_actions().tolist() == [2, 1, 0]
    assert steps.get_rewards().tolist() == [1e300, -math.inf, 2**53]
    np.testing.assert_array_equal(steps.get_extra_model_outputs("f"), np.float32([0.1, math.nan, math.inf]))
    assert steps.get_extra_model_outputs("b").tolist() == [False, False, True]
    assert steps.get_extra_model_outputs("o").tolist() == [None, None, "anything"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"action": "1"}, "action: .* cannot represent"),
        ({"action": np.uint64(2**63 + 1)}, "action: float64 cannot represent .*9223372036854775809"),
        ({"action": None}, "action: int64 cannot represent None"),
        ({"reward": "1"}, "reward: float64 cannot represent .*'1'"),
        ({"reward": 2j}, "reward: float64 cannot represent"),
        ({"reward": [1.0, 2.0]}, "reward: expected one number"),
        ({"observation": observed(x=[1, "2"])}, "observation: .* cannot represent"),
        ({"extra_model_outputs": {"t": 5}}, "extra model output 't': .* cannot represent"),
    ],
)
def test_an_item_that_fits_no_dtype_of_its_column_is_not_added(change, text):
    steps = grown()
    before = copy.deepcopy(steps.get_state())
    with pytest.raises(EpisodeError, match=text):
        steps.add_env_step(**{"observation": observed(), "action": 1, "reward": 0.0, **change})
    assert_same(steps.get_state(), before)
    steps.add_env_step(observed(x=np.array([300, 0])), 1.5, 2.0)  # a wider dtype holds all
    assert steps.get_observations(-1)["x"].tolist() == [300, 0]
    assert steps.get_actions().tolist() == [0, 0, 0, 1.5]


def test_rewards_of_agents_must_be_numbers():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    with pytest.raises(EpisodeError, match=r"env step 1, reward of agent 'a': float64 cannot represent .*'1'"):
        episode.add_env_step({"a": 1}, {"a": 0}, {"a": "1"})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": None})
    assert episode.get_rewards()["a"].tolist() == [0.0]
    with pytest.raises(EpisodeError, match="reward: float64 cannot represent"):
        SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=["1"])


def test_a_copy_of_a_running_episode_can_be_added_to():
    copies = []
    sample(**on_step(lambda episode: copies.append(copy.deepcopy(episode))))
    made = copies[0]
    assert type(made) is MultiAgentEpisode
    made.add_env_step({"fast": np.zeros(2), "slow": np.ones(2)}, {"fast": 1}, {"fast": 2.0, "slow": 4.0})
    assert made.get_rewards()["slow"].tolist() == [4.5]
    assert made.get_rewards()["fast"].tolist() == [1, 2]


def test_a_chunk_of_a_runner_goes_on():
    (chunk, *_), _ = sample(3)
    assert chunk.get_actions()["slow"].shape == (1,)
    following = chunk.cut(1)
    assert following.get_actions(-1, neg_index_as_lookback=True)["slow"] >= 0  # which it gave at env step 2
    for episode in (chunk, following):
        episode.add_env_step({"slow": np.ones(2)}, {"fast": 1}, {"slow": 4.0}, truncateds={"__all__": True})
        assert episode.agent_episodes["slow"].get_rewards()[-1] == 4.5
        assert episode.is_done and not episode.is_terminated
    assert len(chunk) == 4 and len(following) == 1
    assert following.agent_episodes["slow"].env_ts().tolist() == [2, 4]


def test_ids_and_mapping_functions_are_set_before_the_first_step():
    def created(episode, env_index, **kwargs):
        episode.id_ = f"env {env_index}"
        episode.agent_to_module_mapping_fn = lambda agent, episode, **kwargs: f"p{episode.id_[-1]}"

    episodes, _ = sample(
        10,
        num_envs_per_env_runner=2,
        policies={"p0": None, "p1": None},
        policy_mapping_fn=lambda agent, episode, **kwargs: "p0",
        callbacks_on_episode_created=created,
    )
    assert [(episode.id_, episode.module_for("fast")) for episode in episodes] == [("env 0", "p0"), ("env 1", "p1")]
    assert episodes[1].agent_episodes["slow"].id_ == "env 1_slow"


@pytest.mark.parametrize(
    "options", [{}, {"num_env_workers": 2, "gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}]
)
def test_the_vector_of_envs(options):
    found = []

    def note(env, env_index, env_runner, **kwargs):
        assert env.unwrapped is env and env.num_envs == 4 == len(env.envs)
        assert env.envs[env_index].unwrapped.possible_agents == ["fast", "slow"]
        found.append(env_runner.num_env_steps_sampled_lifetime)

    sample(8, times=2, num_envs_per_env_runner=4, callbacks_on_episode_step=note, **options)
    assert sorted(set(found)) == [0, 8]


def test_temporary_data_is_custom_data():
    (episode,), _ = sample(**on_step(lambda episode: episode.add_temporary_timestep_data("t", episode.env_t)))
    assert episode.get_temporary_timestep_data("t") == episode.custom_data["t"] == [1, 2, 3, 4, 5]
