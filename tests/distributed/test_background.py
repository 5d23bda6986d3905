"""`BackgroundSampler`: what it hands out, and what weights that was sampled with."""

import os
import pathlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread

import numpy as np
import pytest
import torch
from support import groups
from support.differences import assert_same
from support.groups import without_ids
from support.modules import Normed
from support.process_runners import children
from support.trouble import Trouble

import fastmarl
from fastmarl.batches import add_n_step_returns, add_vtrace, columns
from fastmarl.connectors import MeanStdFilter
from fastmarl.distributed import BackgroundSampler
from fastmarl.distributed.calls import CallsInFlight
from fastmarl.distributed.parcels import join_batches, pack, unpack
from fastmarl.distributed.shared_weights import SharedWeights
from fastmarl.errors import BatchError, ConfigError, RunnerBusyError, RunnerStoppedError
from fastmarl.learning import to_tensors

make_config = partial(groups.make_config, num_envs_per_env_runner=3)


def make_sampler(config, **options):
    return BackgroundSampler(config, **{"start_method": "fork", **options})


def perturb(module, number):
    """As an update would."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)


def foreground(config, processes, n_batches):
    """(batches, metrics) of such runners in this process, trained after each batch."""
    runners = [
        fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(
                **{**vars(config), "worker_index": config.worker_index + 1 + i, "num_env_runners": processes}
            )
        )
        for i in range(processes)
    ]
    module, batches = runners[0].module, []
    for number in range(n_batches):
        batches.append(join_batches([columns(runner.sample()) for runner in runners]))
        perturb(module, number)
        for runner in runners:
            runner.set_weights(module.get_state(), weights_seq_no=number + 1)
    return batches, [runner.get_metrics() for runner in runners]


def log(*, metrics_logger, env_runner, **kwargs):
    metrics_logger.log_value("logged_mean", float(env_runner.worker_index), reduce="mean")
    metrics_logger.log_value(("logged", "sum"), 2.0, reduce="sum")
    metrics_logger.log_value(("logged", "lifetime"), 1.0, reduce="lifetime_sum")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "method", "options"),
    [
        (1, "spawn", {}),
        (2, "fork", {"callbacks_on_episode_end": log, "worker_index": 4}),
        (2, "fork", {"env_to_module_connector": MeanStdFilter(), "model_config": {"use_lstm": True}}),
    ],
)
def test_with_max_policy_lag_0_batches_are_those_of_runners_in_this_process(processes, method, options):
    config = make_config(**options)
    want, metrics = foreground(config, processes, 6)
    got = []
    with make_sampler(config, processes=processes, max_policy_lag=0, start_method=method) as sampler:
        for number, batch in zip(range(6), sampler, strict=False):
            got.append(batch)
            assert set(batch["default_policy"]["weights_seq_no"]) == {number}
            perturb(sampler.module, number)
            assert sampler.set_weights() == number + 1
        report = sampler.get_metrics()
    assert_same([*map(without_ids, got)], [*map(without_ids, want)])
    assert report["weights_seq_no"] == 5
    assert_merged(report, metrics)
    assert not children()


def assert_merged(report, metrics):
    """Sums are added, and means go over all that was counted."""
    for name in ("num_env_steps_sampled", "num_env_steps_sampled_lifetime", "num_episodes", "num_episodes_lifetime"):
        assert report[name] == sum(each[name] for each in metrics) > 0
    for name in ("num_agent_steps_sampled", "num_module_steps_sampled_lifetime"):
        assert report[name] == {key: sum(each[name][key] for each in metrics) for key in metrics[0][name]}
    weights = [each["num_episodes"] for each in metrics]
    for name in ("episode_return_mean", "episode_len_mean"):
        assert report[name] == pytest.approx(np.average([each[name] for each in metrics], weights=weights))
    assert report["episode_return_max"] == max(each["episode_return_max"] for each in metrics)
    assert report["episode_return_min"] == min(each["episode_return_min"] for each in metrics)
    if "logged_mean" in metrics[0]:
        assert report["logged_mean"] == pytest.approx(
            np.average([each["logged_mean"] for each in metrics], weights=weights)
        )
        assert report["logged"] == {"sum": 2.0 * sum(weights), "lifetime": float(sum(weights))}


def test_times_of_several_processes_are_weighted_by_ticks_or_calls():
    with make_sampler(make_config(Trouble), processes=2, max_policy_lag=0) as sampler:
        for _ in range(3):
            sampler.next()
        first = sampler.get_metrics()
        sampler.next()
        second = sampler.get_metrics()
    assert first["num_env_steps_sampled"] == 3 * 2 * 27 and second["num_env_steps_sampled"] == 2 * 27
    assert second["num_env_steps_sampled_lifetime"] == 4 * 2 * 27
    for report in (first, second):
        # 9 ticks in a call: stages are times of a tick, and `sample` is that of a call.
        assert 9e-3 * sum(report["stage_time_ms"].values()) == pytest.approx(report["sample"], rel=0.01)
        assert report["seconds_waited"] > 0 and report["num_batches_dropped"] == report["num_sampler_restarts"] == 0


# Policy lag.


@pytest.mark.slow
@pytest.mark.parametrize("max_policy_lag", [0, 1, 3])
def test_no_batch_is_staler_than_it_may_be(max_policy_lag, rng):
    dropped = newest = 0
    with make_sampler(make_config(Trouble), processes=2, max_policy_lag=max_policy_lag) as sampler:
        for number in range(60):
            for _ in range(1 if number < 30 else int(rng.integers(0, 5))):
                newest = sampler.set_weights()
            if rng.random() < 0.3:
                time.sleep(0.01)  # time to make what may be made
            found = set(sampler.next()["default_policy"]["weights_seq_no"])
            assert newest - max_policy_lag <= min(found) and max(found) <= newest
            dropped += sampler.get_metrics()["num_batches_dropped"]
            if number == 29 or not max_policy_lag:
                assert not dropped  # with one version for each batch, none is made for nothing


def making(folder):
    """Return a make_batch that notes each call, and a function that waits for a number of calls."""
    made = folder / "made"
    made.touch()

    def make_batch(episodes):
        with made.open("a") as file:
            file.write("x")
        return columns(episodes)

    def wait_for(n):
        end = time.monotonic() + 20
        while len(made.read_text()) < n:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.1)  # time for calls that must not come
        return len(made.read_text())

    return make_batch, wait_for


def test_batches_that_are_too_old_are_dropped_and_sampled_again(tmp_path):
    make_batch, wait_for = making(tmp_path)
    with make_sampler(make_config(Trouble), make_batch=make_batch) as sampler:
        sampler.next()
        wait_for(2)
        sampler.set_weights()
        assert set(sampler.next()["default_policy"]["weights_seq_no"]) == {0}  # one behind
        wait_for(3)
        for _ in range(2):
            sampler.set_weights()
        assert set(sampler.next()["default_policy"]["weights_seq_no"]) == {3}
        report = sampler.get_metrics()
    assert report["num_batches_dropped"] == 1
    assert report["num_env_steps_sampled"] == 4 * 27  # what was dropped is counted


@pytest.mark.parametrize("max_policy_lag", [0, 1, 2])
def test_no_more_is_made_beforehand_than_may_be(max_policy_lag, tmp_path):
    make_batch, wait_for = making(tmp_path)
    with make_sampler(make_config(Trouble), max_policy_lag=max_policy_lag, make_batch=make_batch) as sampler:
        assert wait_for(0) == 0
        for number in range(1, 4):
            sampler.next()
            assert wait_for(number + max_policy_lag) == number + max_policy_lag


def test_a_batch_stays_as_it_is():
    with make_sampler(make_config(Trouble)) as sampler:
        first = sampler.next()["default_policy"]
        before = {name: column.copy() for name, column in first.items()}
        for _ in range(5):
            sampler.next()
        assert_same(first, before)
        first["rewards"] *= 2
    assert np.array_equal(first["rewards"], 2 * before["rewards"])  # the processes are gone


def vtrace_and_n_step(module, batch):
    """Value targets by both."""
    rows = to_tensors(batch, ["obs", "actions"])
    with torch.no_grad():
        outputs = module.forward_train(rows)
        last_values = module.forward_train(to_tensors({"obs": batch["final_obs"]}))["vf_preds"]
        distribution = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
        logp = distribution.logp(rows["actions"])
    options = {"gamma": 0.95, "values": outputs["vf_preds"], "last_values": last_values}
    add_n_step_returns(batch, n_step=1000, **options)
    n_step = batch["value_targets"]
    add_vtrace(batch, logp, **options)
    return batch["value_targets"], n_step


@pytest.mark.slow
def test_v_trace_of_fresh_batches_is_n_step():
    """Over whole trajectories, as all ratios of probabilities are 1."""
    with make_sampler(make_config(reward_scale=0.1), max_policy_lag=0) as sampler:
        module = sampler.module["default_policy"]
        for number in range(8):
            batch = sampler.next()["default_policy"]
            vtrace, n_step = vtrace_and_n_step(module, batch)
            assert np.abs(vtrace - n_step).max() < 1e-6 * np.abs(n_step).max()
            perturb(module, number)
            sampler.set_weights()
        vtrace, n_step = vtrace_and_n_step(module, batch)  # with newer weights than those that acted
        assert np.abs(vtrace - n_step).max() > 1e-3


# Weights.


def test_modules_that_deepcopy_refuses_are_sent():
    with make_sampler(make_config(rl_module_spec=fastmarl.RLModuleSpec(Normed)), max_policy_lag=0) as sampler:
        sampler.next()
        perturb(sampler.module, 0)
        sampler.set_weights()
        batch = sampler.next()["default_policy"]
        outputs = sampler.module["default_policy"].forward_train({"obs": torch.from_numpy(batch["obs"])})
        assert np.allclose(outputs["action_dist_inputs"].detach(), batch["action_dist_inputs"], atol=1e-6)


@pytest.mark.slow
def test_weights_of_one_module_or_of_some_reach_the_runners():
    config = make_config(Trouble, policies=["p", "q"], policy_mapping_fn=lambda agent, episode: "pq"[agent == "b"])
    with make_sampler(config, max_policy_lag=0, make_batch=partial(columns, outputs=["vf_preds"])) as sampler:
        with pytest.raises(ConfigError, match="got a single module for the modules"):
            sampler.set_weights(sampler.module["p"])
        with pytest.raises(ConfigError, match="weights of module 'r': there is no such module"):
            sampler.set_weights({"r": sampler.module["p"].get_state()})
        with pytest.raises(ConfigError, match="weights of module 'p': they belong to a different network"):
            sampler.set_weights({"p": {}})
        with pytest.raises(ConfigError, match="got str for 'w' of module 'p'"):
            sampler.set_weights({"p": {"w": "x"}})
        weights = {name: np.zeros_like(array) for name, array in sampler.module["p"].get_state().items()}
        assert sampler.set_weights({"p": weights}) == 1
        batch = sampler.next()
    assert not batch["p"]["vf_preds"].any() and batch["q"]["vf_preds"].all()


@pytest.mark.slow
def test_runners_without_a_seed_begin_with_the_same_weights():
    def make_batch(episodes):
        return columns(episodes, outputs=["vf_preds"])

    with make_sampler(make_config(Trouble, seed=None), processes=2, make_batch=make_batch, join=list) as sampler:
        values = [batch["default_policy"]["vf_preds"][0] for batch in sampler.next()]
    assert values[0] == values[1]


SCRIPT = """
import torch
import fastmarl
from fastmarl.batches import columns
from fastmarl.distributed import BackgroundSampler
from support.trouble import Trouble

class Net(fastmarl.RLModule):
    def setup(self):
        self.layer = torch.nn.Linear(3, 3)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.layer(batch["obs"])}

if __name__ == "__main__":
    spec = fastmarl.RLModuleSpec(module_class=Net)
    config = fastmarl.EnvRunnerConfig(env=lambda config: Trouble(config), policies={"p": spec})
    with BackgroundSampler(config, make_batch=lambda episodes: columns(episodes, outputs=["action_logp"])) as sampler:
        assert type(sampler.module["p"]) is Net
        assert sampler.set_weights(sampler.module["p"]) == 1
        print(sorted(sampler.next()["p"]))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("cloudpickle")
def test_classes_and_lambdas_of_a_script_reach_spawned_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = pathlib.Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "'action_logp'" in done.stdout and "vf_preds" not in done.stdout


# Batches.


def test_any_nesting_of_arrays_is_handed_over():
    batch = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": (np.zeros((0, 3), np.int8), {"c": np.array(["x", None], object)}, [1, "two"]),
        "not contiguous": np.arange(10)[::2],
        "by columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "scalar": np.array(3),
    }
    got = unpack(*pack(batch))
    assert_same(got, batch)
    got["a"][0, 0] = 7  # it may be written to
    assert type(unpack(*pack(None))) is type(None)


def test_batches_are_joined_along_the_first_axis():
    one = {"p": {"obs": {"x": np.ones((2, 3))}, "n": np.array([2])}}
    two = {"p": {"obs": {"x": np.zeros((1, 3))}, "n": np.array([1])}, "q": {"n": np.array([4])}}
    joined = join_batches([one, two])
    assert joined["p"]["obs"]["x"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert joined["p"]["n"].tolist() == [2, 1] and joined["q"]["n"].tolist() == [4]
    assert join_batches([one]) is one
    assert join_batches([{"n": np.array([1])}, {"n": np.array([2])}])["n"].tolist() == [1, 2]
    with pytest.raises(BatchError, match="different columns"):
        join_batches([one, {"p": {"n": np.array([1])}}])


def test_batches_can_be_joined_by_a_function():
    with make_sampler(make_config(Trouble), processes=2, join=lambda parts: ("joined", len(parts))) as sampler:
        assert sampler.next() == ("joined", 2)


# Options.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"processes": 0}, "processes must be an integer >= 1, got 0"),
        ({"max_policy_lag": -1}, "max_policy_lag must be an integer >= 0"),
        ({"max_policy_lag": 0.5}, "max_policy_lag must be an integer"),
        ({"max_restarts": True}, "max_restarts must be an integer"),
        ({"start_method": "forkserver"}, "start_method must be one of"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds >= 0.001"),
        ({"timeout_s": float("inf")}, "timeout_s must be a number of seconds"),
        ({"timeout_s": True}, "timeout_s must be a number of seconds"),
    ],
)
def test_options_that_cannot_be_right(options, problem):
    with pytest.raises(ConfigError, match=problem):
        make_sampler(make_config(Trouble), **options)
    assert not children()


def test_a_timeout_of_a_call_that_cannot_be_right_ends_nothing():
    with make_sampler(make_config(Trouble)) as sampler:
        for timeout_s in (0, -1.0, float("inf"), "1"):
            with pytest.raises(ConfigError, match=r"timeout_s must be a number of seconds >= 0\.001"):
                sampler.next(timeout_s=timeout_s)
        sampler.next()


def test_weights_that_are_set_while_others_are_written_are_refused(monkeypatch):
    """As by the handler of a signal. They waited for themselves."""
    write, problems = SharedWeights.write, []

    def write_and_set(self, weights, version):
        monkeypatch.undo()
        with pytest.raises(RunnerBusyError) as caught:
            sampler.set_weights()
        problems.append(str(caught.value))
        write(self, weights, version)

    with make_sampler(make_config(Trouble), max_policy_lag=0) as sampler:
        monkeypatch.setattr(SharedWeights, "write", write_and_set)
        thread = Thread(target=sampler.set_weights, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert problems[0].startswith("set_weights() was called within set_weights(), by a signal handler")
        assert sampler.set_weights() == 2
        assert set(sampler.next()["default_policy"]["weights_seq_no"]) == {2}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_next_within_next_is_refused_and_ends_nothing(elsewhere, monkeypatch):
    """As by the handler of a signal, or by another thread: while batches are waited for, and while they are joined."""
    problems = []

    def refused():
        with pytest.raises(RunnerBusyError) as caught:
            sampler.next()
        problems.append(str(caught.value))

    def try_next():
        if elsewhere:
            pool.submit(refused).result(timeout=60)
        else:
            refused()

    def ready(self, timeout_s):
        monkeypatch.undo()
        try_next()
        return find_ready(self, timeout_s)

    def join(batches):
        try_next()
        return join_batches(batches)

    find_ready = CallsInFlight.ready
    with make_sampler(make_config(Trouble), join=join) as sampler, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(CallsInFlight, "ready", ready)
        assert sampler.next().keys() == {"default_policy"}
        assert sampler.get_metrics()["num_env_steps_sampled"] == 27
    how = "while next() is running in another thread" if elsewhere else "within next(), by a signal handler"
    assert [problem.startswith(f"next() was called {how}") for problem in problems] == [True, True]


def test_a_config_is_needed():
    with pytest.raises(ConfigError, match="expected an EnvRunnerConfig, got dict"):
        make_sampler({})


def test_a_closed_sampler_says_so():
    sampler = make_sampler(make_config(Trouble))
    sampler.close()
    sampler.close()
    for call in (sampler.next, sampler.set_weights, sampler.__enter__):
        with pytest.raises(RunnerStoppedError, match="create a new one"):
            call()
    assert not children()


@pytest.mark.slow
def test_connector_states_reach_this_process():
    with make_sampler(make_config(env_to_module_connector=MeanStdFilter()), processes=2, max_policy_lag=0) as sampler:
        sampler.next()
        states = sampler.connector_states
    with fastmarl.MultiAgentEnvRunner(make_config(env_to_module_connector=MeanStdFilter())) as runner:
        merged = runner.env_to_module.merge_states(states)
        runner.env_to_module.set_state(merged)
