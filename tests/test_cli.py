import builtins
import json
import subprocess
import sys

import numpy as np
import pytest

import fastmarl
from fastmarl import cli
from fastmarl.bench import efficiency_table
from fastmarl.efficiency import Efficiency, measure_efficiency
from fastmarl.envs.registry import env_creator
from fastmarl.errors import EnvCheckError
from fastmarl.native import _build, _dense


class Broken(efficiency_table.ReadyDicts):
    """Forgets `__all__`."""

    def step(self, action_dict):
        obs, rewards, _, truncateds, infos = super().step(action_dict)
        return obs, rewards, {}, truncateds, infos


class Unrepeatable(efficiency_table.ReadyDicts):
    """Observes agents by a die that no seed reaches."""

    rng = np.random.default_rng(0)

    def step(self, action_dict):
        obs, _, *flags = super().step(action_dict)
        return {agent: row for agent, row in obs.items() if self.rng.random() < 0.5}, {}, *flags


@pytest.fixture(autouse=True)
def names():
    fastmarl.register_env("ready", efficiency_table.ReadyDicts)
    fastmarl.register_env("broken", Broken)


def test_sample_shows_what_was_sampled_and_draws_the_profile(tmp_path, capsys):
    picture = tmp_path / "profile.png"
    code = cli.main(["sample", "--env", "ready", "--num-envs", "2", "--steps", "400", "--out", str(picture)])
    out = capsys.readouterr().out
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    for expected in [
        "env steps",
        "400",
        "agent steps",
        "800",
        "efficiency",
        "scatter",
        "bookkeeping",
        "share",
        "inference of",
    ]:
        assert expected in out


def test_bench_writes_the_figures(tmp_path, capsys):
    file = tmp_path / "new" / "figures.json"
    args = ["--env", "ready", "--config", '{"agents": 3}', "--num-envs", "2", "--rounds", "2", "--seconds", "0.01"]
    assert cli.main(["bench", "efficiency", *args, "--json", str(file)]) == 0
    assert "ready" in capsys.readouterr().out
    (figures,) = json.loads(file.read_text())["figures"]
    assert (figures["agents"], figures["envs"], len(figures["rounds"])) == (3.0, 2, 2)


def test_the_parts_of_the_limit_add_up():
    config = fastmarl.EnvRunnerConfig(env="ready", num_envs_per_env_runner=2)
    result = measure_efficiency(config, rounds=1, seconds=0.01)
    assert isinstance(result, Efficiency)
    assert 0 < result.env_us < result.limit_us
    assert result.limit_us == pytest.approx(result.env_us + result.network_us)
    assert result.efficiency == pytest.approx(result.limit_us / result.runner_us)
    assert result.agent_steps_per_second == pytest.approx(1e6 / result.runner_us)


def test_a_batch_has_a_limit_too():
    config = fastmarl.EnvRunnerConfig(
        env="vmas.balance", num_envs_per_env_runner=4, env_config={"max_steps": 30}, model_config={"fcnet_hiddens": [8]}
    )
    result = measure_efficiency(config, rounds=1, seconds=0.01)
    assert (result.envs, result.agents) == (4, 3)
    assert 0 < result.env_us < result.limit_us


def test_an_environment_that_does_not_repeat_has_no_limit():
    config = fastmarl.EnvRunnerConfig(env=Unrepeatable, env_config={"agents": 8})
    with pytest.raises(EnvCheckError, match="Unrepeatable: other agents act after the same reset"):
        measure_efficiency(config, rounds=1, seconds=0.01)


def test_the_standard_table_names_environments_that_exist():
    for _, config in efficiency_table.standard_configs(seed=1):
        assert config.seed == 1
        assert env_creator(config.env)


def test_check_env_passes_a_good_environment(capsys):
    assert cli.main(["check-env", "ready", "--config", '{"agents": 4}']) == 0
    assert "0 problems" in capsys.readouterr().out


def test_check_env_reports_what_is_wrong(capsys):
    assert cli.main(["check-env", "broken"]) == 1
    assert "__all__" in capsys.readouterr().out


def test_an_unknown_environment_is_one_line_not_a_traceback(capsys):
    assert cli.main(["check-env", "no_such_env_v0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("fastmarl: ")
    assert "no_such_env_v0" in err


def test_info_tells_versions_and_build(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert ("checked" in out, "sanitized" in out) == (_build.CHECKED, _build.SANITIZED)
    for name in ["fastmarl", "python", "torch", "device", "threads", f"lean         {_dense.BEST}"]:
        assert name in out


@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_a_missing_extra_says_what_to_install(monkeypatch, capsys, tmp_path, package):
    real = builtins.__import__

    def without_package(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_package)
    assert cli.main(["sample", "--env", "ready", "--out", str(tmp_path / "x.png")]) == 1
    assert f"this needs {package}: pip install 'fastmarl[viz]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["sample"], "--env"),
        (["sample", "--env", "ready", "--steps", "0"], "must be at least 1"),
        (["check-env", "ready", "--config", "[1]"], "must be a JSON object"),
        (["check-env", "ready", "--config", "{"], "no JSON"),
        ([], "required"),
    ],
)
def test_wrong_arguments_are_explained(capsys, args, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(args)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "fastmarl", "--help"], capture_output=True, text=True, check=True)
    assert "check-env" in result.stdout


@pytest.mark.parametrize("workers", [[], ["--num-env-workers", "1", "--worker-num-splits", "2"]], ids=["", "workers"])
def test_an_environment_in_the_current_folder_is_found(tmp_path, monkeypatch, capsys, workers):
    source = "from fastmarl.bench.efficiency_table import ReadyDicts\n\n\nclass Mine(ReadyDicts):\n    pass\n"
    (tmp_path / "my_envs.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)
    args = ["--env", "my_envs:Mine", "--steps", "100", "--num-envs", "4", "--no-efficiency"]
    assert cli.main(["sample", *args, *workers]) == 0
    assert "agent steps/s" in capsys.readouterr().out


def test_sample_with_workers_has_them_take_turns(monkeypatch):
    made = []

    def refuse(config):
        made.append(config)
        raise EnvCheckError("made")

    monkeypatch.setattr("fastmarl.runner.MultiAgentEnvRunner", refuse)
    assert cli.main(["sample", "--env", "ready", "--num-env-workers", "3", "--worker-num-splits", "2"]) == 1
    assert cli.main(["sample", "--env", "ready"]) == 1
    assert [(c.gym_env_vectorize_mode, c.num_env_workers, c.worker_num_splits) for c in made] == [
        ("async", 3, 2),
        ("sync", 0, 1),
    ]


@pytest.mark.parametrize("name", ["no_such_module:Env", "fastmarl.bench.efficiency_table:Missing"])
def test_a_missing_class_is_named(capsys, name):
    assert cli.main(["sample", "--env", name]) == 1
    assert f"no environment '{name}'" in capsys.readouterr().err


def test_gymnasiums_ids_are_found(capsys):
    assert cli.main(["check-env", "rware:rware-tiny-2ag-v2", "--config", '{"max_steps": 20}']) == 0
    assert "500 env steps" in capsys.readouterr().out
    assert cli.main(["check-env", "rware:rware-huge-v0"]) == 1
    assert cli.main(["check-env", "no_such_package:Env-v0"]) == 1
    assert "the package 'no_such_package' is not installed" in capsys.readouterr().err
