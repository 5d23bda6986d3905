"""`fastmarl bench scaling`: its environment keeps the protocol, and every size is measured, reported and plotted."""

import json

import pytest

import fastmarl
from fastmarl import cli
from fastmarl.bench import reports, scaling
from fastmarl.core.envs.context import EnvContext
from fastmarl.testing import check_env

RATIOS = ("relative_speed", "own_relative_speed")


def test_ready_arrays_are_a_good_environment():
    report = check_env(scaling.ReadyArrays(EnvContext({"agents": 3}, 0, 0, num_envs=2)))
    assert report.ok, report
    assert not report.notes


@pytest.mark.parametrize("name", scaling.SERIES)
def test_all_sizes_are_configs(name):
    series = scaling.SERIES[name]
    assert name in reports.TITLES
    for size in series.sizes:
        fastmarl.EnvRunnerConfig(**series.config(size))
    assert list(series.sizes) == sorted(series.sizes)


@pytest.mark.slow
def test_each_size_is_measured_and_drawn(tmp_path, monkeypatch, capsys):
    for name in ("agents", "workers"):
        small = scaling.Series((2, 3), lambda n: scaling._ready(agents=n, envs=2, hiddens=8))
        monkeypatch.setitem(scaling.SERIES, name, small)
    file, picture = tmp_path / "scaling.json", tmp_path / "new" / "scaling.png"
    figures = dict.fromkeys(("agents", "envs", "agent_steps_per_second", "runner_us", "limit_us", *RATIOS), 1)
    old = [{"series": "network", "size": 5, **figures}, {"series": "agents", "size": 3, **figures}]
    file.write_text(json.dumps({"series": old}) + "\n")
    args = ["--series", "workers", "agents", "--rounds", "1", "--seconds", "0.001"]
    files = ["--json", str(file), "--plot", str(picture), "--markdown", str(tmp_path / "scaling.md")]
    assert cli.main(["bench", "scaling", *args, *files]) == 0
    out = capsys.readouterr().out
    former, record = map(json.loads, file.read_text().splitlines())
    assert former == {"series": old}
    measured = [(row["series"], row["size"], row["agents"], row["envs"]) for row in record["series"]]
    assert measured == [(name, size, size, 2) for name in ("workers", "agents") for size in (2, 3)]
    for row in record["series"]:
        assert f"{row['agent_steps_per_second']:,.0f}" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    first, second, third = (tmp_path / "scaling.md").read_text().split("\n\n")
    assert [line.split(" | ")[0] for line in first.splitlines()[2:]] == [
        "| 2",
        "| 3",
    ]  # the old figures of 3 were replaced
    assert reports.TITLES["network"] in second and reports.TITLES["workers"] in third


def test_finished_series_are_kept_if_the_next_is_interrupted(tmp_path, monkeypatch, capsys):
    def measure(name, **pace):
        speed = {"envs": 12345, "workers": 67890}[name]
        yield {
            "series": name,
            "size": 5,
            "agent_steps_per_second": speed,
            "runner_us": 1,
            "limit_us": 1,
        } | dict.fromkeys(RATIOS, 1)
        if name == "workers":
            raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "measure_series", measure)
    file = tmp_path / "scaling.json"
    assert cli.main(["bench", "scaling", "--series", "envs", "workers", "--json", str(file)]) == 130
    assert [row["series"] for row in json.loads(file.read_text())["series"]] == ["envs", "workers"]
    out = capsys.readouterr().out
    assert "12,345" in out
    assert "67,890" in out, "sizes of a series that was not finished are shown, too"


def test_unknown_series_are_errors(capsys):
    assert cli.main(["bench", "scaling", "--series", "planets"]) == 1
    assert "unknown series 'planets'; choose from agents, envs, network, workers" in capsys.readouterr().err
