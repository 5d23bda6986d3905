"""Envs in worker processes: the same episodes as in one process, and nothing left behind however it ends."""

import gc
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
from support.background import assert_gone, assert_they_wait
from support.differences import assert_same
from support.exhaustive import further
from support.process_runners import ODD_POLICIES, RandomModule, children, contents, make_runner, policy_options, sampled
from support.real_envs import KINDS, params
from support.real_envs import pytestmark as pytestmark
from support.scripted import Step, scripted
from support.trouble import BOX, Odd, Trouble

import fastmarl
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.processes import cores as cores_file
from fastmarl.core.processes.cores import usable_cores
from fastmarl.errors import (
    ConfigError,
    EnvCheckError,
    EnvTimeoutError,
    EnvWorkerError,
    ObservationError,
    RemoteEnvError,
    RunnerStoppedError,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    params(
        [
            "simple_tag",
            "simple_spread, continuous",
            "multiwalker",
            "knights_archers_zombies",
            "battle",
            "connect_four",
            "combined_arms",
            "multigrid",
            *KINDS.keys() & {"mamujoco"},  # which asks for Gymnasium 1.2
            "lbforaging",
        ]
    ),
)
def test_real_envs_give_the_same_episodes_as_in_one_process(kind):
    options = {"env_config": KINDS[kind][1], **policy_options(kind)}
    want = sampled(KINDS[kind][0], mode="sync", **options)
    assert_same(sampled(KINDS[kind][0], env_worker_start_method="fork", **options), want)


@pytest.mark.slow
@pytest.mark.needs("mpe2")
def test_results_do_not_depend_on_the_number_of_workers_nor_on_how_they_are_started():
    options = {"env": "mpe2.simple_spread_v3", "num_envs": 5}
    want = sampled(mode="sync", **options)
    assert_same(sampled(num_workers=1, env_worker_start_method="fork", **options), want)
    assert_same(sampled(num_workers=3, env_worker_start_method="spawn", **options), want)
    assert_same(sampled(num_workers=99, env_worker_start_method="fork", **options), want)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the observations of module:UserWarning")
@pytest.mark.parametrize("env_config", [{}, {"arrays": True}, {"text": True}], ids=str)
def test_values_of_all_kinds_arrive_as_in_one_process(env_config):
    options = {
        "env_config": env_config,
        "policies": ["0", "b", "('c', 1)", "d"],
        "policy_mapping_fn": lambda agent, episode: str(agent),
        "record_env_state": True,
        "policies_to_train": [],
    }
    options["policies"] = {
        name: fastmarl.RLModuleSpec(module_class=RandomModule) if name == "d" else None for name in options["policies"]
    }
    want = sampled(Odd, mode="sync", **options)
    assert_same(sampled(Odd, env_worker_start_method="fork", **options), want)


def test_global_states_arrive_as_in_one_process():
    def states(mode):
        runner = make_runner(Odd, mode=mode, record_env_state=True, env_worker_start_method="fork", **ODD_POLICIES)
        try:
            return [chunk.get_env_states() for chunk in runner.sample(num_timesteps=90)]
        finally:
            runner.stop()

    assert_same(states("async"), states("sync"))


@pytest.mark.needs("mpe2")
def test_usual_results_are_not_pickled(monkeypatch):
    runner = make_runner("mpe2.simple_spread_v3", env_worker_start_method="fork")
    answers = []
    for worker in runner.env._workers:
        monkeypatch.setattr(worker._channel, "messages", Noted(answers))
    runner.sample(num_timesteps=90)
    runner.stop()
    assert len(answers) > 60
    assert set(answers) == {b"d"}


class Noted(dict):
    """Notes what is put in."""

    def __init__(self, values):
        self.values = values

    def __setitem__(self, key, value):
        self.values.append(value)
        super().__setitem__(key, value)


class OpenWorld(Trouble):
    """Any id may appear: a new one in every episode."""

    def __init__(self, config):
        super().__init__(config)
        self.possible_agents = []
        self.observation_space, self.action_space = BOX, gym.spaces.Discrete(3)
        self.observation_spaces = self.action_spaces = None

    def reset(self, **kwargs):
        self.names = [f"a{self.n_resets}", "b"]
        return super().reset(**kwargs)

    def step(self, actions):
        obs, _, *rest = super().step(actions)
        return obs, dict.fromkeys(self.names, 1.5), *rest

    def _obs(self):
        return {name: np.array([self.n_resets, 0, self.t], np.float32) for name in self.names}


def test_agents_need_not_be_known_beforehand():
    want = sampled(OpenWorld, mode="sync")
    got = sampled(OpenWorld, env_worker_start_method="fork")
    assert_same(got, want)
    assert "a1" in want["chunks"][-1]["order"]


@pytest.mark.needs("mpe2")
def test_episodes_outlive_the_workers_and_can_be_pickled():
    runner = make_runner("mpe2.simple_spread_v3", env_worker_start_method="fork")
    chunks = runner.sample(num_timesteps=90)
    runner.stop()
    copies = pickle.loads(pickle.dumps(chunks))
    assert_same(list(map(contents, copies)), list(map(contents, chunks)))


# Errors.


def test_an_env_s_error_arrives_with_its_traceback_and_sampling_goes_on():
    runner = make_runner(Trouble, env_config={"trouble": {(1, 30): "raise"}}, env_worker_start_method="fork")
    runner.sample(num_timesteps=30)
    with pytest.raises(KeyError, match="lost at 30") as caught:
        runner.sample(num_timesteps=90)
    notes = "\n".join(caught.value.__notes__)
    assert "raised by step() of env 1" in notes
    assert 'raise KeyError(f"lost at {self.total}")' in notes
    (first, *_) = runner.sample(num_timesteps=30)
    assert first.env_t_started == 0
    assert len({chunk.get_observations()["a"][0, 0] for chunk in runner.sample(num_timesteps=30)}) == 3
    runner.stop()


def test_an_error_that_cannot_be_pickled_is_described():
    runner = make_runner(Trouble, env_config={"trouble": {(2, 3): "odd raise"}}, env_worker_start_method="fork")
    with pytest.raises(RemoteEnvError, match=r"env 2: .*UnpicklableError") as caught:
        runner.sample(num_timesteps=90)
    assert "raise UnpicklableError(" in "\n".join(caught.value.__notes__)
    runner.stop()


def test_errors_of_constructors_and_resets_arrive():
    options = {"env_worker_start_method": "fork"}
    with pytest.raises(KeyError, match="lost at 0") as caught:
        make_runner(Trouble, env_config={"trouble": {(2, 0): "raise"}, "in": "init"}, **options)
    assert "raised by constructor of env 2" in "\n".join(caught.value.__notes__)
    runner = make_runner(Trouble, env_config={"trouble": {(2, 0): "raise"}, "in": "reset"}, **options)
    with pytest.raises(KeyError, match="lost at 0"):
        runner.sample(num_timesteps=3)
    runner.stop()
    assert not children()


def test_broken_results_are_errors_as_in_one_process():
    wrong = {"a": np.zeros(3, np.float32), "b": np.zeros(4, np.float32)}
    broken = scripted(["ab", "ab", "ab", "ab", Step(wrong)], space=BOX)
    for mode in ("sync", "async"):
        runner = make_runner(broken, mode=mode, env_worker_start_method="fork")
        with pytest.raises(ObservationError, match=r"env 0, agent 'b', env step 4: .*shape \(3,\), got"):
            runner.sample(num_timesteps=90)
        runner.stop()


@pytest.mark.slow
@pytest.mark.needs("mpe2", "vmas")
def test_envs_that_cannot_run_in_workers_are_refused():
    with pytest.raises(ConfigError, match="is for single envs, but VmasEnv is a batch"):
        make_runner("vmas.balance", env_worker_start_method="fork")
    with pytest.raises(EnvCheckError, match=r"did you mean 'mpe2\.simple_tag_v3'"):
        make_runner("mpe2.simple_tagg_v3", env_worker_start_method="fork")
    with pytest.raises(EnvCheckError, match="is an instance of Trouble"):
        make_runner(Trouble(EnvContext({}, 0, 0)), env_worker_start_method="fork")
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker process: .*env_worker_start_method=\"fork\""):
        make_runner(Trouble, env_config={"lock": threading.Lock()})
    with pytest.raises(ConfigError, match="env_worker_start_method must be one of"):
        make_runner(Trouble, env_worker_start_method="forkserver")
    with pytest.raises(ConfigError, match="step_timeout_s must be a number"):
        make_runner(Trouble, step_timeout_s=0)
    assert not children()


@pytest.mark.slow
def test_lambdas_and_registered_names_reach_spawned_workers():
    fastmarl.register_env("trouble", lambda env_config: Trouble(env_config))
    runner = make_runner("trouble", num_envs=2)
    pids = [env.call("pid") for env in runner.env.envs]
    assert len({*pids, os.getpid()}) == 3
    assert sorted(child.pid for child in children()) == sorted(pids)
    runner.stop()


@pytest.mark.slow
def test_a_hanging_env_is_a_timeout():
    runner = make_runner(
        Trouble, env_config={"trouble": {(2, 5): "hang"}}, step_timeout_s=0.5, env_worker_start_method="fork"
    )
    with pytest.raises(EnvTimeoutError, match=r"envs \[2\] did not answer within step_timeout_s=0.5 s.* env 2 was"):
        runner.sample(num_timesteps=90)
    with pytest.raises(EnvTimeoutError):  # it is not there any more
        runner.sample(num_timesteps=90)
    runner.make_env()
    runner.sample(num_timesteps=9)
    runner.stop()
    assert not children()


# Callbacks, and calls of envs.


def test_envs_can_be_called_while_others_are_stepped():
    seen = []

    def ask(*, env, env_index, **kwargs):
        seen.append([remote.call("t") for remote in env.envs])
        assert "RemoteEnv(Trouble" in repr(env.envs[env_index])

    options = {"callbacks_on_episode_step": ask, "env_worker_start_method": "fork"}
    asked = sampled(Trouble, **options)
    # By the time that the first worker's envs are recorded, all have made the step.
    assert seen == [[t] * 3 for t in [*range(1, 51), *range(1, 25)] for _ in range(3)]
    assert_same(asked, sampled(Trouble, mode="sync"))


# Whatever happens, nothing stays behind.


def named_memory(pids):
    """Return what these processes map of /dev/shm; the system would keep named memory after their end."""
    maps = [line.split()[-1] for pid in pids for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {name for name in maps if name.startswith("/dev/shm/")}


ENDS = ("stop", "stop", "error", "stop", "kill a worker", "collect", "stop", "kill the runner", "collect")
"""A third of them by violence."""


@pytest.mark.slow
def test_starts_and_ends_leave_nothing_behind():
    memory, files = named_memory(["self"]), len(os.listdir("/proc/self/fd"))
    in_dev_shm = set(os.listdir("/dev/shm"))
    for i in range(2 * len(ENDS)):  # once with parts that take turns, once without
        assert_gone(END[ENDS[i % len(ENDS)]](i))
        assert not children()
    assert named_memory(["self"]) == memory
    assert {name for name in set(os.listdir("/dev/shm")) - in_dev_shm if "fastmarl" in name} == set()
    gc.collect()  # errors that were caught, and what their tracebacks hold
    assert len(os.listdir("/proc/self/fd")) <= files


def started(i, **trouble):
    runner = make_runner(Trouble, worker_num_splits=1 + i % 2, env_worker_start_method="fork", env_config=trouble)
    runner.sample(num_timesteps=6)
    pids = [worker.pid for worker in runner.env._workers]
    assert not named_memory(pids)
    return runner, pids


def end_by_stop(i):
    runner, pids = started(i)
    runner.stop()
    runner.stop()
    with pytest.raises(RunnerStoppedError):
        runner.sample(num_timesteps=30)
    return pids


def end_by_collection(i):
    runner, pids = started(i)
    del runner
    gc.collect()
    return pids


def end_after_an_error(i):
    runner, pids = started(i, trouble={(1, 4): "raise"})
    with pytest.raises(KeyError):
        runner.sample(num_timesteps=30)
    runner.stop()
    return pids


def end_after_a_worker_s_death(i):
    runner, pids = started(i)
    os.kill(pids[i % 2], signal.SIGKILL)
    with pytest.raises(EnvWorkerError, match=r"exited \(exit code -9\)"):
        runner.sample(num_timesteps=30)
    runner.stop()
    return pids


def end_with_the_runner_s_process(i):
    """In the middle of a step, or between steps."""
    here, there = multiprocessing.Pipe()

    def run():
        runner, pids = started(i, trouble={(1, 4): "hang"} if i % 2 else {})
        there.send(pids)
        runner.sample(num_timesteps=10**9)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    pids = here.recv()
    process.kill()
    process.join()
    for end in (here, there):
        end.close()
    process.close()
    return pids


END = {
    "stop": end_by_stop,
    "collect": end_by_collection,
    "error": end_after_an_error,
    "kill a worker": end_after_a_worker_s_death,
    "kill the runner": end_with_the_runner_s_process,
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stop_leaves_no_descriptors_to_the_garbage_collector(method):
    make_runner(Trouble, num_envs=1, env_worker_start_method=method).stop()  # starts what is there for all later ones
    gc.collect()
    gc.disable()
    try:
        files = os.listdir("/proc/self/fd")
        runner = make_runner(Trouble, env_worker_start_method=method)
        runner.sample(num_timesteps=30)
        runner.stop()
        assert os.listdir("/proc/self/fd") == files
    finally:
        gc.enable()


def test_a_runner_in_a_daemonic_process_says_why_it_has_no_workers():
    def run(pipe):
        with pytest.raises(ConfigError) as caught:
            make_runner(Trouble, env_worker_start_method="fork")
        pipe.send(str(caught.value))

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(there,), daemon=True)
    process.start()
    there.close()
    assert re.search('"async" starts worker processes.* daemonic process.* daemon=False, .* "sync"', here.recv())
    process.join()
    here.close()


SCRIPT = """
import os, signal, sys, time
import fastmarl
from support.trouble import Trouble

if __name__ == "__main__":
    method, how = sys.argv[1:]
    options = dict(num_envs_per_env_runner=2, gym_env_vectorize_mode="async", num_env_workers=2)
    trouble = {"trouble": {(1, 5): "hang"}} if how == "kill" else {}
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=Trouble, env_config=trouble, env_worker_start_method=method, **options))
    runner.sample(num_timesteps=4)
    print(*[env.call("pid") for env in runner.env.envs], flush=True)
    if how == "raise":
        raise SystemExit(3)
    if how == "kill":
        import threading
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        runner.sample(num_timesteps=40)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "how", "code"),
    [("fork", "kill", -signal.SIGKILL), *further([("spawn", "raise", 3), ("spawn", "kill", -signal.SIGKILL)])],
)
def test_workers_end_with_the_process_of_the_runner(tmp_path, method, how, code):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = pathlib.Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, str(script), method, how],
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == code, result.stderr
    assert_gone(list(map(int, result.stdout.split())))
    assert not result.stderr


@pytest.mark.slow
def test_idle_workers_take_no_time():
    runner = make_runner(Trouble, env_worker_start_method="fork")
    runner.sample(num_timesteps=30)
    assert_they_wait([worker.pid for worker in runner.env._workers])
    runner.stop()


def test_workers_need_neither_torch_nor_numba():
    code = "import sys, fastmarl.core.vector.workers.worker; print(sorted({'torch', 'numba'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# Failures stay where they happen.

KINDS_OF_MODE = [("sync", 1), ("async", 3), ("async", 2)]


@pytest.mark.parametrize(("mode", "num_workers"), KINDS_OF_MODE)
@pytest.mark.parametrize("keep", [True, False])
def test_an_env_that_raises_is_remade_and_only_its_episode_ends(tmp_path, mode, num_workers, keep):
    made = tmp_path / "made"
    runner = make_runner(
        Trouble,
        mode=mode,
        num_workers=num_workers,
        env_config={"trouble": {(1, 30): "raise"}, "made": str(made), "once": str(tmp_path)},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        failed_episodes="truncate" if keep else "discard",
    )
    chunks = runner.sample(num_timesteps=60)
    assert [(chunk.env_t_started, chunk.env_t) for chunk in chunks] == [(0, 20)] * 3
    chunks = runner.sample(num_timesteps=60)
    spans = [(chunk.env_t_started, chunk.env_t, chunk.is_truncated) for chunk in chunks]
    failed = [(20, 29, True)] if keep else []
    rest = (41, 11) if keep else (44, 14)  # what was discarded is made up for
    assert spans == [*failed, (20, rest[0], False), (0, rest[1], False), (20, rest[0], False)]
    if keep:
        for part in chunks[0].agent_episodes.values():
            assert part.get_observations()[:, 2].tolist() == list(range(20, 30))
            assert part.get_rewards().tolist() == list(range(21, 30))
            assert part.is_truncated
            assert not part.is_terminated
    report = runner.get_metrics()
    counted = {key: report[key] for key in report if key.startswith("num_env_")}
    assert counted == {
        "num_env_steps_sampled": 60 + 62,
        "num_env_steps_sampled_lifetime": 60 + 62,
        "num_env_step_failures": 1,
        "num_env_failures": 1,
        "num_env_timeouts": 0,
        "num_env_restarts": 1,
        "num_env_steps_discarded": 1 if keep else 10,
    }
    assert runner.get_metrics()["num_env_failures"] == 0
    assert sorted(made.read_text().split()) == ["0", "1", "1", "2"]
    runner.stop()


@pytest.mark.slow
@pytest.mark.parametrize("num_splits", [1, 2])
def test_one_crash_one_hang_one_kill(tmp_path, num_splits):
    """Eight envs lose three running episodes, and nothing else."""
    made = tmp_path / "made"
    runner = make_runner(
        Trouble,
        num_envs=8,
        num_workers=8,
        env_config={
            "trouble": {(3, 30): "exit", (5, 40): "hang", (6, 35): "kill"},
            "made": str(made),
            "once": str(tmp_path),
        },
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        worker_num_splits=num_splits,
        step_timeout_s=1,
    )
    chunks = runner.sample(num_timesteps=800)
    report = runner.get_metrics()
    runner.stop()
    assert sum(map(len, chunks)) >= 800
    assert sorted(made.read_text().split()) == sorted([*"01234567", *"356"])
    wanted = {"failures": 3, "timeouts": 1, "restarts": 3, "steps_discarded": 3}
    assert {name: report[f"num_env_{name}"] for name in wanted} == wanted
    broken = [chunk for chunk in chunks if chunk.is_truncated and len(chunk) < 50]
    lengths = {int(chunk.get_observations()["a"][0, 0]): len(chunk) for chunk in broken}
    assert lengths == {3: 29, 5: 39, 6: 34}
    for chunk in broken:
        assert chunk.get_observations()["b"][:, 2].tolist() == list(range(len(chunk) + 1))
    assert all(len(chunk) == 50 for chunk in chunks if chunk.is_done and chunk not in broken)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("where", "tries"), [("init", 3), ("reset", 3), ("step", 3)])
def test_an_env_that_always_fails_is_given_up_with_its_own_error(tmp_path, mode, where, tries):
    options = {"mode": mode, "env_worker_start_method": "fork", "restart_failed_sub_environments": True}
    made = tmp_path / "made"
    total = 1 if where == "step" else 0
    env_config = {"trouble": {(1, total): "raise"}, "in": where, "made": str(made)}
    if where == "init":  # the first one can be made, and then fails
        env_config = {"trouble": {(1, 5): "raise"}, "made": str(made), "breaks": str(tmp_path / "broken")}
    runner = make_runner(Breaking, env_config=env_config, max_restarts=tries, **options)
    with pytest.raises((KeyError, ZeroDivisionError)) as caught:
        runner.sample(num_timesteps=60)
    assert any("max_restarts=3 times in a row" in note for note in caught.value.__notes__)
    assert type(caught.value) is (ZeroDivisionError if where == "init" else KeyError)
    assert made.read_text().split().count("1") == 1 + tries
    runner.stop()
    assert not children()


class Breaking(Trouble):
    """Can't be made any more once a step has failed, if there is `env_config["breaks"]`."""

    def __init__(self, config):
        super().__init__(config)
        if "breaks" in config and os.path.exists(config["breaks"]):
            raise ZeroDivisionError("no more of these")

    def step(self, actions):
        try:
            return super().step(actions)
        except KeyError:
            if "breaks" in self.config:
                pathlib.Path(self.config["breaks"]).touch()
            raise


@pytest.mark.parametrize("trouble", ["exit", pytest.param("hang", marks=pytest.mark.slow)])
def test_envs_lost_with_their_worker_while_another_is_reset(tmp_path, trouble):
    """One worker has both envs; env 0's second reset ends it, or hangs, while env 1's episode goes on."""
    runner = make_runner(
        Staggered,
        num_envs=2,
        num_workers=1,
        env_config={"trouble": {(0, 10): trouble}, "in": "reset", "once": str(tmp_path)},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        step_timeout_s=0.5 if trouble == "hang" else 60,
    )
    chunks = runner.sample(num_timesteps=60)
    spans = [(int(chunk.get_observations()["a"][0, 0]), len(chunk), chunk.is_truncated) for chunk in chunks]
    assert spans[:2] == [(0, 10, True), (1, 10, True)]
    report = runner.get_metrics()
    wanted = {"failures": 1, "timeouts": int(trouble == "hang"), "restarts": 2, "steps_discarded": 1}
    assert {name: report[f"num_env_{name}"] for name in wanted} == wanted
    assert sum(map(len, chunks)) >= 60
    runner.stop()


class Staggered(Trouble):
    """Episodes of env 0 take 10 steps, those of env 1 20."""

    def __init__(self, config):
        config["length"] = 10 + 10 * config.vector_index
        super().__init__(config)


def test_waiting_agents_keep_their_rewards_when_the_env_fails():
    """a acts on even steps, b on odd ones; the env fails in step 6. a's action at 5 differs from b's wait."""

    turns = ["a", *(Step("ab"[t % 2], {"a": 1.0, "b": 10.0}) for t in range(1, 6)), KeyError("lost")]
    runner = make_runner(scripted(turns), num_envs=1, mode="sync", restart_failed_sub_environments=True)
    first = runner.sample(num_timesteps=20)[0]
    a, b = first.agent_episodes["a"], first.agent_episodes["b"]
    assert first.env_t == 5
    # a saw 0, 2, 4 and waits since its action upon 4; b saw 1, 3, 5, and its action upon 5 was the one that failed.
    assert a.get_observations()[:, 0].tolist() == [0, 2, 4, 4]
    assert a.get_rewards().tolist() == [2, 2, 1]
    assert b.get_observations()[:, 0].tolist() == [1, 3, 5]
    assert b.get_rewards().tolist() == [30, 20]  # with what came with its first observation
    assert runner.get_metrics()["agent_steps"] == {"a": 3, "b": 2}
    runner.stop()


@pytest.mark.parametrize(
    ("text", "n_cores"),
    [
        ("max 100000\n", 3),
        ("150000 100000\n", 1),
        ("50000 100000", 1),
        ("200000 100000", 2),
        ("900000 100000", 3),
        ("?", 3),
    ],
)
def test_cores_are_those_of_the_affinity_and_the_cgroup(monkeypatch, tmp_path, text, n_cores):
    monkeypatch.setattr(cores_file, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 4, 5}, raising=False)
    assert usable_cores() == 3
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores() == n_cores
