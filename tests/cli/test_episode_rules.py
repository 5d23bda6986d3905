"""--max-steps, --respawn, --late-rewards and --reward-scale: kept with a run, and used by all commands that play."""

import json
import re

import pytest

import fastmarl
from fastmarl import cli
from fastmarl.cli.arguments import LATE_REWARDS
from fastmarl.cli.runs import ALGORITHMS, example
from fastmarl.cli.train_options import parse_options
from fastmarl.core.config import CHOICES
from fastmarl.testing import ClockEnv

SMALL = ["--num-envs", "4", "--steps", "200", "--episodes", "4", "--no-plot", "--hiddens", "4"]


class Endless(ClockEnv):
    def __init__(self, config):
        super().__init__(["a0", "a1"], episode_length=10**9)

    def rewards_at(self, env_t):
        return dict.fromkeys(self.possible_agents, 1.0)


class Lives(Endless):
    """Agent a1 dies after two steps, is rewarded in the third and observed again in the fourth."""

    def observed(self, env_t):
        return ["a0"] if env_t % 4 == 3 else ["a0", "a1"]

    def terminated(self, env_t):
        return ["a1"] if env_t % 4 == 2 else []


@pytest.fixture(autouse=True)
def here(working_folder):
    fastmarl.register_env("lives", Lives)
    fastmarl.register_env("endless", Endless)
    return working_folder


def train(*args, env):
    return cli.main(["train", "ippo", "--env", env, *SMALL, "--folder", "run", *args])


def test_play_that_never_ends_is_cut_with_a_sentence(monkeypatch, capsys):
    """In training, episodes may go on; the limit of the play after it is 10,000 env steps."""
    monkeypatch.setattr("fastmarl.cli.runs.MAX_STEPS", 30)
    assert train(env="endless") == 0
    for command in ([], ["evaluate", "run", "--episodes", "4"], ["tournament", "a=run", "b=run", "--episodes", "4"]):
        assert not command or cli.main(command) == 0
        assert "4 of 4 episodes reached the limit of 30 env steps (--max-steps)" in capsys.readouterr().out
    assert cli.main(["evaluate", "run", "--episodes", "3", "--max-steps", "7"]) == 0
    assert "3 of 3 episodes reached the limit of 7 env steps" in capsys.readouterr().out


def test_rules_of_episodes_are_kept_with_the_run(here, capsys):
    rules = ["--max-steps", "6", "--respawn", "--late-rewards", "accumulate"]
    assert train(env="lives") == 1
    assert 'set late_rewards="accumulate" or "drop"' in capsys.readouterr().err
    assert train(*rules, env="lives") == 0
    options = json.loads((here / "run/run.json").read_text())["options"]
    assert (options["max_steps"], options["respawn"], options["late_rewards"]) == (6, True, "accumulate")
    capsys.readouterr()
    assert cli.main(["evaluate", "run", "--episodes", "4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"all +4 +12 +0 *$", out, re.M) and "mean length: 6.0 env steps" in out, out
    assert cli.main(["evaluate", "run", "--episodes", "4", "--max-steps", "2", "--late-rewards", "drop"]) == 0
    assert re.search(r"all +4 +4 +0 *$", capsys.readouterr().out, re.M)
    assert cli.main(["tournament", "a=run", "b=run", "--episodes", "4"]) == 0
    assert "4 of 4 episodes reached the limit of 6 env steps" in capsys.readouterr().out
    assert cli.main(["train", "--resume", "run", "--steps", "300", "--max-steps", "7"]) == 1
    assert "--resume continues with --max-steps 6, not 7" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "run", "--steps", "300"]) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_algorithms_take_them(algorithm):
    assert CHOICES["late_rewards"] == LATE_REWARDS
    given = ["--max-steps", "6", "--respawn", "--late-rewards", "drop", "--reward-scale", "-0.5"]
    algorithm = example(algorithm).ALGORITHM
    config = algorithm.make_config(parse_options(algorithm, given))
    assert (config.env.max_steps, config.respawn, config.late_rewards, config.reward_scale) == (6, True, "drop", -0.5)


def test_returns_are_shown_in_the_envs_rewards(here, capsys):
    assert train("--reward-scale", "0.125", "--max-steps", "10", env="endless") == 0
    assert "greedy play: mean return 20.00 ± 0.00 over 4 episodes" in capsys.readouterr().out
    assert (here / "run/curve.csv").read_text().splitlines()[-1].split(",")[2] == "20.0"
    assert cli.main(["evaluate", "run", "--episodes", "2"]) == 0
    assert re.search(r"all +2 +20 +0 *$", capsys.readouterr().out, re.M)


def test_other_commands_take_them(capsys):
    assert cli.main(["check-env", "lives"]) == 1
    out = capsys.readouterr().out
    assert "observed again after it had finished" in out and "no episode ended" in out, out
    rules = ["--max-steps", "5", "--respawn", "--late-rewards", "drop"]
    assert cli.main(["check-env", "lives", *rules]) == 0
    assert "100 episodes finished" in capsys.readouterr().out
    sample = ["sample", "--env", "lives", "--num-envs", "2", "--steps", "60", "--no-relative-speed"]
    assert cli.main(sample) == 1
    assert cli.main([*sample, *rules]) == 0
    assert re.search(r"mean length +5.0", capsys.readouterr().out)
