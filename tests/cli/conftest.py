"""The folder that commands run in."""

import sys

import pytest

import fastmarl
from fastmarl.bench.efficiency_table import ReadyDicts


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """Run commands in a folder of the test's own, with an env "ready", and undo what they change in the process."""
    fastmarl.register_env("ready", ReadyDicts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("fastmarl.training.loop.keep_freed_memory", bool)
    return tmp_path
