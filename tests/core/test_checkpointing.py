"""Checkpoints of a runner: where they are written, what of them is taken, and runners that are made of them alone."""

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.differences import assert_same
from support.short_episodes import Short

import fastmarl
from fastmarl.checkpoint import load_state, save_state
from fastmarl.connectors import MeanStdFilter
from fastmarl.errors import CheckpointError, ConfigError

FAST = {"num_agents": 2, "max_steps": 3}
MAPPING = {"policy_mapping_fn": lambda agent, episode: f"p{agent[-1]}"}


def make_runner(**options):
    defaults = {"env": "fastmarl.gridworld", "env_config": {"num_agents": 2}, "seed": 3,
                "num_envs_per_env_runner": 2, "model_config": {"fcnet_hiddens": [5]}}  # fmt: skip
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **options}))


def test_a_folder_is_chosen_where_none_is_given():
    with make_runner() as runner:
        paths = [runner.save_to_path() for _ in range(2)]
        try:
            assert len({*paths}) == 2
            assert all(Path(path, runner.get_metadata()["state_file"]).is_file() for path in paths)
            runner.restore_from_path(paths[1])
        finally:
            for path in paths:
                shutil.rmtree(path)


def test_a_runner_is_made_of_its_checkpoint_alone(tmp_path):
    with make_runner(explore=False, rollout_fragment_length=7, clip_rewards=(-1.0, 0.5), policies={"p0"}) as runner:
        runner.sample(num_timesteps=10)
        runner.save_to_path(tmp_path)
        with type(runner).from_checkpoint(tmp_path) as other:
            assert replace(other.config, policies=None) == replace(runner.config, policies=None)
            assert list(other.module) == ["p0"]
            of_both = [each.get_state(not_components="running_episodes") for each in (runner, other)]
            assert_same(*of_both)
            for each in (runner, other):
                each.sample(num_timesteps=1, force_reset=True)
            assert other.get_weights().keys() == runner.get_weights().keys()
        with type(runner).from_checkpoint(
            tmp_path, explore=True, env_config={"num_agents": 2, "max_steps": 3}
        ) as other:
            assert other.config.explore
            assert len(other.sample(num_episodes=1)[0]) == 3
        with type(runner).from_checkpoint(tmp_path, replace(runner.config, seed=9)) as other:
            assert other.config.seed == 9
        with pytest.raises(ConfigError, match=r"pass a config or the options \['seed'\], not both"):
            type(runner).from_checkpoint(tmp_path, runner.config, seed=1)


@pytest.mark.needs("pyarrow")  # of the output
def test_options_that_a_file_cannot_hold_must_be_given_again(tmp_path):
    options = {"env": Short, "env_config": {"n_agents": 2}, "policies": ["p0", "p1"], "output": tmp_path / "episodes"}
    own = {**MAPPING, "env_to_module_connector": MeanStdFilter()}
    with make_runner(**options, **own) as runner:
        runner.sample(num_timesteps=4)
        runner.save_to_path(tmp_path / "saved")
        restore = partial(fastmarl.MultiAgentEnvRunner.from_checkpoint, tmp_path / "saved")
        for given, lacking in ((({}), [*own, "output"]), (own, ["output"]), ({**own, "output": None}, None)):
            if lacking:
                with pytest.raises(CheckpointError, match="pass these options again: ") as caught:
                    restore(**given)
                assert all(f"'{name}': " in str(caught.value) for name in lacking)
                assert all(f"'{name}': " not in str(caught.value) for name in given)
            else:
                with restore(**given) as other:
                    assert_same(other.get_state("env_to_module_connector"), runner.get_state("env_to_module_connector"))


def test_a_file_names_no_env_that_the_program_has_not_used(tmp_path):
    with make_runner() as runner:
        runner.save_to_path(tmp_path)
    state = load_state(tmp_path)
    state["config"]["options"]["env"] = "os:system"
    save_state(tmp_path, state)
    with pytest.raises(CheckpointError, match="its env 'os:system' has not been used by this program"):
        fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path)
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, env="fastmarl.gridworld") as runner:
        assert runner.config.env == "fastmarl.gridworld"
    for spoilt, problem in (
        ({"options": {"env": "fastmarl.gridworld", "bogus": 1}, "left_out": {}}, "unexpected keyword argument 'bogus'"),
        ({"options": {"env": "fastmarl.gridworld", "seed": -1}, "left_out": {}}, "seed must be"),
        ({"options": 3, "left_out": {}}, "the saved options must be a dict"),
        (5, "must be a dict"),
    ):
        save_state(tmp_path, {**state, "config": spoilt})
        with pytest.raises(CheckpointError, match=problem):
            fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path)
    del state["config"]
    save_state(tmp_path, state)
    with pytest.raises(CheckpointError, match="contains no runner config; pass one"):
        fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path)


@pytest.mark.parametrize("option", ["record_actions", "output"])
def test_a_file_names_no_folder_to_write_to(option, tmp_path):
    with make_runner() as runner:
        runner.save_to_path(tmp_path / "saved")
    state = load_state(tmp_path / "saved")
    state["config"]["options"][option] = os.fspath(tmp_path / "chosen")
    save_state(tmp_path / "saved", state)
    restore = partial(fastmarl.MultiAgentEnvRunner.from_checkpoint, tmp_path / "saved")
    with pytest.raises(CheckpointError, match=f"output folders, so pass these options again: .*'{option}': "):
        restore()
    with restore(**{option: None}) as runner:
        runner.sample(num_timesteps=4)
    assert not (tmp_path / "chosen").exists()


def test_parts_of_a_checkpoint(tmp_path):
    options = {"env": Short, "env_config": {"n_agents": 2}, "policies": ["p0", "p1"], **MAPPING}
    with make_runner(**options) as runner, make_runner(**{**options, "seed": 4}) as other:
        runner.sample(num_timesteps=10)
        runner.set_weights(runner.get_weights(), weights_seq_no=7)
        runner.save_to_path(tmp_path)
        before = other.get_weights()
        other.restore_from_path(tmp_path, component="rl_module/p1")
        assert_same(other.get_weights(), {"p0": before["p0"], "p1": runner.get_weights()["p1"]})
        assert other.get_state()["num_env_steps_sampled_lifetime"] == 0
        other.restore_from_path(tmp_path, component="rl_module")
        assert_same(other.get_weights(), runner.get_weights())
        assert other.get_metrics()["weights_seq_no"] == 7
        other.restore_from_path(tmp_path, component="num_resets")
        assert other.get_state()["num_resets"] == runner.get_state()["num_resets"]
        for component in ("rl_module/p2", "optimizer", "num_resets/p0"):
            with pytest.raises(CheckpointError, match=f"it has no component '{component}'"):
                other.restore_from_path(tmp_path, component=component)


def test_a_checkpoint_of_a_given_state(tmp_path):
    with make_runner() as runner, make_runner(seed=4) as other:
        weights = runner.get_state("rl_module")
        runner.sample(num_timesteps=10)
        runner.save_to_path(tmp_path, state=weights)
        other.sample(num_timesteps=6)
        resets = other.get_state("num_resets")["num_resets"]
        other.restore_from_path(tmp_path)
        assert_same(other.get_state("rl_module"), weights)
        assert other.get_state()["num_resets"] == resets
        with pytest.raises(ConfigError, match="num_resets must be"):
            runner.save_to_path(tmp_path, state={"num_resets": 5})
        for call in (runner.save_to_path, runner.restore_from_path, type(runner).from_checkpoint):
            with pytest.raises(ConfigError, match=r"None or a pyarrow.fs.FileSystem, got 5"):
                call(tmp_path, filesystem=5)
    assert os.listdir(tmp_path)


def test_the_place_of_a_component_stands_for_the_folder(tmp_path):
    """As RLlib's runner is called, whose components have folders of their own."""
    with make_runner() as runner, make_runner(seed=4) as other:
        path = Path(runner.save_to_path(tmp_path / "rl_module"))
        other.restore_from_path(path, component="rl_module")
        assert_same(other.get_weights(), runner.get_weights())
        for component in ("num_resets", "rl_module/default_policy"):
            other.restore_from_path(path / component, component=component)
        with pytest.raises(CheckpointError, match="does not exist"):
            other.restore_from_path(path / "elsewhere", component="rl_module")


@pytest.mark.needs("pyarrow")
def test_checkpoints_on_another_file_system(tmp_path):
    from pyarrow import fs

    options = {"filesystem": fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())}
    with make_runner() as runner, make_runner(seed=4) as other:
        assert runner.save_to_path("deep/folder", **options) == "deep/folder"
        assert "state.json" in os.listdir(tmp_path / "deep" / "folder")
        other.restore_from_path("deep/folder", **options)
        assert_same(other.get_weights(), runner.get_weights())
        with type(runner).from_checkpoint("deep/folder", other.config, **options) as made:
            assert_same(made.get_weights(), runner.get_weights())
        with pytest.raises(CheckpointError, match="nowhere does not exist on SubTreeFileSystem"):
            other.restore_from_path("nowhere", **options)


class Net(fastmarl.RLModule):
    def setup(self):
        self.policy, self.value = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def get_non_inference_attributes(self):
        return ["value"]

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.policy(batch["obs"])}


@pytest.mark.parametrize("as_rl_module", [True, False])
def test_weights_for_inference_only(as_rl_module):
    spec = fastmarl.RLModuleSpec(module_class=Net) if as_rl_module else plain_net
    options = {"env": Short, "env_config": {}, "model_config": {}}
    with (
        make_runner(policies={"p": spec if as_rl_module else spec()}, **options) as runner,
        make_runner(policies={"p": spec if as_rl_module else spec()}, **{**options, "seed": 4}) as other,
    ):
        state = runner.get_state("rl_module", inference_only=True, timeout=3)
        assert sorted(state["rl_module"]["p"]) == ["policy.bias", "policy.weight"]
        assert len(runner.get_state("rl_module")["rl_module"]["p"]) == 4
        before = other.get_weights()["p"]
        other.set_state(state)
        after = other.get_weights()["p"]
        assert np.array_equal(after["policy.weight"], runner.get_weights()["p"]["policy.weight"])
        assert np.array_equal(after["value.weight"], before["value.weight"])
        with pytest.raises(ConfigError, match=r"value\.bias is missing"):
            other.set_weights({"p": {name: after[name] for name in after if name != "value.bias"}})


class Heads(fastmarl.RLModule):
    def setup(self):
        names = ["policy"] if self.inference_only else ["policy", "value"]
        self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in names})

    def get_non_inference_attributes(self):
        return ["heads.value"]


def test_a_module_for_inference_only_ignores_what_only_training_needs():
    trained, acting = Heads(), Heads(inference_only=True)
    acting.set_state(trained.get_state())
    assert torch.equal(acting.heads["policy"].weight, trained.heads["policy"].weight)
    for unknown in ("heads.other.weight", "heads.valued", "value.weight"):
        with pytest.raises(ConfigError, match=f"{unknown} is unknown"):
            acting.set_state({**trained.get_state(), unknown: np.zeros(3, np.float32)})


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.value = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    get_non_inference_attributes = Net.get_non_inference_attributes

    def forward(self, batch):
        return {"action_dist_inputs": self.policy(batch["obs"])}


def plain_net():
    return Plain()
