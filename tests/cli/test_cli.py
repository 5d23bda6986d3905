import builtins
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.scripted import scripted

import fastmarl
from fastmarl import cli
from fastmarl.bench import RelativeSpeed, measure_relative_speed, relative_speed_table
from fastmarl.cli import sample
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.native import _build, _dense
from fastmarl.errors import EnvCheckError
from fastmarl.report.tables import Table


class Broken(relative_speed_table.ReadyDicts):
    """Leaves `__all__` out of its flags."""

    def step(self, action_dict):
        obs, rewards, _, truncateds, infos = super().step(action_dict)
        return obs, rewards, {}, truncateds, infos


class Unrepeatable(relative_speed_table.ReadyDicts):
    """Observes agents by a die that no seed reaches."""

    rng = np.random.default_rng(0)

    def step(self, action_dict):
        obs, _, *flags = super().step(action_dict)
        return {agent: row for agent, row in obs.items() if self.rng.random() < 0.5}, {}, *flags


@pytest.fixture(autouse=True)
def names():
    fastmarl.register_env("ready", relative_speed_table.ReadyDicts)
    fastmarl.register_env("broken", Broken)


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    """Speed does not matter in these tests."""
    monkeypatch.setattr("fastmarl.cli.sample.SECONDS", 0.02)


@pytest.mark.slow
def test_sample_prints_its_figures_and_draws_the_profile(tmp_path, capsys):
    picture = tmp_path / "profile.png"
    code = cli.main(["sample", "--env", "ready", "--num-envs", "2", "--steps", "400", "--out", str(picture)])
    out = capsys.readouterr().out
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    for expected in ("env steps", "400", "agent steps", "800", "relative speed", "scatter", "bookkeeping", "share",
                     "... with our drawing of actions in the loop", "inference of"):  # fmt: skip
        assert expected in out


@pytest.mark.slow
def test_bench_writes_the_figures(tmp_path, capsys):
    file, table, picture = (tmp_path / "new" / name for name in ("figures.json", "table.md", "picture.png"))
    args = ["--env", "ready", "--env-config", '{"agents": 3}', "--num-envs", "2", "--rounds", "2", "--seconds", "0.01"]
    files = ["--json", str(file), "--markdown", str(table), "--plot", str(picture)]
    assert cli.main(["bench", "relative-speed", *args, *files]) == 0
    assert "ready" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["command"] == "bench relative-speed"
    (figures,) = record["figures"]
    assert (figures["agents"], figures["envs"], len(figures["rounds"])) == (3.0, 2, 2)
    assert f"| ready | 3.0 | 2 | {figures['env_us']:.2f} |" in table.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_parts_of_the_limit_add_up():
    config = fastmarl.EnvRunnerConfig(env="ready", num_envs_per_env_runner=2)
    result = measure_relative_speed(config, rounds=1, seconds=0.01)
    assert isinstance(result, RelativeSpeed)
    assert 0 < result.env_us < result.limit_us
    limit, runner = result.median_round_us
    assert limit / runner == pytest.approx(result.relative_speed)
    assert result.limit_us == pytest.approx(result.env_us + result.network_us)
    assert result.relative_speed == pytest.approx(result.limit_us / result.runner_us)
    assert result.agent_steps_per_second == pytest.approx(1e6 / result.runner_us)


def test_a_batch_has_a_limit_too():
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread", num_envs_per_env_runner=4, model_config={"fcnet_hiddens": [8]}
    )
    result = measure_relative_speed(config, rounds=1, seconds=0.01)
    assert (result.envs, result.agents) == (4, 3)
    assert 0 < result.env_us < result.limit_us


def test_an_environment_that_does_not_repeat_has_no_limit():
    config = fastmarl.EnvRunnerConfig(env=Unrepeatable, env_config={"agents": 8})
    with pytest.raises(EnvCheckError, match="Unrepeatable: different agents act after the same reset"):
        measure_relative_speed(config, rounds=1, seconds=0.01)


def test_the_standard_table_names_environments_that_exist():
    for _, config in relative_speed_table.standard_configs(seed=1):
        assert config.seed == 1
        assert env_creator(config.env)


@pytest.mark.parametrize(("args", "code", "said"), [
    (["ready", "--env-config", '{"agents": 4}'], 0, "0 problems"),
    (["broken"], 1, "__all__"),
    (["no_such_env_v0"], 1, "^fastmarl: .*no_such_env_v0"),
    (["no_such_package:Env-v0"], 1, "the package 'no_such_package' is not installed"),
    (["fastmarl.bench.relative_speed_table:ReadyDict"], 1,
     r"did you mean 'fastmarl\.bench\.relative_speed_table:ReadyDicts'\?"),
    pytest.param(["rware:rware-tiny-2ag-v2", "--env-config", '{"max_steps": 20}'], 0, "500 env steps",
                 marks=pytest.mark.needs("rware")),
    pytest.param(["rware:rware-huge-v0"], 1, "", marks=pytest.mark.needs("rware")),
])  # fmt: skip
def test_check_env_says_what_it_finds(args, code, said, capsys):
    assert cli.main(["check-env", *args]) == code
    out, err = capsys.readouterr()
    assert re.search(said, out + err), out + err


def test_info_prints_versions_and_build(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert ("checked" in out, "sanitized" in out) == (_build.CHECKED, _build.SANITIZED)
    for name in ["fastmarl", "python", "torch", "device", "threads", f"native       {_dense.BEST}"]:
        assert name in out


def hide(monkeypatch, package):
    """As if it were not installed."""
    real = builtins.__import__

    def without_package(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_package)


def test_a_missing_package_says_how_to_install_it(monkeypatch, capsys, tmp_path):
    hide(monkeypatch, "matplotlib")
    assert cli.main(["sample", "--env", "ready", "--out", str(tmp_path / "x.png")]) == 1
    expected = (
        "fastmarl: this command needs matplotlib: pip install matplotlib (or, in a clone of fastmarl, pip install -e "
        "'.[viz]')"
    )
    assert capsys.readouterr().err.splitlines() == [expected]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_without_rich_tables_are_plain_text(monkeypatch, capsys, is_terminal):
    hide(monkeypatch, "rich")
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    assert cli.main(["sample", "--env", "ready", "--num-envs", "2", "--steps", "400", "--no-relative-speed"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^env steps +400$", out, re.M)
    assert re.search(r"^stage +ms per tick +share\n-+\nenv ", out, re.M)
    assert ("sampling 100%" in err) == is_terminal


def test_headings_of_several_lines_end_in_one():
    table = Table("title", ("", "RLlib:\nsteps/s", "ratio"), [("a", "1,000", "2.5"), ("bb", "5", "10.0")], ["note"])
    assert table.as_text().splitlines() == [
        "title",
        "     RLlib:",
        "    steps/s  ratio",
        "------------------",
        "a     1,000    2.5",
        "bb        5   10.0",
        "note",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["sample"], "--env"),
        (["sample", "--env", "ready", "--steps", "0"], "--steps: must be an integer >= 1, got '0'"),
        (["sample", "--env", "ready", "--steps", "abc"], "--steps: must be an integer >= 1, got 'abc'"),
        (["sample", "--env", "ready", "--num-env-workers", "-1"], "must be an integer >= 0, got '-1'"),
        (["sample", "--env", "ready", "--out", "profile.txt"], "--out: must end in .png or .pdf or .svg, got"),
        (["sample", "--env", "ready", "--out", "file/profile.png"], "--out: can't write 'file/profile.png': "),
        (["sample", "--env", "ready", "--json", "folder.json"], "--json: can't write 'folder.json': Is a directory"),
        (["bench", "relative-speed", "--seconds", "0"], "--seconds: must be a number of seconds above 0, got '0'"),
        (["bench", "relative-speed", "--seconds", "inf"], "must be a number of seconds above 0"),
        (["bench", "relative-speed", "--json", "figures"], "--json: must end in .json or .jsonl, got 'figures'"),
        (["check-env", "ready", "--env-config", "[1]"], "must be a JSON object"),
        (["check-env", "ready", "--env-config", "{"], "invalid JSON"),
        ([], "required"),
    ],
)
def test_wrong_arguments_are_one_line_before_the_work(monkeypatch, tmp_path, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(SystemExit) as stopped:
        cli.main(args)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert line.endswith("--help")


def test_a_file_to_be_written_is_not_touched_before(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new" / "new.png"
    old.write_text("{}")
    assert cli.main(["sample", "--env", "no_such_env", "--json", str(old), "--out", str(new)]) == 1
    assert (old.read_text(), new.exists()) == ("{}", False)


@pytest.mark.needs("mpe2")
def test_options_that_an_environment_does_not_have_are_one_line(capsys):
    assert cli.main(["sample", "--env", "mpe2.simple_spread_v3", "--env-config", '{"bogus": 1}']) == 1
    (line,) = capsys.readouterr().err.splitlines()
    wanted = "cannot create mpe2.simple_spread_v3 with env_config={'bogus': 1} as keyword arguments: "
    assert line.startswith(f"fastmarl: {wanted}")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"fastmarl {fastmarl.__version__}\n"


@pytest.mark.slow
def test_sample_writes_its_figures_and_shows_progress_on_stderr(tmp_path, capsys):
    file = tmp_path / "new" / "figures.json"
    args = ["--env", "ready", "--env-config", '{"agents": 3}', "--num-envs", "2", "--steps", "400", "--json", str(file)]
    assert cli.main(["sample", *args]) == 0
    assert not re.search("^(sampling|measuring)", capsys.readouterr().out, re.M)
    figures = json.loads(file.read_text())
    assert (figures["env"], figures["env_config"], figures["num_envs"]) == ("ready", {"agents": 3}, 2)
    assert (figures["env_steps"], figures["agent_steps"], figures["episodes"]) == (400, 1200, 4)
    assert figures["agent_steps_per_second"] == pytest.approx(1200 / figures["seconds"])
    assert figures["relative_speed"]["agents"] == 3
    assert figures["inference_backends"] == {"default_policy": "native"}
    assert figures["versions"]["fastmarl"]


def test_the_sentence_has_time_shares_and_the_relative_speed_of_equal_rounds():
    stage_ms = dict.fromkeys(("scatter", "connect", "record", "send", "bookkeeping"), 0.1)
    stage_ms |= {"env": 8.9, "reset": 0.2, "forward": 0.4}
    figures = {"stage_time_ms": stage_ms}
    shares = "91 % of the time is the environment, 4 % the network, 5 % fastmarl itself."
    assert sample.sentence(figures) == shares
    figures["relative_speed"] = {"rounds": [0.9, 1.0, 0.95], "median_round_us": (95, 100), "relative_speed": 0.95}
    text = sample.sentence(figures)
    assert text.startswith(f"{shares} In turn with a bare loop")
    assert text.endswith("10,000 agent steps/s against 10,526, a relative speed of 0.95.")


class Interrupting(relative_speed_table.ReadyDicts):
    """Raises KeyboardInterrupt in the step after `config["steps"]`."""

    def __init__(self, config):
        super().__init__()
        self.left = config["steps"]

    def step(self, actions):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().step(actions)


def test_interrupted_sampling_shows_its_figures(tmp_path, capsys):
    fastmarl.register_env("interrupting", Interrupting)
    file = tmp_path / "figures.json"
    args = ["--env", "interrupting", "--num-envs", "1", "--env-config", '{"steps": 321}', "--steps", "1000"]
    assert cli.main(["sample", *args, "--json", str(file)]) == 130
    assert 300 - sample.WARM_TICKS <= json.loads(file.read_text())["env_steps"] <= 320
    out, err = capsys.readouterr()
    assert "where the time goes" in out
    assert err.endswith("fastmarl: interrupted\n")


def test_nothing_is_shown_if_nothing_was_sampled(capsys):
    fastmarl.register_env("interrupting", Interrupting)
    args = ["--env", "interrupting", "--num-envs", "1", "--env-config", '{"steps": 0}']
    assert cli.main(["sample", *args]) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "command",
    [["sample", "--steps", "100"], ["train", "ippo", "--steps", "100", "--no-plot"], ["sample", "--no-relative-speed"]],
)
def test_an_env_without_acting_agents_is_an_error(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    fastmarl.register_env("no agent acts", scripted([""], agents="a"))
    is_fine = "--no-relative-speed" in command
    assert cli.main([*command, "--env", "no agent acts", "--num-envs", "2"]) == (0 if is_fine else 1)
    assert ("fastmarl: no agent has acted in" in capsys.readouterr().err) != is_fine


def test_an_interrupted_benchmark_shows_finished_measurements(monkeypatch, tmp_path, capsys):
    one, two = (fastmarl.EnvRunnerConfig(env="ready", num_envs_per_env_runner=n) for n in (1, 2))
    monkeypatch.setattr(relative_speed_table, "standard_configs", lambda **options: [("one", one), ("two", two)])
    result = measure_relative_speed(one, rounds=1, seconds=0.001)

    def measure(config, **pace):
        if config is two:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr("fastmarl.bench.relative_speed.measure_relative_speed", measure)
    file = tmp_path / "figures.json"
    assert cli.main(["bench", "relative-speed", "--json", str(file)]) == 130
    assert [row["environment"] for row in json.loads(file.read_text())["figures"]] == ["one"]
    assert f"{result.agent_steps_per_second:,.0f}" in capsys.readouterr().out


def test_the_command_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "fastmarl", "--help"], capture_output=True, text=True, check=True)
    assert "check-env" in result.stdout


def test_output_that_is_no_longer_read_ends_no_command():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        command = [sys.executable, "-m", "fastmarl", "info"]
        result = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("workers", [[], ["--num-env-workers", "1", "--worker-num-splits", "2"]], ids=["", "workers"])
def test_an_environment_in_the_current_folder_is_found(tmp_path, monkeypatch, capsys, workers):
    source = "from fastmarl.bench.relative_speed_table import ReadyDicts\n\n\nclass Mine(ReadyDicts):\n    pass\n"
    (tmp_path / "my_envs.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)
    args = ["--env", "my_envs:Mine", "--steps", "100", "--num-envs", "4", "--no-relative-speed"]
    assert cli.main(["sample", *args, *workers]) == 0
    assert "agent steps/s" in capsys.readouterr().out


def test_sample_with_workers_has_them_take_turns(monkeypatch):
    made = []

    def refuse(config):
        made.append(config)
        raise EnvCheckError("made")

    monkeypatch.setattr("fastmarl.runner.runner.MultiAgentEnvRunner", refuse)
    assert cli.main(["sample", "--env", "ready", "--num-env-workers", "3", "--worker-num-splits", "2"]) == 1
    assert cli.main(["sample", "--env", "ready", "--num-env-workers", "0"]) == 1
    assert cli.main(["sample", "--env", "ready"]) == 1
    assert [(c.gym_env_vectorize_mode, c.num_env_workers, c.worker_num_splits) for c in made] == [
        ("async", 3, 2),
        ("async", 0, 1),
        ("sync", 0, 1),
    ]


@pytest.mark.parametrize(
    "name", [pytest.param("openspiel.kuhn_poker", marks=pytest.mark.needs("pyspiel")), "CartPole-v1"]
)
def test_games_and_gymnasiums_environments_are_sampled_by_name(capsys, name):
    assert cli.main(["sample", "--env", name, "--num-envs", "2", "--steps", "100", "--no-relative-speed"]) == 0
    assert "agent steps/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["no_such_module:Env", ":Env", ".module:Env", "fastmarl.bench.relative_speed_table:Missing"]
)
def test_a_missing_class_is_named(capsys, name):
    assert cli.main(["sample", "--env", name]) == 1
    assert f"no environment '{name}'" in capsys.readouterr().err
