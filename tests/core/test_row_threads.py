"""Forward passes in several threads: they give the results and errors of one thread, and end with the call."""

import os
import threading

import numpy as np
import pytest
from support.differences import assert_same
from support.scripted import Step, scripted, sine

import fastmarl
from fastmarl.batches import columns
from fastmarl.core.native._block_threads import BlockThreads
from fastmarl.core.native._dense import MOST_THREADS, DenseNet
from fastmarl.core.nets import native, row_threads
from fastmarl.core.nets.row_threads import RowThreads
from fastmarl.errors import ConfigError

MODELS = {
    "shared": ({}, {}),
    "separate": ({}, {"vf_share_layers": False}),
    "continuous": ({"continuous_actions": True}, {"free_log_std": True}),
    "lstm": ({}, {"use_lstm": True, "lstm_cell_size": 8}),
    "gru": ({}, {"use_gru": True, "gru_cell_size": 8}),
}


def living():
    return [each for each in threading.enumerate() if each.name == "fastmarl-rows"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not living()


@pytest.fixture
def any_size(monkeypatch):
    """Let threads take part in passes of any size."""
    monkeypatch.setattr(native, "LEAST_MULTIPLICATIONS", 1)


def runner_of(n_threads, env="fastmarl.simple_spread", num_envs=47, **options):
    """By default with 141 agents: two blocks of 64 rows, and one of 13."""
    return fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=env, num_envs_per_env_runner=num_envs, num_threads=n_threads, seed=1, **options)
    )


def sampled(runner):
    batches = [columns(runner.sample(num_timesteps=n))["default_policy"] for n in (500, 2000)]
    return [{name: column for name, column in batch.items() if name != "eps_id"} for batch in batches]


@pytest.mark.parametrize("model", MODELS)
def test_results_do_not_depend_on_their_number(model, any_size):
    env_config, options = MODELS[model]
    options = {"env_config": env_config, "model_config": {"fcnet_hiddens": [16, 16], **options}}
    want = sampled(runner_of(1, **options))
    for n_threads in (2, 3, 8):
        assert_same(sampled(runner_of(n_threads, **options)), want)


def net_of(n_obs=5, seed=0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((7, n_obs), (3, 7), (1, 7))]
    layers = [
        (source, weight, None, "tanh", 0.0, None, None) for source, weight in zip((-1, 0, 0), weights, strict=True)
    ]
    return DenseNet(n_obs, layers, 1, 2, np.arange(3, dtype=np.float32), scale=0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 16, 63, 64, 65, 128, 1000])
def test_rows_of_all_blocks_are_computed(n, dtype):
    obs = np.random.default_rng(n).integers(0, 99, (n, 5)).astype(dtype)
    want = net_of().forward(obs)
    nets = [net_of() for _ in range(3)]
    with RowThreads(3) as row_threads:
        for _ in range(50):  # threads are late at some of them
            got = nets[0].forward(obs, [], [], row_threads.started(), nets[1:])
            assert_same(got, want)
            for array in got:
                array.fill(np.nan)


def test_each_thread_needs_a_network_of_the_same_layers():
    obs, net = np.zeros((9, 5), np.float32), net_of()
    with RowThreads(3) as row_threads:
        for copies in ([], [net_of()], [net_of() for _ in range(3)]):
            with pytest.raises(ValueError, match="a network for each"):
                net.forward(obs, [], [], row_threads.started(), copies)
        with pytest.raises(ValueError, match="no copy"):
            net.forward(obs, [], [], row_threads.started(), [net_of(), net_of(6)])
    with pytest.raises(ValueError, match=f"at most {MOST_THREADS}"):
        net.forward(obs, [], [], BlockThreads(MOST_THREADS + 1), [net] * MOST_THREADS)
    with pytest.raises(ValueError, match="from 1 to 2"):
        BlockThreads(3).jobs.serve(3)


def test_they_start_with_the_first_large_pass_and_end_with_the_call(monkeypatch):
    started = []

    class Noted(threading.Thread):
        def start(self):
            started.append(self.name)
            super().start()

    monkeypatch.setattr(row_threads, "Thread", Noted)
    runner_of(3, num_envs=1).sample(num_timesteps=50)
    assert not started
    runner = runner_of(3, model_config={"fcnet_hiddens": [256, 256]})
    for _ in range(2):
        runner.sample(num_timesteps=200)
        assert not living()
    assert started == 4 * ["fastmarl-rows"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_they_end_with_a_call_that_fails(error, any_size):
    seen = []

    def see(agent, t):
        if t == 3 and not seen:
            seen.extend(living())
            raise error("at t = 3")
        return sine(agent, t)

    agents = [f"a{i}" for i in range(9)]
    runner = runner_of(
        3, env=scripted([agents, *[Step(agents)] * 5, Step(agents, truncated=True)], see=see), num_envs=1
    )
    with pytest.raises(error, match="at t = 3"):
        runner.sample(num_timesteps=10)
    assert len(seen) == 2 and not living()
    assert sum(map(len, runner.sample(num_timesteps=10))) == 10


def test_those_that_an_interrupt_has_left_end_later():
    net, obs = net_of(), np.ones((300, 5), np.float32)

    def interrupted():
        row_threads = RowThreads(2)
        row_threads.__enter__()
        net.forward(obs, [], [], row_threads.started(), [net_of()])
        return row_threads  # as after an interrupt before __exit__()

    row_threads, (left,) = interrupted(), living()
    with row_threads:
        left.join(60)
        assert not living()
        assert_same(net.forward(obs, [], [], row_threads.started(), [net_of()]), net_of().forward(obs))
    row_threads, (left,) = interrupted(), living()
    del row_threads
    left.join(60)


def test_a_forked_process_computes_alone():
    obs, nets = np.ones((300, 5), np.float32), [net_of(), net_of()]
    with RowThreads(2) as row_threads:
        for _ in range(20):  # wherever the other thread is
            want = nets[0].forward(obs, [], [], row_threads.started(), nets[1:])[0].copy()
            if (child := os.fork()) == 0:
                got = nets[0].forward(obs, [], [], row_threads.started(), nets[1:])[0]
                row_threads.__exit__(None, None, None)
                os._exit(0 if np.array_equal(got, want) else 7)
            assert os.waitpid(child, 0)[1] == 0


def test_threads_of_several_runners_do_not_mix(any_size):
    want, results = sampled(runner_of(1)), []
    runners = [runner_of(3) for _ in range(3)]  # modules are initialised from torch's global random numbers
    callers = [
        threading.Thread(target=lambda runner: results.append(sampled(runner)), args=(each,)) for each in runners
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert_same(results, 3 * [want])


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True])
def test_numbers_that_are_none_are_refused(n):
    with pytest.raises(ConfigError, match="num_threads must be None or a positive integer"):
        fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", num_threads=n)
