"""The code that README and docs show runs as it stands there."""

import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [path for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if "```python" in path.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_a_page_runs(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    namespace = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("name", ["train_shared_policy", "two_policies", "league"])
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_an_example_trains(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--iterations", "2"])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert "iteration   1" in capsys.readouterr().out


def test_an_example_trains_with_runners_in_processes():
    command = [sys.executable, ROOT / "examples" / "runner_processes.py", "--iterations", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "iteration   1" in done.stdout
