"""The commands that train, and that let the policies of checkpoints play."""

import argparse
import csv
import re
import sys
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

import fastmarl
from fastmarl import cli
from fastmarl.checkpoint import save_state
from fastmarl.cli import train
from fastmarl.cli.terminal import Terminal
from fastmarl.connectors import MeanStdFilter
from fastmarl.errors import FastmarlError

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
NET = {"fcnet_hiddens": [4]}


class Match(fastmarl.MultiAgentEnv):
    """Whoever chooses the higher number in the only step is paid 1 by the other; agents are numbers."""

    def __init__(self, config):
        self.possible_agents = config.get("agents", [0, 1])
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        return self._observations(), {}

    def step(self, actions):
        mean = np.mean(list(actions.values()))
        rewards = {agent: float(np.sign(action - mean)) for agent, action in actions.items()}
        return self._observations(), rewards, {"__all__": True}, {"__all__": False}, {}

    def _observations(self):
        return {agent: np.ones(2, np.float32) for agent in self.possible_agents}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """Files are written to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    fastmarl.register_env("match", Match)


class OwnNet(fastmarl.RLModule):
    """Nothing that a checkpoint could make again."""

    def __init__(self):
        super().__init__(BOX, gym.spaces.Discrete(3))
        self.pi = torch.nn.Linear(2, 3)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["obs"])}


def save(folder, number, *, modules=("default_policy",), **options):
    """A checkpoint whose modules always choose this number."""
    options = {"policies": list(modules), **({} if "policies" in options else {"model_config": NET}), **options}
    if len(modules) > 1:
        options["policy_mapping_fn"] = lambda agent, episode: modules[agent]
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=Match, **options)) as runner:
        weights = runner.get_weights()
        for arrays in weights.values():
            arrays["pi.bias"][:] = [1000.0 * (number == choice) for choice in range(3)]
        runner.set_weights(weights)
        runner.save_to_path(folder)
    return folder


def test_evaluate_shows_the_returns_of_a_checkpoint(capsys):
    args = ["evaluate", save("two", 2), "--env", "match", "--episodes", "6", "--csv", "all.csv"]
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    assert re.search(r"all +6 +0 +0 *$", out, re.M), out
    assert "two, match, 6 episodes" in out and "mean length: 1.0 env steps" in out
    assert len(list(csv.DictReader(open_text("all.csv")))) == 6


def open_text(path):
    with open(path) as file:
        return file.read().splitlines()


def test_evaluate_reads_connectors(capsys):
    """The filter of an observation that never changes makes 0 of it, of which only the bias remains."""
    assert cli.main(["evaluate", save("filtered", 1, env_to_module_connector=MeanStdFilter()), "--env", "match"]) == 0
    assert re.search(r"all +100 +0 +0 *$", capsys.readouterr().out, re.M)


def test_evaluate_maps_several_modules(capsys):
    folder = save("both", 1, modules=("0", "1"))
    args = ["evaluate", folder, "--env", "match", "--episodes", "4"]
    assert cli.main(args) == 0
    assert re.search(r"module 1 +4 ", capsys.readouterr().out)
    assert cli.main([*args, "--mapping", '{"1": "0"}']) == 0
    out = capsys.readouterr().out
    assert re.search(r"module 0 +4 ", out) and "module 1" not in out
    assert cli.main([*args, "--mapping", '{"1": "elsewhere"}']) == 1
    assert "returned 'elsewhere', which is none of the modules ['0', '1']" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.needs("matplotlib")
def test_tournament_ranks_checkpoints(capsys):
    players = [f"{name}={save(name, number)}" for number, name in enumerate(("low", "middle", "high"))]
    players.append(f"sided={save('sided', 2, modules=('0', '1'))}")
    args = ["tournament", *players, "--env", "match", "--episodes", "6", "--csv", "pairs.csv"]
    assert cli.main([*args, "--plot", "new/picture.png"]) == 0
    out = capsys.readouterr().out
    assert "match, 6 games of each pair" in out
    names = [line.split()[0] for line in out.splitlines() if re.match(r" *(low|middle|high|sided) ", line)]
    assert names == ["high", "sided", "middle", "low"]
    rows = {(row["player"], row["opponent"]): row for row in csv.DictReader(open_text("pairs.csv"))}
    assert rows["high", "sided"]["draws"] == "6" and rows["middle", "high"]["payoff"] == "-1.0"
    with open("new/picture.png", "rb") as file:
        assert file.read().startswith(b"\x89PNG")


def test_teams_are_named_on_the_command_line(capsys):
    players = [f"{name}={save(name, number)}" for number, name in enumerate(("low", "middle"))]
    options = ["--config", '{"agents": [0, 1, 2, 3]}', "--episodes", "2", "--greedy"]
    args = ["tournament", *players, "--env", "match", *options]
    assert cli.main(args) == 1
    assert "a tournament needs two sides, got 4" in capsys.readouterr().err
    assert cli.main([*args, "--sides", '{"0": "x", "1": "x", "2": "y", "3": "y"}']) == 0
    assert re.search(r"middle .* \+2\.000 +2 +2 +0 +0 *$", capsys.readouterr().out, re.M)


def test_games_are_cut_on_the_command_line(monkeypatch, capsys):
    step = Match.step
    monkeypatch.setattr(Match, "step", lambda env, actions: (*step(env, actions)[:2], {"__all__": False}, {}, {}))
    options = ["--env", "match", "--episodes", "2", "--max-steps", "3"]
    assert cli.main(["evaluate", save("low", 0), *options]) == 0
    assert "mean length: 3.0 env steps" in capsys.readouterr().out
    assert cli.main(["tournament", "low=low", f"high={save('high', 2)}", *options]) == 0
    assert re.search(r"high .* \+3\.000 +2 +2 +0 +0 *$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("command", ["evaluate", "tournament"])
def test_checkpoints_that_do_not_fit_are_one_line(capsys, command):
    def error_of(folder, *options):
        names = [folder] if command == "evaluate" else [f"a={folder}", f"b={folder}"]
        assert cli.main([command, *names, "--env", "match", *options]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "nowhere/state.json does not exist" in error_of("nowhere")
    save_state("other", {"weights": 1})
    assert "other was written by a fastmarl that saved no policies, or by no runner" in error_of("other")
    save("own", 1, policies={"default_policy": OwnNet()})
    assert "module 'default_policy' is a OwnNet, not a default network of fastmarl" in error_of("own")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["tournament", "a=b", "--env", "match", "--episodes", "3"], "--episodes: must be even"),
        (["tournament", "a=b", "--env", "match", "--episodes", "0"], "--episodes: must be an integer of at least 1"),
        (["tournament", "folder", "--env", "match"], "must be NAME=FOLDER, got 'folder'"),
        (["tournament", "a=b", "c=d"], "--env"),
        (["evaluate", "folder"], "--env"),
        (["evaluate", "folder", "--env", "match", "--csv", "x.txt"], "must end in .csv"),
        (["evaluate", "folder", "--env", "match", "--mapping", "[]"], "must be a JSON object"),
        (["train", "dqn", "--env", "match"], "invalid choice: 'dqn'"),
        (["train", "ippo", "--env", "match", "--steps", "0"], "--steps: must be an integer of at least 1"),
        (["train", "ippo", "--env", "match", "--folder", "/dev/null"], "--folder: can't be a folder: '/dev/null'"),
    ],
)
def test_wrong_arguments_are_one_line_before_the_work(capsys, args, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(args)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("players", [["a=x"], ["a=x", "a=y"]])
def test_a_tournament_needs_players_of_different_names(capsys, players):
    assert cli.main(["tournament", *players, "--env", "match"]) == 1
    assert "needs players of different names" in capsys.readouterr().err


# Training.


@pytest.mark.slow
@pytest.mark.needs("matplotlib")
def test_train_writes_curve_picture_and_a_checkpoint_that_evaluate_reads(capsys):
    args = ["--env", "fastmarl.simple_spread", "--steps", "9600", "--episodes", "20", "--folder", "new/run"]
    assert cli.main(["train", "ippo", *args]) == 0
    out = capsys.readouterr().out
    assert "greedy play after 9,600 env steps of fastmarl.simple_spread" in out
    rows = list(csv.DictReader(open_text("new/run/curve.csv")))
    assert [row["env_steps"] for row in rows] == ["3200", "6400", "9600"]
    with open("new/run/curve.png", "rb") as file:
        assert file.read().startswith(b"\x89PNG")
    (folder,) = re.search(r"^fastmarl evaluate (\S+) --env \S+$", out, re.M).groups()
    assert cli.main(["evaluate", folder, "--env", "fastmarl.simple_spread"]) == 0


def test_train_has_the_options_of_the_example(monkeypatch):
    """With the same defaults."""
    parse_args, found = argparse.ArgumentParser.parse_args, []

    def parse_only(parser, *args):
        found.append(vars(parse_args(parser, *args)))
        raise KeyboardInterrupt

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(sys, "argv", ["ippo.py"])
    for main in (train.example("ippo").main, lambda: cli.main(["train", "ippo", "--env", "fastmarl.simple_spread"])):
        with suppress(KeyboardInterrupt):
            main()
    of_example, of_command = found
    for name in ("steps", "folder"):
        del of_example[name]
    assert {"env", "env_config", "num_envs", "gamma", "epochs", "entropy", "min_std", "explore"} < of_example.keys()
    assert of_example == {name: of_command.get(name) for name in of_example}


def fake(run):
    """An example with this `run(args, report)`."""
    config = SimpleNamespace(model_config={})
    return lambda name: SimpleNamespace(run=run, make_config=lambda args: config)


def test_progress_is_told_in_steps_since_the_last_time(monkeypatch, capsys):
    class Counting(Terminal):
        added: ClassVar[list] = []

        @contextmanager
        def progress(self, text, total):
            assert total == 30
            yield self.added.append

    def run(args, report):
        for steps in (10, 30):
            report(steps, 1.0, 5.0)
        return fastmarl.evaluate(fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [4]}), Match, episodes=1)

    monkeypatch.setattr(train, "example", fake(run))
    monkeypatch.setattr("fastmarl.cli.arguments.open_terminal", Counting)
    assert cli.main(["train", "ippo", "--env", "match", "--no-plot", "--steps", "30"]) == 0
    assert Counting.added == [10, 20]
    assert "greedy play after 30 env steps of match" in capsys.readouterr().out


def test_training_that_is_interrupted_says_so(monkeypatch, capsys):
    def run(args, report):
        report(10, 1.0, 5.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "example", fake(run))
    assert cli.main(["train", "ippo", "--env", "match", "--no-plot"]) == 130
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("fastmarl: interrupted\n")


def test_a_missing_package_is_told_before_training(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(train, "example", fake(pytest.fail))
    assert cli.main(["train", "ippo", "--env", "match"]) == 1
    assert "this needs matplotlib: pip install matplotlib" in capsys.readouterr().err


def test_an_example_that_is_not_there_is_told():
    with pytest.raises(FastmarlError, match=r"the example nothing is missing: looked for .*nothing\.py and "):
        train.example("nothing")
