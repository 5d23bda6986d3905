"""Refusals of policies: one clear error each, which leaves agents unchanged."""

import copy
import functools
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from support.differences import assert_same
from support.overheard import Wander
from support.policy_kinds import BOX, CHOICE, Average, overheard_runner, policy_of
from support.trees import spoilt

import fastmarl
from fastmarl.checkpoint import load_state, save_state
from fastmarl.errors import (
    ActionMaskError,
    ConfigError,
    FastmarlError,
    ModuleOutputError,
    ObservationError,
    PolicyBusyError,
    RewardError,
)
from fastmarl.testing import CountingEnv

OBS = np.linspace(-1, 1, 5, dtype=np.float32)
MAIN = "default_policy"


HOSTILE = {
    "another shape": ({"obs": np.zeros(4, np.float32)}, ObservationError, "observation: expected float32"),
    "a row of one": ({"obs": np.zeros((1, 5), np.float32)}, ObservationError, r".* got float32 of shape \(1"),
    "another dtype": ({"obs": np.zeros(5, complex)}, ObservationError, ".* got complex128 of shape"),
    "text": ({"obs": "hello"}, ObservationError, "observation: expected float32"),
    "nothing": ({"obs": None}, ObservationError, "observation: expected float32"),
    "NaN": ({"obs": OBS * np.nan}, ModuleOutputError, "has NaN or inf in its 'action_dist_inputs'"),
    "a reward of NaN": ({"reward": np.nan}, RewardError, "expected a finite reward, got nan"),
    "a reward that is none": ({"reward": "x"}, RewardError, "expected a number as reward"),
    "a mask of another size": ({"action_mask": [1, 0]}, ActionMaskError, ".* has 2 entries"),
    "a mask that rules out all": ({"action_mask": [0] * 4}, ActionMaskError, ".* rules out all"),
    "a mask of text": ({"action_mask": list("abcd")}, ActionMaskError, "action_mask must"),
    "a mask of NaN": ({"action_mask": [1, np.nan, 1, 1]}, ActionMaskError, "action_mask must"),
    "a state that is none": ({"state": [1]}, ConfigError, None),
    "another state": ({"state": {"x": 1}}, ConfigError, None),
}


@functools.cache
def runner_of(kind):
    """Policies copy what they take of it."""
    return overheard_runner(kind)[0]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("kind", ["default", "default, in torch", "frames", "LSTM", "own memory"])
def test_hostile_inputs_are_one_clear_error_and_leave_no_trace(kind, hostile, rng):
    arguments, error, message = HOSTILE[hostile]
    obs, message = arguments.get("obs", OBS), f"agent 'a'[:,] {message}" if message else "state"
    policy, other = (fastmarl.Policy.from_runner(runner_of(kind)) for _ in range(2))
    story = rng.normal(size=(40, 5)).astype(np.float32)
    for i, each in enumerate(story):
        if i % 10 == 0 and not (kind.startswith("default") and "reward" in arguments):  # which it does not look at
            with pytest.raises(error, match=message):
                policy.act(obs, "a", **{name: value for name, value in arguments.items() if name != "obs"})
            # Infos are what envs send, and are looked at as a runner does it.
            if "state" not in arguments and hostile not in ("a mask of text", "a mask of NaN"):
                with pytest.raises(FastmarlError):
                    policy.act_batch(
                        {"b": each, "a": obs, "c": each},
                        rewards={"a": arguments.get("reward", 0.0), "b": 1.0},
                        infos={"a": {"action_mask": arguments["action_mask"]}} if "action_mask" in arguments else None,
                    )
        assert policy.act(each, "a", reward=1.0) == other.act(each, "a", reward=1.0)
    assert set(policy._only._table.envs[0].lane_of) <= {"a"}


@pytest.mark.parametrize("arguments", [{"obs": [OBS]}, {"obs": {"a": OBS}, "rewards": 1.0}, {"obs": {}, "infos": [1]}])
def test_batches_are_dicts_by_agent(arguments, tmp_path):
    with pytest.raises(ConfigError, match=r"(obs|rewards|infos) of act_batch\(\), by agent id, must be a dict, got"):
        policy_of("default", tmp_path, "runner").act_batch(**arguments)


def test_masks_where_there_can_be_none(tmp_path):
    policy = policy_of("normalised", tmp_path, "runner")
    with pytest.raises(ActionMaskError, match="agent 'a': action_mask needs Discrete or MultiDiscrete actions"):
        policy.act(OBS, "a", action_mask=[1, 1])
    policy = policy_of("masks in observations", tmp_path, "runner")
    obs = {"action_mask": np.ones(4, np.int8), "observation": OBS}
    with pytest.raises(ActionMaskError, match=r"its observation contains the mask, obs\['action_mask'\]"):
        policy.act(obs, action_mask=[1] * 4)
    with pytest.raises(ActionMaskError, match=r"obs\['action_mask'\] rules out all actions"):
        policy.act({**obs, "action_mask": np.zeros(4, np.int8)})
    with pytest.raises(ObservationError, match="expected an entry 'action_mask'"):
        policy.act({"observation": OBS})


@pytest.mark.slow
def test_a_spoilt_state_is_refused_or_another_one(tmp_path):
    policy = policy_of("all, and memory", tmp_path)
    space, _ = policy.get_spaces()[MAIN]
    obs = space.sample()
    _, state = policy.act(obs, "a", state={})
    _, state = policy.act(obs, "a", state=state, reward=2.0)
    expected, n_refused = policy.act(obs, "a", state=state), 0
    for how, changed in spoilt(state):
        try:
            policy.act(obs, "a", state=changed)
        except (ConfigError, ModuleOutputError, ObservationError):
            n_refused += 1
        except Exception as error:
            raise AssertionError(how) from error
    assert n_refused > 500
    assert_same(policy.act(obs, "a", state=state), expected)
    assert not policy._only._table.envs[0].lane_of


def test_a_carried_state_can_be_saved(tmp_path):
    policy = policy_of("all, and memory", tmp_path / "policy")
    space, _ = policy.get_spaces()[MAIN]
    first, second = space.sample(), space.sample()
    _, state = policy.act(first, state={})
    save_state(tmp_path / "state", state)
    assert_same(policy.act(second, state=load_state(tmp_path / "state")), policy.act(second, state=state))


def test_a_carried_state_has_only_written_values(tmp_path):
    policy = policy_of("all, and memory", tmp_path)
    first, second = (policy.get_spaces()[MAIN][0].sample() for _ in range(2))
    _, state = policy.act(first, state={})
    state["weights_seq_no"][:] = 7
    policy.act(second, state=state)
    _, fresh = policy.act(first, state={})
    assert fresh["weights_seq_no"].tolist() == [0]


def test_a_connector_that_does_not_declare_its_state_has_no_states():
    class Silent(Average):
        per_agent_state = None

    config = fastmarl.EnvRunnerConfig(env=lambda config: CountingEnv(2, 9), env_to_module_connector=Silent())
    policy = fastmarl.Policy.from_runner(fastmarl.MultiAgentEnvRunner(config))
    obs = policy.get_spaces()[MAIN][0].sample()
    policy.act(obs)
    with pytest.raises(ConfigError, match="does not declare its state per agent"):
        policy.act(obs, state={})


def test_one_call_at_a_time():
    entered, go_on = threading.Event(), threading.Event()

    class Waiting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(5, 4)

        def __deepcopy__(self, memo):
            return Waiting()

        def forward(self, batch):
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                go_on.wait(60)
            return {"action_dist_inputs": self.net(batch["obs"])}

    config = fastmarl.EnvRunnerConfig(
        env=Wander, env_config={"observation_space": BOX, "action_space": CHOICE}, policies={MAIN: Waiting()}
    )
    policy = fastmarl.Policy.from_runner(fastmarl.MultiAgentEnvRunner(config))
    expected, given = policy.act(OBS), []
    thread = threading.Thread(target=lambda: given.append(policy.act(OBS)))
    thread.start()
    assert entered.wait(60)
    for call in (lambda: policy.act(OBS), lambda: policy.act_batch({"a": OBS}), policy.reset):
        with pytest.raises(PolicyBusyError, match="during another call; create one Policy per thread"):
            call()
    go_on.set()
    thread.join()
    assert given == [expected] and policy.act(OBS) == expected


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_are_refused_with_the_way_to_another_policy(attempt, tmp_path):
    policy = policy_of("default", tmp_path)
    with pytest.raises(ConfigError, match=r"Policy\.from_checkpoint\(\) or Policy\.from_runner\(\)"):
        attempt(policy)
    assert policy.act(OBS, "a") == policy.act(OBS, "a")


def test_nothing_is_left_of_a_policy():
    runner, _ = overheard_runner("frames")
    policy = fastmarl.Policy.from_runner(runner)
    policy.act(OBS)
    agents = policy._only
    gone = weakref.ref(agents)
    del policy, agents
    gc.collect()
    assert gone() is None
