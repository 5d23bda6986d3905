"""Recorded actions can be replayed, and everything that can't be is refused or reported exactly."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from importlib.metadata import version
from itertools import count
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.exhaustive import further
from support.forked import exit_code_of
from support.full_disk import no_room
from support.interrupts import interrupted
from support.levels import KINDS, Levels, runner_of
from support.process_runners import contents, make_runner
from support.random_cases import number_of_cases
from support.replayed import assert_same_episode, record, whole
from support.wild import ACTIONS

import fastmarl
from fastmarl.cli import main as cli
from fastmarl.core.checkpoint.sealed_json import check_seal, sealed
from fastmarl.core.kernels import fingerprints
from fastmarl.envs.cart_pole import CartPole
from fastmarl.errors import ConfigError, RecordingError, ReplayError
from fastmarl.replays import Recording, Replay, writer
from fastmarl.replays.blocks import HEAD_BYTES, blocks_in
from fastmarl.replays.meta import as_literal, env_config_in
from fastmarl.runner.loop import sampling

WORKERS = {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}
MODES = pytest.mark.parametrize("workers", [{}, pytest.param(WORKERS, marks=pytest.mark.slow)], ids=["sync", "async"])
CASES = number_of_cases(6)
WILD = "support.wild:Wild"


def play(recording, number, **options):
    """The chunks of a replayed episode."""
    with Replay(recording, number, **options) as replay:
        for _ in replay:
            pass
    return replay.chunks


def assert_all_replayed(folder, sampled, **options):
    """Every episode of which there are chunks; returns the recording."""
    recording = Recording(folder)
    left = dict(sampled)
    for recorded in recording:
        (replayed,) = play(recording, recorded.number, **options)
        assert_same_episode(whole(left.pop(recorded.id_)), replayed)
    assert not left
    return recording


def cart_poles(folder, num_envs=3, **options):
    return make_runner("fastmarl.cart_pole", num_envs=num_envs, mode="sync", record_actions=folder, **options)


def by_id(chunks):
    found = {}
    for chunk in chunks:
        found.setdefault(chunk.id_, []).append(chunk)
    return found


# Whatever an env does.


@pytest.mark.slow
@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.sampled_from(list(ACTIONS)),
    respawn=st.booleans(),
    late_rewards=st.sampled_from(["error", "accumulate", "drop"]),
    lookback=st.integers(0, 3),
    keep_float64=st.booleans(),
    seed=st.integers(0, 2**31),
    splits=st.integers(1, 2),
)
def test_wild_episodes_are_replayed(
    actions, respawn, late_rewards, lookback, keep_float64, seed, splits, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("run")
    options = {"respawn": respawn, "late_rewards": late_rewards, "episode_lookback_horizon": lookback, "seed": seed,
               "keep_float64": keep_float64, "worker_num_splits": splits}  # fmt: skip
    sampled = record(folder, WILD, {"actions": actions, "respawn": respawn}, steps=120, **options)
    recording = Recording(folder)
    assert {recorded.id_ for recorded in recording} == set(sampled)
    for recorded in recording:
        chunks = play(recording, recorded.number)  # raises where a fingerprint is another
        assert sum(map(len, chunks)) == recorded.length == sum(map(len, sampled[recorded.id_]))
        if not respawn:
            as_sent = actions in ("many", "multi")
            assert_same_episode(whole(sampled[recorded.id_]), chunks[0], actions=as_sent)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_runners_record(kind, tmp_path):
    with runner_of(kind, record_actions=tmp_path) as runner:
        chunks = [chunk for n in (5, 1, 60, 40) for chunk in runner.sample(num_timesteps=n)]
    assert_all_replayed(tmp_path, by_id(chunks), env=KINDS[kind]["env"])


class NothingToChoose(Levels):
    def __init__(self, config):
        super().__init__(config)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.MultiDiscrete(np.zeros(0, np.int64)))

    def step(self, actions):
        return super().step({agent: action.sum() for agent, action in actions.items()})


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_actions_of_no_numbers_are_recorded(tmp_path):
    assert_all_replayed(tmp_path, record(tmp_path, NothingToChoose, steps=40))


class Blinking(CartPole):
    """Its first agent is not observed in every other step."""

    def step(self, actions, out):
        super().step(actions, out)
        group = out.groups["poles"]
        group.present[:, 0] &= (self._t % 2 == 0) | group.terminated[:, 0]


def test_agents_of_a_batch_that_wait_are_replayed(tmp_path):
    def make(config):
        return Blinking(config.num_envs, num_agents=2)

    sampled = record(tmp_path, make, steps=100)
    waits = [part.env_ts().tolist() for chunks in sampled.values() for part in chunks[0].agent_episodes.values()]
    assert [0, 2, 4] in [env_ts[:3] for env_ts in waits] and [0, 1, 2] in [env_ts[:3] for env_ts in waits]
    assert_all_replayed(tmp_path, sampled, env=make)


class TellsItsContext(Levels):
    """Shows its agents where their env is."""

    def __init__(self, config):
        super().__init__(config)
        self.context = {name: value for name, value in vars(config).items() if name != "num_envs"}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, dict.fromkeys(self.possible_agents, self.context)


@pytest.mark.parametrize("incarnation", [0, 1])
def test_the_env_is_made_with_the_context_of_the_recorded_one(incarnation, tmp_path):
    record(tmp_path, TellsItsContext, steps=40, worker_index=3, num_env_runners=5, incarnation=incarnation)
    recorded = next(each for each in Recording(tmp_path) if each.env_index == 1)
    (replayed,) = play(tmp_path, recorded.number, env=TellsItsContext)
    assert replayed.agent_episodes["a"].get_infos(0) == {
        "worker_index": 3, "vector_index": 1, "remote": False, "num_workers": 5, "recreated_worker": incarnation > 0,
    }  # fmt: skip


# What a difference looks like.


@pytest.mark.parametrize("at", [1, 4, 9])
def test_the_first_step_that_differs_is_named(at, tmp_path):
    record(tmp_path, WILD, {"length": 40}, steps=150, worker_index=3)
    recording = Recording(tmp_path)
    recorded = max(recording, key=lambda episode: episode.length)
    assert recorded.length > 10
    with pytest.raises(ReplayError) as caught:
        play(recording, recorded.number, env_config={"drift_at": at})
    env_index, number, env_t, problem = caught.value.args
    assert (env_index, number, env_t) == (recorded.env_index, recorded.number, at)
    assert "differs from the record" in problem


def test_errors_of_a_differing_replay_name_changed_versions(tmp_path):
    record(tmp_path, WILD, {"length": 40}, steps=50)
    with pytest.raises(ReplayError) as caught:
        play(tmp_path, 0, env_config={"drift_at": 1})
    assert "recorded with" not in str(caught.value)
    [description] = tmp_path.glob("*.json")
    meta = check_seal(json.loads(description.read_text()))
    meta["versions"] |= {"numpy": "1.0", "gone": "2.0"}
    description.write_text(sealed(meta))
    with pytest.raises(
        ReplayError, match=rf"recorded with numpy 1.0 \(here {np.__version__}\), gone 2.0 \(here none\)$"
    ):
        play(tmp_path, 0, env_config={"drift_at": 1})


def test_an_env_that_ends_or_raises_earlier_is_named(tmp_path):
    record(tmp_path, WILD, {"length": 40}, steps=100)
    recorded = max(Recording(tmp_path), key=lambda episode: episode.length)
    with pytest.raises(ReplayError, match=r"env step 6: the env raised KeyError\('lost'\)"):
        play(tmp_path, recorded.number, env_config={"fail_at": 6})
    with pytest.raises(ReplayError):  # other lengths, by other draws
        play(tmp_path, recorded.number, env_config={"length": 4})
    with pytest.raises(RecordingError, match="the env has none of its agents"):
        play(tmp_path, recorded.number, env=Levels)


class Pairs(Levels):
    def __init__(self, config):
        super().__init__(config)
        choices = {"two": gym.spaces.Tuple([gym.spaces.Discrete(3)] * 2), "far": gym.spaces.Box(-1, 1, (), np.float32)}
        self.action_spaces = dict.fromkeys(self.possible_agents, choices[config["kind"]])


@pytest.mark.parametrize("kind", ["two", "far"])
def test_recorded_actions_that_do_not_fit_the_env_are_errors_at_once(kind, tmp_path):
    record(tmp_path, Levels, steps=20)
    with pytest.raises(RecordingError, match=r"action space of agent 'a', .* match the recorded actions, \[\('<i8'"):
        fastmarl.replay(tmp_path, 0, env=Pairs, env_config={"kind": kind})


class Unseeded(Levels):
    """Draws from a generator that no reset reseeds."""

    def reset(self, *, seed=None, options=None):
        return super().reset()


def test_an_env_that_ignores_its_seed_differs_at_the_first_observation(tmp_path):
    record(tmp_path, Unseeded, steps=30)
    with pytest.raises(ReplayError, match="env 0, episode 0, env step 0: agent 'a': its first observation"):
        fastmarl.replay(tmp_path, 0)


class Plain:
    """Has what a runner asks for, and nothing else."""

    def __init__(self, config):
        self._levels = Levels(config)
        self.possible_agents, self.observation_spaces, self.action_spaces = (
            self._levels.possible_agents, self._levels.observation_spaces, self._levels.action_spaces)  # fmt: skip
        self.reset, self.step = self._levels.reset, self._levels.step


@MODES
def test_the_class_is_on_record_of_whatever_is_an_env(workers, tmp_path):
    record(tmp_path / "plain", Plain, steps=20, **workers)
    record(tmp_path / "named", "mpe2.simple_spread_v3", steps=20, **workers)
    assert Recording(tmp_path / "plain")[0].meta["env_class"] == f"{Plain.__module__}.Plain"
    assert Recording(tmp_path / "named")[0].meta["versions"]["mpe2"] == version("mpe2")
    assert fastmarl.replay(tmp_path / "plain", 0, env=Plain).env_t


class Unclosable(Unseeded):
    def close(self):
        raise OSError("can't close")


def test_an_error_in_close_hides_no_other(tmp_path):
    record(tmp_path, Levels, steps=30)
    with pytest.raises(ReplayError, match="its first observation") as caught:
        fastmarl.replay(tmp_path, 0, env=Unclosable)
    assert "close() of the env also raised OSError" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="can't close"), Replay(tmp_path, 0, env=Unclosable):
        pass


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_class_of_a_script_has_no_name_in_processes_that_it_spawns_either(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys
        sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
        import fastmarl
        from support.levels import Levels

        class Own(Levels):
            pass

        def sample():
            config = fastmarl.EnvRunnerConfig(env=Own, record_actions={str(tmp_path / "run")!r})
            with fastmarl.MultiAgentEnvRunner(config) as runner:
                runner.sample(num_timesteps=20)

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=sample)
            process.start()
            process.join()
        """)
    )
    subprocess.run([sys.executable, script], check=True, timeout=120)
    assert Recording(tmp_path / "run")[0].meta["env"] is None
    with pytest.raises(RecordingError, match=r"can't name its env \(__mp_main__.Own\)"):
        fastmarl.replay(tmp_path / "run", 0)


# Failures.


@pytest.mark.parametrize("failed_episodes", ["truncate", "discard"])
@MODES
def test_episodes_of_envs_that_failed_and_were_remade(workers, failed_episodes, tmp_path):
    config = {"fail_at": 9, "length": 30}
    sampled = record(tmp_path, WILD, config, steps=200, restart_failed_sub_environments=True,
                     failed_episodes=failed_episodes, max_restarts=50, **workers)  # fmt: skip
    recording = Recording(tmp_path)
    assert {recorded.id_ for recorded in recording} >= set(sampled)
    ends = {recorded.end for recorded in recording}
    assert "terminated" in ends
    assert ("failed" in ends) == (failed_episodes == "truncate")
    for recorded in recording:
        (replayed,) = play(recording, recorded.number)
        assert len(replayed) == recorded.length <= 9
        assert recorded.length == 8 or recorded.end != "failed"


def test_actions_that_led_to_an_error_are_recorded(tmp_path):
    with pytest.raises(KeyError, match="lost"):
        record(tmp_path, WILD, {"fail_at": 7, "length": 30}, steps=200)
    recording = Recording(tmp_path)
    failed = [recorded for recorded in recording if recorded.length == 6 and recorded.end == "cut"]
    assert failed
    actions = recording.read(failed[-1]).actions
    assert max(actions) == 6  # those that the env has failed upon
    assert len(play(recording, failed[-1].number)[0]) == 6


# Files.


@pytest.mark.slow
def test_a_killed_process_loses_only_its_current_call(tmp_path):
    def sample_until_killed():
        config = fastmarl.EnvRunnerConfig(
            env="support.levels:Levels", record_actions=str(tmp_path), num_envs_per_env_runner=2
        )
        runner = fastmarl.MultiAgentEnvRunner(config)
        for _ in range(3):
            runner.sample(num_timesteps=50)
        runner.env.envs[0].step = lambda actions: os.kill(os.getpid(), signal.SIGKILL)
        runner.sample(num_timesteps=50)

    assert exit_code_of(sample_until_killed) == -signal.SIGKILL
    recording = Recording(tmp_path)
    assert sum(recorded.length for recorded in recording) == 150
    for recorded in recording:
        play(recording, recorded.number, env=Levels)


def test_a_truncated_file_ends_with_its_last_complete_block(tmp_path):
    with runner_of("sync", record_actions=tmp_path / "run") as runner:
        sizes = []
        for _ in range(4):
            runner.sample(num_timesteps=12)
            sizes.append(next((tmp_path / "run").glob("*.actions")).stat().st_size)
    (path,) = (tmp_path / "run").glob("*.actions")
    data = path.read_bytes()
    assert len(data) == sizes[-1]
    for size in [0, 1, sizes[0] - 1, *range(sizes[2], sizes[3] + 1, 37), sizes[3]]:
        path.write_bytes(data[:size])
        n_calls = sum(size >= end for end in sizes)
        recording = Recording(tmp_path / "run")
        assert sum(recorded.length for recorded in recording) == 12 * n_calls
        if n_calls:
            play(recording, len(recording) - 1)


def test_damaged_files_say_so(tmp_path):
    record(tmp_path, WILD, steps=40)
    (path,) = tmp_path.glob("*.actions")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1 if data[-1] else 1]))
    with pytest.raises(RecordingError, match="is damaged: its checksum"):
        play(tmp_path, len(Recording(tmp_path)) - 1)
    path.write_bytes(b"something else altogether, which is long enough")
    with pytest.raises(RecordingError, match=r"expected a block .* at byte 0, got b'some'; to read the blocks before"):
        Recording(tmp_path)
    path.write_bytes(data.replace(b'"env"', b'"eve"', 1))
    with pytest.raises(RecordingError, match="the block at byte 0 is damaged: its checksum does not match"):
        Recording(tmp_path)
    path.write_bytes(data)
    recording = Recording(tmp_path)
    path.rename(tmp_path / "moved")
    with pytest.raises(RecordingError, match=r"can't read .*\.actions in a record of actions: No such file"):
        recording.read(recording[0])
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RecordingError, match=r"can't read .*\.actions in a record of actions: No such file"):
        Recording(tmp_path)
    (tmp_path / "moved").rename(path)
    text = path.with_suffix(".json").read_text()
    for key in json.loads(text):
        path.with_suffix(".json").write_text(text.replace(f'"{key}"', f'"{key}_"', 1))
        with pytest.raises(
            RecordingError, match=r"\.json (is damaged, or was changed by hand|does not describe a record of actions)"
        ):
            Recording(tmp_path)
    for damaged in (b"{", b"[]", text.encode().replace(b"env", b"\xffnv", 1)):
        path.with_suffix(".json").write_bytes(damaged)
        with pytest.raises(RecordingError, match=r"\.json (is damaged|does not describe a record of actions)"):
            Recording(tmp_path)
    path.with_suffix(".json").write_text('{"format": 99, "versions": {"fastmarl": "9.1"}}')
    with pytest.raises(RecordingError, match=r"expected format 4, got 99; read it with fastmarl 9.1, which wrote it"):
        Recording(tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(RecordingError, match="has no description file"):
        Recording(tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RecordingError, match="has no description file"):
        Recording(tmp_path)
    path.unlink()
    with pytest.raises(RecordingError, match="contains no record of actions"):
        Recording(tmp_path)


def test_a_damaged_head_hides_no_blocks_behind_it(tmp_path):
    """A block that seems to go beyond the file's end is no block that was cut off."""
    record(tmp_path, WILD, steps=40)
    (path,) = tmp_path.glob("*.actions")
    data, blocks = path.read_bytes(), [block for block, _ in blocks_in(path)]
    assert len(blocks) > 1
    for at in range(blocks[0].offset, blocks[0].offset + HEAD_BYTES):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :])
        with pytest.raises(RecordingError, match="at byte 0"):
            Recording(tmp_path)
    path.write_bytes(data[: blocks[1].offset + 10])  # this one was
    assert [block.offset for block, _ in blocks_in(path)] == [0]


def test_a_full_disk_is_an_error_and_nothing_else_is_lost(tmp_path, monkeypatch):
    real = os.pwritev

    def full(file, buffers, offset):
        os.pwrite(file, b"".join(buffers)[:50], offset)
        no_room()

    with runner_of("sync", record_actions=tmp_path) as runner:
        first = runner.sample(num_timesteps=30)
        monkeypatch.setattr(os, "pwritev", full)
        for _ in range(2):
            with pytest.raises(RecordingError, match="No space left on device; the next call of sample"):
                runner.sample(num_timesteps=30)
        monkeypatch.setattr(os, "pwritev", real)
        later = runner.sample(num_timesteps=30)
    assert sum(map(len, first)) + sum(map(len, later)) == 90
    assert_all_replayed(tmp_path, by_id([*first, *later]))


def test_a_failed_write_is_retried_when_the_runner_stops(tmp_path, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", no_room)
    for is_full in (False, True):
        runner = runner_of("sync", record_actions=tmp_path / str(is_full))
        with pytest.raises(RecordingError, match="No space left on device"):
            runner.sample(num_timesteps=30)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", no_room if is_full else real)
            with pytest.raises(RecordingError, match="No space left on device") if is_full else nullcontext():
                runner.stop()
        assert sum(recorded.length for recorded in Recording(tmp_path / str(is_full))) == (0 if is_full else 30)


def test_a_disk_that_is_full_at_once_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_room)
        with pytest.raises(RecordingError, match="No space left on device; set record_actions to a writable folder"):
            runner_of("sync", record_actions=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("every", [3, *further([1])])
@pytest.mark.parametrize("module", [sampling, writer])
def test_interrupted_calls_are_on_record(module, every, tmp_path):
    """At one in `every` lines of the module that a call runs: whatever the runner returns can be replayed."""
    for at in count(0, every):
        folder = tmp_path / str(at)
        with runner_of("sync", record_actions=folder) as runner:
            chunks = runner.sample(num_timesteps=20)
            was_interrupted = interrupted(lambda: runner.sample(num_timesteps=20), file=module.__file__, at=at)
            chunks += [*runner.sample(num_timesteps=9), *runner.sample(num_timesteps=9)]
        recording = Recording(folder)
        for id_, parts in by_id(chunks).items():
            (replayed,) = play(recording, id_)
            assert len(replayed) >= sum(map(len, parts))
        if not was_interrupted:
            break
    assert at > 5


def test_runners_share_a_folder(tmp_path):
    sampled = {}
    runners = [runner_of("sync", record_actions=tmp_path, worker_index=i, incarnation=i // 2) for i in (1, 1, 2)]
    for runner in runners * 2:
        for chunk in runner.sample(num_timesteps=40):
            sampled.setdefault(chunk.id_, []).append(chunk)
    for runner in runners:
        runner.stop()
        runner.stop()
    assert len(list(tmp_path.glob("*.actions"))) == 3
    assert_all_replayed(tmp_path, sampled)


# What else runners do.


def test_recording_does_not_change_the_sampled_episodes(tmp_path):
    def sampled(**options):
        with runner_of("sync", **options) as runner:
            chunks = [*runner.sample(num_timesteps=40), *runner.sample(num_episodes=3)]
            return [contents(chunk) for chunk in chunks], runner.get_state("random_state")["random_state"]["numpy"]

    (plain, rng), (recorded, same_rng) = sampled(), sampled(record_actions=tmp_path)
    np.testing.assert_equal(recorded, plain)
    assert rng == same_rng


def test_unseeded_runners_are_seeded_for_the_record_alone(tmp_path):
    folders = tmp_path / "one", tmp_path / "two"
    seeds = []
    for folder in folders:
        with runner_of("sync", seed=None, record_actions=folder) as runner:
            chunks = runner.sample(num_timesteps=40)
        assert_all_replayed(folder, by_id(chunks))
        seeds.append({chunk.reset_seed for chunk in chunks})
    assert not seeds[0] & seeds[1]


def test_evaluations_are_not_on_record(tmp_path):
    with runner_of("sync", record_actions=tmp_path) as runner:
        before = runner.sample(num_timesteps=30)
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        evaluated = runner.evaluate(5)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == size
        after = runner.sample(num_timesteps=30)
    recording = assert_all_replayed(tmp_path, by_id([*before, *after]))
    assert not {episode.id_ for episode in evaluated} & {recorded.id_ for recorded in recording}


def test_running_episodes_go_on_in_another_runner(tmp_path):
    first = cart_poles(tmp_path / "a")
    chunks = first.sample(num_timesteps=21)
    state = first.get_state()
    first.stop()
    same, other = cart_poles(tmp_path / "a"), cart_poles(tmp_path / "b")
    for resumed in (same, other):
        resumed.set_state(state)
    later = same.sample(num_timesteps=150)
    other.sample(num_timesteps=150)
    same.stop()
    other.stop()
    assert_all_replayed(tmp_path / "a", by_id([*chunks, *later]))
    missing = [recorded for recorded in Recording(tmp_path / "b") if recorded.missing]
    assert len(missing) == 3
    with pytest.raises(RecordingError, match="env steps 0 to 7 were not recorded here"):
        play(tmp_path / "b", missing[0].number)


@pytest.mark.parametrize("other_runner", [False, True])
@pytest.mark.parametrize("worker_indices", [(0, 1, 2), (2, 1, 0)])  # files are read in the order of their names
def test_runners_that_go_back_to_a_state_record_each_history(other_runner, worker_indices, tmp_path):
    resumed = cart_poles(tmp_path, worker_index=worker_indices[0])
    begun = resumed.sample(num_timesteps=21)
    state = resumed.get_state()
    del state["random_state"]  # other actions come then
    histories = {}
    for worker_index in worker_indices:
        if worker_index != worker_indices[0]:
            if other_runner:
                resumed.stop()
                resumed = cart_poles(tmp_path, worker_index=worker_index)
            resumed.set_state(state)
        parts = by_id([*begun, *resumed.sample(num_timesteps=12), *resumed.sample(num_timesteps=150)])
        for chunk in begun:
            histories.setdefault(chunk.id_, []).append(whole(parts[chunk.id_]))
    resumed.stop()
    recording = Recording(tmp_path)
    assert [recorded.number for recorded in recording] == list(range(len(recording)))
    assert repr(recording) == f"<Recording of {str(tmp_path)!r}: {len(recording)} episodes>"
    assert len(histories) == 3
    for id_, expected in histories.items():
        found = [recorded for recorded in recording if recorded.id_ == id_]
        assert len(found) == len(expected) == 3
        if worker_indices[0] and other_runner:
            found.reverse()
        for recorded, history in zip(found, expected, strict=True):
            assert_same_episode(history, play(recording, recorded.number)[0])
        with pytest.raises(RecordingError, match=rf"several histories of .* the indices .*{found[0].number}"):
            fastmarl.replay(recording, id_)


def test_a_call_that_failed_in_its_first_step_is_gone_back_on(tmp_path, monkeypatch):
    first = cart_poles(tmp_path)
    chunks = first.sample(num_timesteps=21)
    state = first.get_state()
    first.stop()
    other = cart_poles(tmp_path)
    for _ in range(2):
        other.set_state(state)
        with monkeypatch.context() as patch:
            patch.setattr(CartPole, "step", lambda *args: {}["step"])
            with pytest.raises(KeyError, match="step"):
                other.sample(num_timesteps=30)
    other.set_state(state)
    chunks += other.sample(num_timesteps=30)
    other.stop()
    assert_all_replayed(tmp_path, by_id(chunks))


def test_a_runner_goes_on_from_any_state_on_record(tmp_path):
    """Also from those that lie after what it has just played."""
    with cart_poles(tmp_path, num_envs=1) as runner:

        def play_on(state, n):
            runner.set_state({name: part for name, part in state.items() if name != "random_state"})
            return [*runner.sample(num_timesteps=n)]

        begun = runner.sample(num_timesteps=2)
        early = runner.get_state()
        middle = runner.sample(num_timesteps=6)
        late = runner.get_state()
        middle_too = play_on(early, 3)
        assert not begun[0].is_done and not middle[0].is_done and not middle_too[0].is_done
        end = play_on(late, 200)
    histories = [whole([*begun, *parts]) for parts in ([*middle, end[0]], middle_too)]
    recording = Recording(tmp_path)
    found = [recorded for recorded in recording if recorded.id_ == begun[0].id_]
    for recorded, history in zip(found, histories, strict=True):
        assert_same_episode(history, play(recording, recorded.number)[0])


def test_no_record_continues_from_an_episode_that_has_ended(tmp_path):
    with cart_poles(tmp_path, num_envs=1) as runner:
        parts, states = [], []
        while not parts or not parts[-1].is_done:
            parts += runner.sample(num_timesteps=1)
            states.append({name: part for name, part in runner.get_state().items() if name != "random_state"})
        n = len(parts)
        while n >= len(parts):
            runner.set_state(states[0])
            n = 1 + len(runner.sample(num_timesteps=200)[0])
        runner.set_state(states[n - 1])
        last = runner.sample(num_timesteps=200)[0]
    found = [recorded for recorded in Recording(tmp_path) if recorded.id_ == last.id_]
    replayed = [play(tmp_path, recorded.number)[0] for recorded in found]
    history = whole([*parts[:n], last])
    assert_same_episode(history, next(each for each in replayed if len(each) == len(history)))


def test_modules_of_their_own_connectors_and_scaled_rewards(tmp_path):
    from fastmarl.connectors import MeanStdFilter

    with runner_of("sync", record_actions=tmp_path, env_to_module_connector=MeanStdFilter(), reward_scale=0.1,
                   clip_rewards=0.5) as runner:  # fmt: skip
        chunks = runner.sample(num_timesteps=60)
        runner.add_module("other", new_agent_to_module_mapping_fn=lambda agent, episode: "other")
        later = runner.sample(num_timesteps=60)
    recording = Recording(tmp_path)
    for recorded in recording:
        (replayed,) = play(recording, recorded.number)  # as the env sends and pays
        parts = [chunk for chunk in [*chunks, *later] if chunk.id_ == recorded.id_]
        assert len(replayed) == sum(map(len, parts))
    assert {part.module_id for part in replayed.agent_episodes.values()} == {"other"}


# What can't be recorded, or not be replayed.


class Shared(CartPole):
    seeds_each_episode = False


class Opaque:
    pass


class Alike:
    def __repr__(self):
        return "Alike"


class OpaqueIds(Levels):
    def __init__(self, config):
        super().__init__(config)
        self.possible_agents = [config.get("kind", Opaque)() for _ in range(config.get("n", 1))]
        self.observation_spaces = dict.fromkeys(self.possible_agents, self.observation_spaces["a"])
        self.action_spaces = dict.fromkeys(self.possible_agents, self.action_spaces["a"])


def test_envs_and_ids_that_cannot_be_replayed_are_refused(tmp_path):
    def shared(config):
        return Shared(num_envs=config.num_envs)

    with pytest.raises(ConfigError, match="record_actions requires a seed per episode, but the envs of Shared share"):
        make_runner(shared, mode="sync", record_actions=tmp_path)
    runner = runner_of("sync", env=OpaqueIds, record_actions=tmp_path)
    with pytest.raises(RecordingError, match=r"identifies agents by the repr\(\) of their ids"):
        runner.sample(num_timesteps=5)
    runner.stop()
    runner = runner_of("sync", env=OpaqueIds, env_config={"kind": Alike, "n": 2}, record_actions=tmp_path)
    with pytest.raises(RecordingError, match="two agents of an episode are Alike; give Alike a __repr__"):
        runner.sample(num_timesteps=5)
    runner.stop()
    with runner_of("sync", env=OpaqueIds, env_config={"kind": Alike}, record_actions=tmp_path / "apart") as runner:
        runner.sample(num_timesteps=9)  # in each env, there is one
    assert fastmarl.replay(tmp_path / "apart", 1, env_config={"kind": Alike}).env_t
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="can't write a record of actions to"):
        runner_of("sync", record_actions=tmp_path / "file")
    for wrong in ("", 3, True):
        with pytest.raises(ConfigError, match="record_actions must be"):
            dataclasses.replace(fastmarl.EnvRunnerConfig(env=Levels), record_actions=wrong)


def test_envs_and_options_that_have_no_name_are_to_be_given(tmp_path):
    levels = Levels

    record(tmp_path / "env", lambda config: levels(config), steps=20)
    with pytest.raises(RecordingError, match=r"can't name its env .* pass it again: replay\(..., env="):
        fastmarl.replay(tmp_path / "env", 0)
    assert fastmarl.replay(tmp_path / "env", 0, env=Levels).env_t
    record(tmp_path / "config", Levels, {"what": object()}, steps=20)
    with pytest.raises(RecordingError, match=r"pass it again: replay\(..., env_config="):
        fastmarl.replay(tmp_path / "config", 0)
    assert fastmarl.replay(tmp_path / "config", 0, env_config={"what": object()}).env_t
    record(tmp_path / "literal", Levels, {"map": (1, {2: None})}, steps=20)
    meta = Recording(tmp_path / "literal")[0].meta
    assert meta["env_config"] == "{'map': (1, {2: None})}"
    assert fastmarl.replay(tmp_path / "literal", 0).env_t
    with Replay(tmp_path / "literal", 0) as replay, pytest.raises(RecordingError, match="not been replayed to its end"):
        _ = replay.episode
    for _ in (replay := Replay(tmp_path / "literal", 0)):
        pass
    with pytest.raises(RecordingError, match="only once"):
        next(iter(replay))
    replay.close()
    replay.close()
    for unknown in (999, "no such", -1, 1.0, None, slice(1)):
        with pytest.raises(RecordingError, match="has no episode"):
            fastmarl.replay(tmp_path / "literal", unknown)


class Difficulty(int):
    """Looks like a number, as members of an IntEnum do that have a __repr__() of their own."""


def shrunk():
    """Its repr() begins with another number than that of an equal set."""
    numbers = set(range(100))
    for number in {*range(100)} - {1, 64}:
        numbers.discard(number)
    return numbers


def in_a_circle():
    values = []
    values.append(values)
    return values


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


class Unprintable:
    def __repr__(self):
        raise RuntimeError("it has no repr()")


@pytest.mark.parametrize("value", [
    0, -0.0, 1e300, True, None, "it's", b"x", 1j, [], {1: {"2": (3,)}}, set(), shrunk(), nested(20),
])  # fmt: skip
def test_options_that_are_plain_data_are_recorded(value):
    made = env_config_in({"env_config": as_literal({"value": value})})["value"]
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize("value", [
    Difficulty(3), type("Name", (str,), {})("x"), type("Options", (dict,), {})(x=1), type("Row", (list,), {})([1]),
    {Difficulty(3): 1}, [{Difficulty(3)}], float("nan"), [float("inf")], frozenset(), ..., nested(5000), 10**5000,
    np.float64(1.0), Unprintable(), in_a_circle(),
], ids=count())  # fmt: skip
def test_options_that_a_literal_would_change_are_not_recorded(value):
    assert as_literal({"value": value}) is None


# On the command line.


def test_the_command_lists_and_replays(tmp_path, capsys):
    record(tmp_path / "run", "mpe2.simple_spread_v3", {"max_cycles": 5}, episodes=2)
    assert cli(["replay", str(tmp_path / "run")]) == 0
    listed = capsys.readouterr().out
    assert "mpe2.simple_spread_v3" in listed
    recorded = Recording(tmp_path / "run")[0]
    assert recorded.id_ in listed
    for name in ("0", recorded.id_):
        assert cli(["replay", str(tmp_path / "run"), name]) == 0
        shown = capsys.readouterr().out
        assert "observations, rewards and ends match the record" in shown
        assert f"{fastmarl.replay(tmp_path / 'run', 0).get_return():.6g}" in shown
    assert cli(["replay", str(tmp_path / "run"), "0", "--env-config", '{"max_cycles": 4}']) == 1
    assert "env 0, episode 0, env step 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli(["replay", str(tmp_path / "nothing")])
    assert "does not exist" in capsys.readouterr().err


# Kernels.


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_fingerprints_are_those_of_the_reference(dtype):
    rng = np.random.default_rng(0)
    words = rng.integers(np.iinfo(dtype).max, size=(50, 7), dtype=dtype, endpoint=True)
    keys = fingerprints.word_keys(7)
    sums, prev = np.zeros((2, 50), np.uint64), rng.integers(-1, 50, 50)
    fingerprints.add_words(words, 40, keys, sums[0])
    fingerprints.add_words_numpy(words, 40, keys, sums[1])
    assert (sums[0] == sums[1]).all()
    rewards, order = rng.normal(size=50), rng.permutation(50)[:30]
    prints = np.zeros((2, 30), np.uint32)
    fingerprints.mix(sums[0], prev, rewards, order, prints[0])
    fingerprints.mix_numpy(sums[0], prev, rewards, order, prints[1])
    assert (prints[0] == prints[1]).all()
    body = rng.integers(2**64, size=99, dtype=np.uint64)
    assert int(fingerprints.checksum(body)) == fingerprints.checksum_numpy(body)
    assert fingerprints.checksum(body) != fingerprints.checksum(body[::-1].copy())


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(1, 9)), max_size=30))
@settings(deadline=None)
def test_rows_are_grouped_as_by_the_reference(rows):
    entry = np.array([entry for entry, _ in rows], np.int32)
    env_t = np.cumsum([step for _, step in rows] or [0])[: len(rows)].astype(np.int32)
    found = []
    for group in (fingerprints.group_by_entry, fingerprints.group_by_entry_numpy):
        counts, firsts = np.zeros(5, np.int64), np.zeros(5, np.int32)
        order, steps = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int32)
        k, most = group(entry, env_t, counts, firsts, order, steps)
        found.append((k, most, counts.tolist(), firsts[counts > 0].tolist(), order[:k].tolist(), steps[:k].tolist()))
    assert found[0] == found[1]


def test_envs_of_changed_options_have_a_file_of_their_own(tmp_path):
    options = {"env_config": {"length": 5}, "record_actions": tmp_path, "seed": 0}
    config = fastmarl.EnvRunnerConfig(env=Levels, rollout_fragment_length=12, **options)
    chunks = []
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for change in ({}, {}, {"env_config": {"length": 3}}, {"keep_float64": True}, {"num_envs_per_env_runner": 2}):
            runner.config = dataclasses.replace(runner.config, **change)
            runner.make_env()
            runner.make_module()
            chunks += runner.sample()
    metas = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*.json"))]
    assert [(meta["env_config"], meta["keep_float64"], meta["num_envs"]) for meta in metas] == [
        ("{'length': 5}", False, 1),
        ("{'length': 3}", False, 1),
        ("{'length': 3}", True, 1),
        ("{'length': 3}", True, 2),
    ]
    assert_all_replayed(tmp_path, by_id(chunks))
