"""`MetricsWriter`: what it writes is what it was given, and a file is whole after each line."""

import csv
import enum
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.forked import exit_code_of
from support.full_disk import largest_file, no_room

import fastmarl
from fastmarl.errors import ConfigError
from fastmarl.learning import MetricsWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_columns_may_appear_later(tmp_path):
    path = tmp_path / "run" / "metrics.csv"
    with MetricsWriter(csv_path=path) as writer:
        writer.write(10, {"a": 1, "nested": {"b": 0.1}}, {"loss": torch.tensor(2.5)})
        assert rows_of(path) == [{"step": "10", "a": "1", "nested/b": "0.1", "loss": "2.5"}]
        writer.write(20, {"a": np.float32(2), "new, with comma": np.array([3])})
        writer.write(30, {"loss": math.inf, "a": 1}, {"a": True})
    assert rows_of(path) == [
        {"step": "10", "a": "1", "nested/b": "0.1", "loss": "2.5", "new, with comma": ""},
        {"step": "20", "a": "2.0", "nested/b": "", "loss": "", "new, with comma": "3"},
        {"step": "30", "a": "True", "nested/b": "", "loss": "inf", "new, with comma": ""},
    ]
    assert os.listdir(path.parent) == ["metrics.csv"]
    writer.close()


def test_a_full_disk_leaves_the_file_as_it_was_and_no_other(path, tmp_path, monkeypatch):

    with MetricsWriter(csv_path=path) as writer:
        writer.write(1, {"a": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", no_room)
            with pytest.raises(OSError, match="No space left"):
                writer.write(2, {"b": 2})
        assert os.listdir(tmp_path) == ["metrics.csv"]
        assert rows_of(path) == [{"step": "1", "a": "1"}]
        writer.write(3, {"a": 3})
        writer.write(4, {"b": 4})
    steps = [{"step": "1", "a": "1", "b": ""}, {"step": "3", "a": "3", "b": ""}, {"step": "4", "a": "", "b": "4"}]
    assert rows_of(path) == steps


def test_it_begins_a_new_file_or_resumes(path):
    with MetricsWriter(csv_path=path, resume_step=5) as writer:  # there is nothing to go on with
        for step in (1, 2, 3):
            writer.write(step, {"a": step})
    with path.open("a") as file:
        file.write("4,4")  # cut off: the system has lost power
    with MetricsWriter(csv_path=path, resume_step=2) as writer:
        assert [row["step"] for row in rows_of(path)] == ["1", "2"]
        writer.write(3, {"b": 7})
    assert rows_of(path) == [
        {"step": "1", "a": "1", "b": ""},
        {"step": "2", "a": "2", "b": ""},
        {"step": "3", "a": "", "b": "7"},
    ]
    MetricsWriter(csv_path=path).close()
    assert path.read_text() == "step\n"


@pytest.mark.parametrize(
    "data",
    [b"", b"time,a\n1,2\n", b"step,a\n1\n", b"step,a\n1,\xff\n", b"step,a\nx,2\n", b"step,a\n,\n", b"step,a\n\n"],
)
def test_a_file_of_another_program_or_a_damaged_one_is_left_alone(path, data):
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="was not written by a MetricsWriter"):
        MetricsWriter(csv_path=path, resume_step=3)
    assert path.read_bytes() == data


@pytest.mark.parametrize("value", ["x", np.zeros(2), torch.zeros(2), [1]])
def test_metrics_that_are_no_numbers_are_refused(path, value):
    with MetricsWriter(csv_path=path) as writer:
        with pytest.raises(ConfigError, match="metrics must be numbers, but 'a/b' is"):
            writer.write(1, {"c": 1, "a": {"b": value}})
        assert path.read_text() == "step\n"


class Kind(enum.IntEnum):
    FIRST = 1


def test_members_of_enums_are_digits(path):
    with MetricsWriter(csv_path=path) as writer:
        writer.write(1, {"a": Kind.FIRST})
    assert rows_of(path) == [{"step": "1", "a": "1"}]


def test_steps_are_integers(path):
    with MetricsWriter(csv_path=path) as writer:
        writer.write(np.int64(1), {"a": 1})
        writer.write(torch.tensor(2), {"a": 2})
        for step in (3.0, "3", None):
            with pytest.raises(ConfigError, match="step must be an integer, got"):
                writer.write(step, {"a": 3})
    with MetricsWriter(csv_path=path, resume_step=1):
        assert rows_of(path) == [{"step": "1", "a": "1"}]


def test_no_metric_has_the_name_of_the_steps(path):
    with MetricsWriter(csv_path=path) as writer:
        with pytest.raises(ConfigError, match="the metric name 'step' is reserved"):
            writer.write(1, {"a": 1}, {"step": 5})
        assert path.read_text() == "step\n"
        writer.write(1, {"a": {"step": 5}})
    assert rows_of(path) == [{"step": "1", "a/step": "5"}]


def test_nothing_is_written_after_closing(path):
    writer = MetricsWriter(csv_path=path)
    writer.write(1, {"a": 1})
    writer.close()
    for metrics in ({"a": 2}, {"b": 2}):
        with pytest.raises(ConfigError, match="was closed; create a new one, with resume_step"):
            writer.write(2, metrics)
    assert rows_of(path) == [{"step": "1", "a": "1"}]


IN_ANOTHER_ENCODING = """
import sys
from fastmarl.learning import MetricsWriter
with MetricsWriter(csv_path=sys.argv[1]) as writer:
    writer.write(1, {"r\\xfcckgabe": 1})
    writer.write(2, {"new": 1})
"""


@pytest.mark.slow
def test_names_of_any_letters_whatever_the_locale(path):
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", IN_ANOTHER_ENCODING, path], check=True, env=os.environ | settings)
    assert path.read_text(encoding="utf-8") == "step,r\xfcckgabe,new\n1,1,\n2,,1\n"


def test_metrics_without_a_value_yet_are_left_out(path):
    logger = fastmarl.MetricsLogger()
    logger.log_value("p", 2.0, reduce="percentiles", percentiles=[50])
    logger.log_value("x", 3.0, reduce="item")
    with MetricsWriter(csv_path=path) as writer:
        for step in range(2):
            writer.write(step, logger.reduce(compile=True))
    assert rows_of(path) == [{"step": "0", "p/50": "2.0", "x": "3.0"}, {"step": "1", "p/50": "", "x": ""}]


def test_a_runner_s_metrics_are_taken_as_they_are(path):
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", num_envs_per_env_runner=2)
    with fastmarl.MultiAgentEnvRunner(config) as runner, MetricsWriter(csv_path=path) as writer:
        runner.sample(num_timesteps=10)
        writer.write(10, runner.get_metrics())
        runner.sample(num_timesteps=90)  # now there are statistics of episodes
        metrics = runner.get_metrics()
        writer.write(100, metrics)
    first, second = rows_of(path)
    assert first["episode_return_mean"] == "nan"
    assert float(second["episode_return_mean"]) == metrics["episode_return_mean"]
    assert float(second["stage_time_ms/env"]) == metrics["stage_time_ms"]["env"]


def write_until_killed(path):
    writer = MetricsWriter(csv_path=path)
    for step in range(1, 6):
        writer.write(step, {"a": step, f"new at {step // 3}": 1})
    os.kill(os.getpid(), signal.SIGKILL)


def test_lines_are_complete_when_the_process_is_killed(path):
    assert exit_code_of(write_until_killed, path) == -signal.SIGKILL
    assert [(row["step"], row["a"]) for row in rows_of(path)] == [(str(step), str(step)) for step in range(1, 6)]


def test_no_part_of_a_line_is_left_by_a_disk_that_is_nearly_full(path):
    with MetricsWriter(csv_path=path) as writer:
        writer.write(1, {"a": 1})
        with largest_file(path.stat().st_size + 2), pytest.raises(OSError, match="File too large"):
            writer.write(2, {"a": 2})
        writer.write(3, {"a": 3})
    assert [row["step"] for row in rows_of(path)] == ["1", "3"]


@pytest.mark.slow
@pytest.mark.needs("tensorboard")
def test_tensorboard_gets_the_same(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def events():
        read = EventAccumulator(str(tmp_path))
        read.Reload()
        return {name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]}

    with MetricsWriter(tensorboard_folder=tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"a": {"b": step / 2}})
            assert events() == {"a/b": [(s, s / 2) for s in range(1, step + 1)]}  # written by now
    with MetricsWriter(tensorboard_folder=tmp_path, resume_step=2) as writer:
        writer.write(3, {"a": {"b": 9.0}})
    assert events() == {"a/b": [(1, 0.5), (2, 1.0), (3, 9.0)]}


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        MetricsWriter(tensorboard_folder=tmp_path)
