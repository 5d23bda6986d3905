"""Files of figures: records are added, with what is needed to compare them, and nothing that is there is lost."""

import json
import os
import subprocess

import pytest

from fastmarl.errors import ConfigError
from fastmarl.report import records
from fastmarl.report.records import RecordFile, commit_of

ORDERS = {"rows": lambda row: (row["size"],)}


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_run_adds_one_record(tmp_path):
    file = tmp_path / "figures.json"
    for run in range(2):
        record = RecordFile(file, f"run {run}")
        record.write({"rows": [1]}, is_final=False)
        record.write({"rows": [1, 2]}, is_final=True)
    assert [(record["command"], record["rows"]) for record in read(file)] == [("run 0", [1, 2]), ("run 1", [1, 2])]


def test_a_record_has_its_date_commit_machine_and_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "commit_of", lambda folder: ("abc", True))
    RecordFile(tmp_path / "figures.json", "run").write({}, is_final=True)
    (record,) = read(tmp_path / "figures.json")
    assert record.keys() == {"command", "date", "commit", "dirty", "build", "machine", "versions"}
    assert (record["commit"], record["dirty"]) == ("abc", True)
    assert record["date"].endswith("+00:00")
    assert record["machine"].keys() == {"cpu", "cores", "usable_cores", "gpu", "os"}
    assert record["machine"]["cpu"] and 1 <= record["machine"]["usable_cores"] <= record["machine"]["cores"]
    assert {"fastmarl", "python", "torch", "numpy"} <= record["versions"].keys()


def test_records_over_several_lines_are_read_and_kept(tmp_path):
    file = tmp_path / "figures.json"
    old = json.dumps({"rows": [{"size": 1}]}, indent=1)
    file.write_text(old)
    record = RecordFile(file, "run")
    record.write({"rows": [{"size": 2}]}, is_final=True)
    text = file.read_text()
    assert text.startswith(f"{old}\n") and json.loads(text.splitlines()[-1])["rows"] == [{"size": 2}]
    assert RecordFile(file, "run").merged({}, ORDERS) == {"rows": [{"size": 1}, {"size": 2}]}


def test_the_latest_row_of_each_kind_counts(tmp_path):
    file = tmp_path / "figures.json"
    file.write_text('{"rows": [{"size": 3, "run": 0}, {"size": 2, "run": 0}]}\n{"rows": [{"size": 2, "run": 1}]}\n{}\n')
    figures = {"rows": [{"size": 3, "run": 2}], "others": [1]}
    merged = RecordFile(file, "run").merged(figures, ORDERS)
    assert merged == {"rows": [{"size": 2, "run": 1}, {"size": 3, "run": 2}], "others": [1]}


@pytest.mark.parametrize("text", [b"[1]", b"no JSON", b'{"rows": []}\n{"rows"', b"\xff"])
def test_other_files_are_refused_and_stay(tmp_path, text):
    file = tmp_path / "figures.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"--json .*figures.json: expected one JSON object per line"):
        RecordFile(file, "run")
    assert file.read_bytes() == text


def test_rows_of_something_else_are_refused(tmp_path):
    file = tmp_path / "figures.json"
    file.write_text('{"rows": [{"length": 1}]}')
    with pytest.raises(ConfigError, match="not results of this benchmark: KeyError"):
        RecordFile(file, "run").merged({}, ORDERS)


def test_a_stream_gets_the_final_record_only(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    record = RecordFile(pipe, "run")
    record.write({"rows": [1]}, is_final=False)
    record.write({"rows": [1, 2]}, is_final=True)
    assert json.loads(os.read(reader, 1 << 16))["rows"] == [1, 2]
    os.close(reader)


def test_the_commit_of_a_clone(tmp_path):
    def git(*args):
        options = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *options, *args], check=True, capture_output=True)

    assert commit_of(tmp_path) == (None, None)
    git("init")
    source = tmp_path / "fastmarl" / "a.py"
    source.parent.mkdir()
    source.write_text("")
    assert commit_of(tmp_path) == (None, None), "there is no commit yet"
    git("add", ".")
    git("commit", "--message", "first")
    (tmp_path / "figures.json").write_text("not a source")
    commit, dirty = commit_of(tmp_path)
    assert len(commit) == 40 and not dirty
    source.write_text("changed = True")
    assert commit_of(tmp_path) == (commit, True)
    assert commit_of(source.parent) == (None, None), "a folder of somebody else's clone"
