"""After an interrupt (Ctrl-C) what `sample()` returns is in the files of `output`, once, and all that is in them is
returned."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from support.interrupts import Interruption, in_own_thread, interrupt_lines, interrupted, lines_of
from support.stamped_env import StampedEnv, Witness

import fastmarl
from fastmarl.offline import ParquetReader, writer_thread
from fastmarl.offline.writer_thread import Parcel, WriterThread

N_LINES = 3


def outline(episodes):
    return sorted((episode.id_, episode.env_t_started, episode.env_t, episode.is_done) for episode in episodes)


def make_runner(folder):
    options = {"keep_float64": True, "model_config": {"fcnet_hiddens": [4]}, "seed": 0}
    config = fastmarl.EnvRunnerConfig(env=StampedEnv, num_envs_per_env_runner=2, output=folder, **options)
    runner = fastmarl.MultiAgentEnvRunner(config)
    return runner, runner.sample(num_timesteps=30)


@pytest.mark.slow
@pytest.mark.needs("pyarrow")
@in_own_thread
def test_files_have_the_returned_episodes(tmp_path, rng):

    def try_line(interruption: Interruption) -> None:
        runner, got = make_runner(tmp_path / str(interruption.line).replace("/", "-"))
        witness = Witness()
        witness.check(got, interrupted=False)
        assert interruption.run(lambda: runner.sample(num_timesteps=30)) is None
        got += (more := runner.sample(num_timesteps=30))
        witness.check(more, interrupted=True)
        runner.stop()
        filed = [episode for some in ParquetReader(runner.config.output).iter_episodes() for episode in some]
        assert outline(filed) == outline(got)
        finished = [each.agent_episodes["agent_0"].get_observations(0) for each in got if each.is_done]
        for env_index in range(2):  # all of them
            episodes = [int(obs[2]) for obs in finished if obs[0] == env_index]
            missing = set(range(1, max(episodes))) - set(episodes)
            assert len(missing) <= 1, f"episodes {missing} of env {env_index} were lost"

    runner, _ = make_runner(tmp_path / "whole")
    lines = lines_of(lambda: runner.sample(num_timesteps=30))
    runner.stop()
    after = next(i for i, line in enumerate(lines) if "end_call()" in line.text)  # where most can go wrong
    for part in (lines[:after], lines[after:]):
        interrupt_lines(try_line, part, rng, n_lines=N_LINES)


KEPT = """
import sys
sys.path[:0] = sys.argv[2:]
from numba.core.compiler_lock import global_compiler_lock
from test_interrupted_output import make_runner
global_compiler_lock.acquire()
runner, _ = make_runner(sys.argv[1])
runner._sampling.output._timeout_s = 20.0
runner.stop()
"""


@pytest.mark.needs("pyarrow")
def test_the_writer_needs_no_lock_that_an_interrupted_compilation_has_kept(tmp_path):
    # numba keeps its lock where an interrupt comes before the block that gives it back has begun.
    command = [sys.executable, "-c", KEPT, tmp_path / "output", *Path(__file__).parents[:2]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert list(ParquetReader(tmp_path / "output").iter_episodes())


class Rows:
    """An episode, as far as the handover is concerned."""

    def n_unbuilt_rows(self):
        return 1


def test_an_interrupted_handover_may_be_repeated(monkeypatch):
    monkeypatch.setattr(writer_thread, "FIRST_ROWS", 2)
    for at in itertools.count():
        thread, parcels = WriterThread(None, 1, 1.0), [Parcel([Rows()]) for _ in range(3)]
        assert thread.put(parcels[0], 0)
        done = not interrupted(lambda: thread.put(parcels[1], 0), file=writer_thread.__file__, at=at, event="opcode")  # noqa: B023
        taken = thread.take(0) if at % 2 else []  # it may be sooner
        for parcel in parcels[1:]:
            assert thread.put(parcel, 0) or parcel in thread._waiting
            taken += thread.take(0)
        thread.begin_end()
        while (more := thread.take(0)) is not None:
            taken += more
        assert taken == parcels, at
        if done:
            break
    assert at > 50
