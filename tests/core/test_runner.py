"""The runner as a user meets it: amounts, resets, seeds, callbacks, state, errors."""

import hashlib
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.actors import BOX, Actor, Env, make_runner
from support.scripted import Scripted, Step, counting, scripted

import fastmarl
from fastmarl.errors import (
    ConfigError,
    ModuleOutputError,
    MultiAgentEnvError,
    RunnerStoppedError,
    UnknownModuleError,
)
from fastmarl.modules import DefaultRLModule


def spans(episodes):
    return [(episode.env_t_started, episode.env_t, episode.is_done) for episode in episodes]


def test_amounts():
    runner = make_runner(num_envs_per_env_runner=3)
    assert spans(runner.sample(num_timesteps=10)) == [(0, 4, False)] * 3  # all envs step: 12 >= 10
    assert spans(runner.sample(num_timesteps=21)) == [(4, 10, True)] * 3 + [(0, 1, False)] * 3
    assert runner.sample(num_timesteps=0) == []
    assert spans(runner.sample(num_episodes=2)) == [(0, 10, True)] * 2
    assert spans(runner.sample(num_timesteps=3)) == [(0, 1, False)] * 3
    assert spans(runner.sample(num_timesteps=3, force_reset=True)) == [(0, 1, False)] * 3


def test_default_amounts():
    runner = make_runner(num_envs_per_env_runner=2, rollout_fragment_length=7)
    assert spans(runner.sample()) == [(0, 7, False)] * 2
    runner = make_runner(num_envs_per_env_runner=2, batch_mode="complete_episodes")
    assert spans(runner.sample()) == [(0, 10, True)] * 2
    runner = make_runner(num_envs_per_env_runner=2, count_steps_by="agent_steps", rollout_fragment_length=7)
    assert spans(runner.sample()) == [(0, 4, False)] * 2  # 4 ticks x 4 agents >= 14
    assert len(list(zip(range(3), runner.run(), strict=False))) == 3


def test_every_reset_has_a_seed_of_its_own_and_fresh_episodes_are_not_reset_again():
    runner = make_runner(num_envs_per_env_runner=2)
    envs = runner.env.envs
    runner.sample(num_timesteps=20)
    runner.sample(num_episodes=2)
    seeds = [env.seeds for env in envs]
    assert len({seed for of_env in seeds for seed in of_env} - {None}) == 4
    # The 10th steps ended the episodes, which were reset at once; the second call stepped these, not new ones. When
    # they were done it was enough: the next call will reset.
    assert [len(of_env) for of_env in seeds] == [2, 2]


def test_equal_seeds_equal_samples_other_workers_other_samples():
    def sampled(**options):
        runner = make_runner(num_envs_per_env_runner=2, **options)
        episodes = runner.sample(num_timesteps=60)
        return [env.seeds[0] for env in runner.env.envs], [e.get_actions()["a"].tolist() for e in episodes]

    assert sampled() == sampled()
    seeds, actions = sampled(worker_index=1)
    assert not set(seeds) & set(sampled()[0])
    assert actions != sampled()[1]


def test_torchs_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    runner = make_runner()
    runner.sample(num_timesteps=20)
    assert torch.rand(1) == expected


def test_weights_number_is_recorded_with_each_action_and_random_actions_mix():
    runner = make_runner()
    first = runner.sample(num_timesteps=3)
    runner.set_weights(runner.get_weights(), weights_seq_no=4)
    second = runner.sample(num_timesteps=2)
    third = runner.sample(num_timesteps=2, random_actions=True)
    fourth = runner.sample(num_timesteps=3)
    whole = first[0]
    for (chunk,) in (second, third, fourth):
        whole.concat_episode(chunk)
    agent = whole.agent_episodes["a"]
    assert agent.get_extra_model_outputs("weights_seq_no").tolist() == [0, 0, 0, 4, 4, -1, -1, 4, 4, 4]
    assert np.isnan(agent.get_extra_model_outputs("vf_preds")).tolist() == [False] * 5 + [True] * 2 + [False] * 3
    logp = agent.get_extra_model_outputs("action_logp")
    assert logp[5] == np.float32(-np.log(3))
    assert not np.isnan(logp).any()


def test_random_actions_first_then_module():
    runner = make_runner()
    (chunk,) = runner.sample(num_timesteps=2, random_actions=True)
    assert chunk.agent_episodes["a"].get_extra_model_outputs("weights_seq_no").tolist() == [-1, -1]
    (chunk,) = runner.sample(num_timesteps=2)
    assert not np.isnan(chunk.agent_episodes["a"].get_extra_model_outputs("vf_preds")).any()


def test_explore_off_takes_the_most_likely_action():
    runner = make_runner(explore=False)
    (episode,) = runner.sample(num_episodes=1)
    agent = episode.agent_episodes["a"]
    logits = agent.get_extra_model_outputs("action_dist_inputs")
    assert agent.get_actions().tolist() == logits.argmax(-1).tolist()
    (episode,) = runner.sample(num_episodes=1, explore=True)
    assert "action_logp" in episode.agent_episodes["a"].extra_model_output_keys


def test_recorded_outputs_are_those_of_the_recorded_observations():
    runner = make_runner(num_envs_per_env_runner=3)
    module = runner.module["default_policy"]
    for episode in runner.sample(num_timesteps=90):
        for agent in episode.agent_episodes.values():
            with torch.no_grad():
                outputs = module.forward_exploration({"obs": torch.from_numpy(agent.get_observations(slice(0, -1)))})
            logits = agent.get_extra_model_outputs("action_dist_inputs")
            np.testing.assert_allclose(outputs["action_dist_inputs"].numpy(), logits, rtol=1e-5, atol=1e-6)
            logp = torch.log_softmax(torch.from_numpy(logits), -1).numpy()
            chosen = np.take_along_axis(logp, agent.get_actions()[:, None], 1)[:, 0]
            np.testing.assert_allclose(agent.get_extra_model_outputs("action_logp"), chosen, rtol=1e-5, atol=1e-6)


def test_plain_torch_modules_and_their_training_mode():
    modes = []
    actor = Actor(mode=lambda obs: modes.append(actor.training) or obs[:, 0])
    runner = make_runner(policies={"p": actor})
    runner.sample(num_timesteps=5)
    assert set(modes) == {False}
    assert actor.training
    assert any(parameter is actor.layer.weight for parameter in runner.module.parameters())


def test_metrics():
    runner = make_runner(num_envs_per_env_runner=2)
    runner.sample(num_timesteps=50)
    metrics = runner.get_metrics()
    assert metrics["num_env_steps_sampled"] == metrics["num_env_steps_sampled_lifetime"] == 50
    assert metrics["num_agent_steps_sampled"] == {"a": 50, "b": 50}
    assert metrics["num_module_steps_sampled"] == {"default_policy": 100}
    assert metrics["num_agent_steps_sampled_lifetime"] == {"a": 50, "b": 50}
    assert (metrics["num_episodes"], metrics["episode_len_mean"], metrics["episode_return_mean"]) == (4, 10, 20)
    assert metrics["agent_episode_returns_mean"] == {"a": 10, "b": 10}
    assert metrics["module_episode_returns_mean"] == {"default_policy": 20}
    assert metrics["agent_steps"] == {"a": 10, "b": 10}
    assert metrics["unattributed_reward"] == 0
    assert all(milliseconds >= 0 for milliseconds in metrics["stage_time_ms"].values())
    assert metrics["stage_time_ms"]["env"] > 0
    runner.sample(num_timesteps=2)
    again = runner.get_metrics()
    assert (again["num_env_steps_sampled"], again["num_env_steps_sampled_lifetime"]) == (2, 52)
    assert (again["num_episodes"], again["episode_return_mean"]) == (0, 20)  # smoothed over the last episodes


class Listener(fastmarl.Callbacks):
    def __init__(self):
        self.events = []

    def on_environment_created(self, *, env_runner, env, env_context, **kwargs):
        env_runner.seen = self.events
        self.events.append(("created envs", len(env.envs), env_context.vector_index))

    def on_episode_created(self, *, episode, env_index, **kwargs):
        self.events.append(("created", env_index, episode.env_t, set(episode.agent_ids)))

    def on_episode_start(self, *, episode, env, env_index, **kwargs):
        episode.custom_data["started"] = True
        self.events.append(("start", env_index, env.envs[env_index].t))

    def on_episode_step(self, *, episode, env_index, metrics_logger, **kwargs):
        assert episode.get_observations(-1)["a"][1] == episode.env_t
        metrics_logger.log_value("twos", 2.0, reduce="sum")
        self.events.append(("step", env_index, episode.env_t))

    def on_episode_end(self, *, episode, prev_episode_chunks, env_index, rl_module, **kwargs):
        assert episode.custom_data["started"]
        assert "default_policy" in rl_module
        self.events.append(("end", env_index, len(prev_episode_chunks), episode.get_return(), episode.is_truncated))

    def on_sample_end(self, *, samples, **kwargs):
        self.events.append(("sample end", len(samples)))


def test_callbacks_in_rllibs_order_with_rllibs_arguments():
    extra = []
    runner = make_runner(
        env_config={"length": 3},
        callbacks_class=Listener,
        callbacks_on_episode_end=lambda *, episode, **kwargs: extra.append(episode.env_t),
    )
    runner.sample(num_timesteps=2)
    runner.sample(num_timesteps=2)
    assert runner.seen == [
        ("created envs", 1, 0),
        ("created", 0, 0, set()),
        ("start", 0, 0),
        ("step", 0, 1),
        ("step", 0, 2),
        ("sample end", 1),
        ("step", 0, 3),
        ("end", 0, 1, 2.0, True),
        ("created", 0, 0, set()),
        ("start", 0, 0),
        ("step", 0, 1),
        ("sample end", 2),
    ]
    assert extra == [3]
    assert runner.get_metrics()["twos"] == 8


def test_mapping_function_chooses_once_per_agent_and_episode():
    calls = []

    def mapping(agent_id, episode):
        calls.append((agent_id, episode.id_))
        return "p" if agent_id == "a" else "q"

    runner = make_runner(policies={"p", "q"}, policy_mapping_fn=mapping, env_config={"length": 3})
    calls.clear()
    episodes = runner.sample(num_timesteps=6)
    assert len(calls) == 2 * 3
    assert len(set(calls)) == 6
    for episode in episodes:
        assert {agent: episode.module_for(agent) for agent in "ab"} == {"a": "p", "b": "q"}
    assert runner.get_metrics()["num_module_steps_sampled"] == {"p": 6, "q": 6}


def test_mapping_to_an_unknown_policy():
    runner = make_runner(policies=["p", "q"], policy_mapping_fn=lambda agent_id, episode: "z")
    with pytest.raises(UnknownModuleError, match=r"policy_mapping_fn\('a'\) returned 'z', which is not one .*'p', 'q'"):
        runner.sample(num_timesteps=1)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"extra": lambda obs: obs[:1]}, r"module 'p': expected 2 rows in output 'extra'.*got shape \(1, 2\)"),
        ({"action_dist_inputs": lambda obs: obs[:, :1] * np.nan + torch.zeros(2, 3)}, "row 0 .* has NaN or inf in"),
        ({"action_dist_inputs": lambda obs: None}, "array of numbers as output 'action_dist_inputs', got None"),
        ({"actions": lambda obs: torch.zeros(2, 5)}, r"expected actions of shape \(2,\).*got shape \(2, 5\)"),
    ],
    ids=["rows", "nan", "nothing", "actions"],
)
def test_module_outputs_that_cannot_be_recorded(output, message):
    runner = make_runner(policies={"p": Actor(**output)})
    with pytest.raises(ModuleOutputError, match=message):
        runner.sample(num_timesteps=1)


def test_episodes_finished_before_an_error_are_returned_by_the_next_call():
    whole = ["ab", *[Step("ab", 1)] * 3, Step("ab", 1, truncated=True)]
    broken = [*whole[:3], RuntimeError("physics exploded")]
    env = lambda config: Scripted(*[whole, broken][: 1 + config.vector_index])  # noqa: E731
    runner = make_runner(env, num_envs_per_env_runner=2)
    with pytest.raises(RuntimeError, match="physics exploded") as caught:
        runner.sample(num_timesteps=100)
    assert caught.value.__notes__ == ["fastmarl: raised by step() of env 1"]
    episodes = runner.sample(num_timesteps=2)
    assert spans(episodes) == [(0, 4, True)] * 2 + [(0, 1, False)] * 2
    assert [episode.get_return() for episode in episodes[:2]] == [8, 8]
    metrics = runner.get_metrics()
    assert metrics["num_episodes"] == 2


SEEN, GO_ON = dict.fromkeys("ab", np.zeros(4, np.float32)), {"__all__": False}
BROKEN = {
    "four": ((SEEN, {}, GO_ON, {}), "got four values, as in old Gym"),
    "no all": ((SEEN, {}, {}, GO_ON, {}), "expected the key '__all__' in terminateds"),
    "no dict": ((SEEN, {}, GO_ON, GO_ON, []), "expected a dict keyed by agent id as infos"),
    "nan": ((SEEN, {"a": float("nan")}, GO_ON, GO_ON, {}), "agent 'a', .*expected a finite reward"),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("n_good", [0, 2], ids=["first", "later"])
def test_broken_steps(broken, message, n_good):
    runner = make_runner(scripted(["ab", *["ab"] * n_good, broken]))
    with pytest.raises(MultiAgentEnvError, match=message):
        runner.sample(num_timesteps=5)


def test_first_steps_are_looked_at_closely():
    no_flag = SEEN, {}, {"__all__": False, "a": None}, GO_ON, {}
    with pytest.raises(MultiAgentEnvError, match="expected True or False"):
        make_runner(scripted(["ab", no_flag])).sample(num_timesteps=5)


def test_reset_without_infos():
    class Old(Env):
        def reset(self, *, seed=None, options=None):
            return super().reset()[0]

    with pytest.raises(MultiAgentEnvError, match=r"env 0, env step 0: expected .* got only observations, as in old"):
        make_runner(Old).sample(num_timesteps=1)


@pytest.mark.parametrize(
    "options",
    [
        {"num_timesteps": 1, "num_episodes": 1},
        {"num_timesteps": -1},
        {"num_episodes": -1},
        {"num_episodes": 1.5},
    ],
)
def test_impossible_amounts(options):
    with pytest.raises(ConfigError, match="num_"):
        make_runner().sample(**options)


def test_an_env_that_forgets_to_end_is_no_endless_loop():
    runner = make_runner(scripted(["ab", Step()]))
    assert len(runner.sample(num_timesteps=10)) == 1
    with pytest.raises(MultiAgentEnvError, match="no agent was observed in 10000 consecutive steps"):
        runner.sample(num_episodes=1)


def test_episodes_are_read_after_stop():
    runner = make_runner()
    (episode,) = runner.sample(num_timesteps=3)
    runner.stop()
    assert episode.agent_episodes["a"].observation_space == BOX


def test_after_stop():
    runner = make_runner(num_envs_per_env_runner=2)
    envs = runner.env.envs
    runner.sample(num_timesteps=2)
    runner.assert_healthy()
    runner.stop()
    runner.stop()
    assert [env.n_closed for env in envs] == [1, 1]
    for call in (runner.sample, runner.make_env, runner.make_module, runner.assert_healthy):
        with pytest.raises(RunnerStoppedError, match="create a new one"):
            call()


def test_make_env_closes_the_old_envs_and_begins_new_episodes():
    runner = make_runner()
    old = runner.env.envs[0]
    runner.sample(num_timesteps=3)
    runner.make_env()
    assert old.n_closed == 1
    assert spans(runner.sample(num_timesteps=3)) == [(0, 3, False)]


def test_spaces():
    spaces = make_runner().get_spaces()
    assert spaces["default_policy"] == (BOX, gym.spaces.Discrete(3))
    assert spaces["__env__"][0] == gym.spaces.Dict({"a": BOX, "b": BOX})


def test_state_and_checkpoints_resume_the_random_streams(tmp_path):
    runner = make_runner()
    runner.sample(num_timesteps=25)
    runner.set_weights(runner.get_weights(), weights_seq_no=3)
    runner.save_to_path(tmp_path)
    expected = [episode.get_actions()["a"].tolist() for episode in runner.sample(num_timesteps=50, force_reset=True)]
    restored = fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, fastmarl.EnvRunnerConfig(env=Env, seed=99))
    restored.sample(num_timesteps=0)
    got = restored.sample(num_timesteps=50)
    assert [episode.env_t for episode in got] == [10] * 5
    for name, array in runner.get_weights()["default_policy"].items():
        np.testing.assert_array_equal(restored.get_weights()["default_policy"][name], array)
    assert restored.get_state("rl_module")["weights_seq_no"] == 3
    assert restored.get_metrics()["num_env_steps_sampled_lifetime"] == 75
    # The env's resets differ by nothing a module sees but the number of the reset, so actions may differ only by that.
    assert len(expected) == len(got)


def test_state_components():
    runner = make_runner()
    assert set(runner.get_state(not_components="rl_module")) == {
        "env_to_module_connector",
        "module_to_env_connector",
        "num_env_steps_sampled_lifetime",
        "lifetime_counters",
        "num_resets",
        "random_state",
        "running_episodes",
    }
    lifetime = "num_env_steps_sampled_lifetime"
    assert set(runner.get_state("rl_module")) == {"rl_module", "weights_seq_no", lifetime}
    with pytest.warns(UserWarning, match="rl_modul"):
        assert set(runner.get_state("rl_modul")) == {lifetime}


def test_older_weights_are_not_taken():
    runner = make_runner()
    newer, older = runner.get_weights(), runner.get_weights()
    older = {"default_policy": {name: array + 1 for name, array in older["default_policy"].items()}}
    runner.set_weights(newer, weights_seq_no=5)
    runner.set_weights(older, weights_seq_no=4)
    name, array = next(iter(newer["default_policy"].items()))
    np.testing.assert_array_equal(runner.get_weights()["default_policy"][name], array)


def test_weights_that_a_module_has_refused_are_not_set_by_later_calls():
    class Refusing(DefaultRLModule):
        def set_state(self, state):
            raise ValueError("not these")

    runner = make_runner(rl_module_spec=fastmarl.RLModuleSpec(module_class=Refusing))
    with pytest.raises(ValueError, match="not these"):
        runner.set_weights(runner.get_weights(), weights_seq_no=3)
    assert runner.sample(num_timesteps=3)
    assert runner.get_metrics()["weights_seq_no"] == 0


def test_infos_of_waiting_agents_and_common_infos_are_kept():
    """Agent "b" is observed only at every third step, and gets an info at every step."""
    infos = [{"b": {"t": t}, "__common__": {"wind": t}} for t in range(11)]
    turns = [Step("a" if t % 3 else "ab", infos=infos[t], truncated=t == 10) for t in range(1, 11)]
    runner = make_runner(scripted(["ab", *turns]))
    first, second = runner.sample(num_timesteps=5)[0], runner.sample(num_timesteps=5)[0]
    assert first.get_infos()["b"] == [{}, {"t": 3}]
    assert first.get_waiting_infos() == {"b": {1: {"t": 1}, 2: {"t": 2}, 4: {"t": 4}, 5: {"t": 5}}}
    assert second.agent_episodes["b"].get_infos() == [{"t": 3}, {"t": 6}, {"t": 9}, {"t": 10}]
    assert second.get_waiting_infos()["b"].keys() >= {7, 8}
    assert second.get_common_infos()[7] == {"wind": 7}


class Aliasing(Env):
    """Returns the same arrays at every step, overwritten, infos too; overwrites the actions it gets."""

    def __init__(self, config):
        super().__init__(config)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Box(-1, 1, (2,), np.float32))
        self.arrays = {agent: np.zeros(2, np.float32) for agent in self.possible_agents}
        self.infos = {agent: {"where": np.zeros(3), "t": 0} for agent in self.possible_agents}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._overwrite()
        return self.arrays, self.infos

    def step(self, actions):
        _, rewards, terminateds, truncateds, _ = super().step(actions)
        for action in actions.values():
            action[:] = 1e9
        self._overwrite()
        return self.arrays, rewards, terminateds, truncateds, self.infos

    def _overwrite(self):
        for agent, array in self.arrays.items():
            array[:] = len(self.seeds), self.t
            self.infos[agent]["where"][:] = self.t
            self.infos[agent]["t"] = self.t


def digest(episode):
    sha = hashlib.sha256()
    for agent_id, agent in sorted(episode.agent_episodes.items()):
        columns = [agent.get_observations(), agent.get_actions(), agent.get_rewards()]
        columns += [agent.get_extra_model_outputs(key) for key in sorted(agent.extra_model_output_keys)]
        for column in columns:
            sha.update(np.ascontiguousarray(column).tobytes())
        sha.update(repr((agent_id, agent.get_infos(), agent.is_terminated, agent.is_truncated)).encode())
    return sha.hexdigest()


@pytest.mark.slow
def test_returned_episodes_never_change():
    runner = make_runner(Aliasing, num_envs_per_env_runner=3)
    held = []
    for _ in range(4):
        held += [(episode, digest(episode)) for episode in runner.sample(num_timesteps=33)]
    unread = runner.sample(num_timesteps=33)  # columns that are looked up only later
    for _ in range(50):
        runner.sample(num_timesteps=33)
    for episode, expected in held:
        assert digest(episode) == expected
    for episode in unread:
        for agent in episode.agent_episodes.values():
            env_ts = np.arange(episode.env_t_started, episode.env_t + 1)
            np.testing.assert_array_equal(agent.get_observations()[:, 1], env_ts)
            assert [info["t"] for info in agent.get_infos()] == env_ts.tolist()
            assert [info["where"][2] for info in agent.get_infos()] == env_ts.tolist()
            assert (np.abs(agent.get_actions()) < 1e6).all()


def test_sampling_in_a_thread_while_a_learner_reads():
    runner = make_runner(num_envs_per_env_runner=4)
    earlier = [(episode, digest(episode)) for episode in runner.sample(num_timesteps=100)]
    errors = []

    def sample():
        try:
            for _ in range(20):
                runner.sample(num_timesteps=40)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=sample)
    thread.start()
    while thread.is_alive():
        for episode, expected in earlier:
            assert digest(episode) == expected
    thread.join(timeout=60)
    assert errors == []


def test_box_actions_are_scaled_for_the_env_and_raw_in_the_record():
    space = gym.spaces.Box(np.array([0, -4], np.float32), np.array([10, 4], np.float32))

    env = scripted(counting(1), action_space=space)
    runner = make_runner(env)
    (episode,) = runner.sample(num_episodes=1)
    raw = episode.agent_episodes["agent_0"].get_actions()
    received = np.array([actions["agent_0"] for actions in runner.env.envs[0].actions])
    np.testing.assert_allclose(received, np.clip([5, 0] + raw * [5, 4], space.low, space.high), atol=1e-5)
    assert received.dtype == np.float32
    clipped = make_runner(env, normalize_actions=False, clip_actions=True)
    (episode,) = clipped.sample(num_episodes=1)
    received = np.array([actions["agent_0"] for actions in clipped.env.envs[0].actions])
    np.testing.assert_array_equal(
        received, np.clip(episode.agent_episodes["agent_0"].get_actions(), space.low, space.high)
    )


@pytest.mark.parametrize(
    ("space", "is_right"),
    [
        (gym.spaces.Discrete(3, start=5), lambda action: type(action) is int and 5 <= action <= 7),
        (gym.spaces.MultiDiscrete([2, 3]), lambda action: action.dtype == np.int64 and action.shape == (2,)),
        (gym.spaces.MultiDiscrete([2, 3], start=[4, -1]), lambda action: action.dtype == np.int64),
        (gym.spaces.MultiBinary(4), lambda action: action.dtype == np.int8 and action.shape == (4,)),
        (
            gym.spaces.Dict({"n": gym.spaces.Discrete(2), "x": gym.spaces.Box(-1, 1, (3,))}),
            lambda action: type(action["n"]) is int and action["x"].shape == (3,),
        ),
        (
            gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2, 2]))),
            lambda action: type(action) is tuple and type(action[0]) is int,
        ),
    ],
    ids=["start", "multi discrete", "starts", "multi binary", "dict", "tuple"],
)
@pytest.mark.parametrize("random_actions", [False, True])
def test_actions_of_every_space_reach_the_env_as_it_promises(space, is_right, random_actions):
    runner = make_runner(scripted(counting(), action_space=space))
    (episode,) = runner.sample(num_episodes=1, random_actions=random_actions)
    received = [action for actions in runner.env.envs[0].actions for action in actions.values()]
    assert len(received) == 20
    assert all(is_right(action) and space.contains(action) for action in received)
    assert episode.agent_steps() == 20


def test_misspelt_and_bad_options():
    with pytest.raises(TypeError, match="'num_env_per_env_runner'; did you mean 'num_envs_per_env_runner'"):
        fastmarl.EnvRunnerConfig(env=Env, num_env_per_env_runner=2)
    bad = {
        "num_envs_per_env_runner": 0,
        "batch_mode": "complete",
        "late_rewards": "ignore",
        "seed": -1,
        "policies": "p",
    }
    for name, value in bad.items():
        with pytest.raises(ConfigError, match=name):
            fastmarl.EnvRunnerConfig(env=Env, **{name: value})
    with pytest.raises(ConfigError, match="policy_mapping_fn is required"):
        fastmarl.EnvRunnerConfig(env=Env, policies=["p", "q"])
