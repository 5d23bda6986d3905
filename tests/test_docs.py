"""The code that README and docs show runs as it stands there; the page of options has them all."""

import csv
import dataclasses
import os
import pathlib
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.exhaustive import further

import fastmarl
from fastmarl.checkpoint import load_state
from fastmarl.core.modules.model_config import DefaultModelConfig

ROOT = pathlib.Path(__file__).parents[1]
PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


def blocks_of(path: pathlib.Path) -> list[str]:
    """Return the Python code on a page, as it stands there, but for the number of training iterations."""
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(r"\brange\(\d{3,}\)", "range(2)", block) for block in blocks]


def names_in(code: str) -> list[str]:
    return [name for name in OPTIONAL if re.search(rf"\b{name}\b", code)]


def marks_of(code: str) -> list:
    """Return a mark for each optional package that the code names."""
    return [pytest.mark.needs(OPTIONAL[each]) for each in names_in(code)]


def params(paths: list[pathlib.Path]) -> list:
    return [
        pytest.param(path, id=str(path.relative_to(ROOT)), marks=marks_of("\n".join(blocks_of(path)))) for path in paths
    ]


def scripts() -> list:
    """Return each block of the pages with worker processes, which is a script of its own."""
    return [
        pytest.param(
            code,
            id=f"{page.relative_to(ROOT)}-{number}",
            marks=[*marks_of(code), *([pytest.mark.exhaustive] if "ray" in names_in(code) else [])],  # it starts Ray
        )
        for page in WITH_WORKERS
        for number, code in enumerate(blocks_of(page))
    ]


OPTIONAL = {  # in code -> package
    **{
        name: name
        for name in (
            "ray",
            "mpe2",
            "magent2",
            "rich",
            "tensorboard",
            "onnxruntime",
            "polars",
            "stable_baselines3",
            "torchrl",
        )
    },
    "openspiel": "pyspiel",
    "fastmarl.offline": "pyarrow",
}
PAGES = [path for path in PATHS if blocks_of(path)]
WITH_WORKERS = [path for path in PAGES if any('if __name__ == "__main__":' in block for block in blocks_of(path))]


ABOUT_THE_CODE = [ROOT / "docs/architecture.md", ROOT / "docs/data_path.md", *sorted(ROOT.glob("docs/decisions/*.md"))]


@pytest.mark.parametrize("page", ABOUT_THE_CODE, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    folders = [ROOT, *(ROOT / "fastmarl" / name for name in ("", "core", "rllib"))]
    for name in re.findall(r"`((?:\w+/)+\w*(?:\.\w+)?)`", page.read_text()):
        assert any((folder / name).exists() for folder in folders), name


def test_each_folder_of_the_package_has_a_row_of_tests_that_are_there():
    rows = (ROOT / "tests/README.md").read_text()
    tests = {path.name for path in ROOT.glob("tests/**/*.py")}
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", rows):
        assert name in tests or (ROOT / name).exists() or (ROOT / "tests" / name).exists(), name
    for folder in sorted({path.relative_to(ROOT).parent for path in ROOT.glob("fastmarl/*/*/*.py")}):
        assert any(f"`{part.as_posix()}`" in rows for part in (folder, *folder.parents)), folder


@pytest.mark.slow
@pytest.mark.parametrize("page", params([path for path in PAGES if path not in WITH_WORKERS]))
def test_code_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some pages write files
    namespace = {"__name__": "page"}
    for block in blocks_of(page):
        exec(compile(block, page.name, "exec"), namespace)


def run_python(*arguments, **options):
    """Return what a Python process prints that runs to its end."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_example(name, *options):
    return run_python("-W", "ignore", ROOT / "examples" / f"{name}.py", *options)


@pytest.mark.slow
@pytest.mark.parametrize("code", scripts())
def test_code_with_worker_processes_runs_as_a_script(code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(code)
    run_python(script, cwd=tmp_path)


@pytest.mark.slow
def test_a_vector_environment_trains():
    printed = run_example("vector_env_ppo", "--steps", "100000")
    *_, last = re.findall(r"mean return of an agent (-?[\d.]+)$", printed, re.MULTILINE)
    assert -22 < float(last) < -10  # at random -26


@pytest.mark.slow
@pytest.mark.needs("mpe2", "pettingzoo")
@pytest.mark.parametrize("name", ["train_shared_policy", "league"])
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_an_example_trains(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--iterations", "2"])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert "iteration   1" in capsys.readouterr().out


# Example, its options, and bounds of the return that its greedy play then has. On average random play returns -79 on
# simple_spread, and 44 on the two poles of recurrent_ippo.
LEARNING = [
    ("ippo", ["--steps", "96000"], (-65, 0)),
    ("mappo", ["--steps", "320000"], (-65, 0)),
    ("recurrent_ippo", ["--steps", "60000"], (200, 1001)),
    ("recurrent_ippo", ["--steps", "60000", "--memoryless"], (50, 120)),
    ("iql", ["--steps", "100000"], (-72, 0)),
    ("vdn", ["--steps", "100000"], (-68, 0)),
    ("qmix", ["--steps", "200000"], (-70, 0)),
    ("qmix", ["--steps", "100000", "--memory"], (-70, 0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "bounds"),
    further(LEARNING),
    ids=lambda value: value if type(value) is str else "",
)
def test_an_example_learns(name, options, bounds, tmp_path):
    """As much as it should: without memory, little."""
    printed = run_example(name, *options, "--episodes", "500", "--folder", tmp_path)
    mean, _ = re.search(r"greedy play: mean return (\S+) ± (\S+) over 500 episodes", printed).groups()
    low, high = bounds
    assert low < float(mean) < high
    with (tmp_path / "curve.csv").open() as file:
        first, *_, last = csv.DictReader(file)
    assert int(last["step"]) >= int(options[options.index("--steps") + 1])
    assert float(last["episode_return_mean"]) > float(first["episode_return_mean"])


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "last", "options", "least"),
    [
        ("async_vtrace", 320_000, 320_000, [], -65),  # the return on its page
        pytest.param("distributed_ippo", 200_000, 220_000, ["--runners", "1"], -74,
                     marks=[pytest.mark.needs("ray"), pytest.mark.xdist_group("ray")]),
    ],
)  # fmt: skip
def test_an_example_with_samplers_in_other_processes_learns(name, steps, last, options, least, tmp_path):
    printed = run_example(name, *options, "--steps", str(steps), "--episodes", "500", "--folder", tmp_path)
    mean, _ = re.search(r"greedy play: mean return (\S+) ± (\S+) over 500 episodes", printed).groups()
    assert float(mean) > least
    curve = (tmp_path / "curve.csv").read_text().splitlines()
    assert curve[0] == "env_steps,seconds,seconds_waited,episode_return_mean,entropy,kl"
    assert steps <= int(curve[-1].split(",")[0]) <= last


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("pyarrow")
def test_behaviour_cloning_plays_like_the_recorded_policy(tmp_path):
    """The mean return of 400 episodes of random play is -79, with a standard error of 1."""
    options = ["--steps", "160000", "--episodes", "400", "--epochs", "3", "--batch-size", "512", "--evaluation", "400"]
    printed = run_example("behaviour_cloning", *options, "--folder", tmp_path)
    recorded, random = re.search(r"recorded: mean return (\S+) over 400 episodes; random play (\S+)", printed).groups()
    cloned = re.search(r"clone: sampled play (\S+),", printed)[1]
    assert float(random) < -74
    assert float(recorded) > -66
    assert float(cloned) > -68


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ddp_ippo_is_the_same_in_one_process(tmp_path, monkeypatch, capsys):
    """With the same total batch, but for rounding: weights after two updates. Nearly all of its time are imports in
    each process: so the one process is this one, while torchrun starts its own."""
    script = str(ROOT / "examples" / "ddp_ippo.py")
    options = ["--steps", "1600", "--num-envs", "16", "--episodes", "20"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, *options]
    monkeypatch.setattr("sys.argv", [script, *options, "--runners", "2", "--folder", str(tmp_path / "one")])
    monkeypatch.setattr("fastmarl.learning.keep_freed_memory", bool)  # it would, in all tests to come
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # as torchrun sets it by default
    with ThreadPoolExecutor(1) as pool:
        two = pool.submit(run_python, *launch, "--runners", "1", "--folder", tmp_path / "two", env=environ)
        runpy.run_path(script, run_name="__main__")
        assert "1600 env steps" in capsys.readouterr().out
        assert "1600 env steps" in two.result()
    two, one = (load_state(tmp_path / name / "checkpoint")["rl_module"]["default_policy"] for name in ("two", "one"))
    with fastmarl.MultiAgentEnvRunner(SPREAD) as runner:
        first = runner.get_weights()["default_policy"]
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-4, atol=1e-6)
        assert np.abs(array - first[name]).max() > 1e-3


SPREAD = fastmarl.EnvRunnerConfig(
    env="fastmarl.simple_spread",
    model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
    seed=0,
)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_policies_learn(tmp_path):
    """Each team does better than at random against random players, by more than chance gives."""
    printed = run_example("two_policies", "--steps", "120000", "--episodes", "500", "--folder", tmp_path)
    match = r"(\w+) hunters, (\w+) prey: (\S+) ± \S+ touches an episode, the prey's return (\S+) ±"
    found = {(hunters, prey): rest for hunters, prey, *rest in re.findall(match, printed)}
    (touches, _), (_, lost), (touches_of_random, lost_of_random) = (
        map(float, found[teams]) for teams in (("trained", "random"), ("random", "trained"), ("random", "random"))
    )
    assert touches > 1.5 * touches_of_random
    assert lost > 0.8 * lost_of_random
    assert (tmp_path / "curve.csv").read_text().startswith("env_steps,cpu_seconds,hunters,prey\n")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_self_play_learns(tmp_path):
    """To what no untrained net did, of nine: they won at most 13 and 5 % as first and second player against the player
    that looks one move ahead; random play wins 3 %."""
    printed = run_example("self_play", "--steps", "200000", "--games", "500", "--folder", tmp_path)
    found = re.findall(r"greedy play as (player_\d) against (\w+): won (\d+) of 500 games", printed)
    won = {(opponent, side): int(games) for side, opponent, games in found}
    assert len(won) == 4 and min(won["random", "player_0"], won["random", "player_1"]) > 425
    assert won["one_ply", "player_0"] > 90 and won["one_ply", "player_1"] > 40
    curve = (tmp_path / "curve.csv").read_text().splitlines()
    assert curve[0].startswith("step,seconds,rating/main,rating/one_ply,") and curve[-1].startswith("204800,")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_example_trains_with_runners_in_processes():
    assert "iteration   1" in run_example("runner_processes", "--iterations", "2")


@pytest.mark.parametrize("options", [fastmarl.EnvRunnerConfig, DefaultModelConfig], ids=lambda cls: cls.__name__)
def test_every_option_stands_on_its_page_with_its_default(options):
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+?) \|", (ROOT / "docs" / "options.md").read_text(), re.MULTILINE)
    on_page = dict(rows)
    assert len(on_page) == len(rows)
    for field in dataclasses.fields(options):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        expected = "required" if default is dataclasses.MISSING else f"`{default!r}`"
        assert on_page.get(field.name) == expected, field.name
