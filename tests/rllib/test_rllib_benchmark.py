"""The comparison with RLlib: small runs of it, and that it refuses to compare runners that differ."""

import copy
import json
from functools import partial

import pytest
import torch
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from support.exhaustive import further

from benchmarks.rllib import extras as benchmark_extras
from benchmarks.rllib import measure as benchmark
from benchmarks.rllib.__main__ import RLLIB
from benchmarks.rllib.cases import CASES, QUICK, STANDARD, Case, FlatBattle, ReadyEnv, cartpole, check_names
from benchmarks.rllib.equality import UnequalEpisodesError, check_equal
from benchmarks.rllib.extras import measure_growth, measure_transfer
from benchmarks.rllib.measure import measure_case, sample_as_rllib
from benchmarks.rllib.pair import Pair, measuring
from fastmarl.errors import ConfigError
from fastmarl.rllib.runner import MultiAgentEnvRunner

SMALL = {
    "cartpole": cartpole(agents=2, envs=2, steps=60, hiddens=(8,)),
    "ready": Case(env=ReadyEnv, agents=3, envs=2, steps=60, hiddens=(8,), rllib_rounds=1),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, case in SMALL.items():
        monkeypatch.setitem(CASES, name, case)
    monkeypatch.setattr(benchmark, "BARE_SECONDS", 0.01)
    monkeypatch.setattr(benchmark_extras, "CALLED_STEPS", 40)


class Discarding(RLlibEnvRunner):
    """Loses the last episode."""

    def sample(self, **kwargs):
        return super().sample(**kwargs)[:-1]


class Rounding(RLlibEnvRunner):
    """Changes one bit of one agent's rewards."""

    def sample(self, **kwargs):
        episodes = super().sample(**kwargs)
        episodes[-1].agent_episodes[1].rewards.data[-1] = 1 + 1e-15
        return episodes


@pytest.mark.parametrize("name", ["cartpole", pytest.param("ready", marks=pytest.mark.exhaustive)])
def test_rllib_against_itself(name):
    result = measure_case(name, rounds=2, ours=RLlibEnvRunner)
    assert (result.rounds, result.rllib_rounds) == (2, SMALL[name].rllib_rounds or 2)
    assert len(result.ratios) == result.rllib_rounds
    assert 0.1 < result.ratio < 10  # a smoke test: two calls of a few milliseconds
    assert 0 < result.relative_speed < 1
    assert result.slow_path_reasons == ()


def test_the_limit_samples_rllibs_bits():
    logits = torch.randn(40, 5)
    torch.manual_seed(1)
    distribution = TorchCategorical.from_logits(logits)
    want = distribution.sample()
    torch.manual_seed(1)
    actions, logp = sample_as_rllib(logits)
    assert torch.equal(actions.squeeze(-1), want)
    assert torch.equal(logp.squeeze(-1), distribution.logp(want))


def test_both_runners_do_the_same_work():
    with measuring(), Pair(SMALL["cartpole"], RLlibEnvRunner) as pair:
        for seed in range(2):
            theirs, ours = pair.time(pair.theirs, seed), pair.time(pair.ours, seed)
            assert (theirs.env_steps, theirs.agent_steps) == (ours.env_steps, ours.agent_steps)
            assert 60 <= theirs.env_steps <= 61


@pytest.mark.parametrize(
    ("unequal", "where"),
    [(Discarding, r"episodes: \d+ / \d+"), (Rounding, r"episode \d+, agent 1: rewards: .*<f8")],
)
def test_runners_that_differ_are_not_compared(unequal, where):
    with pytest.raises(UnequalEpisodesError, match=f"not equal to RLlib's episodes: {where}"):
        measure_case("cartpole", rounds=1, ours=unequal)


@pytest.fixture(scope="module")
def equal_episodes():
    """RLlib's and ours, of the same seed."""
    with measuring(), Pair(SMALL["cartpole"], RLlibEnvRunner) as pair:
        return [pair.sample(runner, steps=20, seed=0)[0] for runner in (pair.theirs, pair.ours)]


@pytest.mark.parametrize(
    "change",
    [
        lambda episode, part: setattr(episode, "is_truncated", not episode.is_truncated),
        lambda episode, part: setattr(episode, "env_t", 0),
        lambda episode, part: setattr(part, "module_id", "other"),
        lambda episode, part: setattr(part, "t", 0),
        lambda episode, part: setattr(part, "is_terminated", not part.is_terminated),
        lambda episode, part: part.actions.data.__setitem__(0, 1 - part.actions.data[0]),
        lambda episode, part: setattr(part.actions, "data", part.actions.data.astype("int64")),
        lambda episode, part: setattr(part.observations, "lookback", 7),
        lambda episode, part: part.infos.data.__setitem__(0, {"new": 1}),
        lambda episode, part: part.extra_model_outputs.pop("action_logp"),
        lambda episode, part: episode.agent_episodes.pop(part.agent_id),
    ],
)
def test_every_difference_is_noticed(change, equal_episodes):
    theirs, ours = copy.deepcopy(equal_episodes)
    check_equal(theirs, ours)
    change(ours[-1], list(ours[-1].agent_episodes.values())[-1])
    with pytest.raises(UnequalEpisodesError):
        check_equal(theirs, ours)


class Widening(RLlibEnvRunner):
    """Actions of another dtype, and draws of its own."""

    sampler = "fast"

    def sample(self, **kwargs):
        episodes = super().sample(**kwargs)
        for part in (part for episode in episodes for part in episode.agent_episodes.values()):
            part.actions.data = part.actions.data.astype("int64")
        return episodes


def test_other_draws_are_compared_by_the_form_of_their_columns():
    result = measure_case("cartpole", rounds=1, ours=MultiAgentEnvRunner.options(sampler="fast"))
    assert 0.1 < result.ratio < 100 and result.slow_path_reasons == ()
    with pytest.raises(UnequalEpisodesError, match=r"p0: actions: \{\('<i4', \(\)\)\} / \{\('<i8', \(\)\)\}"):
        measure_case("cartpole", rounds=1, ours=Widening)


@pytest.mark.exhaustive
def test_growth_leaves_rllib_out_where_it_takes_too_long():
    rows = measure_growth(steps=(10, 40), rllib_steps=10, rounds=1, ours=RLlibEnvRunner)
    assert [row["steps"] for row in rows] == [10, 40]
    assert rows[0]["rllib_us"] > 0
    assert rows[1]["rllib_us"] is None
    assert rows[1]["us"] > 0


def test_transfer():
    theirs, ours = measure_transfer(rounds=1, steps=200, ours=RLlibEnvRunner)
    assert (theirs["runner"], ours["runner"]) == ("RLlib", "fastmarl")
    assert theirs["buffers"] == ours["buffers"] > 0
    assert theirs["megabytes"] == pytest.approx(ours["megabytes"], rel=0.01)
    assert min(theirs["dumps_ms"], theirs["loads_ms"]) > 0


def test_medians_leave_out_the_first_turns():
    figures = {"RLlib": iter([100, 1, 2, 9]), "fastmarl": iter([0, 3, 4, 5])}
    order = []

    def turn(runner):
        order.append(runner)
        return {"ms": next(figures[runner])}

    turns = {runner: partial(turn, runner) for runner in figures}
    assert benchmark_extras._in_turn(turns, 3) == [{"runner": "RLlib", "ms": 2}, {"runner": "fastmarl", "ms": 4}]
    assert order == ["RLlib", "fastmarl"] * 4


def test_an_iteration_reports_how_long_it_samples(monkeypatch):
    clock = [0.0]

    class Runner:
        def sample(self, **kwargs):
            clock[0] += 1.0
            return []

    class Algorithm:
        env_runner = Runner()

        def train(self):
            self.env_runner.sample(num_timesteps=1)
            self.env_runner.sample()
            clock[0] += 6.0

    monkeypatch.setattr(benchmark_extras, "perf_counter", lambda: clock[0])
    for _ in range(2):
        row = benchmark_extras._iteration(Algorithm())
        assert row == {"seconds": 8.0, "sampling_seconds": 2.0, "sampling_share": 0.25}
    assert not vars(Algorithm.env_runner), "sample() is RLlib's again"


def test_global_settings_are_put_back():
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    with measuring():
        torch.use_deterministic_algorithms(not before[0])
    assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()) == before


def test_names():
    check_names([*STANDARD, *QUICK])
    assert "cartpole-8x8-32000" not in STANDARD
    with pytest.raises(ConfigError, match=r"no case 'pong'; there are cartpole-2x1, .*, growth, transfer"):
        check_names(["pong"])


def test_battle_observes_flat_rows_that_are_in_its_spaces():
    env = FlatBattle({})
    obs, _ = env.reset(seed=1)
    assert all(env.observation_spaces[agent].contains(row) for agent, row in obs.items())
    obs, *_, terminateds, _truncateds, _infos = env.step(dict.fromkeys(obs, 0))
    assert all(row.shape == (845,) for row in obs.values())
    assert terminateds["__all__"] is False
    env.close()


@pytest.mark.xdist_group("ray")  # it starts Ray
@pytest.mark.parametrize("sampler", ["exact", *further(["fast"])])
def test_the_command(tmp_path, capsys, sampler):
    file, picture = tmp_path / "new" / "figures.json", tmp_path / "ratios.png"
    names = ["cartpole", "transfer"]
    args = ["--quick", "--sampler", sampler, "--cases", *names]
    args += ["--json", str(file), "--plot", str(picture)]
    assert RLLIB.main(args) == 0
    out = capsys.readouterr().out
    for expected in ["cartpole", "ratio", "object store", "fastmarl"]:
        assert expected in out
    report = json.loads(file.read_text())
    assert [row["case"] for row in report["cases"]] == ["cartpole"]
    assert len(report["transfer"]) == 2
    assert report["versions"]["ray"] != "not installed"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_lists_the_cases_if_one_is_unknown(capsys):
    assert RLLIB.main(["--cases", "pong"]) == 1
    assert "there is no case 'pong'; there are cartpole-2x1" in capsys.readouterr().err
