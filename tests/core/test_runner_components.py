"""What RLlib's interface of checkpointable objects asks of a runner, and what Python's asks of anything that closes."""

import json

import pytest

import fastmarl
from fastmarl.errors import ConfigError, RunnerStoppedError
from fastmarl.testing import CountingEnv

MODULES = ["p0", "p1", "a/b"]
WHOLE = [
    "env_to_module_connector",
    "lifetime_counters",
    "num_env_steps_sampled_lifetime",
    "num_resets",
    "random_state",
    "rl_module",
    "running_episodes",
    "weights_seq_no",
]


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
        ("rl_module", None, ["rl_module", "weights_seq_no"], MODULES),
        ("rl_module/p0", None, ["rl_module", "weights_seq_no"], ["p0"]),
        (["rl_module", "rl_module/a/b", "num_resets"], None, ["num_resets", "rl_module", "weights_seq_no"], ["a/b"]),
        (None, "rl_module/p0", WHOLE, ["p1", "a/b"]),
        (["rl_module/p0", "rl_module/p1"], {"rl_module/p0"}, ["rl_module", "weights_seq_no"], ["p1"]),
        (None, ["rl_module", "random_state", "running_episodes"], sorted({*WHOLE} - {"rl_module", "random_state",
         "running_episodes"}), None),
        ("num_resets", "num_resets", [], None),
    ],
)  # fmt: skip
def test_components_of_a_state(runner, components, not_components, names, modules):
    state = runner.get_state(components, not_components=not_components)
    assert sorted(state) == names
    assert (list(state["rl_module"]) if "rl_module" in state else None) == modules
    runner.set_state(state)


@pytest.mark.parametrize("name", ["optimizer", "rl_module/p9", "rl_module/", "num_resets/p0", 5])
def test_unknown_components_are_named(runner, name):
    for arguments in ({"components": name if isinstance(name, str) else [name]}, {"not_components": [name]}):
        with pytest.raises(ConfigError, match=rf"unknown state components \[{name!r}\]; known are .*'rl_module/a/b'"):
            runner.get_state(**arguments)


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
    assert components == [("rl_module", runner.module), ("env_to_module_connector", runner.env_to_module)]
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


def test_what_a_runner_is_called(runner):
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
