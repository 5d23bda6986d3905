"""`python -m benchmarks.peers`: turns, failures and ends of samplers made up here; tables of given numbers; our own."""

import itertools
import json
import shutil
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import child, entries, report
from benchmarks.peers.__main__ import PEERS
from benchmarks.peers.child import Child, ChildError
from benchmarks.peers.entries import HALVES, Entry, Setting
from benchmarks.peers.measure import Pace, measure_setting
from fastmarl.report.records import RecordFile

JOURNAL = """
import os
import time

def note(name):
    with open(os.environ["JOURNAL"], "a") as file:
        file.write(f"{name}\\n")
"""
WORK = (
    JOURNAL
    + """
from dataclasses import dataclass, field
from typing import Any

@dataclass
class Setting:
    env: str
    num_envs: int
    num_workers: int

@dataclass
class Sampler:
    collect: Any
    config: dict
    close: Any = lambda: None
"""
)
STEADY = """
import threading
from peer_samplers.work import Sampler, note, time
DISTRIBUTION = "numpy"
calls = 0

def watch():
    while True:
        note("{name}")
        time.sleep(0.005)

def build(setting):
    def collect():
        global calls
        calls += 1
        if calls == 2:  # the first call of a turn
            threading.Thread(target=watch, daemon=True).start()
        print("noise")
        time.sleep(0.02)
        return 10
    return Sampler(collect, {{"envs": setting.num_envs}}, lambda: note("{name} closed"))
"""
SOON_OVER = """
from peer_samplers.work import Sampler, time
DISTRIBUTION = "numpy"
calls = 0
def build(setting):
    def collect():
        global calls
        calls += 1
        if calls > 2:
            {end}
        time.sleep(0.05)
        return 1
    return Sampler(collect, {{}})
"""
BROKEN = {
    "absent": "import no_such_package",
    "unable": "def build(setting): raise ValueError('two\\nlines')",
    "lacking": "import peer_samplers.no_such_part",
    "crashing": """
        import os, sys
        def build(setting):
            print("Fatal: out of luck", file=sys.stderr)
            os._exit(3)
    """,
    "tired": SOON_OVER.format(end='raise RuntimeError("no more")'),
    "hanging": SOON_OVER.format(end="time.sleep(1000)"),
    "late": "import time; time.sleep(1000)",
    "starting": """
        import subprocess
        from peer_samplers.work import Sampler, note, time
        DISTRIBUTION = "numpy"
        def build(setting):
            others = [subprocess.Popen(["sleep", "1000"], start_new_session=apart) for apart in (False, True)]
            note(" ".join(str(process.pid) for process in others))
            return Sampler(lambda: time.sleep(0.001) or 1, {})
    """,
}
SETTING = Setting("free", 4, 0)
PACE = Pace(rounds=2, seconds=0.03, warm=0.0, start_timeout=20.0, turn_timeout=20.0)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Samplers "a", "b" and both halves of the limit, and those of BROKEN; returns the file of what they note."""
    package = tmp_path / "peer_samplers"
    package.mkdir()
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(child.CHILDREN / "peer_samplers" / name, package)
    (package / "work.py").write_text(WORK)
    for name in ("a", "b", *(half.module for half in HALVES)):
        (package / f"{name}.py").write_text(STEADY.format(name=name))
    for name, source in BROKEN.items():
        (package / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(child, "CHILDREN", tmp_path)
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "journal"


def measured_with(names, pace=PACE, progress=lambda text: None):
    samplers = [Entry(name, name, name) for name in names]
    python_of = dict.fromkeys((*names, *(half.name for half in HALVES)), sys.executable)
    return measure_setting(SETTING, samplers, python_of, pace, progress)


@pytest.mark.slow
def test_all_have_a_turn_in_each_round_while_the_others_stand_still(made_up):
    measured = measured_with(["a", "b"])
    noted = [name for name, _ in itertools.groupby(made_up.read_text().splitlines())]
    turns = ["environment", "network", "a", "b"] * PACE.rounds
    # Before, some start together, and all of them go on when they are to end.
    assert any(noted[i : i + len(turns)] == turns for i in range(len(noted)))
    closed = sorted(line for line in made_up.read_text().splitlines() if "closed" in line)
    assert closed == ["a closed", "b closed", "environment closed", "network closed"]
    assert {key: measured[key] for key in ("env", "num_envs", "num_workers", "rounds", "seconds")} == {
        "env": "free",
        "num_envs": 4,
        "num_workers": 0,
        "rounds": 2,
        "seconds": 0.03,
    }
    assert [result["peer"] for result in measured["results"]] == ["environment", "network", "a", "b"]
    for result in measured["results"]:
        assert result["status"] == "measured"
        assert result["config"] == {"envs": 4}
        assert {"numpy", "python"} <= result["versions"].keys()
        assert len(result["agent_steps_per_second"]) == PACE.rounds
        assert all(0 < speed <= 500 for speed in result["agent_steps_per_second"])  # 10 in 20 ms or more
    json.dumps(measured)


@pytest.mark.slow
def test_failing_peers_are_reported_and_the_others_are_measured(made_up):
    measured = measured_with(["absent", "unable", "lacking", "crashing", "tired", "a"])
    shown = {result["peer"]: (result["status"], result.get("error")) for result in measured["results"]}
    assert shown == {
        "environment": ("measured", None),
        "network": ("measured", None),
        "absent": ("not installed", "no_such_package is not installed"),
        "unable": ("failed", "ValueError: two lines"),
        "lacking": ("failed", "ModuleNotFoundError: No module named 'peer_samplers.no_such_part'"),
        "crashing": ("failed", "ended with exit code 3: Fatal: out of luck"),
        "tired": ("failed", "RuntimeError: no more"),
        "a": ("measured", None),
    }
    assert not any("agent_steps_per_second" in result for result in measured["results"] if "error" in result)


@pytest.mark.slow
def test_peers_that_take_too_long_are_killed(made_up):
    with Child(sys.executable, "late", SETTING.__dict__) as late:
        with pytest.raises(ChildError, match=r"took more than 0\.1 s to be ready"):
            late.wait_until_ready(0.1)
        late._process.kill()  # so that it is not waited for
    with Child(sys.executable, "hanging", SETTING.__dict__) as hanging:
        hanging.wait_until_ready(20.0)
        with pytest.raises(ChildError, match=r"took more than 0\.1 s for its turn"):
            hanging.turn(warm=0.0, seconds=0.01, timeout=0.1)
        hanging._process.kill()


@pytest.mark.slow
def test_a_sampler_that_will_not_close_is_ended_with_all_that_it_has_started(made_up, monkeypatch):
    monkeypatch.setattr(child, "SECONDS_TO_CLOSE", 0.3)
    with (
        Child(sys.executable, "hanging", SETTING.__dict__) as hanging,
        Child(sys.executable, "starting", SETTING.__dict__) as starting,
    ):
        hanging.wait_until_ready(20.0)
        with pytest.raises(ChildError):
            hanging.turn(warm=0.0, seconds=0.01, timeout=0.01)
        starting.wait_until_ready(20.0)
        processes = [psutil.Process(int(pid)) for pid in made_up.read_text().split()]
        assert len(processes) == 2
    assert hanging._process.poll() is not None
    deadline = time.monotonic() + 5
    while any(has_not_ended(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(has_not_ended(process) for process in processes)


def has_not_ended(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_all_are_ended_when_the_work_is_interrupted(made_up):
    def interrupt(text):
        if "round" in text:
            raise KeyboardInterrupt

    begun = {process.pid for process in psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt):
        measured_with(["a"], progress=interrupt)
    assert {process.pid for process in psutil.Process().children()} <= begun


def result(peer, *speeds, **others):
    return {
        "peer": peer,
        "status": "measured",
        "agent_steps_per_second": [*speeds],
        "config": {},
        "versions": {},
    } | others


GIVEN = {
    "env": "spread",
    "num_envs": 8,
    "num_workers": 0,
    "results": [
        result("environment", 100, 200, 100),
        result("network", 100, 200, 300),
        result("fastmarl", 60, 80, 90),
        result("supersuit", 30, 20, 90, config={"num_cpus": 0}, versions={"supersuit": "3"}),
        {"peer": "torchrl", "status": "failed", "error": "a | b"},
        {"peer": "tianshou", "status": "not installed", "error": "tianshou is not installed"},
    ],
}


def test_ratios_are_medians_of_the_rounds_ratios():
    cells = report.cells(GIVEN)
    assert cells.keys() == {"limit", "fastmarl", "supersuit"}
    assert cells["limit"].agent_steps_per_second == pytest.approx(75)  # of 50, 100, 75
    assert cells["supersuit"].agent_steps_per_second == 30
    assert cells["supersuit"].to_ours == pytest.approx(0.5)  # of 0.5, 0.25, 1
    assert cells["supersuit"].to_limit == pytest.approx(0.6)  # of 0.6, 0.2, 1.2
    assert cells["fastmarl"].to_limit == pytest.approx(1.2)  # of 1.2, 0.8, 1.2


def test_ratios_to_missing_measurements_are_left_out():
    without = {**GIVEN, "results": [result("supersuit", 30), result("environment", 100)]}
    (cell,) = report.cells(without).values()
    assert (cell.to_ours, cell.to_limit) == (None, None)
    (table,) = report.tables({"settings": [without]})
    assert "| SuperSuit and a PyTorch loop | 30 |" in table.as_markdown()


def test_the_table_shows_everybody_the_quickest_first():
    figures = {"settings": [GIVEN, {**GIVEN, "num_envs": 1, "num_workers": 2}]}
    first, second = report.tables(figures)
    assert (first.title, second.title) == ("simple_spread_v3, one process", "simple_spread_v3, 2 workers")
    rows = first.as_markdown().splitlines()[2:]
    assert rows == [
        "|  | 8 envs |",
        "| --- | ---: |",
        "| bare loop | 75 (0.83) |",
        "| fastmarl | 80 (1.00, 1.20) |",
        "| SuperSuit and a PyTorch loop | 30 (0.50, 0.60) |",
        "| TorchRL | a \\| b |",
        "| Tianshou | tianshou is not installed |",
    ]
    assert "- **SuperSuit and a PyTorch loop** (supersuit 3). one process, 8 envs: num_cpus 0." in report.setups(
        figures
    )


def test_a_setting_measured_again_replaces_the_old_figures(tmp_path):
    again = {**GIVEN, "results": []}
    other, free = {**GIVEN, "num_envs": 1}, {**GIVEN, "env": "free", "num_envs": 1}
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"settings": [free, GIVEN]}))
    merged = RecordFile(file, "").merged({"settings": [other, again]}, {"settings": report.order})
    assert merged == {"settings": [other, again, free]}


def test_settings_leave_out_senseless_combinations():
    assert entries.settings(["spread", "free"], [1, 2, 4, 5], [0, 2]) == [
        *(Setting("spread", envs, 0) for envs in (1, 2, 4, 5)),
        Setting("spread", 4, 2),
        *(Setting("free", envs, 0) for envs in (1, 2, 4, 5)),
    ]


def test_a_peer_runs_in_the_python_that_has_it(tmp_path):
    for name in ("rllib", "torchrl", "supersuit", "fastmarl"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch(0o755)
    chosen = str(tmp_path / "torchrl" / "bin" / "python")
    python_of = entries.pythons([("supersuit", chosen)], tmp_path)
    assert python_of["supersuit"] == python_of["torchrl"] == chosen
    assert python_of["rllib-old"] == python_of["rllib"] == str(tmp_path / "rllib" / "bin" / "python")
    for name in ("fastmarl", "environment", "tianshou"):
        assert python_of[name] == sys.executable


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--peers", "puffer"], "there is no peer 'puffer'; there are fastmarl,"),
        (["--python", "supersuit=/no/such/python"], "--python supersuit=/no/such/python: there is no such file"),
        (["--python", f"supersuit={__file__}"], "is not an executable program"),
        (["--envs-folder", "/no/such/folder"], "--envs-folder /no/such/folder: there is no such folder"),
        (["--workers", "2", "--envs", "3"], "--envs [3] --workers [2]: workers need simple_spread"),
        (["--json", "FIGURES.json"], "not results of this benchmark: KeyError('env')"),
    ],
)
def test_unusable_arguments_are_errors_before_the_work(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    Path("FIGURES.json").write_text('{"settings": [{}]}')
    assert PEERS.main([*args]) == 1
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--python", "supersuit"], "must be NAME=PATH"),
        (["--workers", "-1"], "must be an integer >= 0"),
        (["--envs", "0"], "must be an integer >= 1"),
        (["--env", "chess"], "invalid choice 'chess'; choose from spread, free"),
        (["--seconds", "nan"], "must be a number of seconds above 0"),
        (["--json", str(Path(__file__).parents[1])], "must end in .json"),
        (["--markdown", "tables.html"], "must end in .md"),
    ],
)
def test_wrong_arguments_are_explained(capsys, args, message):
    with pytest.raises(SystemExit):
        PEERS.main([*args])
    assert message in capsys.readouterr().err


def test_every_entry_has_its_file():
    folder = child.CHILDREN / "peer_samplers"
    for entry in (*HALVES, *entries.SAMPLERS):
        assert (folder / f"{entry.module}.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", entries.ENV_KINDS)
@pytest.mark.parametrize("module", ["environment", "network", "fastmarl_runner", "supersuit"])
def test_samplers_make_as_many_steps_as_they_report(module, kind):
    from peer_samplers.work import AGENTS, TICKS
    from peer_samplers.work import Setting as Work

    sampler = import_module(f"peer_samplers.{module}").build(Work(kind, 2, 0))
    try:
        assert [sampler.collect() for _ in range(2)] == [TICKS * 2 * AGENTS] * 2
        json.dumps(sampler.config)
    finally:
        sampler.close()


def test_finished_settings_are_kept_if_the_next_fails(tmp_path, monkeypatch):
    def measure_setting(setting, *args):
        if setting.num_envs == 4:
            raise KeyboardInterrupt
        return GIVEN

    monkeypatch.setattr(command, "measure_setting", measure_setting)
    file = tmp_path / "figures.json"
    assert PEERS.main(["--workers", "0", "--envs", "2", "4", "--env", "free", "--json", str(file)]) == 130
    assert json.loads(file.read_text())["settings"] == [GIVEN]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_measures_ours_and_keeps_former_records(tmp_path, capsys):
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"settings": [GIVEN]}) + "\n")
    args = ["--peers", "fastmarl", "--env", "free", "--workers", "0", "--envs", "2", "--rounds", "1"]
    markdown, picture = tmp_path / "new" / "peers.md", tmp_path / "new" / "peers.png"
    files = ["--json", str(file), "--markdown", str(markdown), "--plot", str(picture)]
    assert PEERS.main([*args, "--seconds", "0.001", *files]) == 0
    assert "an environment that costs nothing, one process" in capsys.readouterr().out
    former, record = map(json.loads, file.read_text().splitlines())
    assert former == {"settings": [GIVEN]}
    (measured,) = record["settings"]
    assert [one["status"] for one in measured["results"]] == ["measured"] * 3
    assert "simple_spread_v3, one process" in markdown.read_text() and "How each was set up" in markdown.read_text()
    assert "| fastmarl |" in markdown.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
