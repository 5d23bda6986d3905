"""Groups whose runners end, hang or raise errors, and groups that are interrupted."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from support.differences import assert_same
from support.fake_actors import FakeGroup
from support.groups import failing_once, indices, lose, make_config, make_group, perturb, sample_on, seeds_of, take
from support.interrupts import in_own_thread, interrupted
from support.trouble import Trouble

from fastmarl.batches import columns
from fastmarl.connectors import MeanStdFilter
from fastmarl.distributed import calls, fleet, sizes
from fastmarl.distributed import group as group_file
from fastmarl.distributed.host import columns_of
from fastmarl.errors import ConfigError, EnvRunnerLostError, RunnerStoppedError

EVERY = int(os.environ.get("FASTMARL_EVERY_NTH_LINE", "29"))


def test_others_deliver_while_a_runner_is_replaced():
    with make_group(make_batch=seeds_of) as group:
        seeds = [seed for part in group.sample(num_episodes=4) for seed in part.batch]
        perturb(group.module)
        group.set_weights()
        group.actor(1).is_alive = False
        parts = group.sample(num_episodes=4)
        assert indices(parts) == [0, 2]
        assert group.num_healthy_env_runners in (2, 3)
        seeds += [seed for part in parts for seed in part.batch]
        parts = group.sample(num_episodes=4)
        while len(parts) < 3:
            parts += group.sample(num_episodes=4)
        assert {part.weights_seq_no for part in parts} == {1}
        seeds += [seed for part in parts for seed in part.batch]
        assert len(seeds) == len(set(seeds)) >= 32
        report = group.get_metrics()
        assert report["num_env_runner_restarts"] == report["num_samples_dropped"] == 1
        assert report["num_episodes"] == len(seeds)


def test_a_batch_that_has_come_survives_its_runner():
    with make_group() as group:
        stream = group.sample_ready(in_flight=1)
        first = next(stream)
        group._fleet.answers(group._fleet.calls.calls())
        for index in range(3):
            group.actor(index).is_alive = False
        others = [next(stream), next(stream)]
        assert sorted(indices([first, *others])) == [0, 1, 2]
        assert next(stream).num_env_steps == 18  # of a runner that was replaced
        report = group.get_metrics()
        assert report["num_env_steps_sampled"] == 4 * 18
        assert report["num_env_runner_restarts"] == 3


def test_a_runner_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(calls, "OVERDUE_CHECKED_EVERY_S", 0.0)
    with make_group(sample_timeout_s=0.2) as group:
        hanging = group.actor(2)
        hanging.hangs = True
        assert indices(group.sample()) == [0, 1]
        assert not hanging.is_alive
        report = group.get_metrics()
        assert report["num_samples_dropped"] == report["num_env_runner_restarts"] == 1
        assert report["num_env_steps_sampled"] == 2 * 18


def test_a_runner_that_has_answered_is_not_ended(monkeypatch):
    """Its batch is on its way from another machine; the learner did not look for it in time."""
    monkeypatch.setattr(calls, "OVERDUE_CHECKED_EVERY_S", 0.0)
    with make_group(n=1, sample_timeout_s=1e-9) as group:
        group.actors.batches_are_late = 30
        assert indices(group.sample()) == [0]
        assert group.get_metrics()["num_env_runner_restarts"] == 0


def test_a_runner_is_not_replaced_for_ever():
    with make_group(max_restarts=2) as group:
        group.actors.born_dead = 5
        group.actor(0).is_alive = False
        with pytest.raises(EnvRunnerLostError, match="env runner 0 has ended: it was killed") as caught:
            sample_on(group)
        assert "max_restarts=2" in caught.value.__notes__[0]
        assert indices(group.sample())[-2:] == [1, 2]  # the others go on
        assert group.num_healthy_env_runners == 2
        for index in (1, 2):
            group.actor(index).is_alive = False
        with pytest.raises(EnvRunnerLostError):
            sample_on(group)
        group.actors.born_dead = 0


def test_without_a_limit_it_is():
    with make_group(n=1, max_restarts=-1) as group:
        group.actors.born_dead = 20
        group.actor(0).is_alive = False
        assert indices(group.sample()) == [0]
        assert group.get_metrics()["num_env_runner_restarts"] == 21


def test_a_runner_that_is_lost_when_the_group_is_made_is_an_error():
    class Stillborn(FakeGroup):
        def _make_actors(self, *args):
            actors = super()._make_actors(*args)
            actors.born_dead = 1
            return actors

    with pytest.raises(EnvRunnerLostError, match="env runner 0 has ended"):
        Stillborn(make_config(), num_env_runners=2)


def test_an_error_names_its_runner_and_parts_of_the_others_are_kept(tmp_path):
    trouble = {"trouble": {(1, 4): "raise"}, "once": str(tmp_path)}  # in the second env of one of the runners
    with make_group(make_config(Trouble, env_config=trouble)) as group:
        with pytest.raises(KeyError, match="lost at 4") as caught:
            group.sample()
        assert "raised by env runner 0 (pid" in caught.value.__notes__[-1]
        parts = group.sample()
        assert indices(parts) == [1, 2, 0, 1, 2]
        assert group.get_metrics()["num_env_steps_sampled"] == sum(part.num_env_steps for part in parts)
        assert group.get_metrics()["num_env_runner_restarts"] == 0


def columns_of_batch(episodes, module):
    return columns(episodes)


def test_an_error_of_make_batch_ends_a_loop_and_another_goes_on():
    with make_group(make_batch=failing_once(ZeroDivisionError, columns_of_batch)) as group:
        with pytest.raises(ZeroDivisionError):
            take(group, 20)
        assert set(indices(take(group, 9))) == {0, 1, 2}


@pytest.mark.parametrize("n", [0, 2])
def test_errors_of_constructors_are_raised(n):
    trouble = {"trouble": {(0, 0): "raise"}, "in": "init"}
    with pytest.raises(KeyError, match="lost at 0"):
        make_group(make_config(Trouble, env_config=trouble), n)


def test_an_error_when_a_runner_is_replaced_comes_once(tmp_path):
    trouble = {"trouble": {(0, 0): "raise"}, "in": "init", "once": str(tmp_path)}
    (tmp_path / "0-0").touch()
    with make_group(make_config(Trouble, env_config=trouble)) as group:
        (tmp_path / "0-0").unlink()
        group.actor(1).is_alive = False
        with pytest.raises(KeyError, match="lost at 0"):
            sample_on(group)
        assert set(indices(group.sample())) == {0, 2}
        group.resize(1)
        group.resize(3)
        assert indices(group.sample())[-3:] == [0, 1, 2]


def test_weights_that_a_runner_could_not_take_are_sent_again(monkeypatch):
    with make_group() as group:
        group.sample()
        group.set_weights()
        with monkeypatch.context() as patch:
            patch.setattr(group.actor(1).host.runner, "set_weights", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                group.sample()
        parts = group.sample()
        assert [(part.runner_index, part.weights_seq_no) for part in parts] == [(0, 1), (2, 1), (0, 1), (1, 1), (2, 1)]


def test_arguments_that_can_not_be_right_are_one_error():
    """Not one of each runner, which the next calls would raise."""
    with make_group() as group:
        for arguments in ({"num_timesteps": 5, "num_episodes": 5}, {"num_timesteps": -1}, {"num_episodes": 1.5}):
            for call in (group.sample, group.sample_ready):
                with pytest.raises(ConfigError, match="num_"):
                    call(**arguments)
        assert indices(group.sample()) == [0, 1, 2]


def test_new_runners_that_fail_leave_no_error_behind(tmp_path):
    trouble = {"trouble": {(0, 0): "raise"}, "in": "init", "once": str(tmp_path)}
    (tmp_path / "0-0").touch()
    with make_group(make_config(Trouble, env_config=trouble), 1) as group:
        group.actors.born_dead = 2
        with pytest.raises(EnvRunnerLostError, match="env runner 1"):
            group.resize(3)
        assert indices(group.sample()) == [0]
        assert group.num_env_runners == 1
        lose(group, 0)
        assert group.foreach(lambda runner: runner.config.num_env_runners) == {0: 1}
        assert not any(actor.is_alive for actor in group.actors.started if actor is not group.actor(0))


def test_data_of_runners_occupies_no_memory_of_the_store():
    """Arrays that can't be written to lie in it."""
    with make_group(make_config(env_to_module_connector=MeanStdFilter()), make_batch=columns_of) as group:
        (part, *_) = group.sample()
        state = group.foreach(connectors_of)[0]
        for data in (part.batch, group._fleet.runners[0].state, group.get_state()["env_runners"], state):
            arrays = list(arrays_in(data))
            assert arrays and all(array.flags.writeable for array in arrays)


def arrays_in(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(each)


# Runners that are lost for good.


def lose_for_good(group, index):
    group.actor(index).is_alive = False
    with pytest.raises(EnvRunnerLostError):
        sample_on(group)


def test_counts_of_a_lost_runner_are_added_once():
    with make_group(make_config(env_to_module_connector=MeanStdFilter()), max_restarts=0) as group:
        group.sample()
        lose_for_good(group, 1)
        for _ in range(3):
            group.sync_connectors()
        counts = group.foreach(count_of_filter)
    assert counts == dict.fromkeys((0, 2), counts[0])
    assert counts[0] == 3 * 60 + 2 * 54  # two envs with three agents: the first call of a runner has the resets, too


def count_of_filter(runner):
    return runner.env_to_module.get_state()["default_policy"]["MeanStdFilter"]["stats"][0]["count"]


def connectors_of(runner):
    return runner.env_to_module.get_state()


@pytest.mark.parametrize("n", [1, 3, 4])
def test_resizing_fills_the_places_of_lost_runners(n):
    config = make_config(env_to_module_connector=MeanStdFilter())
    with make_group(config, make_batch=seeds_of, max_restarts=0) as group:
        seeds = [seed for part in group.sample(num_episodes=4) for seed in part.batch]
        lose_for_good(group, 0)
        seeds += [seed for part in group.sample(num_episodes=4) for seed in part.batch]
        group.resize(n)
        assert group.num_healthy_env_runners == n
        counts = group.foreach(count_of_filter)
        assert counts == dict.fromkeys(range(n), counts[0])
        parts = group.sample(num_episodes=4)
        assert indices(parts) == list(range(n))
        assert not set(seeds).intersection(seed for part in parts for seed in part.batch)
        assert group.foreach(lambda runner: runner.config.num_env_runners)[0] == n


def test_a_runner_in_the_place_of_a_lost_one_may_be_replaced_as_often():
    with make_group(max_restarts=1) as group:
        group.actors.born_dead = 1
        lose_for_good(group, 1)
        group.resize(3)
        lose(group, 1)
        assert group.num_healthy_env_runners == 3


def test_a_place_that_can_not_be_filled_stays_empty():
    with make_group(max_restarts=0) as group:
        lose_for_good(group, 1)
        group.actors.born_dead = 1
        with pytest.raises(EnvRunnerLostError, match="env runner 1"):
            group.resize(3)
        assert indices(group.sample())[-2:] == [0, 2]
        group.resize(3)
        assert indices(group.sample()) == [0, 1, 2]


def test_a_state_with_a_lost_runner_repeats_no_seed():
    with make_group(make_batch=seeds_of, max_restarts=0) as group:
        seeds = [seed for part in group.sample(num_episodes=4) for seed in part.batch]
        lose_for_good(group, 1)
        seeds += [seed for part in group.sample(num_episodes=4) for seed in part.batch]
        state = group.get_state()
    with make_group(make_batch=seeds_of) as group:
        group.set_state(state)
        parts = group.sample(num_episodes=4)
        assert indices(parts) == [0, 1, 2]
        assert not set(seeds).intersection(seed for part in parts for seed in part.batch)


def test_an_older_state_repeats_no_seed_of_a_replacement():
    def seeds_of_a_replacement():
        lose(group, 1)
        return {seed for part in group.sample(num_episodes=4) if part.runner_index == 1 for seed in part.batch}

    with make_group(make_batch=seeds_of) as group:
        state = group.get_state()
        seeds = seeds_of_a_replacement()
        group.set_state(state)
        assert seeds and not seeds & seeds_of_a_replacement()


def test_a_late_batch_leaves_connectors_that_came_after_it():
    with make_group(make_config(env_to_module_connector=MeanStdFilter())) as group:
        next(group.sample_ready())
        group.actors.batches_are_late = 1000
        group.sync_connectors()
        group.actors.batches_are_late = 0
        group._fleet.wait_for_all_of(group._fleet.runners)
        counts = group.foreach(count_of_filter)
        lose(group, 0)
        assert group.foreach(count_of_filter) == counts == dict.fromkeys(range(3), counts[0])


def test_a_state_is_taken_by_a_group_with_a_lost_runner():
    with make_group(n=2) as group:
        state = group.get_state()
    with make_group(max_restarts=0) as group:
        lose_for_good(group, 2)
        group.set_state(state)
        assert indices(group.sample()) == [0, 1]
    with make_group(max_restarts=0) as group:
        lose_for_good(group, 1)
        group.set_state(state)
        assert indices(group.sample()) == [0, 1, 2]


def test_a_state_that_the_runners_can_not_take_changes_nothing():
    with make_group() as group:
        before = group.get_state()
        for of_runner in ({"num_resets": "none"}, {"env_to_module_connector": 3}):
            runners = [*before["env_runners"][:2], {"incarnation": 5, "state": of_runner}]
            with pytest.raises(ConfigError):
                group.set_state({**before, "env_runners": runners})
        assert_same(group.get_state(), before)


# Interrupts.


@in_own_thread
def interrupt_everywhere(file, use, every):
    """Interrupt a loop over a group's parts, one of whose runners ends, at every `every`-th line of the file."""
    for at in range(0, 10_000, every):
        with make_group(n=2, sample_timeout_s=60) as group:
            group.actor(1).is_alive = False
            was_interrupted = interrupted(lambda: use(group), file=file.__file__, at=at)
            group.get_metrics()
            parts = take(group, 8, in_flight=1)
            parts += [part for _ in range(3) for part in group.sample()]
            assert set(indices(parts[-4:])) == {0, 1}
            assert group.get_metrics()["num_env_steps_sampled"] == sum(part.num_env_steps for part in parts)
            assert group.num_healthy_env_runners == 2
        if not was_interrupted:
            return


def sample_thrice(group):
    for _ in range(3):
        group.sample()


def take_some(group):
    take(group, 6)


@pytest.mark.parametrize("use", [sample_thrice, take_some])
@pytest.mark.parametrize("file", [calls, fleet, group_file])
def test_a_group_that_was_interrupted_goes_on(file, use):
    interrupt_everywhere(file, use, every=EVERY)


def leave(group):
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError


@pytest.mark.slow
@pytest.mark.parametrize("end", [FakeGroup.stop, leave])
@pytest.mark.parametrize("file", [calls, sizes])
@in_own_thread
def test_after_an_interrupt_a_group_can_end_at_once(file, end):
    """And ends all of its runners, those that were being made or replaced, too."""
    for at in range(0, 10_000, max(1, EVERY // 7)):
        group = make_group(n=2, sample_timeout_s=60)
        group.actor(1).is_alive = False
        was_interrupted = interrupted(lambda group=group: group.resize(3), file=file.__file__, at=at)
        end(group)
        assert not any(actor.is_alive for actor in group.actors.started)
        if not was_interrupted:
            return


def interrupt(*args):
    raise KeyboardInterrupt


def test_runners_that_were_leaving_at_an_interrupt_are_gone():
    with make_group() as group:
        group.actor(1).host.runner.env.envs[0].close = interrupt
        with pytest.raises(KeyboardInterrupt):
            group.resize(1)
        assert group.num_env_runners == group.num_healthy_env_runners == 1
        assert indices(group.sample()) == [0]
        group.resize(2)
        assert indices(group.sample()) == [0, 1]


def test_runners_that_are_stopping_at_an_interrupt_are_removed(monkeypatch):
    """Some of them have closed their envs then."""
    with make_group() as group:
        methods = []

        def call(runner, method, *args):
            if method == "stop" and runner.index == 2:
                raise KeyboardInterrupt
            methods.append(method)
            return fleet.Fleet.call(group._fleet, runner, method, *args)

        monkeypatch.setattr(group._fleet, "call", call)
        with pytest.raises(KeyboardInterrupt):
            group.resize(1)
        monkeypatch.undo()
        assert methods[-1] == "stop"
        assert indices(group.sample()) == [0]


def test_a_runner_that_was_to_be_replaced_for_a_state_at_an_interrupt_is(monkeypatch):
    with make_group(n=2) as group:
        state = group.get_state()
        state["env_runners"][1]["incarnation"] = 5
        monkeypatch.setattr(group.actors, "kill", interrupt)
        with pytest.raises(KeyboardInterrupt):
            group.set_state(state)
        monkeypatch.undo()
        assert set(indices(group.sample() + group.sample())) == {0, 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("n", [0, 2])
def test_steps_of_a_batch_that_could_not_be_made_are_not_counted(n, error):
    def steps_of(episodes, module):
        return sum(len(episode) for episode in episodes)

    with make_group(n=n, make_batch=failing_once(error, steps_of)) as group:
        with pytest.raises(error):
            group.sample()
        parts = group.sample() + take(group, 4)
        assert [part.batch for part in parts] == [part.num_env_steps for part in parts] == [18] * len(parts)
        assert group.get_metrics()["num_env_steps_sampled"] == 18 * len(parts)


@pytest.mark.parametrize("n", [0, 2])
def test_a_call_that_was_interrupted_keeps_no_runner_from_sampling(n):
    """It is under way still, and takes the one place that a runner has for calls."""
    with make_group(n=n) as group:
        with pytest.raises(KeyboardInterrupt):
            group.foreach(failing_once(KeyboardInterrupt, repr))
        assert set(indices(take(group, 8, in_flight=1))) == set(range(max(1, n)))


def test_a_runner_that_is_synchronised_while_it_is_made_samples():
    with make_group(make_config(env_to_module_connector=MeanStdFilter()), n=2) as group:
        stream = group.sample_ready(in_flight=1)
        next(stream)
        group.actor(1).is_alive = False
        group.foreach(repr)
        group.actor(1).hangs = True
        group.sync_connectors()
        group.actor(1).hangs = False
        assert 1 in indices(next(stream) for _ in range(8))


@pytest.mark.parametrize("n", [0, 2])
def test_weights_begin_no_other_ray(n, monkeypatch):
    """Where the group's own has ended."""
    with make_group(n=n) as group:
        monkeypatch.setattr(type(group.actors), "is_running", False)
        for call in (group.set_weights, group.get_weights, group.sample):
            with pytest.raises(RunnerStoppedError, match="Ray was shut down"):
                call()
        monkeypatch.undo()


def test_weights_of_several_threads_have_a_number_each():
    with make_group(n=1) as group, ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: group.set_weights(), range(64)))
        assert sorted(numbers) == list(range(1, 65))


def test_a_thread_that_sets_weights_does_not_wait_for_another_that_copies_its_own(monkeypatch):
    with make_group(n=1) as group, ThreadPoolExecutor(1) as pool:
        put, numbers = group.actors.put, []

        def put_slowly(value):
            monkeypatch.undo()
            numbers.append(pool.submit(group.set_weights).result(timeout=20))
            return put(value)

        monkeypatch.setattr(group.actors, "put", put_slowly)
        numbers.append(group.set_weights())
        assert numbers == [1, 2]


def test_a_state_has_the_number_of_its_weights(monkeypatch):
    """Another thread may publish newer ones while they are fetched."""
    with make_group(n=1) as group:
        before, fetch = group.get_weights(), group.actors.fetch

        def fetch_slowly(reference):
            fetched = fetch(reference)
            perturb(group.module)
            group.set_weights()
            return fetched

        monkeypatch.setattr(group.actors, "fetch", fetch_slowly)
        state = group.get_state()
        assert state["weights_seq_no"] == 0
        assert_same(state["rl_module"], before)
        assert group.weights_seq_no == 1


def test_envs_of_runners_that_leave_are_closed():
    with make_group() as group:
        envs = [group.actor(index).host.runner.env.envs[0] for index in range(3)]
        closed = []
        for index, env in enumerate(envs):
            env.close = partial(closed.append, index)
        group.resize(1)
        assert closed == [1, 2]
