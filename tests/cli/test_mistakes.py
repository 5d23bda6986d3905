"""Each mistake on the command line is one line on stderr that names the way out, and never a traceback."""

import shutil
import sys

import pytest

import fastmarl
from fastmarl import cli
from fastmarl.bench.relative_speed_table import ReadyDicts
from fastmarl.core.checkpoint.sealed_json import write_sealed
from fastmarl.errors import CheckpointError
from fastmarl.training.run_folder import RunFolder

ENVS = """
import numpy as np
from fastmarl.bench.relative_speed_table import ReadyDicts


class Fine(ReadyDicts):
    pass


class FailsToBeMade(ReadyDicts):
    def __init__(self, config=None):
        raise RuntimeError("no licence\\nfor this simulator")


class FailsToReset(ReadyDicts):
    def reset(self, *, seed=None, options=None):
        return {}[0]


class FailsToStep(ReadyDicts):
    def step(self, actions):
        return 1 / 0


class Endless(ReadyDicts):
    def step(self, actions):
        return super().step(actions)[:3]


class NoEnv:
    pass
"""
NETS = """
import torch

number = 3


class Net(torch.nn.Module):
    def __init__(self, observation_space, action_space, model_config):
        super().__init__()
        self.pi = torch.nn.Linear(observation_space.shape[0], action_space.n)
        self.vf = torch.nn.Linear(observation_space.shape[0], 1)

    def forward(self, batch):
        return {"action_dist_inputs": self.pi(batch["obs"]), "vf_preds": self.vf(batch["obs"])[:, 0]}


class Valueless(Net):
    def forward(self, batch):
        return {"action_dist_inputs": self.pi(batch["obs"])}


class Wide(Net):
    def forward(self, batch):
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 77), "vf_preds": self.vf(batch["obs"])[:, 0]}


class Narrow(Net):
    def __init__(self, observation_space, action_space, model_config):
        super().__init__(observation_space, action_space, model_config)
        self.pi = torch.nn.Linear(1, action_space.n)


class Fails(Net):
    def __init__(self):
        super().__init__()


def nothing(observation_space, action_space, model_config):
    return "no net"
"""
READING = """
import json
from fastmarl.bench.relative_speed_table import ReadyDicts

class Reading(ReadyDicts):
    def __init__(self, config=None):
        json.loads("{")
"""
RUN = ["train", "ippo", "--env", "ready", "--num-envs", "2", "--steps", "50", "--episodes", "2", "--no-plot"]
SPREAD = ["train", "ippo", "--env", "fastmarl.simple_spread", "--num-envs", "2", "--steps", "50", "--no-plot"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with code, runs and other files that commands are pointed at."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "mistaken_envs.py").write_text(ENVS)
    (folder / "mistaken_nets.py").write_text(NETS)
    (folder / "broken_module.py").write_text("import a_package_that_is_not_there\n")
    (folder / "empty").mkdir()
    (folder / "file").touch()
    fastmarl.register_env("ready", ReadyDicts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastmarl.training.loop.keep_freed_memory", bool)
        assert cli.main([*RUN, "--folder", str(folder / "finished")]) == 0
    for name, change in {"damaged": "{", "foreign": '{"a": 1}'}.items():
        shutil.copytree(folder / "finished", folder / name)
        (folder / name / "run.json").write_text(change)
    about = RunFolder(folder / "finished").description()
    for name, options in {
        "untrusted": {"env": "os:system"},
        "own_net": {"module": ["mistaken_nets:Net"]},
        "elsewhere": {"env": "fastmarl.cart_pole", "steps": 100},
        "newer": {"new_option": 1},
    }.items():
        shutil.copytree(folder / "finished", folder / name)
        write_sealed(folder / name / "run.json", {**about, "options": {**about["options"], **options}})
    shutil.copytree(folder / "finished", folder / "of_a_script")
    write_sealed(folder / "of_a_script" / "run.json", {**about, "algorithm": "mine"})
    shutil.copytree(folder / "finished", folder / "no_checkpoint")
    for each in (folder / "no_checkpoint").glob("checkpoint-*"):
        shutil.rmtree(each)
    shutil.copytree(folder / "finished" / "checkpoint-50", folder / "bare")
    return folder


@pytest.fixture(autouse=True)
def here(template, monkeypatch):
    fastmarl.register_env("ready", ReadyDicts)
    monkeypatch.chdir(template)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("fastmarl.training.loop.keep_freed_memory", bool)


MISTAKES = [  # what is typed, exit code, what the line says
    # Commands and options.
    ("", 2, "the following arguments are required: COMMAND"),
    ("trian", 2, "invalid choice 'trian'; did you mean 'train'?"),
    ("bench", 2, "required: BENCHMARK"),
    ("bench relative-sped", 2, "did you mean 'relative-speed'?"),
    ("sample --evn ready", 2, "unknown option --evn; did you mean '--env'?"),
    ("sample", 2, "required: --env"),
    ("train", 2, "required: ALGORITHM"),
    ("train ipo", 2, "unknown algorithm 'ipo'; did you mean 'ippo'?"),
    ("train sac", 2, "unknown algorithm 'sac'; choose from ippo, mappo, iql, vdn, qmix, recurrent_ippo, epymarl"),
    ("train --env ready ippo", 2, "the algorithm comes before its options: fastmarl train ippo"),
    ("train --env ready", 2, "put an algorithm before the options, as in fastmarl train ippo --env ..., or resume"),
    ("train --resum finishd", 2, "folder 'finishd' does not exist"),
    ("train ippo --stepz 5", 2, "unknown option --stepz; did you mean '--steps'?"),
    ("train ippo --lr 0", 2, "; see fastmarl train ippo --help"),
    ("train --resume finished --lr 0", 2, "; see fastmarl train ippo --help"),
    ("train ippo --config {}", 2, "unknown option --config"),
    ("train ippo extra", 2, "unrecognized arguments: extra"),
    # Numbers.
    ("train ippo --steps abc", 2, "--steps: must be an integer >= 1, got 'abc'"),
    ("train ippo --steps -5", 2, "--steps: must be an integer >= 1, got '-5'"),
    ("train ippo --steps 1.5", 2, "--steps: must be an integer >= 1, got '1.5'"),
    ("train ippo --steps", 2, "--steps: expected one argument"),
    ("train ippo --seed -1", 2, "--seed: must be an integer >= 0"),
    ("train ippo --gamma 1.5", 2, "--gamma: must be a number from 0 to 1, got '1.5'"),
    ("train ippo --gamma nan", 2, "--gamma: must be a number from 0 to 1, got 'nan'"),
    ("train ippo --lr 0", 2, "--lr: must be a number above 0"),
    ("train ippo --lr -1", 2, "--lr: must be a number above 0"),
    ("train ippo --lr inf", 2, "--lr: must be a number above 0"),
    ("train ippo --num-envs 0", 2, "--num-envs: must be an integer >= 1"),
    ("train ippo --hiddens 0", 2, "--hiddens: must be an integer >= 1"),
    ("train ippo --hiddens 64 x", 2, "--hiddens: must be an integer >= 1, got 'x'"),
    ("train ippo --hiddens 9999999", 2, "--hiddens: must be an integer <= 999,999, got 9999999"),
    ("sample --env ready --hiddens 9999999", 2, "--hiddens: must be an integer <= 999,999, got 9999999"),
    ("sample --env ready --num-envs 1000000000", 2, "--num-envs: must be an integer <= 1,048,576, got 10000"),
    ("train ippo --num-envs 1000000000", 2, "--num-envs: must be an integer <= 1,048,576"),
    ("sample --env ready --steps 1000000000000000", 2, "--steps: must be an integer <= 1,000,000,000,000"),
    ("evaluate finished --episodes 1000000000", 2, "--episodes: must be an integer <= 10,000,000"),
    ("train ippo --epochs 0", 2, "--epochs: must be an integer >= 1"),
    ("train ippo --entropy nan", 2, "--entropy: must be a number >= 0, got 'nan'"),
    ("train ippo --min-std 0", 2, "--min-std: must be a number above 0"),
    ("train ippo --checkpoint-every 0", 2, "--checkpoint-every: must be a number of seconds above 0"),
    ("train ippo --checkpoint-every nan", 2, "--checkpoint-every: must be a number of seconds above 0"),
    ("train ippo --episodes 0", 2, "--episodes: must be an integer >= 1"),
    ("train ippo --device gpu --no-plot", 1, "gpu"),
    # Environments.
    ("train ippo --env-config {", 2, "--env-config: must be a JSON object, got invalid JSON"),
    ("train ippo --env-config [1]", 2, "--env-config: must be a JSON object, got [1]"),
    ('train ippo --env fastmarl.simple_spread --env-config {"max_cylces":3}', 1, "did you mean 'max_cycles'?"),
    ('train ippo --env fastmarl.simple_spread --env-config {"agents":3}', 1, "'agents'; valid options are N"),
    ("train ippo --env fastmarl.simple_spraed --no-plot", 1, "did you mean 'fastmarl.simple_spread'"),
    ("train ippo --env simple_spread --no-plot", 1, "'fastmarl.simple_spread'"),
    ("train ippo --env no_such_module:Env --no-plot", 1, "run this in the folder that has no_such_module.py"),
    ("train ippo --env mistaken_envs:Fien --no-plot", 1, "did you mean 'mistaken_envs:Fine'"),
    ("train ippo --env mistaken_envs.Fine --no-plot", 1, "did you mean 'mistaken_envs:Fine'?"),
    ("train ippo --env broken_module:Env --no-plot", 1, "a_package_that_is_not_there"),
    ("train ippo --env mistaken_envs:FailsToBeMade --no-plot", 1, "RuntimeError: no licence for this simulator ("),
    ("train ippo --env mistaken_envs:FailsToReset --no-plot", 1, "KeyError: 0 ("),
    ("train ippo --env mistaken_envs:FailsToStep --no-plot", 1, "ZeroDivisionError: division by zero ("),
    ("train ippo --env mistaken_envs:Endless --no-plot", 1, "expected"),
    ("train ippo --env mistaken_envs:NoEnv --no-plot", 1, "NoEnv"),
    ("train mappo --env ready --no-plot", 1, "mappo needs an env with state()"),
    # Policies and networks.
    ("train ippo --policies a", 2, "--policies: must be 'each' or NAME=PATTERN, such as prey='agent_*', got 'a'"),
    ("train ippo --policies a=x_* b=* --no-plot", 1, "--policies a=x_*: no agent matches; the env's"),
    ("train ippo --policies a=agent_0 --no-plot", 1, "--policies leaves out agent_1, agent_2"),
    ("train ippo --policies a=* b=agent_0 --no-plot", 1, "its agents already have a policy; put it before"),
    ("train ippo --policies a=agent_0 a=* --no-plot", 1, "--policies names a policy twice"),
    ("train ippo --policies each a=* --no-plot", 1, "--policies takes 'each', or NAME=PATTERN"),
    ("train mappo --policies each --no-plot", 1, "mappo trains one policy for all agents: leave out --policies"),
    ("train vdn --module mistaken_nets:Net --no-plot", 1, "vdn has its own network: leave out --module"),
    ("train ippo --module mistaken_nets.Net --no-plot", 1, "did you mean 'mistaken_nets:Net'?"),
    ("train ippo --module no_nets:Net --no-plot", 1, "importing no_nets failed: ModuleNotFoundError"),
    ("train ippo --module mistaken_nets:Nett --no-plot", 1, "has no Nett; did you mean 'Net'?"),
    ("train ippo --module mistaken_nets:number --no-plot", 1, "is a int, not a class or function"),
    ("train ippo --module mistaken_nets:Fails --no-plot", 1, "action_space, model_config) failed: "),
    ("train ippo --module mistaken_nets:nothing --no-plot", 1, "nothing returned a str, not a torch.nn.Module"),
    ("train ippo --module mistaken_nets:Wide --no-plot", 1, "module 'default_policy'"),
    ("train ippo --module mistaken_nets:Valueless --no-plot", 1, "to train with values, return them from the module's"),
    ("train ippo --module mistaken_nets:Narrow --no-plot", 1, "RuntimeError: "),
    ("train ippo --module other=mistaken_nets:Net --no-plot", 1, "unknown policy 'other'"),
    # Folders.
    ("train ippo --folder file --no-plot", 1, "file can't be the folder of a run: File exists"),
    ("train ippo --folder /proc/nothing/here --no-plot", 1, "can't be the folder of a run"),
    ("train ippo --folder finished --no-plot", 1, "finished already contains a run: continue it with --resume"),
    ("train ippo --wandb project --no-plot", 1, "this command needs wandb: pip install wandb"),
    ("train --resume finishd", 2, "folder 'finishd' does not exist; did you mean 'finished'?"),
    ("train --resume file", 2, "'file' is a file, not a folder"),
    ("train --resume empty", 2, "empty is not the folder of a training run"),
    ("train --resume damaged", 2, "run.json is damaged"),
    ("train --resume foreign", 2, "run.json is damaged"),
    ("train --resume no_checkpoint --no-plot", 1, "has no checkpoint; restart the run with --overwrite"),
    ("train --resume finished", 1, "has finished 50 env steps; raise --steps to continue, or evaluate it"),
    ("train --resume of_a_script", 2, "is a run of mine: resume it with the script that started it"),
    ("evaluate newer", 1, "has options of another fastmarl version: new_option"),
    ("evaluate of_a_script", 1, "unknown algorithm 'mine'"),
    ("train --resume finished --steps 20", 1, "can't shorten a run"),
    ("train --resume finished --lr 0.5", 1, "--resume continues with --lr 0.002, not 0.5: leave out --lr"),
    ("train --resume finished --env CartPole-v1", 1, "--resume continues with --env ready, not CartPole-v1"),
    ("train mappo --resume finished", 1, "is a run of ippo, not of mappo"),
    ("train --resume finished --folder other", 1, "leave out --folder and --overwrite"),
    ("train --resume untrusted --steps 100", 1, "name code that is not part of fastmarl: os:system; add --trust"),
    ("train --resume elsewhere --no-plot", 1, "elsewhere/checkpoint-50 is not a state of this runner"),
    ("train --resume newer", 1, "has options of another fastmarl version: new_option"),
    # Policies that play.
    ("evaluate finishd", 2, "folder 'finishd' does not exist; did you mean 'finished'?"),
    ("evaluate finished/checkpoint-51", 2, "did you mean 'finished/checkpoint-50'?"),
    ("evaluate empty --env ready", 1, "empty/state.json does not exist"),
    ("evaluate .", 1, ". is not a training run but contains some; pass one of them, such as "),
    ("evaluate no_checkpoint", 1, "no_checkpoint/state.json does not exist"),
    ("evaluate bare", 1, "--env is required: found no training run in bare"),
    ("evaluate untrusted", 1, "add --trust to allow importing it"),
    ("evaluate own_net", 1, "mistaken_nets:Net; add --trust"),
    ("evaluate finished --mapping []", 2, "--mapping: must be a JSON object"),
    ('evaluate finished --mapping {"0":"other"}', 1, "finished has the modules ['default_policy']"),
    ("evaluate finished --csv figures.txt", 2, "--csv: must end in .csv"),
    ("evaluate finished --max-steps 0", 2, "--max-steps: must be an integer >= 1"),
    ("evaluate finished --env fastmarl.cart_pole", 1, "the agents [0] observe Box("),
    ("tournament a=finished", 1, "a tournament needs players with different names"),
    ("tournament a=finished a=bare", 1, "a tournament needs players with different names"),
    ("tournament finished", 2, "must be NAME=FOLDER, got 'finished'"),
    ("tournament a=finished b=finishd", 2, "did you mean 'finished'?"),
    ("tournament a=finished b=finished --episodes 3", 2, "--episodes: must be even"),
    # Other commands.
    ("replay finished", 1, "has no recorded actions: train with --record-actions"),
    ("replay finished --video x.mp4", 1, "an episode: fastmarl replay finished EPISODE --video x.mp4"),
    ("replay finished 0 --fps 3", 1, "--fps requires --video: add --video FILE.mp4"),
    ("replay finished 0 --fps 0", 2, "--fps: must be a number above 0, got '0'"),
    ("replay finishd", 2, "folder 'finishd' does not exist; did you mean 'finished'?"),
    ("replay empty", 1, "empty"),
    ("check-env mistaken_envs.py:Fine", 1, "is not a module name; did you mean 'mistaken_envs:Fine'?"),
    ("check-env raedy", 1, "no environment 'raedy'"),
    ("check-env mistaken_envs:FailsToBeMade", 1, "no licence for this simulator"),
    ("sample --env ready --out picture.txt", 2, "--out: must end in .png or .pdf or .svg"),
    ("bench relative-speed --num-envs 3", 1, "add --env NAME, or leave out --num-envs"),
    ('bench relative-speed --env-config {"N":3}', 1, "add --env NAME, or leave out --env-config"),
    ("bench scaling --series nothing", 1, "unknown series 'nothing'"),
]  # fmt: skip


def listing(folder):
    ignored = {"runs", "__pycache__", ".lock"}
    paths = [path for path in folder.rglob("*") if not ignored & {path.name, path.parent.name}]
    return {str(path): path.read_bytes() if path.name == "run.json" else None for path in paths}


@pytest.mark.parametrize(("typed", "code", "line"), MISTAKES, ids=lambda value: value if type(value) is str else "")
def test_a_mistake_is_one_line(typed, code, line, capsys, template):
    before = listing(template)
    try:
        found = cli.main(typed.split())
    except SystemExit as stopped:
        found = stopped.code
    err = capsys.readouterr().err
    assert line in err
    assert len(err.splitlines()) == 1, err
    assert found == code
    assert listing(template) == before


def test_the_way_out_of_a_missing_folder_is_the_first_part_that_differs(template, capsys):
    (template / "runs_of_may" / "one").mkdir(parents=True)
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "runs_of_mya/one"])
    assert "did you mean 'runs_of_may/one'?" in capsys.readouterr().err
    shutil.rmtree(template / "runs_of_may")


def test_a_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("FASTMARL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["sample", "--env", "mistaken_envs:FailsToStep"])


def test_an_error_names_the_users_line_wherever_the_code_lies(template, capsys):
    """Here it lies in a folder named fastmarl, and the standard library raises the error."""
    (template / "fastmarl").mkdir()
    (template / "fastmarl" / "reading.py").write_text(READING)
    sys.path.insert(0, str(template / "fastmarl"))
    assert cli.main(["sample", "--env", "reading:Reading"]) == 1
    assert f"({template}/fastmarl/reading.py:7, __init__)" in capsys.readouterr().err
    shutil.rmtree(template / "fastmarl")


def test_a_policy_of_a_runs_folder_is_in_a_checkpoint():
    with pytest.raises(
        CheckpointError, match=r"finished/state.json does not exist; did you mean finished/checkpoint-50\?"
    ):
        fastmarl.Policy.from_checkpoint("finished")
