"""The runner as one of RLlib's checkpointable objects, and as a Python object that can be closed."""

import json

import pytest

import fastmarl
from fastmarl.errors import ConfigError, RunnerStoppedError
from fastmarl.testing import CountingEnv

MODULES = ["p0", "p1", "a/b"]
WHOLE = [
    "env_to_module_connector",
    "lifetime_counters",
    "module_to_env_connector",
    "num_env_steps_sampled_lifetime",
    "num_resets",
    "random_state",
    "rl_module",
    "running_episodes",
    "weights_seq_no",
]
ENV_STEPS = "num_env_steps_sampled_lifetime"
WEIGHTS = [ENV_STEPS, "rl_module", "weights_seq_no"]


@pytest.fixture
def runner():
    config = fastmarl.EnvRunnerConfig(
        env=lambda env_config: CountingEnv(3, episode_length=5),
        policies=MODULES,
        policy_mapping_fn=lambda agent, episode: MODULES[int(agent[-1])],
        model_config={"fcnet_hiddens": [4]},
        num_envs_per_env_runner=2,
        seed=0,
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        yield runner


@pytest.mark.parametrize(
    ("components", "not_components", "names", "modules"),
    [
        (None, None, WHOLE, MODULES),
        ("rl_module", None, WEIGHTS, MODULES),
        ("rl_module/p0", None, WEIGHTS, ["p0"]),
        (["rl_module", "rl_module/a/b", "num_resets"], None, ["num_resets", *WEIGHTS], ["a/b"]),
        (None, "rl_module/p0", WHOLE, ["p1", "a/b"]),
        (["rl_module/p0", "rl_module/p1"], {"rl_module/p0"}, WEIGHTS, ["p1"]),
        (None, ["rl_module", "random_state"], sorted({*WHOLE} - {"rl_module", "weights_seq_no", "random_state"}), None),
        ("weights_seq_no", "rl_module", [ENV_STEPS, "weights_seq_no"], None),
        ("num_resets", "num_resets", [ENV_STEPS], None),
        ("num_resets", ENV_STEPS, ["num_resets"], None),
        ("module_to_env_connector", None, ["module_to_env_connector", ENV_STEPS], None),
        ([], None, [ENV_STEPS], None),
    ],
)  # fmt: skip
def test_components_of_a_state(runner, components, not_components, names, modules):
    state = runner.get_state(components, not_components=not_components)
    assert sorted(state) == sorted(names)
    assert (list(state["rl_module"]) if "rl_module" in state else None) == modules
    runner.set_state(state)


@pytest.mark.parametrize("name", ["optimizer", "rl_module/p9", "rl_module/", "num_resets/p0", 5])
def test_unknown_components_are_named_and_left_out(runner, name):
    of_none = {"components": name if isinstance(name, str) else [name]}
    for arguments, names in ((of_none, [ENV_STEPS]), ({"not_components": [name]}, WHOLE)):
        message = rf"unknown state components \[{name!r}\]; choose from .*'rl_module/a/b'"
        with pytest.warns(UserWarning, match=message) as warned:
            state = runner.get_state(**arguments)
        assert warned[0].filename == __file__
        if "/" not in str(name):
            assert sorted(state) == names


def test_unknown_parts_of_a_state_are_named_and_left_out(runner):
    before = runner.get_weights()
    weights = {"p0": {name: value + 1 for name, value in before["p0"].items()}, "p9": {}}
    state = {"rl_module": weights, "optimizer": 1, "weights_seq_no": 4}
    message = "the runner has no 'optimizer', 'rl_module/p9'; these parts .* are ignored"
    with pytest.warns(UserWarning, match=message) as warned:
        runner.set_state(state)
    assert warned[0].filename == __file__
    assert (runner.get_weights("p0")["p0"]["pi.weight"] == before["p0"]["pi.weight"] + 1).all()
    assert runner.get_metrics()["weights_seq_no"] == 4
    with pytest.warns(UserWarning, match="has no 'rl_module/p9'"):
        runner.set_weights({"p9": {}})


def test_arguments_of_set_weights(runner):
    weights = runner.get_weights()
    runner.set_weights(weights, None, 3)
    assert runner.get_metrics()["weights_seq_no"] == 3
    runner.set_weights(weights, global_vars=None, weights_seq_no=4)
    assert runner.get_metrics()["weights_seq_no"] == 4
    runner.set_weights(weights)  # taken, without a number of its own
    assert runner.get_metrics()["weights_seq_no"] == 4
    with pytest.raises(ConfigError, match=r"global_vars must be None, got 5; .* weights_seq_no=\.\.\."):
        runner.set_weights(weights, 5)


def test_weights_of_some_modules(runner):
    for modules, names in ((None, MODULES), ("p0", ["p0"]), (["a/b", "p1"], ["p1", "a/b"]), ("p", [])):
        assert list(runner.get_weights(modules)) == names


def test_weights_of_one_module_change_no_other(runner):
    runner.sample(num_timesteps=10)
    before = runner.get_weights()
    state = runner.get_state("rl_module/p0")
    for name, weight in state["rl_module"]["p0"].items():
        state["rl_module"]["p0"][name] = weight + 1
    runner.set_state(state)
    after = runner.get_weights()
    for name, weight in before["p0"].items():
        assert (after["p0"][name] == weight + 1).all()
        assert (after["p1"][name] == before["p1"][name]).all()


def test_a_runner_is_made_again_of_its_arguments(runner):
    args, kwargs = runner.get_ctor_args_and_kwargs()
    with type(runner)(*args, **kwargs) as other:
        other.set_state(runner.get_state())
        assert other.config is runner.config


def test_metadata_and_components(runner, tmp_path):
    metadata = json.loads(json.dumps(runner.get_metadata()))
    assert metadata["fastmarl_version"] == fastmarl.__version__
    runner.save_to_path(tmp_path)
    assert (tmp_path / metadata["state_file"]).is_file()
    components = runner.get_checkpointable_components()
    sides = [("env_to_module_connector", runner.env_to_module), ("module_to_env_connector", runner.module_to_env)]
    assert components == [("rl_module", runner.module), *sides]
    for name, component in components:
        state = runner.get_state(name)[name]
        component.set_state(state)
        assert component.get_state().keys() == state.keys()


def fail_within(runner):
    with runner:
        raise ZeroDivisionError


def test_a_runner_stops_where_its_block_ends(runner):
    closed = []
    runner.env.envs[0].close = lambda: closed.append(True)
    with pytest.raises(ZeroDivisionError):
        fail_within(runner)
    assert closed == [True]
    with pytest.raises(RunnerStoppedError):
        runner.sample()
    with pytest.raises(RunnerStoppedError):
        fail_within(runner)


def test_repr_of_a_runner(runner):
    runner.sample(num_timesteps=10)
    text = "<MultiAgentEnvRunner of <lambda>: 2 envs, modules ['p0', 'p1', 'a/b'] on cpu, 10 env steps sampled"
    assert repr(runner) == f"{text}>"
    runner.stop()
    assert repr(runner) == f"{text}, stopped>"
    config = fastmarl.EnvRunnerConfig(env="fastmarl.cart_pole", num_envs_per_env_runner=1)
    with fastmarl.MultiAgentEnvRunner(config) as other:
        assert repr(other).startswith(
            "<MultiAgentEnvRunner of fastmarl.cart_pole: 1 env, modules ['default_policy'] on"
        )
    assert repr(object.__new__(fastmarl.MultiAgentEnvRunner)) == "<MultiAgentEnvRunner, not made>"
