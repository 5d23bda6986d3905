"""Runs that are cut short by Ctrl-C, kill -9 and full disks go on as if they had not been."""

import os
import resource
import shutil
import signal
import time
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from support.scripted import Step, scripted
from support.training_runs import assert_equal_runs

import fastmarl
from fastmarl.checkpoint import load_state
from fastmarl.cli.runs import example
from fastmarl.cli.signals import EndSignals
from fastmarl.cli.train_options import parse_options
from fastmarl.errors import CheckpointError, ConfigError
from fastmarl.learning import TeamReplay
from fastmarl.training import linear_schedule, load_states, states_of
from fastmarl.training.loop import train
from fastmarl.training.run_folder import RunFolder, checkpoint_in

# An algorithm, and options with which six updates take a second; episodes end in the middle of an update, and not
# all at once.
RUNS = {
    "ippo": ["--num-envs", "8", "--steps", "1200"],
    "mappo": ["--num-envs", "8", "--steps", "1200"],
    "iql": ["--num-envs", "4", "--steps", "600"],
    "vdn": ["--num-envs", "4", "--steps", "600"],
    "qmix": ["--num-envs", "4", "--steps", "600"],
    "recurrent_ippo": ["--num-envs", "4", "--steps", "1536"],
    "epymarl": ["--num-envs", "4", "--steps", "1200"],
}
POLICIES = ["--env", "fastmarl.simple_tag", "--policies", "hunters=adversary_*", "prey=agent_*"]


@pytest.fixture(autouse=True)
def same_memory(monkeypatch):
    monkeypatch.setattr("fastmarl.training.loop.keep_freed_memory", bool)  # it would, in all tests to come


def prepared(name, options, folder, *, resume=False):
    algorithm = example(name).ALGORITHM
    args = parse_options(algorithm, options)
    run = RunFolder(folder) if resume else RunFolder.begin(folder, "", overwrite=False)
    return algorithm, args, run


def run(name, options, folder, *, interrupt_after=None, **how):
    def on_progress(progress):
        if interrupt_after is not None and progress.env_steps >= interrupt_after:
            signal.raise_signal(signal.SIGINT)

    resume = how.get("resume", False)
    with EndSignals() as signals:
        how |= {"on_progress": on_progress, "signal": lambda: signals.received}
        return train(*prepared(name, options, folder, resume=resume), **how)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_interrupted_and_resumed_is_bit_identical(name, tmp_path):
    options = RUNS[name]
    assert run(name, options, tmp_path / "whole").signal is None
    cut = run(name, options, tmp_path / "cut", interrupt_after=int(options[-1]) // 2)
    assert cut.signal == signal.SIGINT and 0 < cut.env_steps < int(options[-1])
    assert cut.checkpoint.name == f"checkpoint-{cut.env_steps}"
    torch.randn(3)  # the process has drawn other numbers since
    warnings = []
    assert run(name, options, tmp_path / "cut", resume=True, warn=warnings.append).signal is None
    assert warnings == []
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")


def test_several_policies_are_trained_and_resumed(tmp_path):
    options = [*RUNS["ippo"], *POLICIES]
    run("ippo", options, tmp_path / "whole")
    run("ippo", options, tmp_path / "cut", interrupt_after=600)
    run("ippo", options, tmp_path / "cut", resume=True)
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")
    begun, ended = (load_state(tmp_path / "cut" / name)["rl_module"] for name in ("checkpoint-600", "checkpoint-1200"))
    for policy in ("hunters", "prey"):
        assert any((ended[policy][name] != begun[policy][name]).any() for name in begun[policy])


def test_policies_with_a_single_step_and_without_any_are_trained(tmp_path):
    """Agent b acts in the first of an episode's 25 env steps, which are an update's, too; agent c never does."""
    alone, end = Step("a", {"a": 1.0}), Step("ab", {"a": 1.0, "b": 1.0}, terminated=True)
    fastmarl.register_env("acts_once", scripted(["ab", *[alone] * 24, end], agents="abc"))
    options = ["--env", "acts_once", "--policies", "each", "--num-envs", "1", "--steps", "50"]
    run("ippo", options, tmp_path)
    weights = load_state(tmp_path / "checkpoint-50")["rl_module"]
    assert all(np.isfinite(array).all() for policy in "abc" for array in weights[policy].values())
    begun = load_state(tmp_path / "checkpoint-0")["rl_module"]
    changed = {
        policy: any((weights[policy][name] != begun[policy][name]).any() for name in begun[policy]) for policy in "abc"
    }
    assert changed == {"a": True, "b": True, "c": False}


@pytest.mark.needs("mpe2")
@pytest.mark.parametrize("length", [25, 10], ids=["between episodes", "within episodes"])
def test_an_env_without_states_is_resumed_exactly_between_episodes(tmp_path, length):
    """Updates are of 25 steps: after episodes of 10, some are under way, and begin again."""
    config = f'{{"max_cycles": {length}}}'
    options = ["--env", "mpe2.simple_spread_v3", "--env-config", config, "--num-envs", "4", "--steps", "400"]
    run("ippo", options, tmp_path / "whole")
    run("ippo", options, tmp_path / "cut", interrupt_after=100)
    warnings = []
    run("ippo", options, tmp_path / "cut", resume=True, warn=warnings.append)
    if length == 25:
        assert warnings == []
        assert_equal_runs(tmp_path / "cut", tmp_path / "whole")
    else:
        (warning,) = warnings
        assert "not bit-identical" in warning


def child(function):
    """Run a function in a forked process; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_can_be_resumed(tmp_path, rng):
    """It saves nearly all the time. Each process lives longer than the last, so that one comes to the end."""
    options = ["--num-envs", "4", "--steps", "1500", "--checkpoint-every", "0.001"]
    run("ippo", options, tmp_path / "whole")
    folder, kills = tmp_path / "killed", 0
    while True:
        is_begun = (folder / "checkpoint-0").exists()
        if folder.exists() and not is_begun:
            RunFolder.begin(folder, "", overwrite=True).discard()
        pid = child(lambda resume=is_begun: run("ippo", options, folder, resume=resume))
        time.sleep(rng.uniform(0.01, 0.1 * (kills + 3)))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        kills += 1
        for checkpoint in RunFolder(folder).checkpoints() if folder.exists() else ():
            load_state(checkpoint), load_state(checkpoint / "learner")
    assert kills
    assert_equal_runs(folder, tmp_path / "whole")
    assert len(RunFolder(folder).checkpoints()) == 2
    assert not list(folder.glob(".checkpoint*"))


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    """The limit is that of a file; the first checkpoint fits, since there is no state of the optimizer in it."""
    options, folder = [*RUNS["ippo"], "--checkpoint-every", "0.001"], tmp_path / "run"
    report = tmp_path / "warnings"

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
        with report.open("w") as file:
            try:
                run("ippo", options, folder, warn=lambda text: print(text, file=file))
            except CheckpointError as error:
                print(error, file=file)

    _, status = os.waitpid(child(limited), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    *warnings, last = report.read_text().splitlines()
    why = "File too large; the last one written is checkpoint-0"
    assert warnings[0] == f"can't save a checkpoint after 200 env steps: {why}; training continues"
    hint = f"free disk space, then continue with --resume {folder}"
    assert last == f"can't save a checkpoint after 1,200 env steps: {why}; {hint}"
    assert [each.name for each in folder.iterdir() if "checkpoint" in each.name] == ["checkpoint-0"]
    run("ippo", options, folder, resume=True)
    assert checkpoint_in(folder).name == "checkpoint-1200"


def shortened(folder, other):
    file = folder / "learner" / "state.json"
    file.write_bytes(file.read_bytes()[:-20])


def of_another_run(folder, other):
    shutil.rmtree(folder / "learner")
    shutil.copytree(other / "learner", folder / "learner")


@pytest.mark.parametrize("damage", [shortened, of_another_run])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage):
    run("ippo", RUNS["ippo"], tmp_path / "whole")
    folder = tmp_path / "run"
    run("ippo", RUNS["ippo"], folder, interrupt_after=400)
    run("ippo", RUNS["ippo"], folder, interrupt_after=800, resume=True)
    assert [each.name for each in RunFolder(folder).checkpoints()] == ["checkpoint-800", "checkpoint-400"]
    damage(folder / "checkpoint-800", checkpoint_in(tmp_path / "whole"))
    warnings = []
    run("ippo", RUNS["ippo"], folder, interrupt_after=800, resume=True, warn=warnings.append)
    run("ippo", RUNS["ippo"], folder, resume=True, warn=warnings.append)  # from another checkpoint of that name
    assert len(warnings) == 1 and "resuming from checkpoint-400" in warnings[0]
    assert_equal_runs(folder, tmp_path / "whole")


def test_more_steps_than_at_first_follow_the_longer_schedule(tmp_path):
    run("ippo", RUNS["ippo"], tmp_path / "run")
    longer = [*RUNS["ippo"][:-1], "2400"]
    assert run("ippo", longer, tmp_path / "run", resume=True).env_steps == 2400
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    schedule = linear_schedule(torch.optim.Adam(parameters, lr=1.0), 6)
    resumed = linear_schedule(torch.optim.Adam(parameters, lr=1.0), 12)
    for _ in range(3):
        schedule.optimizer.step()
        schedule.step()
    parts = [{"optimizer": each.optimizer, "schedule": each} for each in (schedule, resumed)]
    load_states(parts[1], states_of(parts[0]))
    for update in (3, 4):
        assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(1 - 0.98 * update / 12)
        resumed.step()


def test_seconds_count_from_the_beginning_of_the_run(tmp_path, monkeypatch):
    ticks, found = count(), []
    monkeypatch.setattr("fastmarl.training.loop.time.process_time", lambda: float(next(ticks)))
    for how in ({"interrupt_after": 400}, {"resume": True}):
        run(
            "ippo", RUNS["ippo"], tmp_path, on_metrics=lambda step, metrics: found.append(metrics["cpu_seconds"]), **how
        )
    assert found == [1, 2, 3, 4, 5, 6]


def test_a_folder_is_for_one_run_at_a_time(tmp_path):
    begun = RunFolder.begin(tmp_path / "run", "", overwrite=False)
    with pytest.raises(ConfigError, match="another process is training"):
        RunFolder(tmp_path / "run").lock()
    (tmp_path / "run" / "curve.csv").touch()
    begun.unlock()
    with pytest.raises(ConfigError, match=r"--resume .* or replace it with --overwrite"):
        RunFolder.begin(tmp_path / "run", "", overwrite=False)
    (tmp_path / "run" / "notes.txt").touch()
    RunFolder.begin(tmp_path / "run", "", overwrite=True)
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == [".lock", "notes.txt"]


def test_seeds_may_be_of_any_size(tmp_path):
    options = ["--num-envs", "4", "--steps", "100", "--seed", str(2**70 + 1)]
    assert run("ippo", options, tmp_path).env_steps == 100


def test_a_folder_without_a_checkpoint_can_not_be_resumed(tmp_path):
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        train(*prepared("ippo", RUNS["ippo"], tmp_path), resume=True)


def test_folders_of_runs_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (RunFolder.begin(None, "env-ippo-seed0", overwrite=False).path for _ in range(2))
    assert first != second and first.parent == second.parent == Path("runs")
    assert first.name.startswith("env-ippo-seed0-20")


def test_iql_learns_from_each_agent_in_turn(tmp_path, monkeypatch):
    """Also with more agents than updates per iteration."""
    sampled = []
    sample = TeamReplay.sample
    monkeypatch.setattr(TeamReplay, "sample", lambda replay, n: sampled.append(id(replay)) or sample(replay, n))
    run("iql", ["--num-envs", "4", "--steps", "900", "--updates", "2"], tmp_path / "run")
    counts = Counter(sampled)
    assert len(counts) == 3 and len(set(counts.values())) == 1
