"""`fastmarl train`: what it writes, how it is interrupted, and that other commands take its folder."""

import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.differences import assert_same

import fastmarl
from fastmarl import cli
from fastmarl.checkpoint import load_state
from fastmarl.cli.runs import example
from fastmarl.cli.terminal import Terminal
from fastmarl.cli.train_options import parse_options
from fastmarl.core.checkpoint.sealed_json import write_sealed
from fastmarl.training.run_folder import RunFolder

NETS = """
import torch


class Net(torch.nn.Module):
    def __init__(self, observation_space, action_space, model_config):
        super().__init__()
        self.pi = torch.nn.Linear(observation_space.shape[0], action_space.n)
        self.vf = torch.nn.Linear(observation_space.shape[0], model_config["fcnet_hiddens"][0])

    def forward(self, batch):
        return {"action_dist_inputs": self.pi(batch["obs"]), "vf_preds": self.vf(batch["obs"]).mean(1)}
"""
SMALL = ["--num-envs", "4", "--steps", "300", "--episodes", "4", "--no-plot"]


@pytest.fixture(autouse=True)
def here(working_folder):
    """The user's code is in the folder, too."""
    (working_folder / "nets_of_mine.py").write_text(NETS)
    return working_folder


def main(*args):
    return cli.main(list(args))


@pytest.mark.slow
@pytest.mark.needs("matplotlib", "tensorboard")
def test_a_run_has_its_options_curve_picture_and_checkpoints_in_a_folder(here, capsys):
    args = ["--steps", "9600", "--episodes", "20", "--folder", "new/run", "--tensorboard", "--lr", "1e-3"]
    assert main("train", "ippo", *args, "--hiddens", "32", "16") == 0
    out = capsys.readouterr().out
    assert re.search(r"greedy play: mean return \S+ ± \S+ over 20 episodes of fastmarl.simple_spread", out)
    with open("new/run/curve.csv") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["3200", "6400", "9600"]
    with open("new/run/curve.png", "rb") as file:
        assert file.read().startswith(b"\x89PNG")
    assert len(list((here / "new/run").glob("events.out.tfevents.*"))) == 1
    about = json.loads((here / "new/run/run.json").read_text())
    assert about["algorithm"] == "ippo"
    wanted = {"env": "fastmarl.simple_spread", "env_config": {}, "lr": 1e-3, "hiddens": [32, 16]}
    assert {name: about["options"][name] for name in wanted} == wanted
    assert about["versions"]["fastmarl"] == fastmarl.__version__
    weights = load_state("new/run/checkpoint-9600")["rl_module"]["default_policy"]
    assert {array.shape[0] for name, array in weights.items() if name.startswith("vf_trunk")} == {32, 16}


@pytest.mark.needs("matplotlib")
def test_several_policies_have_curves_of_their_own(here):
    args = ["--env", "ready", "--policies", "first=agent_0", "second=*", "--max-steps", "10", *SMALL[:-1]]
    assert main("train", "ippo", *args, "--env-config", '{"agents": 3}', "--folder", "run") == 0
    with open("run/curve.csv") as file:
        *_, last = csv.DictReader(file)
    returns = {name.partition("/")[2]: value for name, value in last.items() if "returns_mean/" in name}
    assert returns == {"first": "10.0", "second": "20.0"} and last["episode_return_mean"] == "30.0"
    with open("run/curve.png", "rb") as file:
        assert file.read().startswith(b"\x89PNG")


def test_folders_are_named_after_the_run_and_not_replaced(here):
    for _ in range(2):
        assert main("train", "ippo", "--env", "ready", "--seed", "3", *SMALL) == 0
    first, second = sorted((here / "runs").iterdir())
    assert re.fullmatch(r"ready-ippo-seed3-\d{8}-\d{6}", first.name)
    assert second.name > first.name
    assert main("train", "ippo", "--env", "ready", *SMALL, "--folder", str(first), "--overwrite") == 0
    assert json.loads((first / "run.json").read_text())["options"]["seed"] == 0


def test_other_commands_take_the_folder_of_a_run(here, capsys):
    config = '{"agents": 2}'
    for name, seed in (("a", "1"), ("b", "2")):
        args = ["--env", "ready", "--env-config", config, "--seed", seed, "--policies", "each", "--folder", name]
        assert main("train", "ippo", *args, *SMALL) == 0
    capsys.readouterr()
    for folder in ("a", "a/checkpoint-300", "a/checkpoint-0"):
        assert main("evaluate", folder, "--episodes", "4") == 0
        out = capsys.readouterr().out
        assert f"{folder}, ready, 4 episodes" in out
        assert re.search(r"module agent_1 +4 ", out) and "agent_2" not in out
    assert main("evaluate", "a", "--episodes", "4", "--mapping", '{"agent_1": "agent_0"}') == 0
    assert "module agent_1" not in capsys.readouterr().out
    assert main("tournament", "a=a", "b=b/checkpoint-300", "--episodes", "2") == 0
    assert "ready, 2 games of each pair" in capsys.readouterr().out
    assert main("evaluate", "a", "--episodes", "2", "--env", "ready", "--env-config", '{"agents": 1}') == 0
    assert "agent agent_1" not in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "recurrent_ippo"])
def test_options_of_ppo_reach_the_learner(algorithm):
    algorithm = example(algorithm).ALGORITHM
    options = ["--fragment", "7", "--epochs", "2", "--minibatches", "3", "--clip", "0.3", "--entropy", "0.2"]
    args = parse_options(algorithm, [*options, "--num-envs", "2"])
    config = algorithm.make_config(args)
    with algorithm.make_runner(config) as runner:
        learner = algorithm.make_learner(runner, args, 1)
        ppo = next(iter(getattr(learner, "learners", {"only": learner}).values())).ppo
        assert config.rollout_fragment_length == 7
        assert (ppo.epochs, ppo.num_minibatches, ppo.clip, ppo.entropy_coeff) == (2, 3, 0.3, 0.2)
        learner.learn(runner.sample())


def test_runs_without_an_option_are_resumed_with_its_default(capsys):
    args = ["--num-envs", "2", "--episodes", "2", "--no-plot", "--folder", "run"]
    assert main("train", "ippo", "--steps", "100", *args) == 0
    about = RunFolder(Path("run")).description()
    del about["options"]["clip"], about["options"]["lambda_"]
    write_sealed(Path("run/run.json"), about)
    assert main("train", "--resume", "run", "--lambda", "0.5") == 1
    assert "--resume continues with --lambda 0.95, not 0.5" in capsys.readouterr().err
    assert main("train", "--resume", "run", "--steps", "200", "--no-plot", "--episodes", "2") == 0


@pytest.mark.parametrize("algorithm", ["mappo", "iql", "vdn", "qmix", "recurrent_ippo", "epymarl"])
def test_policies_of_all_algorithms_can_play(algorithm, capsys):
    args = ["--steps", "300", "--num-envs", "2", "--episodes", "2", "--no-plot", "--folder", "run"]
    assert main("train", algorithm, *args) == 0
    assert main("evaluate", "run", "--episodes", "2") == 0
    assert capsys.readouterr().out.count("module default_policy") == 2


@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
def test_networks_of_ones_own_are_trained_and_played(algorithm, capsys):
    args = ["--num-envs", "4", "--steps", "300", "--episodes", "4", "--no-plot", "--folder", "run"]
    assert main("train", algorithm, *args, "--module", "nets_of_mine:Net", "--hiddens", "3") == 0
    begun, ended = (load_state(f"run/checkpoint-{n}")["rl_module"]["default_policy"] for n in (0, 300))
    assert begun["vf.weight"].shape[0] == 3
    assert (begun["pi.weight"] != ended["pi.weight"]).any()
    assert main("evaluate", "run", "--episodes", "2") == 0
    assert main("train", "--resume", "run", "--steps", "400", "--no-plot", "--episodes", "2") == 0
    assert RunFolder(Path("run")).checkpoints()[0].name == "checkpoint-400"


def test_code_of_a_folder_that_was_not_trained_here_is_trusted_once(here, change_options, capsys):
    args = ["--num-envs", "4", "--steps", "300", "--episodes", "4", "--no-plot", "--folder", "run"]
    assert main("train", "ippo", *args, "--module", "nets_of_mine:Net", "--hiddens", "3") == 0
    shutil.copytree("run", "copied")
    evaluation = ["evaluate", "copied", "--episodes", "2"]
    assert main(*evaluation) == 1
    assert "not part of fastmarl: nets_of_mine:Net; add --trust to allow importing it" in capsys.readouterr().err
    assert main(*evaluation, "--trust") == main(*evaluation) == 0
    change_options(here / "copied", module=["nets_of_mine:Net", "others:Net"])
    assert main(*evaluation) == 1
    assert "nets_of_mine:Net, others:Net; add --trust" in capsys.readouterr().err


@pytest.mark.slow
def test_an_env_of_ones_own_is_trusted_where_its_run_began(here):
    (here / "envs_of_mine.py").write_text("from fastmarl.bench.relative_speed_table import ReadyDicts as Own\n")

    def run(*args, cwd=here):
        command = [sys.executable, "-m", "fastmarl", *args]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120).stderr

    assert run("train", "ippo", "--env", "envs_of_mine:Own", *SMALL, "--folder", "run") == ""
    assert run("evaluate", "run", "--episodes", "2") == ""
    (here / "elsewhere").mkdir()
    assert "add --trust" in run("evaluate", "../run", "--episodes", "2", cwd=here / "elsewhere")


def test_evaluations_during_a_run_do_not_change_it(capsys):
    args = ["vdn", "--num-envs", "2", "--steps", "450", "--episodes", "3", "--no-plot"]
    assert main("train", *args, "--folder", "plain") == 0
    assert main("train", *args, "--folder", "run", "--evaluate-every", "70") == 0
    rows = {name: list(csv.DictReader(io.StringIO(Path(name, "curve.csv").read_text()))) for name in ("plain", "run")}
    evaluated = [row["step"] for row in rows["run"] if row["evaluation/episode_return_mean"]]
    assert evaluated == ["100", "150", "250", "300", "350", "450"]  # after updates of 50 steps
    assert re.search(rf"mean return {float(rows['run'][-1]['evaluation/episode_return_mean']):.2f} ",
                     capsys.readouterr().out)  # fmt: skip  # the evaluation at the end plays the same episodes
    for plain, row in zip(rows["plain"], rows["run"], strict=True):
        assert plain.items() - {"cpu_seconds": plain["cpu_seconds"]}.items() <= row.items()


@pytest.mark.slow
def test_worker_processes_step_the_envs_of_a_run():
    args = ["ippo", "--env", "CartPole-v1", "--num-envs", "2", "--steps", "100", "--episodes", "2", "--no-plot"]
    assert main("train", *args, "--folder", "here") == main("train", *args, "--folder", "run", "--num-env-workers", "2")
    weights = [load_state(f"{name}/checkpoint-100")["rl_module"]["default_policy"] for name in ("here", "run")]
    assert_same(*weights)


def test_options_of_q_learning_reach_the_learner():
    for name in ("iql", "vdn", "qmix"):
        algorithm = example(name).ALGORITHM
        args = parse_options(algorithm, ["--fragment", "7", "--updates", "3", "--epsilon-steps", "1000"])
        config = algorithm.make_config(args)
        with algorithm.make_runner(config) as runner:
            learner = algorithm.make_learner(runner, args, 1)
            learner.learn(runner.sample(num_episodes=2))
            assert config.rollout_fragment_length == 7 and learner.schedule.last_epoch == 3
        assert config.model_config["epsilon"] == [[0, 1.0], [1000, 0.05]]


class Raising(Terminal):
    """Sends a signal to this process when progress is shown."""

    number = signal.SIGINT

    def status(self, text):
        class Context:
            def __enter__(self):
                return lambda line: signal.raise_signal(Raising.number)

            def __exit__(self, *error):
                pass

        return Context()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_says_how_to_go_on(monkeypatch, capsys, number):
    monkeypatch.setattr("fastmarl.cli.arguments.open_terminal", Raising)
    monkeypatch.setattr(Raising, "number", number)
    handler = signal.getsignal(number)
    run = SimpleNamespace(log=lambda values, step: None, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: run))
    assert main("train", "ippo", "--env", "ready", "--folder", "run", "--wandb", "my project", *SMALL) == 128 + number
    assert signal.getsignal(number) is handler
    err = capsys.readouterr().err
    assert err == (
        "fastmarl: interrupted after 100 env steps; saved in run/checkpoint-100; "
        "resume with: fastmarl train --resume run --wandb 'my project'\n"
    )
    monkeypatch.setattr("fastmarl.cli.arguments.open_terminal", Terminal)
    assert main("train", "--resume", "run", "--episodes", "2", "--no-plot") == 0
    with open("run/curve.csv") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["100", "200", "300"]


def test_more_steps_are_noted_for_the_next_time(here, monkeypatch):
    assert main("train", "ippo", "--env", "ready", "--folder", "run", *SMALL) == 0
    monkeypatch.setattr("fastmarl.training.loop._Loop.run", lambda loop, *args: None)
    more = example("ippo").ALGORITHM.defaults["steps"]  # given, though it is the default
    assert main("train", "--resume", "run", "--steps", str(more), "--no-plot", "--episodes", "2") == 0
    assert json.loads((here / "run/run.json").read_text())["options"]["steps"] == more


def test_a_run_that_can_not_be_resumed_stays_as_it_is(here, capsys):
    assert main("train", "ippo", "--env", "ready", "--folder", "run", *SMALL) == 0
    (here / "run/curve.csv").write_text("x\n1\n")
    before = (here / "run/run.json").read_bytes()
    assert main("train", "--resume", "run", "--steps", "400") == 1
    assert "curve.csv is damaged or was not written by a MetricsWriter" in capsys.readouterr().err
    assert (here / "run/run.json").read_bytes() == before


def test_a_resumed_run_keeps_the_options_of_its_evaluation(here, change_options, capsys):
    """Runs of earlier versions, which did not save these, get their defaults."""
    assert main("train", "ippo", "--env", "ready", "--folder", "run", "--explore", *SMALL) == 0
    capsys.readouterr()
    assert main("train", "--resume", "run", "--steps", "400") == 0
    assert re.search(r"sampled play: .* over 4 episodes", capsys.readouterr().out)
    assert not (here / "run/curve.png").exists()
    about = json.loads((here / "run/run.json").read_text())
    assert list(about["options"])[:3] == ["env", "env_config", "num_envs"]  # the order of --help
    change_options(here / "run", without=("episodes", "explore", "no_plot"))
    assert main("train", "--resume", "run", "--steps", "500", "--episodes", "2", "--no-plot") == 0
    assert re.search(r"greedy play: .* over 2 episodes", capsys.readouterr().out)


def test_weights_and_biases_get_the_curve_under_the_runs_name(monkeypatch):
    rows, started = [], []
    run = SimpleNamespace(log=lambda values, step: rows.append((step, values)), finish=lambda: rows.append("end"))
    client = SimpleNamespace(init=lambda **options: started.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", client)
    assert main("train", "ippo", "--env", "ready", "--folder", "run", "--wandb", "mine", *SMALL) == 0
    assert [row[0] for row in rows[:-1]] == [100, 200, 300] and rows[-1] == "end"
    assert "episode_return_mean" in rows[0][1]
    (options,) = started
    assert (options["project"], options["id"], options["resume"]) == ("mine", "run", "allow")
    assert main("train", "--resume", "run", "--steps", "400", "--no-plot", "--episodes", "2") == 0
    assert len(started) == 1, "the folder may come from others, who don't decide that it is sent"
    assert main("train", "--resume", "run", "--steps", "500", "--wandb", "mine", "--no-plot", "--episodes", "2") == 0
    assert started[1]["id"] == "run" and [row[0] for row in rows[4:-1]] == [500]


def test_progress_is_shown_line_by_line_where_stderr_is_a_file(capsys):
    assert main("train", "ippo", "--env", "ready", "--folder", "run", *SMALL) == 0
    lines = re.findall(
        r"^(\d+) env steps, (\d+)%  mean return \S+  \S+ env steps/s  0:\d\d left$", capsys.readouterr().out, re.M
    )
    assert lines == [("100", "33"), ("200", "67"), ("300", "100")]


def test_the_options_of_an_algorithm_are_shown(capsys):
    with pytest.raises(SystemExit) as stopped:
        main("train", "ippo", "--help")
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: fastmarl train ippo [-h]") and "one of ippo, mappo" not in out
    for option in ("--policies", "--module", "--entropy", "--resume", "--checkpoint-every", "--wandb"):
        assert option in out


def test_episodes_of_a_run_can_be_replayed(capsys):
    """Also those after it was resumed; and they go with the run that --overwrite replaces."""
    options = ["--num-envs", "4", "--episodes", "4", "--no-plot", "--record-actions", "--folder", "r"]
    assert main("train", "ippo", *options, "--steps", "300") == 0
    assert main("train", "--resume", "r", "--steps", "600", "--no-plot", "--episodes", "4") == 0
    capsys.readouterr()
    assert main("replay", "r") == 0
    assert "fastmarl.simple_spread, 24 episodes" in capsys.readouterr().out
    assert main("replay", "r/record", "23") == 0
    assert "observations, rewards and ends match the record" in capsys.readouterr().out
    assert main("train", "ippo", *options, "--steps", "100", "--overwrite") == 0
    capsys.readouterr()
    assert main("replay", "r") == 0
    assert ", 4 episodes" in capsys.readouterr().out
