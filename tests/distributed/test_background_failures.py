"""`BackgroundSampler` when something goes wrong: one clear error, and nothing is left behind."""

import multiprocessing
import os
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from support.background import assert_gone, make_sampler, notes_of, pids_of, take
from support.process_runners import children
from support.trouble import Trouble, UnpicklableError

import fastmarl
from fastmarl.batches import columns
from fastmarl.errors import (
    ConfigError,
    ModuleOutputError,
    RemoteSamplerError,
    RunnerStoppedError,
    SamplerProcessError,
    SamplerTimeoutError,
)


def assert_closed(sampler):
    assert not children()
    with pytest.raises(RunnerStoppedError, match="possibly by an earlier error"):
        sampler.next()


# Errors in a process.


def raising_zero(episodes):
    raise ZeroDivisionError("no batch")


def raising_unpicklable(episodes):
    raise UnpicklableError(lambda: None, "more")


@pytest.mark.parametrize(
    ("options", "error", "text", "notes"),
    [
        ({"env_config": {"trouble": {(1, 12): "raise"}}, "processes": 2}, KeyError, "lost at 12",
         ["raised by process 0 of the sampler", 'raise KeyError(f"lost at {self.total}")']),
        ({"make_batch": raising_zero}, ZeroDivisionError, "no batch", ['raise ZeroDivisionError("no batch")']),
        ({"make_batch": raising_unpicklable}, RemoteSamplerError,
         r"process 0 of the sampler has raised .*UnpicklableError", ["raise UnpicklableError("]),
        ({"env_config": {"trouble": {(0, 3): "exit"}}, "max_restarts": 2}, SamplerProcessError, "exit code 3",
         ["replaced max_restarts=2 times in a row"]),
    ],
    ids=["env", "make_batch", "not picklable", "not replaced for ever"],
)  # fmt: skip
def test_an_error_in_a_process_comes_with_its_traceback(options, error, text, notes):
    sampler = make_sampler(**options)
    with pytest.raises(error, match=text) as caught:
        take(sampler, 3)
    assert [note for note in notes if note not in notes_of(caught)] == []
    assert_closed(sampler)


def test_an_error_of_a_module_names_the_module_and_process():
    sampler = make_sampler(max_policy_lag=0)
    weights = sampler.module["default_policy"].get_state()
    sampler.set_weights({"default_policy": {name: np.full_like(array, np.nan) for name, array in weights.items()}})
    with pytest.raises(ModuleOutputError, match="module 'default_policy'") as caught:
        sampler.next()
    assert "raised by process 0 of the sampler" in notes_of(caught)
    assert_closed(sampler)


@pytest.mark.slow
def test_objects_that_cannot_be_sent_are_errors():
    with pytest.raises(ConfigError, match=r"config and make_batch cannot be sent .*start_method=\"fork\""):
        make_sampler(start_method="spawn", env_config={"lock": threading.Lock()})
    lock = multiprocessing.Lock()  # only inherited

    def make_batch(episodes):
        return lock

    sampler = make_sampler(make_batch=make_batch)
    with pytest.raises(RuntimeError, match="Lock objects should only be shared between processes through inheritance"):
        sampler.next()
    assert_closed(sampler)


def test_errors_of_constructors_arrive():
    with pytest.raises(KeyError, match="lost at 0") as caught:
        make_sampler(env_config={"trouble": {(1, 0): "raise"}, "in": "init"}, processes=2)
    assert "while creating its runner" in notes_of(caught)
    assert not children()


class Sized(Trouble):
    """The observations of each runner's envs have another size."""

    def __init__(self, config):
        super().__init__(config)
        space = gym.spaces.Box(-1, 1, (2 + config.worker_index,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)


def test_processes_must_have_the_same_modules():
    with pytest.raises(ConfigError, match="expected weights of equal names, shapes and dtypes in all processes"):
        make_sampler(Sized, processes=2)
    assert not children()


# Processes that end or hang.


def test_a_killed_process_is_one_clear_error():
    sampler = make_sampler(processes=2)
    sampler.next()
    os.kill(pids_of(sampler)[1], signal.SIGKILL)
    with pytest.raises(SamplerProcessError, match=r"process 1 of the sampler exited \(exit code -9\)"):
        take(sampler, 3)  # what it had made before may be taken
    assert_closed(sampler)


def test_a_process_that_ends_before_it_is_ready_is_an_error():
    with pytest.raises(SamplerProcessError, match=r"exited \(exit code 3\) while creating its runner"):
        make_sampler(env_config={"trouble": {(0, 0): "exit"}, "in": "init"})
    assert not children()


class Seeded(Trouble):
    """Observations hold (vector index, part of the seed of the reset, env step)."""

    def reset(self, *, seed=None, options=None):
        self.seed = seed % 2**20
        return super().reset(seed=seed)

    def _obs(self):
        values = [self.config.vector_index, self.seed, self.t]
        return {agent: np.array(values, np.float32) for agent in self.possible_agents}


def first_seeds(incarnation):
    """With which the process's runner begins."""
    config = fastmarl.EnvRunnerConfig(
        env=Seeded, num_envs_per_env_runner=2, seed=1, worker_index=1, incarnation=incarnation
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        return {int(seed) for seed in columns(runner.sample(num_timesteps=2))["default_policy"]["obs"][:, 1]}


@pytest.mark.parametrize("trouble", ["kill", "exit", "hang"])
def test_a_lost_process_is_replaced_if_it_may_be(trouble, tmp_path):
    timeout = {"timeout_s": 1.0} if trouble == "hang" else {}
    env_config = {"trouble": {(1, 22): trouble}, "once": tmp_path, "length": 10**6}
    seeds = set()
    with make_sampler(Seeded, env_config=env_config, max_restarts=1, **timeout) as sampler:
        for number in range(8):
            batch = sampler.next()["default_policy"]
            assert batch["weights_seq_no"].min() >= number - 1
            seeds |= {int(seed) for seed in batch["obs"][:, 1]}
            sampler.set_weights()
        report = sampler.get_metrics()
    assert report["num_sampler_restarts"] == 1
    assert report["num_env_steps_sampled"] == report["num_env_steps_sampled_lifetime"] == 8 * 18
    before, after = first_seeds(0), first_seeds(1)
    assert seeds == before | after and not before & after


class FailsAtItsReturn(Trouble):
    """Ends its process at a step, and once more when it is re-created."""

    def __init__(self, config):
        super().__init__(config)
        if list(config["folder"].iterdir()) == [config["folder"] / "step"]:
            self._end("init")

    def step(self, actions):
        if not (self.config["folder"] / "step").exists() and self.total == 11:
            self._end("step")
        return super().step(actions)

    def _end(self, during):
        (self.config["folder"] / during).touch()
        os._exit(3)


@pytest.mark.parametrize("max_policy_lag", [0, 2])
def test_a_process_whose_replacement_is_lost_is_replaced_again(max_policy_lag, tmp_path):
    options = {"env_config": {"folder": tmp_path}, "max_policy_lag": max_policy_lag}
    with make_sampler(FailsAtItsReturn, max_restarts=2, **options) as sampler:
        take(sampler, 5)
        assert sampler.get_metrics()["num_sampler_restarts"] == 2


@pytest.mark.parametrize("hangs", [True, False])
def test_a_hanging_or_stopped_process_is_a_timeout(hangs):
    sampler = make_sampler(env_config={"trouble": {(1, 12): "hang"}} if hangs else {})
    sampler.next()
    pids = pids_of(sampler)
    if not hangs:
        os.kill(pids[0], signal.SIGSTOP)
    text = r"process 0 of the sampler did not answer sample\(\) within 0.3 s and was terminated"
    with pytest.raises(SamplerTimeoutError, match=text):
        take(sampler, 3, timeout_s=0.3)  # what it had made before may be taken
    assert_gone(pids)
    assert_closed(sampler)
