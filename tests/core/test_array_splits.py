"""Batches of envs that take turns: one steps in another thread, while another's actions are chosen."""

import pickle
import threading
from contextvars import ContextVar
from itertools import count
from queue import SimpleQueue

import gymnasium as gym
import numpy as np
import pytest
from support.batched import Batched
from support.differences import assert_same
from support.exhaustive import further
from support.interrupts import in_own_thread, interrupted
from support.process_runners import contents
from support.rooms import Echo, Rooms, make_runner, rooms
from support.teams import TEAMS

import fastmarl
from fastmarl.connectors import FrameStacking, PrevActionsPrevRewards
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.vector.arrays import vector
from fastmarl.errors import ConfigError, EnvCheckError, RewardError

CALLS = (1, 7, 20, 50)  # env steps of each env
SPREAD = "mpe2.simple_spread_v3"


def sampled(env, num_envs, calls=CALLS, **options):
    """Return the contents of all sampled chunks."""
    options = {"model_config": {"fcnet_hiddens": [16]}, "seed": 0, **options}
    config = fastmarl.EnvRunnerConfig(env=env, num_envs_per_env_runner=num_envs, **options)
    runner = fastmarl.MultiAgentEnvRunner(config)
    chunks = [contents(chunk) for n in calls for chunk in runner.sample(num_timesteps=num_envs * n)]
    runner.stop()
    return chunks


def background_threads():
    """Return the background threads that are still alive."""
    threads = [thread for thread in threading.enumerate() if thread.name == "fastmarl-steps"]
    for thread in threads:
        thread.join(0.05)
    return [thread for thread in threads if thread.is_alive()]


def spreads(context):
    """A batch of PettingZoo's, stepped one by one."""
    return Batched([as_multi_agent_env(env_creator(SPREAD)(context)) for _ in range(context.num_envs)], AGENTS)


AGENTS = ["agent_0", "agent_1", "agent_2"]


def by_course(chunks):
    """Sorted by what happened in them, and without what a forward pass rounds in another way in another batch."""
    for chunk in chunks:
        for part in chunk["agents"].values():
            del part["extra"]
    # Protocol 5 writes in another way what belongs to another array, so equal arrays may differ in it.
    return sorted(chunks, key=lambda chunk: pickle.dumps(chunk["agents"], protocol=4))


# For a policy whose actions depend upon observations alone, and calls in which all envs make as many steps:


@pytest.mark.parametrize(
    "kind", ["simple_tag", "connect_four", *further(["cart_pole", "simple_spread", "gridworld", "lbforaging", "rware"])]
)
def test_episodes_are_the_same_with_and_without_splits(kind):
    options = {"explore": False, **(TEAMS if kind == "simple_tag" else {})}
    want = by_course(sampled(f"fastmarl.{kind}", 6, **options))
    assert len(want) >= 4 * 6
    for num_splits in (2, 4):
        assert_same(by_course(sampled(f"fastmarl.{kind}", 6, worker_num_splits=num_splits, **options)), want)


OPTIONS = {
    "native": {},
    "recurrent": {"model_config": {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]}},
    "torch": {"native_inference": False},
    "connectors": {"env_to_module_connector": [PrevActionsPrevRewards(), FrameStacking(2)]},
}


@pytest.mark.needs("mpe2")
@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_that_of_single_envs(name):
    options = {"explore": False, **OPTIONS[name]}
    want = by_course(sampled(SPREAD, 5, **options))
    for num_splits in (2, 5) if name == "native" else (5,):
        assert_same(by_course(sampled(spreads, 5, worker_num_splits=num_splits, **options)), want)


def test_samples_are_reproducible():
    for seed in (0, 1):
        first, second = (sampled("fastmarl.gridworld", 5, worker_num_splits=2, seed=seed) for _ in range(2))
        assert_same(first, second)


class Meeting(Rooms):
    """A step ends when a policy acts that has begun to after it, or after a while."""

    def __init__(self, config):
        super().__init__(config.num_envs)
        self.stepping, self.acting, self.met = (config[name] for name in ("stepping", "acting", "met"))

    def step(self, actions, out):
        self.acting.clear()
        self.stepping.set()
        self.met.append(self.acting.wait(0.5))
        self.stepping.clear()
        super().step(actions, out)


class Acting(Echo):
    """Acts when there is a step under way, or after a while."""

    def __init__(self, meeting):
        super().__init__()
        self.meeting = meeting

    def forward(self, batch):
        self.meeting["stepping"].wait(0.5)
        self.meeting["acting"].set()
        return super().forward(batch)


@pytest.mark.slow
def test_one_batch_steps_while_another_s_actions_are_chosen():
    meeting = {"stepping": threading.Event(), "acting": threading.Event(), "met": []}
    runner = make_runner(4, Meeting, env_config=meeting, policies={"p": Acting(meeting)}, worker_num_splits=2)
    runner.sample(num_timesteps=4 * 20)
    assert len(meeting["met"]) == 40
    assert meeting["met"].count(True) >= 36
    runner.stop()


def test_callbacks_and_states_are_those_of_each_env_and_parts_take_turns():
    seen = []

    def note_step(*, episode, env_index, **kwargs):
        seen.append((env_index, episode.env_t, episode.agent_episodes["a"].get_observations(-1).tolist()))

    runner = make_runner(5, worker_num_splits=2, callbacks_on_episode_step=note_step, record_env_state=True)
    chunks = runner.sample(num_timesteps=5 * 8)
    assert [env_index for env_index, _, _ in seen] == [0, 2, 4, 1, 3] * 8
    lengths = [3, 3, 4, 4, 5]  # Rooms: 3 and the index in its batch
    for env_index, length in enumerate(lengths):
        times = [t for i, t, _ in seen if i == env_index]
        assert times == [t % length + 1 for t in range(8)]
    assert all(obs == [t] * 2 for _, t, obs in seen)
    for chunk in chunks:
        t = np.arange(len(chunk) + 1)
        np.testing.assert_array_equal(chunk.get_env_states(), np.stack([t, 100 + t], 1))


@pytest.mark.slow
def test_there_is_a_thread_while_something_is_stepped_only():
    n_threads = []

    def note(**kwargs):
        n_threads.append(len(background_threads()))

    runner = make_runner(4, worker_num_splits=2, callbacks_on_episode_step=note)
    for _ in range(2):
        runner.sample(num_timesteps=4 * 10)
        assert not background_threads()
        assert n_threads[: 2 * 19] == [1] * 2 * 19  # all but those of the last batch
        n_threads.clear()


def test_an_error_says_where_and_loses_running_episodes_alone():
    def fail_once(of_part):
        if (of_part.part, of_part.n_steps) == (1, 5):
            raise ZeroDivisionError("no such wall")

    runner = make_runner(6, rooms(before=fail_once), worker_num_splits=2)
    with pytest.raises(ZeroDivisionError, match="no such wall") as caught:
        runner.sample(num_timesteps=6 * 20)
    assert "fastmarl: raised by step() of the batch of the envs [1, 3, 5]" in caught.value.__notes__
    assert not background_threads()
    assert runner.get_metrics()["num_env_steps_sampled"] == 3 * 5 + 3 * 4
    chunks = runner.sample(num_timesteps=6 * 4)
    assert sorted(len(chunk) for chunk in chunks if chunk.is_done)[:3] == [3, 3, 3]  # finished before the error
    assert runner.get_metrics()["num_env_steps_sampled"] == 6 * 4
    runner.stop()


@pytest.mark.parametrize("nth", [3, 4, 39])
def test_an_interrupt_of_the_wait_leaves_a_runner_that_goes_on(monkeypatch, nth):
    """Also one that comes when the wait is over, before anybody knows."""

    class Interrupted(SimpleQueue):
        n_waits = 0

        def get(self):
            result = super().get()
            if threading.current_thread() is threading.main_thread():
                Interrupted.n_waits += 1
                if Interrupted.n_waits == nth:
                    raise KeyboardInterrupt
            return result

    monkeypatch.setattr(vector, "SimpleQueue", Interrupted)
    runner = make_runner(6, worker_num_splits=2)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=6 * 20)
    assert not background_threads()
    assert runner.get_metrics()["num_env_steps_sampled"] == 3 * (nth - 1)
    runner.sample(num_timesteps=6 * 4)
    assert runner.get_metrics()["num_env_steps_sampled"] == 6 * 4
    runner.stop()


def test_a_second_interrupt_is_no_harm(monkeypatch):
    """It ends the wait for the step that is under way, for which the next call waits."""
    waits, under_way = [], threading.Event()

    class Slow(Rooms):
        busy = False

        def step(self, actions, out):
            assert not self.busy
            self.busy = True
            if len(waits) == 2:
                under_way.wait(5)
            super().step(actions, out)
            self.busy = False

        def reset(self, env_indices, out, *, seeds=None):
            assert not self.busy
            super().reset(env_indices, out, seeds=seeds)

    class Interrupted(SimpleQueue):
        def get(self):
            if threading.current_thread() is threading.main_thread():
                waits.append(self)
                if len(waits) == 2:
                    raise KeyboardInterrupt
            return super().get()

    class Impatient(threading.Event):
        def wait(self, timeout=None):
            if len(waits) == 2:
                waits.append(self)
                threading.Timer(0.2, under_way.set).start()
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(vector, "SimpleQueue", Interrupted)
    monkeypatch.setattr(vector, "Event", Impatient)
    runner = make_runner(4, lambda config: Slow(config.num_envs), worker_num_splits=2)
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=4 * 20)
    assert len(waits) == 3
    runner.get_metrics()
    runner.sample(num_timesteps=4 * 4)
    assert runner.get_metrics()["num_env_steps_sampled"] == 4 * 4
    assert not background_threads()
    runner.stop()


@in_own_thread
def test_an_interrupt_while_a_thread_starts_leaves_no_thread():
    for at in count():
        steps = vector.BackgroundSteps()
        was_interrupted = interrupted(lambda: steps.begin(int), file=vector.__file__, at=at)  # noqa: B023
        steps.end()
        assert not background_threads()
        if not was_interrupted:
            assert at > 5
            return


def test_the_first_error_is_raised_and_that_of_the_other_batch_is_dropped():
    def fail(of_part):
        if of_part.n_steps == 5:
            raise (ZeroDivisionError, SystemExit)[of_part.part]

    runner = make_runner(6, rooms(before=fail), worker_num_splits=2)
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=6 * 20)
    assert not background_threads()
    assert runner.get_metrics()["num_env_steps_sampled"] == 6 * 4
    runner.sample(num_timesteps=6 * 4)
    assert runner.get_metrics()["num_env_steps_sampled"] == 6 * 4
    runner.stop()


def test_steps_see_the_context_of_the_call():
    place, seen = ContextVar("place", default="nowhere"), []

    look = rooms(before=lambda of_part: seen.append((place.get(), np.geterr()["over"])))
    runner = make_runner(2, look, worker_num_splits=2)
    for name, over in (("here", "raise"), ("there", "ignore")):
        place.set(name)
        with np.errstate(over=over):
            runner.sample(num_timesteps=2 * 3)
    assert seen == [("here", "raise")] * 6 + [("there", "ignore")] * 6


def test_bad_rewards_are_located():
    def spoil(of_part, out):
        if of_part.part == 1 and of_part.t[1] == 2:
            out.groups["near"].rewards[1, 1] = np.nan

    with pytest.raises(RewardError, match=r"env 3, agent 'b', env step 2.*finite reward, got nan"):
        make_runner(4, rooms(after=spoil), worker_num_splits=2).sample(num_timesteps=60)


def test_infos_and_absent_agents_are_those_of_their_env():
    def tell(of_part, out):
        for e in range(of_part.num_envs):
            out.infos.append((e, "c", {"env": of_part.part + 2 * e}))
        out.groups["near"].present[1, 1] = of_part.t[1] != 2  # b of the batch's second env

    numbers = {}

    def note(*, episode, env_index, **kwargs):
        numbers[episode.id_] = env_index

    runner = make_runner(4, rooms(after=tell), worker_num_splits=2, callbacks_on_episode_created=note)
    for chunk in runner.sample(num_timesteps=4 * 3):
        env_index = numbers[chunk.id_]
        infos = chunk.agent_episodes["c"].get_infos()
        assert [info["env"] for info in infos[1:]] == [env_index] * 3
        assert len(chunk.agent_episodes["b"]) == (2 if env_index >= 2 else 3)


def test_a_batch_of_one_env_has_no_parts_and_many_parts_have_an_env_each():
    for num_envs, num_splits, sizes in [(1, 1, [1]), (3, 3, [1, 1, 1]), (5, 2, [3, 2])]:
        runner = make_runner(num_envs, worker_num_splits=num_splits)
        assert [batch.num_envs for batch in runner.env.envs] == sizes
        runner.sample(num_timesteps=10)
        runner.stop()
        assert all(batch.closed for batch in runner.env.envs)


def test_parts_that_do_not_fit_are_refused():
    made = []

    class Other(Rooms):
        def __init__(self, config):
            super().__init__(config.num_envs)
            made.append(self)
            if len(made) == 3:
                self.action_spaces["c"] = gym.spaces.Discrete(7)

    with pytest.raises(EnvCheckError, match="different agents or spaces in a batch of 2 envs than in one of 4"):
        make_runner(4, Other, worker_num_splits=2)
    assert [batch.closed for batch in made] == [True] * 3
    with pytest.raises(ConfigError, match=r"a batch of 2 envs .*, got Rooms with 4"):
        make_runner(4, lambda config: Rooms(4), worker_num_splits=2)
