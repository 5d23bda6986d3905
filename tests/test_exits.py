"""sys.exit() in user code: an error that says where, never the silent end of the program."""

import importlib
import os
import pickle
import re
import signal
import sys
from functools import partial

import numpy as np
import pytest
import torch
from support.rooms import Rooms

import fastmarl
from fastmarl.cli import main
from fastmarl.distributed.group import EnvRunnerGroup
from fastmarl.distributed.host import RunnerPlan, columns_of
from fastmarl.errors import UserExitError
from fastmarl.modules import RLModule, RLModuleSpec
from fastmarl.testing import CountingEnv, check_env

WORKERS = {"gym_env_vectorize_mode": "async", "num_env_workers": 1, "env_worker_start_method": "fork"}
SEVERAL = {"num_envs_per_env_runner": 2}


class Quitter(CountingEnv):
    """Exits in the calls that `env_config["where"]` names: from env step 3 on, of the env of index `"only"`."""

    exits = 0

    def __init__(self, config):
        super().__init__(episode_length=5)
        self.config = config
        self.leave("init")

    def leave(self, where):
        if where in self.config.get("where", ()) and self.config.vector_index == self.config.get("only", 0):
            if self.config.get("once") and Quitter.exits:
                return
            Quitter.exits += 1
            sys.exit(*self.config.get("code", ()))

    def reset(self, *, seed=None, options=None):
        self.leave("reset")
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        result = super().step(actions)
        if self.env_t == 3:
            self.leave("step")
        return result

    def state(self):
        self.leave("state")
        return np.zeros(2, np.float32)

    def close(self):
        self.leave("close")


def make_runner(env_config=None, **options):
    Quitter.exits = 0
    config = fastmarl.EnvRunnerConfig(env=Quitter, env_config=env_config or {}, seed=0, **options)
    return fastmarl.MultiAgentEnvRunner(config)


def notes_of(error):
    return " ".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("where", ["reset", "step", "state"])
@pytest.mark.parametrize(
    "options",
    [SEVERAL, {**SEVERAL, "worker_num_splits": 2}, {**SEVERAL, **WORKERS}],
)
def test_errors_of_calls_name_the_env(where, options):
    runner = make_runner({"where": [where], "only": 1, "code": (0,)}, record_env_state=True, **options)
    with pytest.raises(UserExitError, match=r"SystemExit\(0\) was raised in .*test_exits.py:\d+ \(leave\)") as raised:
        runner.sample(num_timesteps=20)
    assert "of env 1" in notes_of(raised.value)
    runner.stop()


@pytest.mark.parametrize("options", [SEVERAL, {**SEVERAL, **WORKERS}])
def test_envs_that_exit_are_remade(options):
    runner = make_runner({"where": ["step", "close"], "once": True}, restart_failed_sub_environments=True, **options)
    assert sum(map(len, runner.sample(num_timesteps=40))) >= 40
    assert runner.get_metrics()["num_env_restarts"] == 1
    runner.stop()


@pytest.mark.parametrize("options", [{}, WORKERS])
def test_constructors_and_close(options):
    with pytest.raises(UserExitError):
        make_runner({"where": ["init"]}, **options)
    runner = make_runner({"where": ["close"]}, **options)
    runner.sample(num_timesteps=4)
    with pytest.raises(UserExitError):
        runner.stop()


def test_a_worker_outlives_it():
    runner = make_runner({"where": ["step"], "only": 1}, **SEVERAL, **WORKERS)
    before = runner.env.envs[0]._worker.pid
    with pytest.raises(UserExitError):
        runner.sample(num_timesteps=40)
    assert runner.env.envs[0]._worker.pid == before
    assert runner.env.envs[0].call("env_t") == 3
    runner.stop()


def leave(*args, **kwargs):
    sys.exit()


class Leaving(RLModule):
    def setup(self):
        self.layer = torch.nn.Linear(4, 3)

    _forward_exploration = _forward_inference = leave


MODULE = {"policies": {"p": RLModuleSpec(Leaving)}}


@pytest.mark.parametrize(
    "options",
    [
        MODULE,
        {"policy_mapping_fn": lambda agent_id, episode: sys.exit(), "policies": {"p", "q"}},
        *({f"callbacks_{event}": leave} for event in ("on_episode_created", "on_episode_step", "on_sample_end")),
    ],
)
def test_other_code_of_the_user(options):
    runner = make_runner(**options)
    with pytest.raises(UserExitError) as raised:
        runner.sample(num_timesteps=4)
    assert ("module 'p'" in notes_of(raised.value)) == ("policies" in options and "policy_mapping_fn" not in options)
    runner.stop()


def test_callbacks_that_hear_of_envs():
    with pytest.raises(UserExitError):
        make_runner(callbacks_on_environment_created=leave)


def test_groups():
    config = fastmarl.EnvRunnerConfig(env=Quitter, env_config={"where": ["step"]})
    with EnvRunnerGroup(config, num_env_runners=0) as group, pytest.raises(UserExitError):
        group.sample()


@pytest.mark.needs("ray")
def test_actors_of_groups_outlive_it():
    actor = importlib.import_module("fastmarl.distributed.ray_actors").HostActor()
    actor.call("start", 0, None, RunnerPlan(fastmarl.EnvRunnerConfig(env=Quitter), columns_of))
    failure = actor.call("apply", 0, None, leave, ())
    assert isinstance(pickle.loads(failure.error), UserExitError)
    actor.call("stop", 0, None)


class QuittingBatch(Rooms):
    def __init__(self, config):
        super().__init__(config.num_envs)

    def step(self, actions, out):
        sys.exit()


@pytest.mark.parametrize("n_splits", [1, 2])
def test_batches(n_splits):
    config = fastmarl.EnvRunnerConfig(
        env=QuittingBatch,
        num_envs_per_env_runner=2,
        worker_num_splits=n_splits,
        policies={"near", "far"},
        policy_mapping_fn=lambda agent_id, episode: "far" if agent_id == "c" else "near",
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner, pytest.raises(UserExitError) as raised:
        runner.sample(num_timesteps=4)
    assert "step() of the batch" in notes_of(raised.value)
    assert "step() raised SystemExit" in str(check_env(QuittingBatch))


def test_other_signals_of_the_end_pass():
    for ending in (KeyboardInterrupt, GeneratorExit):
        runner = make_runner()

        def end(actions, ending=ending):
            raise ending

        runner.env.envs[0].step = end
        with pytest.raises(ending):
            runner.sample(num_timesteps=4)
        runner.stop()


class Ending:
    def __call__(self, number, frame):
        sys.exit(7)


HANDLERS = {
    "function": lambda number, frame: sys.exit(7),
    "method": Ending().__call__,
    "object": Ending(),
    "partial": partial(lambda code, number, frame: sys.exit(code), 7),
    "partial of an object": partial(Ending()),
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("restart", [False, True])
def test_a_signal_handler_may_end_the_program(restart, handler):
    """SIGTERM is answered so in many programs: it is no failure of the env that is being stepped."""
    runner = make_runner(restart_failed_sub_environments=restart)
    before = signal.signal(signal.SIGTERM, HANDLERS[handler])
    try:
        runner.env.envs[0].step = lambda actions: os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit, match="7"):
            runner.sample(num_timesteps=4)
    finally:
        signal.signal(signal.SIGTERM, before)
    runner.stop()


@pytest.mark.parametrize("where", ["reset", "step", "close"])
def test_the_check_reports_it(where):
    report = check_env(Quitter, {"where": [where]})
    assert re.search(rf"{where}\(\) raised .*test_exits.py:\d+", str(report))
    assert not report.ok


@pytest.mark.parametrize("where", ["init", "step"])
def test_the_command_says_so(where, capsys):
    assert main(["check-env", f"{__name__}:Quitter", "--env-config", f'{{"where": ["{where}"]}}']) == 1
    said = capsys.readouterr()
    assert re.search(r"SystemExit.* in .*test_exits.py:\d+", said.out + said.err)


def test_the_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(UserExitError(2, "a.py:3 (step)")))
    assert str(error).startswith("SystemExit(2) was raised in a.py:3 (step)")
