"""The folder that commands run in."""

import json
import sys

import pytest

import fastmarl
from fastmarl.bench.relative_speed_table import ReadyDicts
from fastmarl.core.checkpoint.sealed_json import check_seal, write_sealed


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """Run commands in a folder of the test's own, with an env "ready", and undo what they change in the process."""
    fastmarl.register_env("ready", ReadyDicts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("fastmarl.training.loop.keep_freed_memory", bool)
    return tmp_path


@pytest.fixture
def change_options():
    """Return a function that changes a run's options, or with `about=` other entries of run.json, and seals it."""

    def change(folder, *, about=None, without=(), **options):
        file = folder / "run.json"
        content = check_seal(json.loads(file.read_text()))
        kept = {name: value for name, value in content["options"].items() if name not in without}
        write_sealed(file, {**content, "options": {**kept, **options}, **(about or {})})

    return change
