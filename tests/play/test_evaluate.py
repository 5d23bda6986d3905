"""fastmarl.evaluate(): which episodes it counts, how it sums them up, and that nothing is left behind."""

import csv
import math
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same, is_same
from support.levels import KINDS, Levels, runner_of
from support.modules import Always
from support.optional import needed

import fastmarl
from fastmarl.connectors import MeanStdFilter
from fastmarl.errors import ConfigError
from fastmarl.modules import DefaultRLModule
from fastmarl.play import Evaluation, Returns
from fastmarl.testing import ClockEnv

SPEC = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [4]})


class Phoenix(ClockEnv):
    """Agent "a" dies and returns in the middle of an episode; "b" is there in every other episode alone. Each step pays
    "a" 1 and "b" the number of the episode."""

    def __init__(self, config=None):
        super().__init__(["a", "b"], episode_length=5)
        self.number = -1

    def reset(self, *, seed=None, options=None):
        self.number += 1
        return super().reset()

    def observed(self, env_t):
        return ["a", "b"] if self.number % 2 else ["a"]

    def rewards_at(self, env_t):
        acted = [agent for agent in self.observed(env_t - 1) if (agent, env_t) != ("a", 3)]  # it died in step 2
        return {agent: 1.0 if agent == "a" else float(self.number) for agent in acted}

    def terminated(self, env_t):
        return ["a"] if env_t == 2 else []


def test_figures_are_those_of_the_episodes_of_the_runner():
    runner = runner_of("sync")
    seeds = list(range(20))
    episodes = runner.evaluate(20, seeds=seeds)
    found = fastmarl.evaluate(runner, episodes=20, seeds=seeds)
    assert isinstance(found, Evaluation) and found.num_episodes == 20
    returns = [episode.get_return() for episode in episodes]
    assert found.returns.tolist() == returns
    assert found.lengths.tolist() == [len(episode) for episode in episodes]
    assert found.reset_seeds == tuple(seeds)
    assert found.mean == pytest.approx(np.mean(returns))
    assert found.standard_error == pytest.approx(np.std(returns, ddof=1) / math.sqrt(20))
    for agent in ("a", "b"):
        expected = [episode.agent_episodes[agent].get_return() for episode in episodes]
        assert found.by_agent[agent].returns.tolist() == found.by_agent[agent].by_episode.tolist() == expected
    assert found.by_module["default_policy"].returns.tolist() == returns


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_runner_goes_on_as_if_nothing_had_happened(kind):
    runner = runner_of(kind, env_to_module_connector=MeanStdFilter())
    runner.sample(num_timesteps=30)
    before = runner.get_state(not_components="running_episodes")  # they are dropped
    assert fastmarl.evaluate(runner, episodes=7).num_episodes == 7
    assert_same(runner.get_state(not_components="running_episodes"), before)
    runner.stop()


def test_an_episode_with_agents_that_respawn_counts_once():
    found = fastmarl.evaluate(SPEC, Phoenix, episodes=6, respawn=True, num_envs_per_env_runner=1)
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=Phoenix, respawn=True)) as runner:
        assert len(runner.evaluate(6)) > 6  # chunks
    assert found.lengths.tolist() == [5] * 6
    returns_of_b = [5.0 * number if number % 2 else 0.0 for number in range(6)]
    np.testing.assert_array_equal(found.returns - returns_of_b, found.by_agent["a"].returns)
    assert found.by_agent["a"].returns.tolist() == [found.by_agent["a"].mean] * 6
    np.testing.assert_array_equal(found.by_agent["b"].by_episode, [np.nan, 5.0, np.nan, 15.0, np.nan, 25.0])
    assert found.by_agent["b"].mean == 15


def test_modules_by_id_act_for_whom_they_are_mapped_to():
    found = fastmarl.evaluate(
        {"zero": Always(0), "two": Always(2)},
        Levels,
        episodes=30,
        policy_mapping_fn=lambda agent, episode: "zero" if agent == "a" else "two",
        num_envs_per_env_runner=4,
        seed=0,
    )
    assert found.by_module.keys() == {"zero", "two"}
    same_steps = found.by_module["two"].mean - found.by_agent["b"].mean
    assert same_steps == 0
    differences = (found.by_module["two"].returns - found.by_module["zero"].returns) / found.lengths
    assert 1 < differences.mean() < 3  # the env adds the action to what it draws


@pytest.mark.parametrize("saved", [False, True])
def test_a_policy_plays_as_in_its_runner(saved, tmp_path):
    """With its connectors and what they have learned, its mapping function and its options."""
    config = {"policies": ["even", "odd"], "policy_mapping_fn": even_or_odd, "clip_rewards": 0.5, "seed": 3}
    with runner_of("sync", env_to_module_connector=MeanStdFilter(), **config) as runner:
        runner.sample(num_timesteps=50)
        want = fastmarl.evaluate(runner, episodes=6, seeds=range(6))
        if saved:
            path = runner.save_to_path(tmp_path / "checkpoint")
            policy = fastmarl.Policy.from_checkpoint(path, policy_mapping_fn=even_or_odd)
        else:
            policy = fastmarl.Policy.from_runner(runner)
    found = fastmarl.evaluate(policy, runner.config.env, episodes=6, seeds=range(6), num_envs_per_env_runner=2)
    assert_same((found.by_agent, found.by_module), (want.by_agent, want.by_module))
    unclipped = fastmarl.evaluate(policy, runner.config.env, episodes=6, seeds=range(6), clip_rewards=None)
    assert not is_same(unclipped.returns, want.returns)


class Scheduled(DefaultRLModule):
    seen: ClassVar[dict[int, list[int]]] = {}  # number of hidden units -> the counts by which it would explore

    def _forward_exploration(self, batch, t=None, **kwargs):
        self.seen.setdefault(self.model_config["fcnet_hiddens"][0], []).append(t)
        return self._forward(batch)


def scheduled(hidden, steps):
    """A runner that has made some steps as one of four, and the count of its schedule."""
    spec = fastmarl.RLModuleSpec(module_class=Scheduled, model_config={"fcnet_hiddens": [hidden]})
    config = fastmarl.EnvRunnerConfig(env=Levels, rl_module_spec=spec, num_env_runners=4, seed=0)
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=steps)
    return runner, 4 * runner.num_env_steps_sampled_lifetime


def test_schedules_of_exploration_go_on_where_training_left_them(tmp_path):
    """Each player's own, in whatever form it plays."""
    (short, t_short), (long, t_long), (restored, _) = scheduled(5, 10), scheduled(6, 50), scheduled(5, 1)
    path = short.save_to_path(tmp_path / "short")
    given = {"default_policy": restored.module["default_policy"]}
    saved = fastmarl.Policy.from_checkpoint(path, modules=given)
    restored.restore_from_path(path)
    seen = Scheduled.seen
    for player in (short, fastmarl.Policy.from_runner(short), saved, restored):
        env = None if isinstance(player, type(short)) else Levels
        seen.clear()
        fastmarl.evaluate(player, env, episodes=1, explore=True)
        assert seen[5][0] == t_short and seen[5] == sorted(seen[5])
        seen.clear()
        fastmarl.tournament({"short": player, "long": long}, Levels, episodes=2)
        assert (min(seen[5]), min(seen[6])) == (t_short, t_long)
    for policy in (saved, fastmarl.Policy.from_runner(restored)):
        seen.clear()
        policy.act(np.zeros(3, np.float32), explore=True)
        assert seen == {5: [t_short]}
    seen.clear()
    fastmarl.tournament({"saved": saved, "fresh": scheduled(7, 1)[0].module["default_policy"]}, Levels, episodes=2)
    assert (min(seen[5]), min(seen[7])) == (t_short, 0)  # nothing is known of a module's own training


def even_or_odd(agent_id, episode):
    return ("even", "odd")[len(str(agent_id)) % 2]


@pytest.mark.parametrize("saved", [False, True])
def test_the_module_of_a_policy_keeps_its_name(saved, tmp_path):
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", policies=["all"], seed=0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.save_to_path(tmp_path / "saved")
        policy = fastmarl.Policy.from_runner(runner)
    if saved:
        policy = fastmarl.Policy.from_checkpoint(tmp_path / "saved")
    assert list(fastmarl.evaluate(policy, "fastmarl.simple_spread", episodes=2).by_module) == ["all"]


def test_rewards_are_as_recorded():
    plain, scaled = (
        fastmarl.evaluate(SPEC, Phoenix, episodes=2, respawn=True, reward_scale=scale) for scale in (1.0, 0.5)
    )
    np.testing.assert_array_equal(scaled.returns, plain.returns / 2)


def test_memory_and_masks():
    spec = fastmarl.RLModuleSpec(model_config={"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]})
    first, again = (fastmarl.evaluate(spec, Levels, episodes=9, seed=1, explore=True) for _ in range(2))
    assert first.returns.tolist() == again.returns.tolist()


def test_episodes_that_an_earlier_call_had_finished_are_not_counted(tmp_path):
    class Failing(Levels):
        def reset(self, *, seed=None, options=None):
            if seed == 9 and (tmp_path / "fail").exists():
                raise KeyError("lost")
            return super().reset(seed=seed)

    runner = runner_of("sync", env=Failing)
    (tmp_path / "fail").touch()
    with pytest.raises(KeyError):
        fastmarl.evaluate(runner, episodes=8, seeds=[1, 2, 3, 4, 5, 6, 7, 9])
    (tmp_path / "fail").unlink()
    assert fastmarl.evaluate(runner, episodes=2, seeds=[11, 12]).reset_seeds == (11, 12)


def test_the_runner_that_was_made_is_stopped_whatever_happens(monkeypatch):
    stopped = []
    monkeypatch.setattr(fastmarl.MultiAgentEnvRunner, "stop", lambda runner: stopped.append(runner))

    class Interrupting(Levels):
        def step(self, actions):
            raise KeyboardInterrupt

    fastmarl.evaluate(SPEC, Levels, episodes=1)
    with pytest.raises(KeyboardInterrupt):
        fastmarl.evaluate(SPEC, Interrupting, episodes=1)
    assert len(stopped) == 2
    with runner_of("sync") as runner:
        fastmarl.evaluate(runner, episodes=1)
        assert len(stopped) == 2  # the caller's goes on


@pytest.mark.parametrize(("arguments", "options", "message"), [
    ((SPEC, Levels), {"episodes": 0}, "episodes must be an integer >= 1, got 0"),
    ((SPEC, Levels), {"episodes": 1.5}, "episodes must be"),
    ((SPEC, Levels), {"episodes": True}, "episodes must be"),
    ((SPEC,), {}, "modules need an env"),
    ((3, Levels), {}, r"expected a torch.nn.Module, .* by module id, a Policy or a MultiAgentEnvRunner, got 3"),
    (("runs/1", Levels), {}, r"got 'runs/1'; load the policy in a folder with fastmarl.Policy.from_checkpoint\(\)"),
    (({}, Levels), {}, "expected a torch.nn.Module"),
    (({"a": None}, Levels), {}, "expected a torch.nn.Module"),
    (({"a": SPEC, "b": SPEC}, Levels), {}, "policy_mapping_fn is required"),
    ((SPEC, Levels), {"episodes": 2, "seeds": [1]}, "seeds must be 2 integers"),
    ((SPEC, Levels), {"episodes": 1, "seeds": 5}, r"seeds must be 1 integers .*, got 5"),
])  # fmt: skip
def test_impossible_arguments(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        fastmarl.evaluate(*arguments, **options)


def test_a_runner_takes_no_options_of_another():
    with runner_of("sync") as runner, pytest.raises(ConfigError, match="leave out env, seed"):
        fastmarl.evaluate(runner, Levels, seed=1)


class Uneven(fastmarl.MultiAgentEnv):
    """Agents 1 and "1" with observations of different lengths; the first receives 1, the other 2."""

    def __init__(self, config):
        self.possible_agents = [1, "1"]
        shapes = config.get("shapes", (3, 3))
        boxes = [gym.spaces.Box(-1, 1, (n,), np.float32) for n in shapes]
        self.observation_spaces = dict(zip(self.possible_agents, boxes, strict=True))
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        return {agent: np.zeros(space.shape, np.float32) for agent, space in self.observation_spaces.items()}, {}

    def step(self, actions):
        return self.reset()[0], {1: 1.0, "1": 2.0}, {"__all__": True}, {"__all__": False}, {}


def test_one_object_without_spaces_for_modules_of_different_ones_is_an_error():
    def play(second, shapes):
        modules, names = {"int": first, "str": second, "nobody's": first}, {1: "int", "1": "str"}
        return fastmarl.evaluate(
            modules,
            Uneven,
            episodes=1,
            env_config={"shapes": shapes},
            policy_mapping_fn=lambda agent, episode: names[agent],
        )

    first = Always(0)
    with pytest.raises(ConfigError, match=r"modules \['int', 'str'\] are one object without spaces.*\(3,\).*\(5,\)"):
        play(first, (3, 5))
    assert first.observation_space is None
    assert play(Always(0), (3, 5)).mean == 3
    first = Always(0)
    assert play(first, (3, 3)).mean == 3


def test_agents_whose_ids_look_alike_have_columns_of_their_own(tmp_path):
    fastmarl.evaluate(SPEC, Uneven, episodes=1).to_csv(tmp_path / "episodes.csv")
    head, row = csv.reader((tmp_path / "episodes.csv").read_text().splitlines())
    assert head[3:] == ["return", "agent:1", "agent:1", "module:default_policy"]
    assert row[3:] == ["3.0", "1.0", "2.0", "3.0"]


def test_the_table_and_the_file_have_every_agent_and_module(tmp_path):
    found = fastmarl.evaluate(SPEC, Phoenix, episodes=4, respawn=True, num_envs_per_env_runner=1)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["all", "agent", "agent", "module"]
    assert lines[-1] == "mean length: 5.0 env steps"
    found.to_csv(tmp_path / "episodes.csv")
    rows = list(csv.DictReader((tmp_path / "episodes.csv").read_text().splitlines()))
    assert [float(row["return"]) for row in rows] == found.returns.tolist()
    assert [row["agent:b"] for row in rows] == ["", "5.0", "", "15.0"]
    assert [row["length"] for row in rows] == ["5"] * 4
    assert [float(row["module:default_policy"]) for row in rows] == found.returns.tolist()


# Intervals.


@pytest.mark.needs("scipy")
def test_intervals_of_student_are_those_of_his_table():
    returns = Returns(returns=np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    half = 2.776 * returns.standard_error  # t of 4 degrees of freedom for 95 %
    assert returns.confidence_interval() == pytest.approx((3 - half, 3 + half), abs=1e-3)
    half = 4.604 * returns.standard_error  # for 99 %
    assert returns.confidence_interval(0.99) == pytest.approx((3 - half, 3 + half), abs=1e-3)


@pytest.mark.slow
@pytest.mark.needs("scipy")
@pytest.mark.parametrize(("method", "times"), [("t", 1000), ("bootstrap", 100)])
def test_intervals_hold_the_mean_as_often_as_they_say(method, times):
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(times):
        low, high = Returns(returns=rng.normal(size=50)).confidence_interval(0.8, method=method)
        hits += low < 0 < high
    assert abs(hits / times - 0.8) < 4 * math.sqrt(0.16 / times)


@pytest.mark.needs("scipy")
@pytest.mark.parametrize("method", ["t", "bootstrap"])
def test_intervals_of_few_or_equal_returns(method):
    needed("scipy")
    assert np.isnan(Returns(returns=np.array([3.0])).confidence_interval(method=method)).all()
    assert math.isnan(Returns(returns=np.array([3.0])).standard_error)
    assert Returns(returns=np.full(5, 3.0)).confidence_interval(method=method) == (3, 3)
    skewed = Returns(returns=np.array([0.0] * 20 + [1.0] * 3))
    assert skewed.confidence_interval(method=method) == skewed.confidence_interval(method=method)


@pytest.mark.parametrize(("level", "method"), [(0, "t"), (1, "t"), (95, "t"), (0.9, "guess")])
def test_impossible_intervals(level, method):
    with pytest.raises(ConfigError, match=r"level|method"):
        Returns(returns=np.arange(3.0)).confidence_interval(level, method=method)
