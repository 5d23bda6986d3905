"""Connectors one by one: what they make of observations and rewards, and what they refuse."""

import random
import re
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.batched import Batched
from support.compare import join
from support.replay import make_config
from support.scripted import Step, scripted
from support.short_episodes import MODULE, NESTED, Later, Short, assert_moments, clock, make_runner, parts_of, stats_of
from support.worlds import make_world

import fastmarl
from fastmarl.connectors import (
    AgentIndicator,
    EnvToModuleConnector,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PrevActionsPrevRewards,
    stack_frames,
)
from fastmarl.errors import ConfigError, ConnectorError, EpisodeError, ObservationError

# Flattening, frames, previous actions and rewards.


def test_flat_observations_are_gymnasiums():
    runner = make_runner(FlattenObservations(), env_config={"space": NESTED})
    space = runner.get_spaces()[MODULE][0]
    assert (space.shape, space.dtype) == (gym.spaces.flatten_space(NESTED).shape, np.float32)
    (part,) = parts_of(runner.sample(num_episodes=1))
    want = np.array([gym.spaces.flatten(NESTED, value) for value in runner.env.envs[0].sent], np.float32)
    np.testing.assert_array_equal(part.get_observations(), want)
    assert all(space.contains(row) for row in part.get_observations())
    masks = [value["action_mask"].tolist() for value in runner.env.envs[0].sent[:-1]]
    assert part.get_extra_model_outputs("action_mask").tolist() == np.array(masks, bool).tolist()
    assert all(mask[action] for mask, action in zip(masks, part.get_actions(), strict=True))


@pytest.mark.parametrize("random_actions", [False, True])
def test_masks_are_found_behind_any_connector(random_actions):
    chain = [PrevActionsPrevRewards(), MeanStdFilter(), FrameStacking(2)]
    runner = make_runner(chain, env_config={"space": NESTED})
    for part in parts_of(runner.sample(num_timesteps=40, random_actions=random_actions)):
        masks = part.get_extra_model_outputs("action_mask")
        assert masks[np.arange(len(part)), part.get_actions()].all()
        assert (part.get_observations()["_orig_obs"]["action_mask"][:-1] == masks).all()


def test_images_are_stacked_by_channels_and_views_where_memory_allows():
    space = gym.spaces.Box(0, 255, (4, 5, 1), np.uint8)
    runner = make_runner(FrameStacking(3), env_config={"space": space})
    assert runner.get_spaces()[MODULE][0] == gym.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    runner.sample(num_timesteps=3)
    (part,) = parts_of(runner.sample(num_timesteps=2))
    frames, sent = stack_frames(part, 3), runner.env.envs[0].sent
    assert frames.tolist() == [np.concatenate(sent[t - 2 : t + 1], -1).tolist() for t in (3, 4, 5)]
    assert np.shares_memory(frames, part.get_observations())
    assert stack_frames(part, 3, [1]).tolist() == frames[1:2].tolist()
    assert part.get_observations().shape == (3, 4, 5, 1)


def test_modules_with_memory_see_stacks_too():
    model_config = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]}
    runner = make_runner([MeanStdFilter(), FrameStacking(2)], model_config=model_config)
    for _ in range(3):
        (part,) = parts_of(runner.sample(num_timesteps=1))
    state_in = {key: torch.as_tensor(leaf) for key, leaf in part.get_extra_model_outputs("state_in").items()}
    batch = {"obs": torch.as_tensor(stack_frames(part, 2)[:1]).unsqueeze(1), "state_in": state_in}
    outputs = runner.module[MODULE].forward_inference(batch)
    want = part.get_extra_model_outputs("action_dist_inputs")
    np.testing.assert_allclose(outputs["action_dist_inputs"].detach().numpy()[:, 0], want, rtol=1e-5, atol=1e-7)


def test_stacks_of_slices_need_spaces_and_enough_lookback():
    runner = make_runner(FrameStacking(3), env_config={"length": 9})
    (part,) = parts_of(runner.sample(num_episodes=1))
    whole = stack_frames(part, 3)
    np.testing.assert_array_equal(stack_frames(part.slice(slice(4, 7), len_lookback_buffer=2), 3), whole[4:8])
    np.testing.assert_array_equal(stack_frames(part.slice(slice(1, 7), len_lookback_buffer=2), 3), whole[1:8])
    with pytest.raises(EpisodeError, match="len_lookback_buffer=2"):
        stack_frames(part.slice(slice(4, 7), len_lookback_buffer=1), 3)
    with pytest.raises(EpisodeError, match="no observation_space"):
        stack_frames(fastmarl.SingleAgentEpisode.from_state(part.get_state()), 3)


@pytest.mark.parametrize("seed", range(20))
def test_agents_are_indicated(seed):
    """In worlds where agents join, leave and come back, and lanes change hands."""
    world = replace(make_world(random.Random(seed)), declared=True)
    agents = random.Random(seed).sample(world.agents, len(world.agents))
    chain = [FlattenObservations(), AgentIndicator(agents)]
    config, _ = make_config(world, policies=dict.fromkeys(world.obs_kinds), env_to_module_connector=chain)
    runner = fastmarl.MultiAgentEnvRunner(config)
    parts = [
        (agent, part)
        for call in world.calls
        for episode in runner.sample(**call.kwargs, random_actions=True)
        for agent, part in episode.agent_episodes.items()
    ]
    assert parts
    for agent, part in parts:
        indicators = part.get_observations()[:, -len(agents) :]
        assert indicators.tolist() == [[float(each == agent) for each in agents]] * len(indicators)


def test_indicated_observations_begin_with_those_of_the_env():
    space = gym.spaces.Box(-5, 5, (3,), np.float64)
    runner = make_runner(AgentIndicator(["agent_0"]), env_config={"space": space})
    made = runner.get_spaces()[MODULE][0]
    assert made == gym.spaces.Box(np.float32([-5, -5, -5, 0]), np.float32([5, 5, 5, 1]))
    (part,) = parts_of(runner.sample(num_episodes=1))
    sent = np.array(runner.env.envs[0].sent, np.float32)
    np.testing.assert_array_equal(part.get_observations()[:, :-1], sent)
    assert all(made.contains(row) for row in part.get_observations())


def test_an_agent_without_an_indicator():
    runner = make_runner(AgentIndicator(["agent_1", "agent_0"]), env_config={"n_agents": 3})
    with pytest.raises(ObservationError, match=r"agent 'agent_2'.* for agents \['agent_1', 'agent_0'\]; pass all"):
        runner.sample(num_timesteps=3)


@pytest.mark.parametrize("kind", ["dicts", "processes", "arrays"])
def test_float64_is_normalised_before_it_is_rounded(kind):
    seconds = 1.7e9 + 60.0 * np.arange(51)
    seen = np.array([(seconds[t] - seconds[: t + 1].mean()) / (seconds[: t + 1].std() + 1e-8) for t in range(51)])
    env = (lambda config: Batched([clock()], ["a"])) if kind == "arrays" else clock
    in_processes = {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}
    options = in_processes if kind == "processes" else {}
    with make_runner(MeanStdFilter(), env=env, module=Later(), model_config={}, **options) as runner:
        (part,) = parts_of(runner.sample(num_episodes=1))
        found = part.get_observations()["seconds"][:, 0]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, seen, rtol=1e-5)
        policy = fastmarl.Policy.from_runner(runner)
    actions = [policy.act({"seconds": np.array([1.7e9 + t])}) for t in (1480, 1520)]
    assert actions == [0, 1]  # the mean is at 1500


@pytest.mark.parametrize("fragment", [1, 5])
def test_previous_actions_and_rewards(fragment):
    runner = make_runner(PrevActionsPrevRewards(n_prev_rewards=3), clip_rewards=(-1.0, 3.0))
    chunks = [chunk for _ in range(5 // fragment) for chunk in runner.sample(num_timesteps=fragment)]
    (part,) = parts_of([join(chunks)])
    obs, actions = part.get_observations(), part.get_actions()
    assert obs["prev_n_actions"].tolist() == [[0, 0, 0], *np.eye(3)[actions].tolist()]
    assert obs["prev_n_rewards"].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 3], [3, 3, 3]]
    assert part.get_rewards().tolist() == [1, 2, 3, 3, 3]


# Rewards.


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({}, [3, -2, 0.5]),
        ({"clip_rewards": False}, [3, -2, 0.5]),
        ({"clip_rewards": True}, [1, -1, 1]),
        ({"clip_rewards": 1.0}, [1, -1, 0.5]),
        ({"clip_rewards": (-1.5, 9)}, [3, -1.5, 0.5]),
        ({"reward_scale": 2.0}, [6, -4, 1]),
        ({"reward_scale": -0.5, "clip_rewards": 1}, [-1, 1, -0.25]),
    ],
)
def test_rewards_are_scaled_then_clipped_and_metrics_have_the_envs_own(options, recorded):
    runner = make_runner(None, env_config={"rewards": [3, -2, 0.5], "length": 3}, **options)
    (episode,) = runner.sample(num_episodes=1)
    assert parts_of([episode])[0].get_rewards().tolist() == recorded
    assert episode.get_return() == sum(recorded)
    assert runner.get_metrics()["episode_return_mean"] == 1.5


AGENT = "agent_0"
# The agent observes only every third step and receives a reward of 1 in each.
WAITING = [Step([] if t % 3 else [AGENT], {AGENT: 1.0}, terminated=t == 12) for t in range(13)]


@pytest.mark.parametrize("fragment", [1, 2, 12])
def test_rewards_of_waiting_agents_are_summed_before_they_are_clipped(fragment):
    runner = make_runner(PrevActionsPrevRewards(), env=scripted(WAITING), clip_rewards=2.5)
    episodes = [episode for _ in range(12 // fragment) for episode in runner.sample(num_timesteps=fragment)]
    assert [reward for part in parts_of(episodes) for reward in part.get_rewards()] == [2.5] * 4
    if fragment == 2:
        assert [episode.get_return(include_hanging_rewards=True) for episode in episodes] == [2, 3.5, 2.5, 2, 3.5, 2.5]
    assert runner.get_metrics()["episode_return_mean"] == 12


# What is refused.


@pytest.mark.parametrize(
    ("connector", "problem"),
    [
        (MeanStdFilter, "pass an instance: MeanStdFilter()"),
        ("MeanStdFilter", "expected fastmarl.connectors.EnvToModuleConnector, got 'MeanStdFilter'"),
        (
            [FrameStacking(2), MeanStdFilter()],
            "MeanStdFilter needs recorded observations, so it must come before FrameStacking",
        ),
        ([FrameStacking(2), FrameStacking(2)], "must come before FrameStacking"),
        ({"nobody": MeanStdFilter()}, "unknown module ids ['nobody']"),
        ([FlattenObservations(), MeanStdFilter(), PrevActionsPrevRewards()], None),
        (lambda env, spaces, device: [MeanStdFilter(), FrameStacking(len(spaces))], None),
        (lambda env, spaces, device: None, None),
    ],
)
def test_connectors_are_checked_when_the_runner_is_made(connector, problem):
    if problem is None:
        make_runner(connector).sample(num_timesteps=3)
    else:
        with pytest.raises(ConfigError, match=re.escape(problem)):
            make_runner(connector)


@pytest.mark.parametrize("connector", [MeanStdFilter(), FrameStacking(2)])
def test_spaces_without_boxes(connector):
    with pytest.raises(ConfigError, match="found no Box in Discrete"):
        make_runner(connector, env_config={"space": gym.spaces.Discrete(3)})


def test_connectors_need_the_envs_spaces():
    def env(config):
        made = Short(config)
        made.possible_agents = []
        del made.observation_spaces, made.action_spaces
        return made

    with pytest.raises(ConfigError, match="define observation_space and action_space in the env, as its connectors"):
        fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, env_to_module_connector=FlattenObservations()))


def test_bad_options():
    for make in (
        lambda: MeanStdFilter(clip_by_value=0),
        lambda: FrameStacking(0),
        lambda: AgentIndicator([]),
        lambda: AgentIndicator("agent_0"),
        lambda: AgentIndicator(["agent_0", "agent_0"]),
        lambda: make_runner(AgentIndicator(["agent_0"]), env_config={"space": gym.spaces.Discrete(3)}),
        lambda: PrevActionsPrevRewards(n_prev_actions=-1),
        lambda: PrevActionsPrevRewards(n_prev_actions=0, n_prev_rewards=0),
        lambda: make_runner(None, reward_scale=0),
        lambda: make_runner(None, clip_rewards=-1.0),
        lambda: make_runner(None, clip_rewards=(1.0, 0.0)),
        lambda: make_runner(FlattenObservations(), env_config={"space": gym.spaces.Text(3)}),
    ):
        with pytest.raises(ConfigError):
            make()


def test_a_module_that_takes_something_else():
    module = torch.nn.Linear(3, 3)
    module.observation_space, module.action_space = gym.spaces.Box(-5, 5, (3,)), gym.spaces.Discrete(3)
    with pytest.raises(ConfigError, match="but its connectors return"):
        make_runner(FrameStacking(2), module=module, model_config={})


@pytest.mark.parametrize(
    ("connector", "space", "bad", "problem"),
    [
        (MeanStdFilter(), gym.spaces.Box(-1, 1, (2,)), np.array([0, np.nan], np.float32), "needs finite numbers"),
        (FlattenObservations(), gym.spaces.MultiDiscrete([2, 2]), np.array([0, 2]), "[0 2] is not in MultiDiscrete"),
    ],
)
def test_errors_of_bad_observations_name_env_agent_and_step(connector, space, bad, problem):
    env_config = {"space": space, "bad_at": {"t": 2, "obs": bad}, "n_agents": 2}
    runner = make_runner(connector, env_config=env_config, disable_env_checking=True)
    with pytest.raises(ObservationError, match=re.escape(problem)) as caught:
        runner.sample(num_timesteps=9)
    assert caught.value.args[:3] == (0, "agent_1", 2)
    runner.env.envs[0].config = {**env_config, "bad_at": {}}
    assert runner.sample(num_episodes=1)


class Wrong(EnvToModuleConnector):
    def __init__(self, made):
        self.made = made

    def __call__(self, obs, rows):
        return self.made(obs)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda obs: obs[:, :2], "expected obs of shape (1, 3) and dtype float32"),
        (lambda obs: obs[0], "got float32 of shape (3,)"),
        (lambda obs: obs.astype(complex), "complex128"),
        (lambda obs: None, "got NoneType"),
    ],
)
def test_a_connector_that_breaks_its_promise(made, problem):
    with pytest.raises(ConnectorError, match=re.escape(problem)) as caught:
        make_runner(Wrong(made)).sample(num_timesteps=1)
    assert caught.value.args[:2] == (MODULE, "Wrong")


def test_a_connector_without_the_parts_it_promised():
    with pytest.raises(ConnectorError, match="expected arrays nested like Dict"):
        make_runner(Wrong(lambda obs: {"z": obs["z"]}), env_config={"space": NESTED}).sample(num_timesteps=1)


# Real environments.


@pytest.mark.needs("mpe2")
def test_simple_spread_normalised_is_simple_spread():
    def runner_with(connector):
        config = fastmarl.EnvRunnerConfig(
            env="mpe2.simple_spread_v3", num_envs_per_env_runner=3, env_to_module_connector=connector, seed=5
        )
        return fastmarl.MultiAgentEnvRunner(config)

    raw, connected = runner_with(None), runner_with([MeanStdFilter(clip_by_value=None), FrameStacking(2)])
    rows = [part.get_observations() for part in parts_of(raw.sample(num_timesteps=30, random_actions=True))]
    connected.sample(num_timesteps=30, random_actions=True)
    assert_moments(stats_of(connected), np.concatenate(rows).astype(np.float64))
    frames = stack_frames(parts_of(connected.sample(num_timesteps=30))[0], 2)
    assert frames.shape[1] == 2 * rows[0].shape[1]


@pytest.mark.needs("pettingzoo")
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_connect_four_flat_with_its_masks():
    config = fastmarl.EnvRunnerConfig(
        env="pettingzoo.classic.connect_four_v3", env_to_module_connector=FlattenObservations()
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    assert runner.get_spaces()[MODULE][0].shape == (6 * 7 * 2 + 7,)
    for part in parts_of(runner.sample(num_timesteps=200)):  # the game ends with an illegal move
        masks = part.get_extra_model_outputs("action_mask")
        assert masks[np.arange(len(part)), part.get_actions()].all()
        np.testing.assert_array_equal(part.get_observations()[:-1, :7], masks)
