"""Parts of the envs that take turns: the same results from processes as from one, and the same course of each env."""

import itertools
import time
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.exhaustive import further
from support.process_runners import ODD_POLICIES, children, contents, make_runner, policy_options, sampled
from support.real_envs import KINDS, params
from support.real_envs import pytestmark as pytestmark
from support.trouble import Odd, Trouble

import fastmarl
from fastmarl.connectors import MeanStdFilter, PrevActionsPrevRewards
from fastmarl.core.vector.workers.vector import Unit, first_ready
from fastmarl.errors import ConfigError

SPREAD = "mpe2.simple_spread_v3"


@pytest.mark.slow
@pytest.mark.parametrize("kind", params(["simple_tag", "connect_four", "combined_arms"]))
def test_real_envs_give_the_same_episodes_as_in_one_process(kind):
    options = {"env_config": KINDS[kind][1], "worker_num_splits": 2, "num_envs": 4, **policy_options(kind)}
    want = sampled(KINDS[kind][0], mode="sync", **options)
    assert_same(sampled(KINDS[kind][0], env_worker_start_method="fork", **options), want)


@pytest.mark.slow
@pytest.mark.needs("mpe2")
@pytest.mark.parametrize("num_splits", [3, *further([2, 5])])
def test_results_do_not_depend_on_the_number_of_workers(num_splits):
    options = {"env": SPREAD, "num_envs": 5, "worker_num_splits": num_splits}
    want = sampled(mode="sync", **options)
    for num_workers in (1, 2, 5):
        assert_same(sampled(num_workers=num_workers, env_worker_start_method="fork", **options), want)


OPTIONS = {
    "recurrent": {"model_config": {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]}},
    "connectors": {"env_to_module_connector": [MeanStdFilter(), PrevActionsPrevRewards()]},
    "agent steps": {"count_steps_by": "agent_steps", "episode_lookback_horizon": 3},
    "continuous": {"env_config": {"continuous_actions": True}},
}


@pytest.mark.slow
@pytest.mark.needs("mpe2")
@pytest.mark.parametrize("name", OPTIONS)
def test_options_work_as_in_one_process(name):
    options = {"env": SPREAD, "num_envs": 4, "worker_num_splits": 2, **OPTIONS[name]}
    want = sampled(mode="sync", **options)
    assert_same(sampled(env_worker_start_method="fork", **options), want)


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls", [[{"num_episodes": 5}, {"num_timesteps": 50}, {"num_episodes": 3}], [{}, {}]], ids=str
)
def test_callbacks_states_and_episodes_come_in_the_same_order(calls):
    def run(mode):
        heard = []
        runner = make_runner(
            Odd,
            mode=mode,
            num_envs=5,
            worker_num_splits=2,
            env_worker_start_method="fork",
            record_env_state=True,
            batch_mode="complete_episodes",
            callbacks_on_episode_created=lambda env_index, **kwargs: heard.append((env_index, "created")),
            callbacks_on_episode_step=lambda episode, env_index, **kwargs: heard.append((env_index, episode.env_t)),
            callbacks_on_episode_end=lambda episode, env_index, prev_episode_chunks, **kwargs: heard.append(
                (env_index, [len(episode), *map(len, prev_episode_chunks)])
            ),
            **ODD_POLICIES,
        )
        chunks = [chunk for call in calls for chunk in runner.sample(**call)]
        state = runner.get_state()["random_state"]["numpy"]
        runner.stop()
        return heard, [contents(chunk) for chunk in chunks], [chunk.get_env_states() for chunk in chunks], state

    want = run("sync")
    assert_same(run("async"), want)
    assert [env_index for env_index, what in want[0] if what == 1][:5] == [0, 2, 4, 1, 3]


@pytest.mark.slow
@pytest.mark.needs("mpe2")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_episodes_are_the_same_with_and_without_splits(mode):
    """For a policy whose actions depend upon observations alone, and calls in which all envs make as many steps."""

    def run(**options):
        runner = make_runner(SPREAD, num_envs=6, explore=False, env_worker_start_method="fork", **options)
        chunks = [contents(chunk) for n in (1, 7, 20, 50) for chunk in runner.sample(num_timesteps=6 * n)]
        runner.stop()
        for chunk in chunks:
            for agent in chunk["agents"].values():
                del agent["extra"]  # a forward pass rounds in another way in a batch of another size
        return sorted(chunks, key=lambda chunk: chunk["agents"]["agent_0"]["obs"].tobytes())

    want = run(mode="sync")
    assert len(want) == 6 * (1 + 1 + 2 + 3)
    assert_same(run(mode=mode, worker_num_splits=2), want)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_parts_take_turns(mode):
    """A part steps once for each act of the other; calls end with nothing under way, and the next goes on in turn."""
    stepped = []

    def step(*, env_index, **kwargs):
        stepped.append(env_index)

    runner = make_runner(
        Trouble,
        mode=mode,
        num_envs=4,
        num_workers=2,
        worker_num_splits=2,
        env_worker_start_method="fork",
        callbacks_on_episode_step=step,
    )
    assert sum(map(len, runner.sample(num_timesteps=8))) == 8
    assert stepped == [0, 2, 1, 3] * 2
    stepped.clear()
    assert sum(map(len, runner.sample(num_timesteps=5))) == 6
    assert stepped == [0, 2, 1, 3, 0, 2]
    stepped.clear()
    assert sum(map(len, runner.sample(num_timesteps=5))) == 6
    assert stepped == [1, 3, 0, 2, 1, 3]
    assert not runner.env.n_stepping
    runner.stop()


# Failures.


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "num_workers"), [("sync", 1), ("async", 4), ("async", 2)])
@pytest.mark.parametrize("num_splits", [2, 3])
def test_an_env_that_raises_is_remade_and_only_its_episode_ends(tmp_path, mode, num_workers, num_splits):
    runner = make_runner(
        Trouble,
        mode=mode,
        num_envs=4,
        num_workers=num_workers,
        worker_num_splits=num_splits,
        env_config={"trouble": {(1, 30): "raise"}, "once": str(tmp_path)},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
    )
    chunks = runner.sample(num_timesteps=240) + runner.sample(num_timesteps=160)
    report = runner.get_metrics()
    runner.stop()
    (failed,) = (chunk for chunk in chunks if chunk.is_truncated and chunk.env_t < 50)
    assert failed.get_observations()["a"][:, 2].tolist() == list(range(30))
    assert failed.get_observations()["a"][0, 0] == 1
    assert_whole(chunks)
    assert report["num_env_steps_sampled"] == sum(map(len, chunks)) >= 400
    assert (report["num_env_failures"], report["num_env_restarts"], report["num_env_steps_discarded"]) == (1, 1, 1)


def assert_whole(chunks):
    """Every chunk begins where the one before of its episode ended, and has all of its observations."""
    ends = {}
    for chunk in chunks:
        assert ends.setdefault(chunk.id_, 0) == chunk.env_t_started
        ends[chunk.id_] = chunk.env_t
        for part in chunk.agent_episodes.values():
            assert part.get_observations()[:, 2].tolist() == list(range(chunk.env_t_started, chunk.env_t + 1))
            assert part.get_rewards().tolist() == list(range(chunk.env_t_started + 1, chunk.env_t + 1))


class Echo(fastmarl.MultiAgentEnv):
    """Observes its last action. Env 0's first episode is short; env 3 fails once, in its first episode."""

    def __init__(self, config):
        self.index, self.possible_agents, self.episodes = config.vector_index, ["a"], 0
        self.has_failed = config["folder"] / "has failed"
        self.observation_spaces = {"a": gym.spaces.Box(-1, 1000, (1,), np.float32)}
        self.action_spaces = {"a": gym.spaces.Discrete(1000)}

    def reset(self, *, seed=None, options=None):
        self.t, self.episodes = 0, self.episodes + 1
        return {"a": np.float32([-1])}, {}

    def step(self, actions):
        self.t += 1
        if self.index == 3 and self.t == 11 and not self.has_failed.exists():
            self.has_failed.touch()
            raise ValueError("in the midst")
        over = self.t == (4 if self.index == 0 and self.episodes == 1 else 30)
        return {"a": np.float32([actions["a"]])}, {"a": 1.0}, {"a": over, "__all__": over}, {"__all__": False}, {}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_env_that_rests_does_not_begin_in_place_of_one_whose_episode_is_discarded(mode, tmp_path):
    """Other envs of its part may be under way, with actions that were chosen before."""
    runner = make_runner(
        Echo,
        mode=mode,
        num_envs=4,
        worker_num_splits=2,
        num_workers=4,
        env_config={"folder": tmp_path},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        failed_episodes="discard",
    )
    chunks = runner.sample(num_episodes=4)
    assert sorted(map(len, chunks)) == [4, 30, 30, 30]
    for chunk in chunks:
        agent = chunk.agent_episodes["a"]
        np.testing.assert_array_equal(agent.get_actions(), agent.get_observations()[1:, 0])
    runner.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "hang"])
@pytest.mark.parametrize("env_index", [0, 1])
@pytest.mark.parametrize("more", [{}, {"env_batch_size": 1}], ids=str)
def test_a_lost_worker_takes_only_its_own_envs_with_it(tmp_path, kind, env_index, more):
    """It has envs 0 and 1, one in each part; the other part's step is under way, or done, or about to begin."""
    runner = make_runner(
        Trouble,
        num_envs=4,
        num_workers=2,
        worker_num_splits=2,
        env_config={"trouble": {(env_index, 30): kind}, "once": str(tmp_path)},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        step_timeout_s=0.5,
        **more,
    )
    chunks = runner.sample(num_timesteps=240) + runner.sample(num_timesteps=160)
    report = runner.get_metrics()
    runner.stop()
    assert_whole(chunks)
    lost = [chunk for chunk in chunks if chunk.is_truncated and chunk.env_t < 50]
    assert sorted(chunk.get_observations()["a"][0, 0] for chunk in lost) == [0, 1]
    assert {chunk.env_t for chunk in lost if chunk.get_observations()["a"][0, 0] == env_index} == {29}
    assert report["num_env_steps_sampled"] == sum(map(len, chunks)) >= 400
    assert (report["num_env_failures"], report["num_env_restarts"], report["num_env_steps_discarded"]) == (1, 2, 2)


@pytest.mark.slow
def test_a_worker_may_end_while_another_of_its_envs_is_remade(tmp_path):
    """Env 0 raises; before its worker can replace it, env 1 ends the worker."""
    runner = make_runner(
        Trouble,
        num_envs=4,
        num_workers=2,
        worker_num_splits=2,
        env_config={"trouble": {(0, 30): "raise", (1, 30): "kill"}, "once": str(tmp_path)},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
    )
    chunks = runner.sample(num_timesteps=240) + runner.sample(num_timesteps=160)
    report = runner.get_metrics()
    runner.stop()
    assert_whole(chunks)
    assert report["num_env_steps_sampled"] == sum(map(len, chunks)) >= 400
    assert (report["num_env_failures"], report["num_env_restarts"]) == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_error_leaves_no_pending_answers(mode, splits):
    """Answers of workers to earlier steps are not mistaken for answers to later ones."""
    broken = []

    def breaks(*, env_index, episode, **kwargs):
        if episode.env_t == 7 and env_index == 0 and not broken:
            broken.append(env_index)
            raise ZeroDivisionError

    runner = make_runner(
        Trouble, mode=mode, worker_num_splits=splits, callbacks_on_episode_step=breaks, env_worker_start_method="fork"
    )
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=90)
    chunks = runner.sample(num_timesteps=90)
    runner.stop()
    assert_whole(chunks)
    assert [len(chunk) for chunk in chunks] == [30] * 3
    for i, chunk in enumerate(chunks):
        assert chunk.get_observations()["a"].tolist() == [[i, 2, t] for t in range(31)]
    assert not children()


# Those that are ready first.


class Slow(Trouble):
    """Env 0 takes 30 ms for a step, the others none."""

    def step(self, actions):
        if self.config.vector_index == 0:
            time.sleep(0.03)
        return super().step(actions)


def steps_by_env(chunks):
    counts = Counter()
    for chunk in chunks:
        counts[int(chunk.get_observations()["a"][0, 0])] += len(chunk)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("num_splits", [1, 2])
def test_slow_envs_are_not_waited_for(num_splits):
    options = {"num_envs": 6, "num_workers": 6, "env_worker_start_method": "fork", "worker_num_splits": num_splits}
    runner = make_runner(Slow, env_batch_size=2, **options)
    chunks = runner.sample(num_timesteps=600) + runner.sample(num_timesteps=600)
    report = runner.get_metrics()
    runner.stop()
    assert_whole(chunks)
    counts = steps_by_env(chunks)
    assert report["num_env_steps_sampled"] == sum(counts.values()) >= 1200
    assert 0 < counts[0] < 0.5 * max(counts.values())
    assert min(counts.values()) == counts[0]


class AlwaysReady:
    """In place of a worker."""

    def has_answer(self, number):
        return True


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_ready_workers_are_taken_equally_often(batch_size):
    workers = [AlwaysReady() for _ in range(5)]
    for worker in workers:
        worker.env_indices = [0]
    stepping, taken = [Unit(worker, [0]) for _ in range(2) for worker in workers], Counter()
    for _ in range(60):
        now = list(first_ready(stepping, batch_size))
        assert len(now) == batch_size
        stepping += now
        taken.update(map(id, now))
    assert len(taken) == 10
    assert max(taken.values()) - min(taken.values()) <= 1


@pytest.mark.slow
@pytest.mark.needs("mpe2")
def test_episodes_do_not_depend_on_the_order_of_ready_workers():
    def episodes(**options):
        runner = make_runner(
            SPREAD, num_envs=4, num_workers=4, explore=False, env_worker_start_method="fork", **options
        )
        chunks = [chunk for _ in range(4) for chunk in runner.sample(num_timesteps=50)]
        runner.stop()
        by_id = {}
        for chunk in chunks:
            by_id.setdefault(chunk.id_, []).append(chunk.get_observations()["agent_0"].tobytes())
        whole = {chunk.id_ for chunk in chunks if chunk.is_done}
        return {by_id[id_][0][:72]: by_id[id_] for id_ in whole}

    def joined(parts):
        return parts[0] + b"".join(part[72:] for part in parts[1:])

    want, got = episodes(), episodes(env_batch_size=1)
    common = want.keys() & got.keys()
    assert len(common) >= 4
    for first in common:
        assert joined(got[first]) == joined(want[first])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "options"),
    [
        *itertools.product(
            ["raise", "kill", "in a callback", ""], [{}, {"worker_num_splits": 2}, {"env_batch_size": 1}]
        ),
        *itertools.product(
            ["raise", "in a callback", ""], [{"mode": "sync"}, {"mode": "sync", "worker_num_splits": 2}]
        ),
    ],
    ids=str,
)
def test_steps_that_an_error_leaves_unrecorded_are_not_counted(trouble, options):
    steps = Counter()

    def step(*, env_index, **kwargs):
        steps[env_index] += 1
        if trouble == "in a callback" and steps[1] == 7:
            raise ZeroDivisionError

    runner = make_runner(
        Trouble,
        num_envs=5,
        env_config={"trouble": {(1, 7): trouble}},
        callbacks_on_episode_step=step,
        env_worker_start_method="fork",
        **options,
    )
    if trouble:
        with pytest.raises((KeyError, ZeroDivisionError, fastmarl.errors.EnvWorkerError)):
            runner.sample(num_timesteps=500)
        assert 0 < steps[1] <= 7
    else:
        runner.sample(num_timesteps=500)
    assert runner.get_metrics()["num_env_steps_sampled"] == steps.total()
    runner.stop()


@pytest.mark.slow
def test_an_env_that_hangs_is_found_while_others_go_on():
    runner = make_runner(
        Trouble,
        num_envs=4,
        num_workers=4,
        env_batch_size=1,
        env_config={"trouble": {(2, 5): "hang"}},
        step_timeout_s=0.5,
        env_worker_start_method="fork",
    )
    with pytest.raises(fastmarl.errors.EnvTimeoutError, match=r"envs \[2\] did not answer within step_timeout_s=0.5"):
        runner.sample(num_timesteps=10**7)
    runner.stop()


@pytest.mark.needs("vmas")
def test_impossible_options_are_refused():
    with pytest.raises(ConfigError, match="worker_num_splits must be an integer >= 1, got 0"):
        make_runner(Trouble, worker_num_splits=0)
    for size in (0, 4, True, 1.5):
        with pytest.raises(ConfigError, match=f"from 1 to num_envs_per_env_runner=3, got {size}"):
            make_runner(Trouble, env_batch_size=size)
    with pytest.raises(ConfigError, match='set gym_env_vectorize_mode="async"'):
        make_runner(Trouble, env_batch_size=2, mode="sync")
    with pytest.raises(ConfigError, match="worker_num_splits must be 1 for VmasEnv, because its batches share"):
        make_runner("vmas.balance", mode="sync", worker_num_splits=2)
