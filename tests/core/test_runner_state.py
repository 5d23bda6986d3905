"""A state is taken as a whole or not at all, by `set_state()` and from a checkpoint, whatever device it comes from."""

import copy

import numpy as np
import pytest
import torch
from support.differences import assert_same
from support.exhaustive import further
from support.interrupts import in_own_thread, interrupted
from support.short_episodes import NESTED, Short, make_runner, parts_of, stats_of
from support.trees import spoilt

import fastmarl
from fastmarl.connectors import EnvToModuleConnector, FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.core.checkpoint import folder as checkpoint
from fastmarl.errors import CheckpointError, ConfigError
from fastmarl.modules import DefaultRLModule, RLModuleSpec
from fastmarl.runner.loop import resources
from fastmarl.runner.state import state as runner_state

OF_WEIGHTS = ("rl_module", "weights_seq_no", "num_env_steps_sampled_lifetime")


def runner_with_all(seed=0, **options):
    """Two modules with statistics of nested observations."""
    config = fastmarl.EnvRunnerConfig(
        env=Short,
        env_config={"n_agents": 2, "space": NESTED},
        env_to_module_connector=[MeanStdFilter(), PrevActionsPrevRewards(), FlattenObservations()],
        policies={"even": None, "odd": None},
        policy_mapping_fn=lambda agent_id, episode: ("even", "odd")[int(agent_id[-1]) % 2],
        model_config={"fcnet_hiddens": [3]},
        seed=seed,
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


@pytest.fixture(scope="module")
def sampled():
    """The state of a runner that has sampled."""
    runner = runner_with_all(seed=1)
    runner.sample(num_timesteps=20)
    runner.set_weights(runner.get_weights(), weights_seq_no=3)
    return runner.get_state()


def is_harmless(how):
    """Return true if the changed state still has numbers that a runner can use."""
    castable = how.endswith((": int8", "array([0., 0.])"))
    counted = ("num_agent_steps", "num_module_steps", "last_episodes", "custom")  # with any names and numbers
    counters = tuple(f"('lifetime_counters', '{name}'" for name in counted)
    return castable or how.startswith(("('random_state', 'numpy', ", "('num_resets',", *counters))


def is_of_parts(how):
    """Return true if the changed state is a part of a state, which `set_state()` also accepts."""
    return how.endswith((": left out", ": {}")) and how.count(", ") <= 2


def is_of_unknown_parts(how):
    """Return true if such a change adds parts that are left out with a warning, or changes one that is empty."""
    return how.startswith("('module_to_env_connector',") or how in (
        "('rl_module',): with another key",
        "('rl_module',): {'x': 1}",
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the runner has no")
@pytest.mark.parametrize("every", [5, *further([1])])
def test_a_spoilt_state_is_refused_before_anything_is_taken(sampled, every):
    runner = runner_with_all()
    before = runner.get_state()
    refused = 0
    for how, state in spoilt(sampled, every):
        try:
            runner.set_state(state)
        except ConfigError:
            refused += 1
            assert_same(runner.get_state(), before)
        else:
            assert is_harmless(how) or is_of_parts(how) or is_of_unknown_parts(how), how
            runner = runner_with_all()
    assert refused > 1000 / every


@pytest.mark.slow
@pytest.mark.parametrize("every", [8, *further([3])])
def test_a_spoilt_checkpoint_is_refused_before_anything_is_taken(sampled, every, monkeypatch):
    runner = runner_with_all()
    before = runner.get_state()
    for how, state in spoilt(sampled, every):
        monkeypatch.setattr(runner_state, "load_state", lambda path, state=state: state)
        try:
            runner.restore_from_path("folder")
        except CheckpointError:
            assert_same(runner.get_state(), before)
        else:
            assert is_harmless(how) or how.startswith("('module_to_env_connector',"), how
            runner = runner_with_all()
    monkeypatch.setattr(runner_state, "load_state", lambda path: [])
    with pytest.raises(CheckpointError, match="folder is not a state of this runner: it must be a dict, got list"):
        runner.restore_from_path("folder")


@pytest.mark.slow
def test_a_checkpoint_with_damaged_files_is_refused_or_as_it_was(sampled, tmp_path, rng):
    runner, folder = runner_with_all(), tmp_path / "checkpoint"
    before = runner.get_state()
    checkpoint.save_state(folder, sampled)
    for file in sorted(folder.iterdir()):
        blob = file.read_bytes()
        flips = [blob[:i] + bytes([blob[i] ^ 1 << i % 8]) + blob[i + 1 :] for i in rng.integers(len(blob), size=100)]
        cuts = [blob[:n] for n in {0, *rng.integers(len(blob), size=50).tolist()}]
        for damaged in flips + cuts:
            file.write_bytes(damaged)
            try:
                runner.restore_from_path(folder)
            except CheckpointError:
                assert_same(runner.get_state(), before)
            else:
                assert len(damaged) == len(blob)
                runner = runner_with_all()
        file.write_bytes(blob)
    runner.restore_from_path(folder)
    assert_same(runner.get_state("rl_module"), {name: sampled[name] for name in OF_WEIGHTS})


def test_a_filter_with_a_short_array_is_refused(sampled):
    """Compiled code would read past its end."""
    state = copy.deepcopy(sampled["env_to_module_connector"])
    state["odd"]["MeanStdFilter"]["stats"][1]["m2"] = np.zeros(0)
    with pytest.raises(ConfigError, match=r"'m2' of running moments must be a numeric array of shape \(1,\), got"):
        runner_with_all().env_to_module.set_state(state)
    moments = fastmarl.RunningMeanStd(3)
    with pytest.raises(ConfigError, match=r"'mean' of running moments must be .* of shape \(3,\), got .* \(2,\)"):
        moments.set_state({"count": 1, "mean": np.zeros(2), "m2": np.zeros(3)})
    with pytest.raises(ConfigError, match="must be >= 0, got -1"):
        moments.set_state({"count": 1, "mean": np.zeros(3), "m2": -np.ones(3)})


# Random streams.


def actions_of(runner):
    return [part.get_actions().tolist() for part in parts_of(runner.sample(num_timesteps=30))]


def test_another_bit_generator_is_refused(sampled):
    runner = runner_with_all()
    before = runner.get_state()
    foreign = {**sampled["random_state"], "numpy": np.random.MT19937(1).state}
    with pytest.raises(ConfigError, match="the state of NumPy's generator is not valid for PCG64"):
        runner.set_state({**sampled, "random_state": foreign})
    assert_same(runner.get_state(), before)


@pytest.mark.parametrize("native_inference", [True, False])
def test_a_state_from_a_gpu_begins_a_stream_of_its_own_on_the_cpu(sampled, tmp_path, native_inference):
    def restored(device_state):
        saved = {"device": "cuda", "state": np.frombuffer(device_state, np.uint8)}
        checkpoint.save_state(tmp_path, {**sampled, "random_state": {**sampled["random_state"], "torch": saved}})
        runner = runner_with_all(seed=None, native_inference=native_inference)
        runner.restore_from_path(tmp_path)
        return runner

    one, again, other = restored(bytes(16)), restored(bytes(16)), restored(bytes(15) + b"1")
    torch_states = [runner.get_state("random_state")["random_state"]["torch"] for runner in (one, again, other)]
    assert torch_states[0]["device"] == "cpu"
    assert_same(torch_states[0], torch_states[1])
    assert not np.array_equal(torch_states[0]["state"], torch_states[2]["state"])
    assert len(actions_of(one)) == len(actions_of(again)) > 0


@pytest.mark.parametrize(
    "saved",
    [
        {"device": "cuda", "state": np.zeros(5056, np.uint8)},
        {"device": "cpu", "state": np.zeros(16, np.uint8)},
        {"device": "cpu", "state": np.zeros(5056, np.uint8)},
        {"device": "mps", "state": np.zeros(16, np.uint8)},
    ],
    ids=["cuda", "cpu", "zeros", "unknown"],
)
def test_a_state_of_no_generator_is_refused(sampled, saved):
    runner = runner_with_all()
    with pytest.raises(ConfigError, match="the state of torch's generator"):
        runner.set_state({"random_state": {**sampled["random_state"], "torch": saved}})


# Weights and their number.


def seq_nos_of(chunks):
    return [n for part in parts_of(chunks) for n in part.get_extra_model_outputs("weights_seq_no").tolist()]


def test_an_older_number_of_weights_is_neither_taken_nor_stamped():
    runner = make_runner(None)
    newer = runner.get_weights()
    runner.set_weights(newer, weights_seq_no=5)
    older = {module_id: {name: array + 1 for name, array in each.items()} for module_id, each in newer.items()}
    for seq_no in (4, 5):
        runner.set_weights(older, weights_seq_no=seq_no)
        weights = runner.get_state("rl_module", not_components="num_env_steps_sampled_lifetime")
        assert_same(weights, {"rl_module": newer, "weights_seq_no": 5})
        assert seq_nos_of(runner.sample(num_timesteps=3)) == [5] * 3
    runner.set_weights(older)
    weights = runner.get_state("rl_module", not_components="num_env_steps_sampled_lifetime")
    assert_same(weights, {"rl_module": older, "weights_seq_no": 5})


def test_a_checkpoint_is_taken_whatever_its_number(tmp_path):
    runner = make_runner(None)
    runner.save_to_path(tmp_path)
    runner.set_weights(runner.get_weights(), weights_seq_no=np.int64(7))
    runner.restore_from_path(tmp_path)
    assert seq_nos_of(runner.sample(num_timesteps=2)) == [0, 0]


def test_one_module_that_does_not_fit_leaves_the_others():
    runner = runner_with_all()
    before, weights = runner.get_weights(), runner_with_all(seed=1).get_weights()
    weights["odd"]["pi.bias"] = weights["odd"]["pi.bias"][:-1]
    with pytest.raises(ConfigError, match=r"module 'odd': .* pi.bias has shape \[2\], not \[3\]"):
        runner.set_weights(weights)
    assert_same(runner.get_weights(), before)


# What raises when it takes its state, although it was asked before.


class Stubborn(EnvToModuleConnector):
    """Its state can't be taken while `n` is above 0."""

    n = 0

    def __call__(self, obs, rows):
        return obs

    def get_state(self):
        return {"n": self.n}

    def set_state(self, state):
        if self.n > 0 and state["n"] > 10:
            raise RuntimeError("no")
        self.n = state["n"]


def test_a_connector_that_will_not_take_its_state_leaves_the_runner_as_it_was(tmp_path):
    runner, other = (make_runner([MeanStdFilter(), Stubborn()], seed=seed) for seed in (0, 1))
    for each, n in ((runner, 1), (other, 11)):
        each.sample(num_timesteps=5 * n)
        each.env_to_module["default_policy"].connectors[1].n = n
    before, stats = runner.get_state(not_components="env_to_module_connector"), stats_of(runner)
    other.save_to_path(tmp_path)
    with pytest.raises(CheckpointError, match=r"could not be restored; the runner keeps its state: RuntimeError"):
        runner.restore_from_path(tmp_path)
    assert_same(runner.get_state(not_components="env_to_module_connector"), before)
    assert_same(stats_of(runner), stats)


class Lagging(DefaultRLModule):
    """With a state of its own: its weights, and a number."""

    lag = 0

    def get_state(self):
        return {**super().get_state(), "lag": self.lag}

    def set_state(self, state):
        super().set_state({name: value for name, value in state.items() if name != "lag"})
        self.lag = state["lag"]


def test_modules_with_states_of_their_own(tmp_path):
    runner, other = (make_runner(None, module=RLModuleSpec(Lagging), seed=seed) for seed in (0, 1))
    runner.module["default_policy"].lag = 7
    other.restore_from_path(runner.save_to_path(tmp_path))
    assert_same(other.get_state(), runner.get_state())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "every"),
    [(torch.nn.modules.module.__file__, 7), (runner_state.__file__, 1), (resources.__file__, 1)],
    ids=["torch", "state", "resources"],
)
@in_own_thread
def test_interrupted_weights_are_taken_entirely_or_not_at_all(file, every):
    runner = runner_with_all()
    of_number = {4: runner.get_weights(), 5: runner_with_all(seed=1).get_weights()}
    numbers, goes_on = [], True
    while goes_on:
        runner.set_weights(of_number[4])
        runner._resources.weights_seq_no = 4
        at_line = every * len(numbers)
        goes_on = interrupted(lambda: runner.set_weights(of_number[5], weights_seq_no=5), file=file, at=at_line)
        if len(numbers) % 2:
            runner.sample(num_timesteps=1)
        state = runner.get_state()
        numbers.append(state["weights_seq_no"])
        assert_same(state["rl_module"], of_number[numbers[-1]], at_line)
    assert numbers == sorted(numbers) and numbers[0] == 4 and numbers.count(5) > 1
