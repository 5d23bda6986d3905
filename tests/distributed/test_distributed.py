"""`EnvRunnerGroup` with runners in this process: what it hands out, and what becomes of runners that are lost."""

import gc
import math
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.differences import assert_same
from support.groups import indices, lose, make_config, make_group, perturb, seeds_of, take, without_ids

import fastmarl
from fastmarl.batches import columns
from fastmarl.checkpoint import load_state, save_state
from fastmarl.connectors import MeanStdFilter, ModuleToEnvConnector
from fastmarl.core.processes.cores import usable_cores
from fastmarl.distributed.calls import Call, CallsInFlight
from fastmarl.distributed.host import HostReport
from fastmarl.distributed.parts import owned
from fastmarl.distributed.runners import RemoteRunner
from fastmarl.errors import ConfigError, EnvRunnerLostError, RunnerBusyError, RunnerStoppedError
from fastmarl.runner.loop.runner_metrics import Counts, Increment

# Calls and references.


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["add", "take", "lose"])), max_size=40), st.data())
def test_calls_in_flight_are_those_of_a_plain_list(operations, data):
    plain, ready = [], set()
    in_flight = CallsInFlight(lambda references, n, timeout_s: [each for each in references if each in ready][:n])
    for number, (runner, operation) in enumerate(operations):
        if operation == "add":
            plain.append(Call(number, runner, "sample", 1.0, f"ref {number}"))
            in_flight.add(plain[-1])
        elif operation == "lose":
            assert in_flight.remove_all_of(runner) == [call for call in plain if call.runner == runner]
            plain = [call for call in plain if call.runner != runner]
        elif plain:
            call = data.draw(st.sampled_from(plain))
            ready.add(call.reference)
            assert in_flight.ready(1.0) == [each for each in plain if each.reference in ready]
            in_flight.remove(call)
            plain.remove(call)
        assert in_flight.calls() == plain
        for other in range(4):
            assert in_flight.count_of(other) == sum(call.runner == other for call in plain)


def test_the_time_of_a_call_starts_when_the_one_before_it_is_taken(monkeypatch):
    now = 0.0
    monkeypatch.setattr("fastmarl.distributed.calls.monotonic", lambda: now)
    in_flight = CallsInFlight(lambda *arguments: [])
    first, second = (Call(number, "runner", "sample", 10.0, number) for number in range(2))
    in_flight.add(first)
    in_flight.add(second)
    now = 8.0
    in_flight.remove(first)
    now = 17.0
    assert in_flight.overdue(is_idle=True) == []
    now = 18.5
    assert in_flight.overdue(is_idle=True) == [second]


def test_many_references_take_few_waits():
    """Whatever waits for them looks at all of them each time."""
    n_waits = 0

    def wait(references, num_returns, timeout_s):
        nonlocal n_waits
        n_waits += 1
        return list(references)[:num_returns] if timeout_s or n_waits > 1 else []

    in_flight = CallsInFlight(wait)
    for number in range(10_000):
        in_flight.add(Call(number, number, "sample", 1.0, object()))
    ready = in_flight.ready(1.0)
    assert [call.number for call in ready] == list(range(10_000))
    for call in ready:
        in_flight.remove(call)
    assert in_flight.ready(1.0) == []
    assert n_waits == 3


# What is handed out.


@pytest.mark.parametrize("n", [0, 1, 3])
def test_parts_equal_batches_of_runners_with_these_indices(n):
    runners = [
        fastmarl.MultiAgentEnvRunner(make_config(worker_index=1 + i, num_env_runners=max(1, n)))
        for i in range(max(1, n))
    ]
    with make_group(n=n) as group:
        for number in range(4):
            parts = group.sample()
            want = [columns(runner.sample()) for runner in runners]
            assert_same([without_ids(part.batch) for part in parts], [*map(without_ids, want)])
            assert indices(parts) == list(range(max(1, n)))
            assert {part.weights_seq_no for part in parts} == {number}
            perturb(group.module)
            assert group.set_weights() == number + 1
            for runner in runners:
                runner.set_weights(group.module.get_state(), weights_seq_no=number + 1)
        report, metrics = group.get_metrics(), [runner.get_metrics() for runner in runners]
    assert (
        report["num_env_steps_sampled"]
        == sum(each["num_env_steps_sampled"] for each in metrics)
        == 18 * 4 * len(runners)
    )
    assert report["num_episodes"] == sum(each["num_episodes"] for each in metrics) > 0
    weights = [each["num_episodes"] for each in metrics]
    mean = np.average([each["episode_return_mean"] for each in metrics], weights=weights)
    assert report["episode_return_mean"] == pytest.approx(mean)
    assert report["weights_seq_no"] == 3


def log_creation(*, metrics_logger, **kwargs):
    for reduce in ("lifetime_sum", "sum", "mean", "max"):
        metrics_logger.log_value(("created", reduce), 2.0, reduce=reduce)
    metrics_logger.log_value(("created", "average"), 2.0)


@pytest.mark.parametrize("n", [0, 1])
def test_values_that_callbacks_log_when_envs_are_made_are_reported(n):
    config = make_config(callbacks_on_environment_created=log_creation)
    with make_group(config, n) as group, fastmarl.MultiAgentEnvRunner(replace(config, worker_index=1)) as runner:
        for _ in range(2):
            group.sample()
            runner.sample()
            created = runner.get_metrics()["created"]
            assert group.get_metrics()["created"] == created
    nothing_new = dict.fromkeys(("sum", "mean", "max"), math.nan)
    assert created == {"lifetime_sum": 2.0, "average": 2.0, **nothing_new}


def test_a_part_has_its_own_metrics():
    with make_group(make_config(rollout_fragment_length=25)) as group:
        part = group.sample()[1]
        assert part.metrics["num_env_steps_sampled"] == part.num_env_steps == 50
        assert part.num_agent_steps == 150 == len(part.batch["default_policy"]["obs"])
        assert part.metrics["num_episodes"] == 2


def test_ready_parts_are_at_most_in_flight_calls_old():
    with make_group() as group:
        taken = Counter()
        for number, part in zip(range(30), group.sample_ready(in_flight=2), strict=False):
            taken[part.runner_index] += 1
            assert number - part.weights_seq_no <= 2 * 3
            group.set_weights()
        assert min(taken.values()) >= 9
        late = group.sample()  # what was under way comes first
        assert len(late) == 5 + 3
        assert [part.weights_seq_no for part in late][-3:] == [30] * 3
        assert group.get_metrics()["num_env_steps_sampled"] == 18 * (30 + 8)


def test_runners_share_the_cores():
    for number, want in ((None, max(1, usable_cores() // 2)), (5, 5)):
        with make_group(make_config(num_threads=number), n=2) as group:
            assert [*group.foreach(lambda runner: runner.config.num_threads).values()] == [want, want]


def test_in_this_process_nothing_is_sampled_ahead():
    with make_group(n=0) as group:
        for number, part in zip(range(4), group.sample_ready(in_flight=5), strict=False):
            assert part.weights_seq_no == number
            group.set_weights()


def test_in_this_process_the_modules_are_a_copy():
    with make_group(n=0) as group:
        before = group.foreach(weights_of)
        perturb(group.module)
        assert_same(group.foreach(weights_of), before)


def weights_of(runner):
    return runner.module.get_state()


def test_other_methods_can_be_called_within_the_loop():
    with make_group(make_config(env_to_module_connector=MeanStdFilter())) as group:
        for number, _ in zip(range(8), group.sample_ready(num_timesteps=4), strict=False):
            if number == 1:
                group.sync_connectors()
            if number == 2:
                group.resize(2)
            if number == 4:
                group.resize(4)
            if number == 5:
                assert len(group.sample(num_timesteps=4)) >= 4
            if number == 6:
                assert group.evaluate(3).num_episodes == 3
        assert group.num_env_runners == 4


def test_make_batch_gets_the_modules_with_the_latest_weights():
    with make_group(make_batch=lambda episodes, module: module.get_state()) as group:
        perturb(group.module)
        group.set_weights()
        for part in group.sample():
            assert_same(part.batch, group.module.get_state())
        assert_same(group.get_weights(), group.module.get_state())


def test_runners_begin_with_the_weights_of_the_module_without_a_seed_too():
    with make_group(make_config(seed=None), make_batch=lambda episodes, module: module.get_state()) as group:
        for part in group.sample():
            assert_same(part.batch, group.module.get_state())


def test_read_only_arrays_are_copied():
    mine, theirs = np.arange(3), np.arange(4)
    theirs.flags.writeable = False
    got = owned({"a": (mine, [theirs]), "b": "text"})
    assert got["a"][0] is mine
    assert got["a"][1][0].flags.writeable
    np.testing.assert_array_equal(got["a"][1][0], theirs)
    assert got["b"] == "text"


class Named(NamedTuple):
    rows: np.ndarray
    n: int


class OfAClass(dict):
    """With something of its own."""

    made_by = None


def test_batches_stay_of_their_classes():
    """Their arrays are copied all the same; and so are those within arrays of objects."""
    theirs = np.arange(4)
    theirs.flags.writeable = False
    objects = np.empty((2, 1), object)
    objects[0, 0], objects[1, 0] = Named(theirs, 3), theirs
    batch = OfAClass(named=Named(theirs, 3), counted=Counter(a=2), ordered=OrderedDict(rows=theirs), objects=objects)
    batch.made_by = "a test"
    got = owned(batch)
    assert [type(value) for value in (got, *got.values())] == [OfAClass, Named, Counter, OrderedDict, np.ndarray]
    assert got.made_by == "a test"
    assert got["counted"] == {"a": 2}
    assert got["objects"].shape == (2, 1)
    assert got["named"].n == got["objects"][0, 0].n == 3
    for array in (got["named"].rows, got["ordered"]["rows"], got["objects"][0, 0].rows, got["objects"][1, 0]):
        assert array.flags.writeable
        np.testing.assert_array_equal(array, theirs)
    assert batch["ordered"]["rows"] is objects[1, 0] is theirs


# Connectors.


def raw_moments(n, lost=()):
    """(count, mean, std) of all that runners with such seeds see, as plain NumPy finds them."""
    seen = []
    for index in range(n):
        config = make_config(num_envs_per_env_runner=1, worker_index=1 + index)
        incarnations = [2, 0] if index not in lost else [1, 1]
        with fastmarl.MultiAgentEnvRunner(config) as runner:
            episodes = runner.sample(num_episodes=incarnations[0], random_actions=True)
        with fastmarl.MultiAgentEnvRunner(replace(config, incarnation=1)) as runner:
            if incarnations[1]:
                episodes += runner.sample(num_episodes=1, random_actions=True)
        for episode in episodes:
            seen += [agent.get_observations() for agent in episode.agent_episodes.values()]
    rows = np.concatenate(seen).astype(np.float64)
    return len(rows), rows.mean(0), rows.std(0, ddof=1)


@pytest.mark.parametrize("lost", [(), (1,)])
def test_merged_filters_are_those_of_one_runner(lost):
    config = make_config(num_envs_per_env_runner=1, env_to_module_connector=MeanStdFilter())
    with make_group(config) as group:
        group.sample(num_episodes=1, random_actions=True)
        for index in lost:
            lose(group, index)
        group.sample(num_episodes=1, random_actions=True)
        group.sync_connectors()
        states = group.foreach(lambda runner: runner.env_to_module.get_state())
        count, mean, std = raw_moments(3, lost)
        for state in states.values():
            (filter_state,) = state["default_policy"].values()
            (found,) = filter_state["stats"]
            assert found["count"] == count
            np.testing.assert_allclose(found["mean"], mean, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(np.sqrt(np.asarray(found["m2"]) / (count - 1)), std, rtol=1e-12)
        group.sync_connectors()  # adds nothing
        assert_same(group.foreach(lambda runner: runner.env_to_module.get_state()), states)


class Counted(ModuleToEnvConnector):
    """Counts actions that were not counted by any runner before."""

    per_agent_state = ()

    def __init__(self):
        self.known = self.own = 0

    def __call__(self, outputs, rows):
        self.own += len(rows)
        return outputs

    def get_state(self):
        return {"known": self.known, "own": self.own}

    def set_state(self, state):
        self.known, self.own = state["known"] + state["own"], 0

    def merge_states(self, states):
        return {"known": states[0]["known"], "own": sum(state["own"] for state in states)}


def test_a_runner_that_is_lost_after_a_synchronisation_has_its_result():
    config = make_config(env_to_module_connector=MeanStdFilter(), module_to_env_connector=Counted())
    with make_group(config) as group:
        group.sample(num_timesteps=40)
        n_actions = 3 * group.get_metrics()["num_env_steps_sampled"]
        group.sync_connectors()
        counted = group.foreach(lambda runner: runner.module_to_env.get_state()["default_policy"]["Counted"])
        assert all(state == {"known": n_actions, "own": 0} for state in counted.values())
        take(group, 4, in_flight=2)
        group.sync_connectors()
        sides = group.foreach(lambda runner: [runner.env_to_module.get_state(), runner.module_to_env.get_state()])
        lose(group, 0)
        lost = group.foreach(lambda runner: [runner.env_to_module.get_state(), runner.module_to_env.get_state()])
        assert_same(lost[0], sides[0])


def test_a_batch_that_comes_late_brings_no_older_state():
    """Its call was made before the connectors were synchronised."""

    def report(name):
        increment = Increment(Counts(), {}, Counter(), [], [])
        return HostReport(None, 0, increment, {"env_to_module_connector": {"of": name}})

    runner = RemoteRunner(0, 0)
    for number, name in ((5, "call 5"), (4, "call 4")):
        runner.keep(report(name), number)
        assert runner.connectors == {"env_to_module_connector": {"of": "call 5"}}
    runner.keep_connectors({"env_to_module_connector": {"of": "all"}}, 8)
    runner.keep(report("call 7"), 7)
    assert runner.connectors == {"env_to_module_connector": {"of": "all"}}


# Sizes, state, evaluation.


def test_resizing_keeps_sampled_parts_and_repeats_no_seed():
    config = make_config(env_to_module_connector=MeanStdFilter())
    with make_group(config, make_batch=seeds_of) as group:
        parts = [next(group.sample_ready(num_episodes=2))]
        group.resize(1)
        parts += group.sample(num_episodes=2)
        assert set(indices(parts)) == {0, 1, 2}
        group.resize(4)
        assert group.num_env_runners == group.num_healthy_env_runners == 4
        counts = group.foreach(lambda runner: runner.env_to_module.get_state()["default_policy"]["MeanStdFilter"])
        assert len({each["base"][0]["count"] for each in counts.values()}) == 1
        parts += group.sample(num_episodes=2)
        assert set(indices(parts[-4:])) == {0, 1, 2, 3}
        seeds = [seed for part in parts for seed in part.batch]
        assert len(seeds) == len(set(seeds))
        assert group.get_metrics()["num_episodes"] == len(seeds)


def test_batches_of_runners_that_leave_may_come_late():
    """As those of other machines do, later than smaller results of later calls."""
    with make_group() as group:
        next(group.sample_ready(in_flight=2))
        group.actors.batches_are_late = 30
        group.resize(1)
        assert len(group.sample()) == 5 + 1


def test_a_new_group_goes_on_where_a_state_was_saved(tmp_path):
    config = make_config(env_to_module_connector=MeanStdFilter())
    with make_group(config) as group:
        group.sample(num_episodes=3)
        group.actor(1).is_alive = False
        while len(group.sample(num_episodes=3)) < 3:
            pass
        perturb(group.module)
        group.set_weights()
        save_state(tmp_path, group.get_state())
        want = [group.sample(num_episodes=2) for _ in range(2)]
        lifetime = group.get_metrics()["num_episodes_lifetime"]
    with make_group(config) as group:
        group.set_state(load_state(tmp_path))
        got = [group.sample(num_episodes=2) for _ in range(2)]
        assert group.get_metrics()["num_episodes_lifetime"] == lifetime
    for one, other in zip(want, got, strict=True):
        assert_same([without_ids(part.batch) for part in one], [without_ids(part.batch) for part in other])
        assert [part.weights_seq_no for part in one] == [part.weights_seq_no for part in other] == [1, 1, 1]


@pytest.mark.parametrize("n", [1, 4])
def test_a_state_is_taken_by_another_number_of_runners(n):
    config = make_config(env_to_module_connector=MeanStdFilter())
    with make_group(config) as group:
        group.sample(num_episodes=3)
        state = group.get_state()
        group.sync_connectors()
        (want,) = group.foreach(lambda r: r.env_to_module.get_state()["default_policy"]["MeanStdFilter"])[0]["stats"]
    with make_group(config, n) as group:
        group.set_weights()
        group.set_state(state)
        for found in group.foreach(lambda r: r.env_to_module.get_state()["default_policy"]["MeanStdFilter"]).values():
            assert found["stats"][0]["count"] == want["count"]
        assert group.weights_seq_no == 2
        assert len(group.sample()) == n


def schedules(group):
    """The env steps of all runners from which each would continue a schedule of exploration."""
    counts = group.foreach(lambda r: r.num_env_steps_sampled_lifetime * r.config.num_env_runners)
    return [counts[index] for index in sorted(counts)]


def test_schedules_of_exploration_go_on_in_runners_that_come_later():
    with make_group() as group:
        group.sample(num_episodes=6)
        before = schedules(group)
        assert min(before) > 0
        group.resize(5)
        assert schedules(group) == before + 2 * [pytest.approx(max(before), abs=5)]
        group.actor(0).is_alive = False
        group.sample(num_episodes=6)
        assert min(schedules(group)) >= min(before)
        state = group.get_state()
    for n in (1, 7):
        with make_group(n=n) as group:
            group.set_state(state)
            assert schedules(group) == n * [pytest.approx(state["num_env_steps_sampled_lifetime"], abs=n)]


@pytest.mark.parametrize("left", [3, 1])
def test_runners_that_come_after_a_state_of_more_runners_repeat_no_seed(left):
    """Also where those runners had left by then."""
    with make_group(make_batch=seeds_of) as group:
        seeds = [seed for part in group.sample(num_episodes=4) for seed in part.batch]
        group.resize(left)
        state = group.get_state()
    with make_group(n=1, make_batch=seeds_of) as group:
        group.set_state(state)
        group.resize(3)
        seeds += [seed for part in group.sample(num_episodes=4) for seed in part.batch]
    assert len(seeds) == len(set(seeds)) >= 18


def test_a_wrong_state_changes_nothing():
    with make_group() as group, make_group(make_config(model_config={"fcnet_hiddens": [5]})) as other:
        before = group.get_state()
        for state in (other.get_state(), {}, {**before, "env_runners": []}, {**before, "weights_seq_no": "1"},
                      {**before, "unused_incarnations": 1}, {**before, "unused_incarnations": [1, "2"]}):  # fmt: skip
            with pytest.raises(ConfigError):
                group.set_state(state)
        assert_same(group.get_state(), before)


@pytest.mark.parametrize("lose", [False, True])
def test_an_evaluation_does_not_depend_on_the_number_of_runners(lose):
    found = []
    for n in (0, 1, 3):
        with make_group(n=n) as group:
            if lose and n == 3:
                group.actor(1).fails_next = True
            found.append(group.evaluate(8))
            assert math.isnan(group.get_metrics()["episode_return_mean"])
    one, *others = found
    for other in others:
        np.testing.assert_allclose(other.returns, one.returns, rtol=1e-6)
        assert other.reset_seeds == one.reset_seeds
        np.testing.assert_array_equal(other.lengths, one.lengths)
        for agent, returns in one.by_agent.items():
            np.testing.assert_allclose(other.by_agent[agent].by_episode, returns.by_episode, rtol=1e-6)


def test_seeds_of_an_evaluation_can_be_given():
    with make_group() as group:
        assert group.evaluate(4, seeds=[5, 6, 7, 8]).reset_seeds == (5, 6, 7, 8)
        assert group.evaluate(1, seeds=[9]).reset_seeds == (9,)


# Options and the end.


@pytest.mark.parametrize(("options", "text"), [
    ({"n": -1}, "num_env_runners must be an integer >= 0, got -1"),
    ({"max_restarts": -2}, "max_restarts must be an integer >= -1"),
    ({"sample_timeout_s": 0}, "sample_timeout_s must be a positive number of seconds"),
    ({"placement_strategy": "PACK"}, r"placement_strategy must be one of \['SPREAD', 'DEFAULT'\], got 'PACK'"),
    ({"make_batch": 3}, "make_batch must be a function"),
])  # fmt: skip
def test_impossible_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        make_group(**options)


@pytest.mark.parametrize(("n", "call", "text"), [
    (0, lambda group: group.resize(2), "can't be resized"),
    (3, lambda group: group.resize(0), "num_env_runners must be an integer >= 1, got 0"),
    (0, lambda group: group.sample_ready(in_flight=0), "in_flight must be an integer >= 1"),
    (0, lambda group: group.set_weights({}), "missing"),
    (0, lambda group: group.set_weights({"default_policy": {}}), "the state does not match this DefaultRLModule"),
    (3, lambda group: group.evaluate(4, seeds=[5, 6, 7]), "expected 4 seeds, one per episode, got 3"),
])  # fmt: skip
def test_impossible_arguments_are_refused(n, call, text):
    with make_group(n=n) as group:
        with pytest.raises(ConfigError, match=text):
            call(group)
        assert group.weights_seq_no == 0


def test_calls_within_a_call_are_refused():
    """As by an env, or `make_batch`; weights are taken all the same."""
    found = []

    def make_batch(episodes, module):
        for call in (group.sample, group.sync_connectors, group.stop, lambda: group.resize(1)):
            with pytest.raises(RunnerBusyError) as caught:
                call()
            found.append(str(caught.value))
        group.set_weights()

    with make_group(n=1, make_batch=make_batch) as group:
        group.sample()
        assert group.weights_seq_no == 1
    methods = [text.partition(" was called within sample()")[0] for text in found]
    assert methods == ["sample()", "sync_connectors()", "stop()", "resize()"]


def test_after_the_end_there_is_one_error():
    with make_group() as group:
        stream = group.sample_ready()
        next(stream)
        actors = group.actors.started
    assert not any(actor.is_alive for actor in actors)
    group.stop()
    for call in (group.sample, group.sample_ready, group.set_weights, group.get_state, group.sync_connectors):
        with pytest.raises(RunnerStoppedError):
            call()
    with pytest.raises(RunnerStoppedError):
        next(stream)
    group.get_metrics()


def test_an_error_in_the_block_ends_all_at_once():
    group = make_group()
    group.actor(0).hangs = True
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError
    assert not any(actor.is_alive for actor in group.actors.started)


def test_a_group_that_is_not_stopped_ends_its_runners():
    group = make_group()
    actors = group.actors.started
    del group
    gc.collect()
    assert not any(actor.is_alive for actor in actors)


def test_losses_can_be_pickled():
    error = pickle.loads(pickle.dumps(EnvRunnerLostError(3, "has ended")))
    assert str(error) == "env runner 3 has ended"


CODE = """
import sys
{before}
import fastmarl
from fastmarl.distributed import EnvRunnerGroup
config = fastmarl.EnvRunnerConfig(env="fastmarl.cart_pole", model_config={{"fcnet_hiddens": [4]}})
{then}
print(sorted({{"ray", "ray.rllib", "ray.tune"}} & set(sys.modules)))
"""


def run(before, then):
    code = CODE.format(before=before, then=then)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_in_this_process_ray_is_not_needed():
    then = """
with EnvRunnerGroup(config, num_env_runners=0) as group:
    group.sample()
try:
    EnvRunnerGroup(config, num_env_runners=1)
except ImportError as error:
    print(error)
del sys.modules["ray"]
"""
    *_, error, loaded = run('sys.modules["ray"] = None', then).splitlines()
    assert "pip install ray " in error
    assert loaded == "[]"


@pytest.mark.slow
@pytest.mark.needs("ray")
def test_of_ray_only_its_core_is_loaded():
    assert run("", "import fastmarl.distributed.ray_actors") == "['ray']"
