"""The first project's page and files agree, its commands run, and a resumed run ends with the same weights."""

import itertools
import pathlib
import re
import runpy
import shlex
import shutil
import signal
import sys

import numpy as np
import pytest

from fastmarl.checkpoint import load_state
from fastmarl.cli import main as fastmarl_command
from fastmarl.learning import MetricsWriter

ROOT = pathlib.Path(__file__).parents[1]
FILES = ROOT / "examples" / "first_project"
PAGE = (ROOT / "docs" / "first_project.md").read_text()
MODULES = [path.stem for path in FILES.glob("*.py")]
SHORT = {  # commands on the page, and what the test runs in their place
    "python train.py --folder runs/first": "python train.py --folder runs/first --iterations 3 --num-envs 8",
    "python train.py --folder runs/first --iterations 130 --resume":
        "python train.py --folder runs/first --iterations 5 --num-envs 8 --resume",
    "python evaluate.py runs/first 200": "python evaluate.py runs/first 4",
}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("matplotlib", "pettingzoo", "scipy", "tensorboard", "onnxruntime", "imageio_ffmpeg"),
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working folder of a newcomer: a copy of the project's files."""
    folder = tmp_path / "first_project"
    shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in MODULES:
        sys.modules.pop(name, None)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_excerpts_on_the_page_are_in_the_files():
    excerpts = re.findall(r'^```python title="(\S+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
    assert len(excerpts) == PAGE.count("```python")
    for name, excerpt in excerpts:
        assert excerpt in (FILES / name).read_text(), f"{name}:\n{excerpt}"


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_meadow_is_a_parallel_env(project):
    from meadow import Meadow
    from pettingzoo.test import parallel_api_test

    parallel_api_test(Meadow(num_hares=2, length=30), num_cycles=100)


def test_commands_on_the_page_run(project, monkeypatch, capsys):
    _, *commands = (block.splitlines() for block in blocks("sh"))  # the first ones install
    commands = list(itertools.chain(*commands))
    assert set(SHORT) < set(commands)
    shown = {}
    for command in commands:
        program, *args = shlex.split(SHORT.get(command, command))
        if program == "fastmarl":
            assert fastmarl_command(args) == 0
        else:
            monkeypatch.setattr("sys.argv", args)
            runpy.run_path(args[0], run_name="__main__")
        shown[command] = capsys.readouterr().out
    assert blocks("text")[0] in shown["fastmarl check-env meadow:Meadow"]
    run = project / "runs" / "first"
    made = {path.name for path in run.iterdir()}
    assert {"checkpoint-0003", "checkpoint-0005", "curve.png", "hares.gif", "hares.onnx"} <= made
    assert (project / "seven.mp4").exists()
    assert len((run / "metrics.csv").read_text().splitlines()) == 1 + 5


class _InterruptingWriter(MetricsWriter):
    """Sends the process SIGINT, as Ctrl-C does, in the first iteration."""

    def write(self, step, *metrics):
        super().write(step, *metrics)
        signal.raise_signal(signal.SIGINT)


def test_a_resumed_run_ends_with_the_same_weights(project):
    from train import Training, newest_checkpoint, train

    def run(name, writer_class, iterations, resume=False):
        folder = project / name
        folder.mkdir(exist_ok=resume)
        training = Training(folder, seed=3, num_envs=4)
        if resume:
            training.restore()
        with training.runner, writer_class() as writer:
            train(training, iterations, writer)
        return load_state(newest_checkpoint(folder)), training.iteration

    whole, _ = run("whole", MetricsWriter, 4)
    first, done = run("broken", _InterruptingWriter, 4)
    assert done == 1
    resumed, done = run("broken", MetricsWriter, 4, resume=True)
    assert done == 4
    run("broken", MetricsWriter, 4, resume=True)  # has nothing left to do
    weights, others = (state["rl_module"]["hares"] for state in (whole, resumed))
    for name, array in weights.items():
        np.testing.assert_array_equal(others[name], array)
    assert any(np.any(first["rl_module"]["hares"][name] != array) for name, array in weights.items())


@pytest.mark.parametrize(("folder", "options", "message"), [
    (".", [], r"\. already exists: continue its run with --resume"),
    (".", ["--resume"], "there is no checkpoint in \\."),
    ("new", ["--resume"], "there is no checkpoint in new"),
])  # fmt: skip
def test_a_run_of_another_folder_than_was_meant_does_not_begin(project, monkeypatch, capsys, folder, options, message):
    import train

    monkeypatch.setattr("sys.argv", ["train.py", "--folder", folder, *options])
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert re.search(message, f"{ended.value} {capsys.readouterr().err}")
    assert not (project / "new").exists()


@pytest.mark.parametrize("name", ["curve", "evaluate", "export", "watch"])
def test_a_script_without_arguments_says_which_it_takes(project, monkeypatch, name):
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    with pytest.raises(SystemExit, match=rf"python {name}\.py runs/first"):
        runpy.run_path(f"{name}.py", run_name="__main__")


@pytest.mark.exhaustive
def test_hares_learn(project):
    from train import Training

    training = Training(project / "run", seed=0, num_envs=32)
    with training.runner:
        training.step()
        before = training.runner.get_metrics()["episode_return_mean"]
        for _ in range(11):
            training.step()
        after = training.runner.get_metrics()["episode_return_mean"]
    assert before < -10 < 0 < after
