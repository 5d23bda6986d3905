"""Forms of input, callbacks and errors of a worker that are RLlib's, tested without Ray."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from support.legacy import all_p0, clocks, rewarded, same
from support.scenario_envs import BOTH
from support.scripted import BOX as OBS_SPACE
from support.scripted import Scripted, Step

import fastmarl
from fastmarl.errors import BatchError, ConfigError
from fastmarl.legacy import (
    DatasetReader,
    EpisodeV2,
    MultiAgentBatch,
    PolicySpec,
    PPOTorchPolicy,
    SampleBatch,
    ShuffledInput,
    register_input,
)

ACTION_SPACE = gym.spaces.Discrete(2)
SPACES = {"p0": (OBS_SPACE, ACTION_SPACE), "p1": (OBS_SPACE, ACTION_SPACE)}
ROW = {
    "type": "SampleBatch",
    "obs": [[0.0] * 4] * 5,
    "actions": [0] * 5,
    "rewards": [1.0] * 5,
    "terminateds": [False] * 5,
}


# States.


class PicklableMapping:
    """A mapping function that plain pickle takes."""

    def __call__(self, agent_id, episode):
        return f"p{agent_id}"


def bare(state):
    return {"state": {policy_id: {"weights": each["weights"]} for policy_id, each in state["policy_states"].items()}}


@pytest.mark.parametrize("form", [dict, pickle.dumps, lambda state: bytearray(pickle.dumps(state)), bare])
def test_a_state_is_taken_in_all_forms(make, form):
    one, other = (make(seed=seed, policy_mapping_fn=PicklableMapping()) for seed in (3, 4))
    other.set_is_policy_to_train(["p1"])
    mapping_fn = other.policy_mapping_fn
    other.set_state(form({**one.get_state(), "policy_mapping_fn": None}))
    assert same(one.get_weights(), other.get_weights())
    assert other.get_policies_to_train() == {"p1"} and other.policy_mapping_fn is mapping_fn


def test_a_state_may_have_a_policy_that_can_not_be_made(make, caplog):
    worker, state = make(), make().get_state()
    state["policy_states"]["new"] = {**state["policy_states"]["p0"], "policy_spec": None}
    worker.set_state(state)
    assert list(worker.policy_map) == ["p0", "p1"] and "no policy 'new'" in caplog.text


def test_a_policy_may_be_added_by_a_serialized_spec(make):
    worker, state = make(), make(seed=4).get_state()
    of_p0 = state["policy_states"]["p0"]
    state["policy_states"] = {
        "new": {**of_p0, "policy_spec": of_p0["policy_spec"].serialize()},
        **state["policy_states"],
    }
    worker.set_state(state)
    assert same(worker.get_weights()["new"], of_p0["weights"])


def _of_p1(**changes):
    return lambda state: state["policy_states"]["p1"].update(changes)


def _lacks_weights(state):
    del state["policy_states"]["p1"]["weights"]


def _adds(**changes):
    return lambda state: state["policy_states"].update(new={**state["policy_states"]["p0"], **changes})


@pytest.mark.parametrize("damage", [
    _of_p1(weights={"x": np.ones(3)}),
    _of_p1(_optimizer_variables=[{"x": 1}]),
    _lacks_weights,
    _adds(policy_spec=3),
    _adds(weights={}),
    lambda state: state.update(is_policy_to_train=3),
    lambda state: (_adds()(state), state.update(policy_mapping_fn=3)),
    lambda state: state.update(policy_states=[1]),
    lambda state: state["policy_states"].update(p0=None),
    lambda state: state.update(filters={}),
])  # fmt: skip
def test_a_damaged_state_changes_nothing(make, damage):
    worker = make(observation_filter="MeanStdFilter")
    state = make(seed=4, observation_filter="MeanStdFilter").get_state()
    damage(state)
    before, mapping_fn = worker.get_weights(), worker.policy_mapping_fn
    with pytest.raises((ConfigError, KeyError)):
        worker.set_state(state)
    assert same(before, worker.get_weights())
    assert worker.policy_mapping_fn is mapping_fn and worker.is_policy_to_train is None
    assert worker.sample().policy_batches.keys() == {"p0", "p1"}


@pytest.mark.parametrize("state", [b"no pickle", None, {"policy_mapping_fn": None}])
def test_invalid_states_are_refused(make, state):
    with pytest.raises(ConfigError, match=r"pickle|policy_states"):
        make().set_state(state)


# Callbacks.


def test_on_sample_end_comes_once_a_call_with_the_batch(make):
    calls = []
    worker = make(batch_mode="complete_episodes", rollout_fragment_length=60,
                  callbacks_on_sample_end=lambda **arguments: calls.append(arguments))  # fmt: skip
    batches = [worker.sample() for _ in range(3)]
    assert [call["samples"] for call in calls] == batches
    assert all(call["worker"] is worker and isinstance(call["samples"], MultiAgentBatch) for call in calls)


def test_a_batch_outlives_an_error_of_on_sample_end(make):
    batches = []

    def fail_once(*, samples, **kwargs):
        batches.append(samples)
        if len(batches) == 1:
            raise ValueError("once")

    worker = make(callbacks_on_sample_end=fail_once)
    with pytest.raises(ValueError, match="once"):
        worker.sample()
    assert worker.sample() is batches[0] is batches[1]
    assert worker.sample() is not batches[0]


class AllEvents(fastmarl.Callbacks):
    """Notes the events of RLlib's old API stack."""

    def __init__(self):
        self.seen = []

    def on_create_policy(self, *, policy_id, policy):
        self.seen.append(("create", policy_id))

    def on_sub_environment_created(self, *, worker, sub_environment, env_context, **kwargs):
        self.seen.append(("env", env_context.vector_index))

    def on_episode_end(self, *, worker, base_env, policies, episode, env_index, **kwargs):
        assert isinstance(episode, EpisodeV2) and policies is worker.policy_map
        self.seen.append(("end", env_index, len(base_env.get_sub_environments()), episode.total_reward, episode.length))

    def on_postprocess_trajectory(
        self, *, worker, episode, agent_id, policy_id, policies, postprocessed_batch, original_batches, **kwargs
    ):
        assert "advantages" in postprocessed_batch and original_batches.keys() == {"a0", "a1"}
        self.seen.append(("post", agent_id, policy_id, episode.total_reward))

    def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
        result["n"] = train_batch.count


def test_events_of_the_old_stack(make):
    worker = make(**clocks(callbacks_class=AllEvents, rollout_fragment_length=10))
    batch = worker.sample()
    of_env = [("post", "a0", "p0", 30.0), ("post", "a1", "p1", 30.0)]
    assert worker.callbacks.seen == [
        ("env", 0), ("env", 1), ("create", "p0"), ("create", "p1"),
        ("end", 0, 2, 30.0, 10), ("end", 1, 2, 30.0, 10), *of_env, *of_env,
    ]  # fmt: skip
    assert worker.learn_on_batch(batch)["p0"]["custom_metrics"] == {"n": 20}
    del worker.callbacks.seen[:]
    worker.add_policy("new")
    assert worker.callbacks.seen == [("create", "p0"), ("create", "p1"), ("create", "new")]


def test_an_episode_sums_up_its_chunks(make):
    found = []

    def step(*, episode, **kwargs):
        found.append((episode.length, episode.total_reward, episode.agent_rewards, episode.active_env_steps,
                      episode.total_agent_steps, episode.get_agents(), episode.agent_index("a1")))  # fmt: skip

    worker = make(**clocks(callbacks_on_episode_step=step, rollout_fragment_length=4, num_envs_per_env_runner=1))
    worker.sample()
    worker.sample()
    rewards = {("a0", "p0"): 6.0, ("a1", "p1"): 12.0}
    assert found[5] == (6, 18.0, rewards, 2, 12, ["a0", "a1"], 1)


def test_old_flags_of_an_episode_still_work(make):
    found = []

    def step(*, episode, **kwargs):
        of_episode = bool(episode.is_done), bool(episode.is_terminated)
        found.append((*of_episode, episode.is_done("a0"), episode.is_truncated("a0")))

    make(**clocks(callbacks_on_episode_step=step)).sample()
    assert set(found[:18]) == {(False, False, False, False)} and found[18] == (True, True, True, False)


def test_logged_values_are_reported_with_the_episodes(make):
    def log(*, metrics_logger, episode, **kwargs):
        metrics_logger.log_value("logged", 2.0)
        metrics_logger.log_value(("of", "a"), 3.0, reduce="max")
        episode.custom_metrics["kept"] = 4.0

    worker = make(**clocks(callbacks_on_episode_end=log))
    for _ in range(2):
        worker.sample()
        assert [each.custom_metrics for each in worker.get_metrics()] == [{"logged": 2.0, "of/a": 3.0, "kept": 4.0}] * 4


def test_values_logged_before_any_episode_has_ended_are_reported_with_the_first(make):
    def log(*, metrics_logger, episode, **kwargs):
        if not logged:
            metrics_logger.log_value("logged", 2.0, reduce="max")
        logged.append(episode)

    logged, found = [], []
    worker = make(**clocks(callbacks_on_episode_step=log, rollout_fragment_length=4))
    for _ in range(4):
        worker.sample()
        found += [each.custom_metrics for each in worker.get_metrics()]
    assert found and found == [{"logged": 2.0}] * len(found)


def test_a_callback_must_take_the_arguments(make):
    with pytest.raises(ConfigError, match=r"on_sample_end is called with the keywords .*worker"):
        make(callbacks_on_sample_end=lambda env_runner, metrics_logger, samples: None)


# Batches.


UNTIL_5 = rewarded(lambda t: {"a1": {"training_enabled": t <= 5}})


def test_agents_that_are_not_in_training_are_left_out(make):
    worker = make(**clocks(UNTIL_5, rollout_fragment_length=5))
    for policies in (["p0", "p1"], ["p0"]) * 2:
        batch = worker.sample()
        assert list(batch.policy_batches) == policies and batch.count == 10


def test_others_see_agents_that_are_not_in_training(make):
    class Looks(PPOTorchPolicy):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            seen.append(sorted(other_agent_batches))
            return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    seen = []
    make({"default_policy_class": Looks}, **clocks(UNTIL_5, rollout_fragment_length=10)).sample()
    assert seen == [["a1"], ["a1"]]


def test_a_batch_without_agents_in_training_is_empty(make):
    never = rewarded(lambda t: {agent: {"training_enabled": False} for agent in BOTH})
    worker = make(**clocks(never, batch_mode="complete_episodes", count_steps_by="agent_steps"))
    assert worker.sample().policy_batches == {}


def test_a_flag_of_training_that_is_no_flag(make):
    wrong = rewarded(lambda t: {"a1": {"training_enabled": np.ones(2)}})
    with pytest.raises(BatchError, match="agent 'a1' has training_enabled=array"):
        make(**clocks(wrong)).sample()


def test_t_is_the_step_before_the_next_observation(make):
    waits = [Step(BOTH if t in (0, 3, 6, 9, 10) else ["a0"], 1.0, terminated=t == 10) for t in range(11)]
    batch = make(**clocks(waits, num_envs_per_env_runner=1, rollout_fragment_length=10)).sample()
    assert batch["p0"]["t"].tolist() == list(range(10))
    assert batch["p1"]["t"].tolist() == [2, 5, 8, 9]


# Policies.


def test_policies_as_tuples_and_specs(make):
    given = {
        "p1": (PPOTorchPolicy, None, None, {"lr": 0.5}),
        "p0": PolicySpec(None, OBS_SPACE, ACTION_SPACE, {"lr": 0.25}),
    }
    worker = make(policies=given)
    assert [worker.get_policy(id_).config["lr"] for id_ in ("p0", "p1")] == [0.25, 0.5]
    assert worker.get_policy("p0").observation_space == OBS_SPACE
    assert worker.sample().policy_batches.keys() == {"p0", "p1"}


@pytest.mark.parametrize("entry", [3, (None, None, None), PPOTorchPolicy, {"policy": 1}])
def test_invalid_policies_are_refused(make, entry):
    with pytest.raises(ConfigError, match=r"policies\['p1'\] must be None, a PolicySpec, a tuple"):
        make(policies={"p0": None, "p1": entry})


def test_policy_classes_of_other_kinds(make):
    of_rllib = type("PPOTorchPolicy", (), {"__module__": "ray.rllib.algorithms.ppo.ppo_torch_policy"})
    with pytest.raises(ConfigError, match=r"policy 'p1': .* derive a class from fastmarl\.legacy\.TorchPolicy"):
        make(policies={"p0": None, "p1": (of_rllib, None, None, {})})
    made = make(policies={"p0": None, "p1": PolicySpec(lambda module, config: PPOTorchPolicy(module))})
    assert made.sample().policy_batches.keys() == {"p0", "p1"}


def test_advice_for_a_taken_id_can_be_followed(make):
    worker = make()
    with pytest.raises(ConfigError, match=r"remove_policy\(policy_id='p0'\)"):
        worker.add_policy("p0")
    worker.remove_policy(policy_id="p0", policy_mapping_fn=lambda agent_id, episode: "p1")
    assert worker.add_policy("p0") is worker.policy_map["p0"]
    with pytest.raises(ConfigError, match="there is no policy 'p7'; the policies are"):
        worker.remove_policy(policy_id="p7")
    single = make(policies=None, policy_mapping_fn=None)
    with pytest.raises(ConfigError, match="add another one before"):
        single.remove_policy()


def test_a_failed_add_policy_changes_nothing(make):
    worker = make()
    for wrong in ({"policies_to_train": 3}, {"policy_state": {"weights": {}}}, {"policy_mapping_fn": 3}):
        with pytest.raises(ConfigError):
            worker.add_policy("new", **wrong)
        assert list(worker.policy_map) == ["p0", "p1"] and worker.get_policies_to_train() == {"p0", "p1"}
    worker.add_policy("new")


def test_a_mapping_function_with_keywords_gets_the_worker(make):
    given = []

    def mapping(agent_id, episode, **kwargs):
        given.append((type(episode), kwargs["worker"]))
        return "p0"

    worker = make(policy_mapping_fn=mapping)
    worker.sample()
    assert set(given) == {(EpisodeV2, worker)}


# Workers without envs.


def without_env(make, **options):
    return make({"spaces": SPACES}, env=None, env_config={}, **options)


def test_a_worker_without_env_learns_and_exchanges(make):
    worker, sampler = without_env(make), make()
    worker.set_state(sampler.get_state())
    assert same(worker.get_weights(), sampler.get_weights())
    assert worker.learn_on_batch(sampler.sample()).keys() == {"p0", "p1"}
    assert (worker.env, worker.sampler, worker.async_env, worker.foreach_env(len)) == (None, None, None, [])
    assert worker.get_spaces() == SPACES and worker.get_metrics() == []
    worker.set_policy_mapping_fn(all_p0)
    worker.add_policy("new", observation_space=OBS_SPACE, action_space=ACTION_SPACE, policy_mapping_fn=all_p0)
    worker.remove_policy(policy_id="p1")
    assert list(worker.policy_map) == ["p0", "new"]


def test_a_worker_without_env_has_nothing_to_sample(make):
    worker = without_env(make)
    for act in (worker.sample, worker.env_runner.next, worker.make_env, lambda: worker.make_sub_env_fn(0),
                lambda: worker.add_policy("new")):  # fmt: skip
        with pytest.raises(ConfigError, match="no env"):
            act()
    with pytest.raises(ConfigError, match="no env to take the spaces of policy 'p0'"):
        make(env=None, env_config={})
    with pytest.raises(ConfigError, match='"sampler"'):
        without_env(make, input_={"sampler": 1.0})


def test_a_local_worker_may_do_without_envs(make):
    assert make({"num_workers": 2, "spaces": SPACES}, create_local_env_runner=False).env is None
    assert make({"num_workers": 2, "worker_index": 1}, create_local_env_runner=False).env is not None
    assert make({"num_workers": 0}, create_local_env_runner=False).env is not None


# Inputs.


class Rows(ShuffledInput):
    """A reader that is named by its path."""

    def __init__(self, ioctx):
        super().__init__(DatasetReader([ROW], ioctx))


@pytest.mark.parametrize("input_", ["dataset", "fives", f"{__name__}.Rows", {"fives": 0.5, f"{__name__}.Rows": 0.5}])
def test_inputs_by_name(make, input_):
    register_input("fives", Rows)
    arguments = {"dataset_shards": [None, [ROW]], "worker_index": 1}
    worker = make(arguments, policies=["p0"], policy_mapping_fn=all_p0, input_=input_)
    batch = worker.sample()
    assert isinstance(batch, SampleBatch) and batch.count == 40 and batch["obs"].shape == (40, 4)


class Dataset:
    """The methods of `ray.data.Dataset` that a reader calls."""

    def count(self):
        return 2

    def random_shuffle(self, seed):
        return self

    def iter_rows(self):
        return iter([ROW, {**ROW, "rewards": [2.0] * 5}])


def test_a_reader_of_a_dataset_of_ray():
    reader = DatasetReader(Dataset())
    assert [float(reader.next()["rewards"][0]) for _ in range(5)] == [1.0, 2.0, 1.0, 2.0, 1.0]
    with pytest.raises(ConfigError, match="no rows"):
        DatasetReader([])


@pytest.mark.parametrize(("input_", "text"), [
    ("dataset", "dataset_shards"),
    ("nowhere", "register_input"),
    ("collections.Nowhere", "no attribute 'Nowhere'"),
])  # fmt: skip
def test_wrong_inputs(make, input_, text):
    with pytest.raises(ConfigError, match=text):
        make(input_=input_)


def test_keywords_that_rllib_takes(make):
    worker = make()
    assert worker.sample(explore=False).count == 40
    assert worker.get_weights(["p0"], inference_only=True).keys() == {"p0"}


class Asks(Scripted):
    """Keeps what it is made with."""

    def __init__(self, config):
        super().__init__(rewarded())
        self.asked = (
            config.recreated_worker,
            config.copy_with_overrides(vector_index=7).vector_index,
            config.vector_index,
        )


def test_envs_ask_their_context(make):
    worker = make({"recreated_worker": True}, **clocks(env=Asks))
    assert worker.foreach_env(lambda env: env.asked) == [(True, 7, 0), (True, 7, 1)]
