"""Spawned workers import the user's script only if they are sent something of it; episodes are the same either way.

The script is tests/support/script_of_workers.py.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests/support/script_of_workers.py"
NEITHER, BOTH = [False, False], [True, True]  # it has imported the script, and torch, which is at the script's top

pytestmark = pytest.mark.slow


def run(tmp_path, function, *, command=(SCRIPT,), **environment):
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "IMPORTED": str(tmp_path / "imported")}
    result = subprocess.run(
        [sys.executable, *command, function],
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def assert_as_it_should_be(without, with_script):
    assert without == {case: [*NEITHER, True] for case in without}
    assert with_script == {case: [*BOTH, True] for case in with_script}


def test_the_script_is_imported_only_if_the_env_or_an_object_that_is_sent_later_comes_from_it(tmp_path):
    """The script seeds Python's generator, from which the env draws: the worker's stays as it was."""
    without, with_script, message = run(tmp_path, "few_and_message")
    assert len(without) == 2 and len(with_script) == 2
    assert_as_it_should_be(without, with_script)
    assert message == [NEITHER, BOTH, 5, True]


@pytest.mark.exhaustive
@pytest.mark.needs("mpe2")
@pytest.mark.parametrize(
    "command", [pytest.param((SCRIPT,), id="path"), pytest.param(("-m", "support.script_of_workers"), id="module")]
)
def test_the_script_is_imported_only_if_the_env_comes_from_it(tmp_path, command):
    assert_as_it_should_be(*run(tmp_path, "by_case", command=command))


@pytest.mark.needs("mpe2")
def test_a_script_without_a_guard_can_have_workers_for_envs_by_name(tmp_path):
    assert run(tmp_path, "unguarded", UNGUARDED="1") == NEITHER


@pytest.mark.exhaustive
def test_threads_that_start_workers_of_both_kinds_do_not_meddle(tmp_path):
    assert run(tmp_path, "threads") == [[NEITHER, BOTH] * 2, True]
