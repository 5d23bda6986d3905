"""The commands that let the policies of checkpoints play; test_mistakes.py has their errors."""

import csv
import re

import gymnasium as gym
import numpy as np
import pytest
import torch

import fastmarl
from fastmarl import cli
from fastmarl.checkpoint import save_state
from fastmarl.connectors import MeanStdFilter

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
NET = {"fcnet_hiddens": [4]}


class Match(fastmarl.MultiAgentEnv):
    """The agent with the higher number in the only step gets 1 from the other; agents are numbers."""

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
    assert "--mapping names 'elsewhere', but both has the modules ['0', '1']" in capsys.readouterr().err


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
    options = ["--env-config", '{"agents": [0, 1, 2, 3]}', "--episodes", "2", "--greedy"]
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
def test_checkpoints_that_do_not_fit_are_one_line(capsys, tmp_path, command):
    def error_of(folder, *options):
        names = [folder] if command == "evaluate" else [f"a={folder}", f"b={folder}"]
        assert cli.main([command, *names, "--env", "match", *options]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    (tmp_path / "empty").mkdir()
    assert "empty/state.json does not exist" in error_of("empty")
    save_state("other", {"weights": 1})
    assert "other was not written by a runner, or by a fastmarl version that saved no policies" in error_of("other")
    save("own", 1, policies={"default_policy": OwnNet()})
    assert "is of class OwnNet: of custom or modified networks, the checkpoint has only the weights" in error_of("own")
