"""Records of actions that came from elsewhere: their files don't choose what is imported and called."""

import json
import subprocess
import sys

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from support.wild import Wild

import fastmarl
from fastmarl.cli import main as cli
from fastmarl.core.checkpoint.sealed_json import check_seal, sealed
from fastmarl.core.envs.registry import may_be_named_by_a_file
from fastmarl.errors import EnvCheckError, RecordingError

EVIL = """
import pathlib
pathlib.Path("imported").touch()
def parallel_env(**options):
    pathlib.Path("called").touch()
Env = parallel_env
"""


def record(folder, env, **options):
    config = fastmarl.EnvRunnerConfig(env=env, record_actions=folder, seed=0, **options)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        return runner.sample(num_timesteps=10, random_actions=True)


def forge(folder, **entries):
    """Change the description, and its checksum with it."""
    [file] = folder.glob("*.json")
    file.write_text(sealed({**check_seal(json.loads(file.read_text())), **entries}))


@pytest.mark.parametrize(
    "name", ["evil_module:Env", "evil_module.sub", "evil_module", ["evil_module:Env"], {"a": 1}, 3]
)
def test_no_name_of_a_file_is_imported_unasked(name, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text(EVIL)
    (tmp_path / "run").mkdir()
    record(tmp_path / "run", "fastmarl.simple_spread")
    forge(tmp_path / "run", env=name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecordingError, match=r"names .* as its env, which this program has not used"):
        fastmarl.replay(tmp_path / "run", 0)
    assert cli(["replay", "run", "0"]) == 1
    assert "evil_module" not in sys.modules and not (tmp_path / "imported").exists()


def test_no_function_that_is_there_already_is_called_unasked(tmp_path):
    record(tmp_path, "fastmarl.simple_spread")
    handlers = {"x": {"()": "os.mkdir", "path": str(tmp_path / "mark")}}
    forge(tmp_path, env="logging.config:dictConfig", env_config=repr({"version": 1, "handlers": handlers}))
    with pytest.raises(RecordingError, match=r"pass it yourself: replay\(\.\.\., env='logging\.config:dictConfig'\)"):
        fastmarl.replay(tmp_path, 0)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("env_config", ["dict(n=1)", "{'n': ", "[1]", {"n": 1}, "(" * 100_000])
def test_an_env_config_is_plain_data(env_config, tmp_path):
    record(tmp_path, "fastmarl.simple_spread")
    forge(tmp_path, env_config=env_config)
    with pytest.raises(RecordingError, match="can't read the recorded env_config"):
        fastmarl.replay(tmp_path, 0)


SAFE = ["fastmarl.simple_spread", "mpe2.simple_spread_v3", "pettingzoo.classic.connect_four_v3", "vmas.balance",
        "openspiel.kuhn_poker", "openspiel.2048", "CartPole-v1"]  # fmt: skip
UNSAFE = ["pettingzoo.classic:connect_four_v3", "fastmarl.core.envs:registry.register_env", "os:system", "os.path",
          "antigravity", "", None]  # fmt: skip


@pytest.mark.parametrize("name", [*SAFE, *UNSAFE])
def test_names_that_a_file_may_have(name):
    assert may_be_named_by_a_file(name) is (name in SAFE)


@pytest.mark.parametrize(
    ("code", "is_safe"),
    [
        ("gymnasium.envs.classic_control.cartpole:CartPoleEnv", True),
        ("gymnasium_robotics.envs.maze.point_maze:PointMazeEnv", True),
        ("shimmy.openai_gym_compatibility:GymV26CompatibilityV0", False),
        ("gymnasium_evil:Env", False),
        (CartPoleEnv, True),
        (Wild, False),
        (None, False),
    ],
)
def test_names_in_gymnasiums_registry_are_safe_by_their_package(code, is_safe, monkeypatch):
    """Those of others may import what an option names."""
    monkeypatch.setitem(gym.registry, "Registered-v0", EnvSpec("Registered-v0", code))
    assert may_be_named_by_a_file("Registered-v0") is is_safe


def test_registered_or_used_envs_are_replayed_without_being_named(tmp_path):
    fastmarl.register_env("wild for a record", lambda env_config: Wild(env_config))
    for i, env in enumerate(("wild for a record", Wild, "support.wild:Wild")):
        (chunk, *_) = record(tmp_path / str(i), env)
        assert fastmarl.replay(tmp_path / str(i), chunk.id_).get_return() is not None


USER = """
import fastmarl
for options in ({}, {"env": "mine:Mine"}):
    try:
        print(fastmarl.replay("run", 0, **options).env_t)
    except fastmarl.errors.RecordingError as error:
        print(error)
"""


@pytest.mark.slow
def test_another_program_names_the_env_itself(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from support.wild import Wild\nclass Mine(Wild):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    record("run", "mine:Mine")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    done = subprocess.run([sys.executable, "-c", USER], capture_output=True, text=True)
    refusal, env_t = done.stdout.splitlines()
    assert "--env mine:Mine on the command line" in refusal
    assert env_t == "10", done.stderr
    assert cli(["replay", "run", "0", "--env", "mine:Mine"]) == 0


@pytest.mark.needs("vmas")
def test_no_option_names_another_scenario(tmp_path):
    """It may be a file, which would be run."""
    with pytest.raises(EnvCheckError, match="multiple values for keyword argument 'scenario'"):
        record(tmp_path, "vmas.balance", env_config={"scenario": "/tmp/evil.py"})
