"""Statistics of observations: counted once each, normalised by, merged, saved, frozen; and the state of connectors."""

import enum
import itertools
import re

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.interrupts import in_own_thread, interrupted
from support.short_episodes import (
    MODULE,
    NESTED,
    Short,
    assert_moments,
    make_runner,
    parts_of,
    sent_by,
    state_of,
    stats_of,
)

import fastmarl
from fastmarl.connectors import AgentIndicator, FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.core.checkpoint.folder import stored_key
from fastmarl.core.connectors import mean_std_filter
from fastmarl.errors import CheckpointError, ConfigError, ObservationError
from fastmarl.testing import CountingEnv

# Counting.


def test_an_episode_of_five_steps_is_six_observations():
    runner = make_runner(MeanStdFilter())
    runner.sample(num_episodes=1)
    assert stats_of(runner)["count"] == 6


@pytest.mark.parametrize("random_actions", [False, True])
@pytest.mark.parametrize("fragment", [1, 2, 7, 50])
@pytest.mark.parametrize("silent", [False, True])
def test_every_observation_sent_is_counted_once(fragment, silent, random_actions):
    """With `silent`, last observations are repeated on record, but not counted again."""
    runner = make_runner(
        MeanStdFilter(), env_config={"n_agents": 3, "silent": silent}, num_envs_per_env_runner=2, seed=1
    )
    for _ in range(50 // fragment):
        runner.sample(num_timesteps=2 * fragment, random_actions=random_actions)
        assert_moments(stats_of(runner), sent_by(runner))
    n_steps, n_resets = 2 * fragment * (50 // fragment), sum(env.n_resets for env in runner.env.envs)
    n_ends = 2 * (n_steps // 10)
    assert stats_of(runner)["count"] == 3 * (n_steps + n_resets - n_ends * silent)


def test_rows_before_an_unfit_one_are_in_all_counts():
    """The last of three agents sends NaN with its third observation; the others' have been counted by then."""
    bad = {"t": 2, "obs": np.full(3, np.nan, np.float32)}
    runner = make_runner(MeanStdFilter(), env_config={"n_agents": 3, "bad_at": bad})
    with pytest.raises(ObservationError, match="needs finite numbers"):
        runner.sample(num_timesteps=5)
    (connector,) = runner.env_to_module[MODULE].connectors
    for name in ("stats", "delta"):
        (moments,) = getattr(connector, name)
        assert moments.get_state()["count"] == 8, name


def test_dropped_episodes_are_counted_too():
    runner = make_runner(MeanStdFilter(), num_envs_per_env_runner=2)
    runner.sample(num_timesteps=6)
    runner.sample(num_episodes=3)
    runner.sample(num_timesteps=4, force_reset=True)
    runner.make_env()
    assert stats_of(runner)["count"] > 20
    n_before = stats_of(runner)["count"]
    runner.sample(num_timesteps=7)
    assert stats_of(runner)["count"] == n_before + len(sent_by(runner))


def test_a_repeated_last_observation_is_the_record_of_the_one_before():
    for part in parts_of(make_runner(MeanStdFilter(), env_config={"silent": True}).sample(num_episodes=3)):
        obs = part.get_observations()
        np.testing.assert_array_equal(obs[-1], obs[-2])


@in_own_thread
def test_an_interrupt_leaves_observations_in_all_statistics_or_in_none():
    connector = MeanStdFilter()
    connector.recompute_output_observation_space(gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2))
    file = mean_std_filter.__file__
    for opcode in itertools.count():
        is_over = not interrupted(
            lambda: connector(np.ones((3, 2), np.float32), range(3)), file=file, at=opcode, event="opcode"
        )
        stats, delta = (connector.get_state()[part][0]["count"] for part in ("stats", "delta"))
        assert stats == delta, opcode
        if is_over:
            break
    assert stats > 3


# Normalising.


def test_normalised_means_and_bounds():
    runner = make_runner(MeanStdFilter(clip_by_value=0.5))
    assert runner.get_spaces()[MODULE][0] == gym.spaces.Box(-0.5, 0.5, (3,), np.float32)
    obs = np.concatenate([part.get_observations() for part in parts_of(runner.sample(num_timesteps=50))])
    assert np.abs(obs).max() == 0.5


@pytest.mark.parametrize("demean", [True, False])
@pytest.mark.parametrize("destd", [True, False])
def test_options_of_the_filter(demean, destd):
    runner = make_runner(MeanStdFilter(de_mean_to_zero=demean, de_std_to_one=destd, clip_by_value=None))
    (part,) = parts_of(runner.sample(num_episodes=1))
    sent = sent_by(runner)
    for i, row in enumerate(part.get_observations()):
        seen = sent[: i + 1]
        want = (sent[i] - seen.mean(0) * demean) / (seen.std(0) + 1e-8 if destd else 1.0)
        if i:
            np.testing.assert_allclose(row, want, rtol=1e-5, atol=1e-5)


def test_only_boxes_are_normalised_and_masks_are_not():
    runner = make_runner(MeanStdFilter(), env_config={"space": NESTED})
    (part,) = parts_of(runner.sample(num_episodes=1))
    obs, sent = part.get_observations(), runner.env.envs[0].sent
    for key in ("a", "action_mask"):
        assert obs[key].tolist() == [value[key].tolist() for value in sent]
    assert obs["m"][0].tolist() == [value["m"][0].tolist() for value in sent]
    assert obs["image"].dtype == obs["z"].dtype == obs["scalar"].dtype == np.float32
    assert [moments["mean"].size for moments in state_of(runner)[MODULE]["MeanStdFilter"]["stats"]] == [2, 1, 4]
    assert part.observation_space == runner.get_spaces()[MODULE][0]


def test_frozen_statistics_stay_as_they_are():
    runner = make_runner(MeanStdFilter())
    runner.sample(num_timesteps=50)
    frozen = make_runner(MeanStdFilter(update_stats=False, clip_by_value=None), worker_index=3)
    (untouched,) = parts_of(frozen.sample(num_episodes=1))
    np.testing.assert_array_equal(untouched.get_observations(), np.float32(sent_by(frozen)))  # nothing is known yet
    frozen.set_state(runner.get_state("env_to_module_connector"))
    stats = stats_of(runner)
    (part,) = parts_of(frozen.sample(num_episodes=1))
    want = (sent_by(frozen)[-6:] - stats["mean"]) / np.sqrt(stats["m2"] / stats["count"])
    np.testing.assert_allclose(part.get_observations(), want, rtol=1e-5, atol=1e-6)
    assert stats_of(frozen)["mean"].tolist() == stats["mean"].tolist()
    assert stats_of(frozen)["count"] == stats["count"]
    assert stats_of(frozen, "delta")["count"] == stats_of(runner, "delta")["count"], "as that runner counted"


def test_runners_that_resume_are_merged_as_if_they_had_gone_on():
    def merged_after(n_resumes):
        runners = [make_runner(MeanStdFilter(), worker_index=i, env_config={"n_agents": 2}) for i in range(3)]
        for runner in runners:
            runner.sample(num_timesteps=20)
        merged = runners[0].env_to_module.merge_states([state_of(runner) for runner in runners])
        for i, runner in enumerate(runners):
            runner.set_state({"env_to_module_connector": merged})
            runner.sample(num_timesteps=10 + i)
        for _ in range(n_resumes):
            states = [runner.get_state("env_to_module_connector") for runner in runners]
            runners = [make_runner(MeanStdFilter(), worker_index=i, env_config={"n_agents": 2}) for i in range(3)]
            for runner, state in zip(runners, states, strict=True):
                runner.set_state(state)
        return runners[0].env_to_module.merge_states([state_of(runner) for runner in runners])[MODULE]["MeanStdFilter"]

    want, got = merged_after(0), merged_after(2)
    for key in ("count", "mean", "m2"):
        np.testing.assert_array_equal(got["stats"][0][key], want["stats"][0][key])


def test_filters_of_two_modules_count_apart():
    config = fastmarl.EnvRunnerConfig(
        env=Short,
        env_config={"n_agents": 3},
        policies=["even", "odd", "plain"],
        policy_mapping_fn=lambda agent, episode: {"0": "even", "1": "odd", "2": "plain"}[agent[-1]],
        env_to_module_connector={"even": MeanStdFilter(), "odd": [MeanStdFilter(update_stats=False)]},
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    (episode,) = runner.sample(num_episodes=1)
    counts = {module: state["MeanStdFilter"]["stats"][0]["count"] for module, state in state_of(runner).items()}
    assert counts == {"even": 6, "odd": 0}
    raw = np.array(runner.env.envs[0].sent[2::3])
    np.testing.assert_array_equal(episode.agent_episodes["agent_2"].get_observations(), raw)


# State: merged, saved, restored.


def test_merged_statistics_are_those_of_one_runner_that_saw_all():
    runners = [make_runner(MeanStdFilter(), worker_index=i, env_config={"n_agents": 2}) for i in range(3)]
    for n in (1, 7, 30):
        for i, runner in enumerate(runners):
            runner.sample(num_timesteps=n + i)
        merged = runners[0].env_to_module.merge_states([state_of(runner) for runner in runners])
        for runner in runners:
            runner.set_state({"env_to_module_connector": merged})
        rows = np.concatenate([sent_by(runner) for runner in runners])
        for runner in runners:
            assert_moments(stats_of(runner), rows)
            assert stats_of(runner, "delta")["count"] == 0


def test_a_new_runner_is_merged_into_the_statistics_of_the_others():
    old, new = make_runner(MeanStdFilter()), make_runner(MeanStdFilter(), worker_index=1)
    old.sample(num_timesteps=20)
    old.set_state({"env_to_module_connector": old.env_to_module.merge_states([state_of(old)])})
    new.sample(num_timesteps=10)
    old.sample(num_timesteps=10)
    merged = new.env_to_module.merge_states([state_of(new), state_of(old)])
    new.set_state({"env_to_module_connector": merged})
    assert_moments(stats_of(new), np.concatenate([sent_by(old), sent_by(new)]))


def test_statistics_are_saved_and_restored(tmp_path):
    runner = make_runner([MeanStdFilter(), PrevActionsPrevRewards(), FlattenObservations()])
    runner.sample(num_timesteps=33)
    runner.save_to_path(tmp_path)
    restored = fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, runner.config)
    for key in ("count", "mean", "m2"):
        assert np.array_equal(stats_of(restored)[key], stats_of(runner)[key])
    n = stats_of(runner)["count"]
    restored.sample(num_timesteps=5)
    assert stats_of(restored)["count"] == n + len(sent_by(restored))
    with pytest.raises(CheckpointError, match="must have the connectors it was trained with"):
        make_runner(PrevActionsPrevRewards()).restore_from_path(tmp_path)


Team = enum.Enum("Team", "RED BLUE")
IDS = {
    "enums": list(Team),
    "enums of text": list(enum.StrEnum("Side", "LEFT RIGHT")),
    "bytes": [b"red", b"blue"],
    "sets": [frozenset({"x", "y"}), frozenset({"z"})],
    "tuples": [(Team.RED, 1), (Team.BLUE, 1)],
    "numbers": [np.int64(7), 2**80],
    "floats": [1.5, np.float32(0.5)],
}


@pytest.mark.parametrize("kind", IDS)
def test_an_indicator_is_saved_with_any_ids(kind, tmp_path):
    ids = IDS[kind]
    runner = make_runner(AgentIndicator(ids), env_config={"ids": ids})
    runner.sample(num_timesteps=12)
    runner.save_to_path(tmp_path)
    restored = fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, runner.config)
    assert_same(restored.get_state("rl_module"), runner.get_state("rl_module"))
    acting = [fastmarl.Policy.from_runner(runner), fastmarl.Policy.from_checkpoint(tmp_path)]
    for obs in np.linspace(-4, 4, 9 * 3, dtype=np.float32).reshape(9, 3):
        first, second = ([policy.act(obs, agent_id) for agent_id in ids] for policy in acting)
        assert first == second
    with pytest.raises(ObservationError, match="AgentIndicator was created for"):
        acting[1].act(obs, object())
    reverse = make_runner(AgentIndicator(ids[::-1]), env_config={"ids": ids})
    before = reverse.get_state()
    with pytest.raises(CheckpointError, match=r"must have the connectors it was trained with, \[AgentIndicator"):
        reverse.restore_from_path(tmp_path)
    assert_same(reverse.get_state(), before)
    with pytest.raises(CheckpointError, match=r"connectors\['default_policy'\] must have the connectors"):
        fastmarl.Policy.from_checkpoint(tmp_path, connectors={MODULE: [AgentIndicator(ids[::-1])]})


def test_ids_without_a_text_of_their_own_are_given_again(tmp_path):
    ids = [object(), object()]
    runner = make_runner(AgentIndicator(ids), env_config={"ids": ids})
    runner.save_to_path(tmp_path)
    runner.restore_from_path(tmp_path)
    with pytest.raises(CheckpointError, match=r"\['AgentIndicator'\] .*ids with equal text\) and can't be rebuilt"):
        fastmarl.Policy.from_checkpoint(tmp_path)
    policy = fastmarl.Policy.from_checkpoint(tmp_path, connectors={MODULE: [AgentIndicator(ids)]})
    assert policy.act(np.zeros(3, np.float32), ids[1]) in range(3)


def test_text_stands_for_an_id_in_any_process():
    assert stored_key(frozenset("abcdefgh")) == "frozenset({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})"
    assert stored_key((Team.RED,)) == "(<Team.RED: 1>,)"
    assert stored_key(object()) == stored_key(object()) == "<object object>"


@pytest.mark.parametrize(
    ("saved", "other"),
    [
        ([MeanStdFilter()], [MeanStdFilter(clip_by_value=5)]),
        ([MeanStdFilter()], [MeanStdFilter(de_std_to_one=False)]),
        ([FlattenObservations()], []),
        ([], [FlattenObservations()]),
        ([MeanStdFilter(), FlattenObservations()], [FlattenObservations(), MeanStdFilter()]),
    ],
)
def test_checkpoints_of_other_connectors_are_refused(saved, other, tmp_path):
    runner = make_runner(saved)
    runner.save_to_path(tmp_path / "all")
    runner.save_to_path(tmp_path / "state", state=runner.get_state())
    for folder in ("all", "state"):
        with pytest.raises(CheckpointError, match="must have the connectors it was trained with"):
            make_runner(other).restore_from_path(tmp_path / folder)
    make_runner(other).restore_from_path(tmp_path / "all", component="rl_module")


def test_frozen_statistics_are_restored_too(tmp_path):
    make_runner(MeanStdFilter()).save_to_path(tmp_path)
    make_runner(MeanStdFilter(update_stats=False)).restore_from_path(tmp_path)


def test_two_filters_of_one_module_have_states_of_their_own():
    runner = make_runner([MeanStdFilter(clip_by_value=None), MeanStdFilter()])
    runner.sample(num_timesteps=10)
    assert list(state_of(runner)[MODULE]) == ["MeanStdFilter_0", "MeanStdFilter_1"]


def test_states_of_others_are_refused():
    runner = make_runner(MeanStdFilter())
    with pytest.raises(ConfigError, match="nobody/MeanStdFilter"):
        runner.env_to_module.set_state({"nobody": {"MeanStdFilter": {}}})
    other = make_runner(MeanStdFilter(), env_config={"space": gym.spaces.Box(-1, 1, (2,), np.float32)})
    with pytest.raises(ConfigError, match=re.escape("of sizes [2], but its observations have Boxes of sizes [3]")):
        runner.set_state(other.get_state("env_to_module_connector"))
    with pytest.raises(ConfigError, match="needs at least one state"):
        runner.env_to_module.merge_states([])


def test_modules_that_come_later_have_connectors_of_their_own():
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: CountingEnv(1, 5), policies=["old"], env_to_module_connector=MeanStdFilter()
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_episodes=1)
    runner.add_module("new", new_agent_to_module_mapping_fn=lambda agent, episode: "new")
    runner.sample(num_episodes=2)
    counts = {
        module: state["MeanStdFilter"]["stats"][0]["count"]
        for module, state in runner.env_to_module.get_state().items()
    }
    assert counts == {"old": 6, "new": 12}
    runner.remove_module("old")
    assert set(runner.get_state()["env_to_module_connector"]) == {"new"}
