"""`EnvRunnerGroup` with real actors of Ray: what it hands out, kills, and what is left in the end."""

import os
import pathlib
import signal
import threading
import time
from itertools import pairwise

import numpy as np
import psutil
import pytest
import ray
from support import in_actors, trouble
from support.background import assert_gone
from support.differences import assert_same
from support.in_actors import connectors_of, fail, make_batch, pid_of

import fastmarl
from fastmarl.batches import columns
from fastmarl.connectors import MeanStdFilter
from fastmarl.distributed import EnvRunnerGroup, fleet
from fastmarl.errors import ConfigError, EnvRunnerLostError, RemoteEnvRunnerError, RunnerStoppedError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("local_ray"),
    pytest.mark.xdist_group("ray"),  # one set of Ray's processes at a time
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

N_KILLS = int(os.environ.get("FASTMARL_KILLS", "1"))
N_RUNNERS = 3 if N_KILLS == 1 else 4
ALL = ("obs", "actions", "rewards", "action_logp", "weights_seq_no")


def make_config(**options):
    return fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread",
        **{
            "num_envs_per_env_runner": 2,
            "rollout_fragment_length": 25,
            "seed": 1,
            "model_config": {"fcnet_hiddens": [4]},
            "env_to_module_connector": MeanStdFilter(),
            **options,
        },
    )


def pids_of(group):
    return list(group.foreach(pid_of).values())


def shared_memory():
    return set(os.listdir("/dev/shm"))


def assert_nothing_is_left(before):
    """No new shared memory that no process uses: other processes may have some of their own, and be about to use it."""
    end = time.monotonic() + 60
    while left := unused(shared_memory() - before):
        assert time.monotonic() < end, f"left in /dev/shm: {left}"
        time.sleep(0.1)


def unused(names):
    used = "\n".join(map(maps_of, pathlib.Path("/proc").glob("[0-9]*/maps"))) if names else ""
    return [name for name in names & shared_memory() if f"/dev/shm/{name}" not in used]


def maps_of(path):
    try:
        return path.read_text()
    except OSError:  # the process has ended meanwhile
        return ""


@pytest.fixture(scope="module")
def sent_by_value():
    """Ray's processes don't find the folder of the tests."""
    for module in (in_actors, trouble):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (in_actors, trouble):
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def group(local_ray, sent_by_value):
    """Some runners. In the end one stands still, and nothing is left of them."""
    before = shared_memory()
    with EnvRunnerGroup(make_config(), num_env_runners=N_RUNNERS, make_batch=make_batch) as group:
        yield group
        pids = pids_of(group)
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleet, "CLOSE_TIMEOUT_S", 1.0)
            group.stop()
    assert_gone(pids)
    assert_nothing_is_left(before)
    assert ray.is_initialized()


def test_batches_are_those_of_runners_in_this_process(group):
    runners = [
        fastmarl.MultiAgentEnvRunner(make_config(worker_index=1 + i, num_env_runners=N_RUNNERS))
        for i in range(N_RUNNERS)
    ]
    for number in range(1, 4):
        assert group.set_weights() == number
        parts = group.sample(num_timesteps=50)
        for runner, part in zip(runners, parts, strict=True):
            runner.set_weights(group.module.get_state(), weights_seq_no=number)
            want = columns(runner.sample(num_timesteps=50))["default_policy"]
            assert_same({name: part.batch[name] for name in ALL}, {name: want[name] for name in ALL})
            part.batch["rewards"][:] = 0.0  # they can be written to
    group.sync_connectors()
    merged = runners[0].env_to_module.merge_states([runner.env_to_module.get_state() for runner in runners])
    for state in group.foreach(connectors_of).values():
        assert_same(state, merged)


class Stream:
    """Takes parts, and looks at each: its episodes begin with seeds that were not used before.

    Seeds have 31 bits: among the millions that are drawn while many runners begin, some are equal by chance. So it is
    two in a row that must be new. A stream that begins again, or goes on where another one was, has the same pairs.
    """

    def __init__(self, group):
        self.group = group
        self.parts = group.sample_ready(num_timesteps=200)
        self.pairs = set()
        self.env_steps = 0

    def next(self):
        part = next(self.parts)
        self.group.set_weights()
        seeds = part.batch["seeds"]
        assert len(seeds) >= 8
        new = {first << 31 | second for first, second in pairwise(seeds)}
        assert self.pairs.isdisjoint(new)
        self.pairs |= new
        self.env_steps += part.num_env_steps
        return part

    def until(self, is_reached):
        """The runners that deliver meanwhile. How long that may take is up to the group's own limits: a busy machine
        needs minutes for a start."""
        delivered = set()
        while not is_reached():
            delivered.add(self.next().runner_index)
            time.sleep(0.05)  # else they take the cores that a start needs
        return delivered


def test_a_runner_that_is_killed_while_it_samples_comes_back(group):
    """The others deliver meanwhile, and counts are of what was delivered. FASTMARL_KILLS says how often."""
    group.sample()
    group.sync_connectors()
    group.get_metrics()
    runners, stream, before = group._fleet.runners, Stream(group), shared_memory()
    first = incarnations(runners)
    for kill in range(N_KILLS):
        victim = runners[kill % N_RUNNERS]
        stream.until(lambda: victim.is_ready)  # noqa: B023
        for _ in range(4):
            stream.next()
        begun, killed_at = incarnations(runners), group.weights_seq_no
        process = psutil.Process(victim.start.pid)
        process.kill()
        delivered = stream.until(lambda: victim.incarnation > begun[victim] and victim.is_ready)  # noqa: B023
        stayed = {runner.index for runner in runners if runner.incarnation == begun[runner]}
        assert delivered >= stayed
        while (part := stream.next()).runner_index != victim.index:
            pass
        assert part.weights_seq_no >= killed_at
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    group._fleet.wait_for_starts(runners)
    (filter_state,) = group.foreach(connectors_of)[victim.index]["default_policy"].values()
    assert filter_state["base"][0]["count"] > 0  # what all had counted together
    report = group.get_metrics()
    assert report["num_env_steps_sampled"] == stream.env_steps
    n_replaced = sum(runner.incarnation - first[runner] for runner in runners)
    assert report["num_env_runner_restarts"] == n_replaced >= N_KILLS  # the machine may end some, too
    assert report["num_samples_dropped"] >= N_KILLS
    assert_nothing_is_left(before)


def incarnations(runners):
    return {runner: runner.incarnation for runner in runners}


def test_errors_come_with_their_tracebacks_and_runners_go_on(group):
    pids = pids_of(group)
    with pytest.raises(LookupError, match="not there") as caught:
        group.foreach(fail, "plain")
    notes = "\n".join(caught.value.__notes__)
    assert "raised by env runner 2 (pid " in notes
    assert 'raise LookupError("not there")' in notes
    with pytest.raises(RemoteEnvRunnerError, match="UnpicklableError"):
        group.foreach(fail, "odd")
    with pytest.raises(TypeError, match="lock"):
        group.foreach(fail, "odd result")
    with pytest.raises(TypeError, match="generator"):
        group.foreach(fail, "generator")
    with pytest.raises(RemoteEnvRunnerError, match="can't be unpickled in this process: LookupError"):
        group.foreach(fail, "local result")
    with pytest.raises(ConfigError, match="can't be sent to another process"):
        group.foreach(fail, threading.Lock())
    assert group.foreach(fail, None) == {index: index + 1 for index in range(N_RUNNERS)}
    assert pids_of(group) == pids


def test_the_size_can_be_changed_while_they_sample(group):
    pids = pids_of(group)
    stream = group.sample_ready(num_timesteps=100)
    next(stream)
    group.resize(2)
    assert_gone(pids[2:])
    indices = [next(stream).runner_index for _ in range(4 + 2 * N_RUNNERS)]
    assert {0, 1} <= set(indices)
    assert set(indices[-4:]) <= {0, 1}
    assert pids_of(group) == pids[:2]


def test_an_evaluation_is_shared(group):
    group.sync_connectors()
    found = group.evaluate(7)
    with fastmarl.MultiAgentEnvRunner(make_config(worker_index=1)) as runner:
        runner.set_weights(group.get_weights())
        runner.env_to_module.set_state(group.foreach(connectors_of)[0])
        want = fastmarl.evaluate(runner, episodes=7)
    np.testing.assert_allclose(found.returns, want.returns, rtol=1e-5)
    assert found.reset_seeds == want.reset_seeds


def test_runners_that_have_no_place_are_an_error(group):
    with pytest.raises(EnvRunnerLostError, match=r"did not answer start\(\) within 2 s .* enough free CPUs"):
        EnvRunnerGroup(make_config(), num_env_runners=1, start_timeout_s=2, actor_options={"num_cpus": 64})
    with pytest.raises(ConfigError, match="max_restarts"):
        EnvRunnerGroup(make_config(), num_env_runners=1, actor_options={"max_restarts": 3})


def test_ray_is_not_restarted_for_a_group_whose_ray_was_shut_down(group, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RunnerStoppedError, match="Ray was shut down"):
        group.sample()


def test_a_group_ends_with_its_time_in_the_cluster(group, monkeypatch):
    """After `ray.shutdown()`, and `ray.init()` with the same address, there is another job on the same node."""
    monkeypatch.setattr(type(ray.get_runtime_context()), "get_job_id", lambda self: "ff000000")
    with pytest.raises(RunnerStoppedError, match="Ray was shut down"):
        group.sample()


def test_a_runner_that_stands_still_is_killed(group, monkeypatch):
    """Last of all: the group ends while the new one begins."""
    group.sample()
    monkeypatch.setattr(group._fleet, "_sample_timeout_s", 3.0)
    pid = pids_of(group)[1]
    group.get_metrics()
    os.kill(pid, signal.SIGSTOP)
    parts = group.sample()
    assert {part.runner_index for part in parts} == set(range(group.num_env_runners)) - {1}
    assert group.get_metrics()["num_samples_dropped"] == 1
    assert_gone([pid])
