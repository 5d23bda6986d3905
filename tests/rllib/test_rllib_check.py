"""`fastmarl rllib-check`: whether a config is accelerated, and if not, why and what to change."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rllib import configs_to_check

from fastmarl import cli
from fastmarl.rllib.check import check_config
from fastmarl.rllib.sampling.fast_path import CODES

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = "rllib.configs_to_check"


@pytest.mark.parametrize("name", ["accelerated", "READY", "FROZEN", "with_options"])
def test_accelerated(name: str, capsys: Any) -> None:
    assert cli.main(["rllib-check", f"{HERE}:{name}"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == "accelerated: fastmarl samples with this config" and not err


def test_a_config_with_rllibs_runner_is_checked_as_if_it_had_ours(capsys: Any) -> None:
    assert cli.main(["rllib-check", f"{HERE}:not_set"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("accelerated: ")
    assert "config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)" in out


def test_reasons_come_with_advice(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "check.json"
    assert cli.main(["rllib-check", f"{HERE}:slow", "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("not accelerated: ") and "on_sample_end" in out
    assert "ReadsRunner.on_episode_end() reads the runner's _ongoing_episodes [callback_reads_runner]" in out
    record = json.loads(file.read_text())
    assert (record["command"], record["config"]) == ("rllib-check", f"{HERE}:slow")
    assert (record["is_accelerated"], record["is_set"]) == (False, False)
    assert [reason["code"] for reason in record["reasons"]] == ["connector_piece", "callback_reads_runner"]
    for reason in record["reasons"]:
        assert reason["what_to_change"] == CODES[reason["code"]] and reason["reason"] in out
        assert reason["what_to_change"] in out


def test_the_report_matches_a_runner_of_the_config() -> None:
    """A runner of the config samples on the path that the report names, for the same reasons."""
    for make in (configs_to_check.accelerated, configs_to_check.slow):
        config = make()
        before = {name: value for name, value in vars(config).items() if not callable(value)}
        report = check_config(config)
        assert {name: value for name, value in vars(config).items() if not callable(value)} == before
        checked = configs_to_check.MultiAgentEnvRunner(config=make().env_runners(num_env_runners=0))
        checked.sample(num_timesteps=2)
        assert (checked.is_accelerated, checked.slow_path_reasons) == (
            report.is_accelerated,
            [reason.text for reason in report.reasons],
        )
        checked.stop()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "expected MODULE:CONFIG, such as my_package.my_module:config"),
        (":config", "expected MODULE:CONFIG"),
        ("no_such_module:config", "importing no_such_module failed: ModuleNotFoundError: No module named"),
        (f"{HERE}:acelerated", f"{HERE} has no acelerated; did you mean 'accelerated'?"),
        (f"{HERE}:NUMBER", "expected an AlgorithmConfig, got 3"),
        (f"{HERE}:PPOConfig.nothing", "has no PPOConfig.nothing"),
        (f"{HERE}:PPOConfig", "expected an AlgorithmConfig, got <class"),
        (f"{HERE}:raises", "raises() failed: RuntimeError: two lines"),
        (f"{HERE}:needs_arguments", "needs_arguments must be callable without arguments: missing a required"),
        (f"{HERE}:single_agent", "expected a multi-agent config; set policies with config.multi_agent(policies=...)"),
        (f"{HERE}:broken_env", "can't build the config's env runner: "),
    ],
)
def test_bad_input_is_one_line(name: str, message: str, capsys: Any) -> None:
    assert cli.main(["rllib-check", name]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"fastmarl: {name}: ") and message in err and len(err.splitlines()) == 1 and not out


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "mine_to_check.py").write_text("from rllib.configs_to_check import not_set as config\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".")])
    assert cli.main(["rllib-check", "mine_to_check:config"]) == 0
    assert capsys.readouterr().out.startswith("accelerated: ")


def test_a_missing_ray_is_bad_input() -> None:
    code = "import sys; sys.modules['ray'] = None; from fastmarl import cli; sys.exit(cli.main(['rllib-check', 'a:b']))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 2
    assert answer.stderr.startswith("fastmarl: this command needs ray: ") and len(answer.stderr.splitlines()) == 1
