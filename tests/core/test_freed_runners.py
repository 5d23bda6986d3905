"""A runner whose name is bound to another one is freed at once, with its workers, files and threads."""

import contextlib
import functools
import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from support.freed import left_behind, uncollected, what_stays
from support.levels import Levels
from support.policy_kinds import Plain

import fastmarl
from fastmarl import connectors

SPREAD = "fastmarl.simple_spread"
ASYNC = {"gym_env_vectorize_mode": "async", "num_env_workers": 1, "env_worker_start_method": "fork"}


class AllEvents(fastmarl.Callbacks):
    def on_episode_created(self, *, episode, **kwargs):
        episode.custom_data["n"] = 1

    def on_episode_start(self, *, metrics_logger, **kwargs):
        metrics_logger.log_value("begun", 1, reduce="sum")

    def on_episode_step(self, *, episode, **kwargs):
        self.reward = episode.get_return()

    def on_episode_end(self, *, episode, prev_episode_chunks, env, **kwargs):
        self.last = episode, prev_episode_chunks, env.num_envs

    def on_sample_end(self, *, samples, **kwargs):
        self.samples = samples


class LooksAround(connectors.EnvToModuleConnector):
    """Looks at the running episode through the runner's surroundings."""

    records = False

    def __call__(self, obs, rows):
        rows.surroundings().episode_of(0)
        return obs


class Painted(Levels):
    render_mode = "rgb_array"

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


class FailsOften(Levels):
    def step(self, actions):
        if self.t == 2:
            raise ValueError("a step that fails")
        return super().step(actions)


def change_modules(runner):
    runner.add_module("second", new_agent_to_module_mapping_fn=lambda agent_id, episode: "second")
    runner.sample(num_timesteps=60)
    runner.remove_module("default_policy")
    runner.sample(num_timesteps=60)


def make_again(runner):
    runner.make_env()
    runner.make_module()
    runner.sample(num_timesteps=10)


def several(*connector_classes):
    return lambda *args: [each() for each in connector_classes]


USES = {
    "arrays": {},
    "arrays in turn": {"worker_num_splits": 2},
    "dicts": {"env": Levels},
    "dicts in turn": {"env": Levels, "worker_num_splits": 2},
    "workers": {"env": Levels, **ASYNC},
    "restarts": {"env": FailsOften, "restart_failed_sub_environments": True},
    "a net": {"policies": {"all": functools.partial(Plain, 18, 5)}},
    "memory": {"model_config": {"use_lstm": True}},
    "callbacks": {"env": Levels, "callbacks_class": [AllEvents, AllEvents]},
    "connectors": {"env_to_module_connector": several(connectors.MeanStdFilter, connectors.FrameStacking, LooksAround)},
    "env states, rewards scaled": {"record_env_state": True, "reward_scale": 0.1},
    "evaluate": {"then": lambda runner: (runner.evaluate(3), fastmarl.evaluate(runner, episodes=2))},
    "run": {"then": lambda runner: next(runner.run())},
    "metrics": {"then": lambda runner: (runner.get_metrics(), runner.metrics.peek("num_episodes"))},
    "state": {"then": lambda runner: runner.set_state(runner.get_state())},
    "policy": {"then": fastmarl.Policy.from_runner},
    "other modules": {"then": change_modules},
    "made again": {"then": make_again},
    "stop": {"then": fastmarl.MultiAgentEnvRunner.stop},
}


def use(then=None, **options):
    if "policies" in options:
        options["policies"] = {module_id: net() for module_id, net in options["policies"].items()}
    options = {"env": SPREAD, "seed": 0, "num_envs_per_env_runner": 2, **options}
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options))
    runner.sample(num_timesteps=60)
    runner.sample(num_timesteps=30)
    if then is not None:
        then(runner)


@pytest.mark.parametrize("options", USES.values(), ids=USES)
def test_a_runner_is_freed_by_reference_counts_alone(options):
    assert not left_behind(functools.partial(use, **options))


@pytest.mark.parametrize("options", [{}, ASYNC, {"worker_num_splits": 2}], ids=["dicts", "workers", "in turn"])
def test_a_runner_whose_call_has_failed_is_freed_too(options):
    def fail():
        runner = fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(env=FailsOften, seed=0, num_envs_per_env_runner=2, **options)
        )
        with contextlib.suppress(ValueError):
            runner.sample(num_timesteps=60)

    assert not left_behind(fail)


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("option", ["output", "record_actions"])
def test_a_runner_that_writes_files_is_freed_too(option, tmp_path):
    assert not left_behind(functools.partial(use, env=Levels, **{option: tmp_path}))


@pytest.mark.needs("imageio_ffmpeg")
def test_a_runner_that_films_is_freed_too(tmp_path):
    film = functools.partial(fastmarl.VideoCallback, tmp_path, lambda number: True)
    assert not left_behind(functools.partial(use, env=Painted, callbacks_class=film))
    assert not list(tmp_path.glob(".*"))  # nor is there anything of a video that was under way


@pytest.mark.needs("pyarrow")
def test_a_name_that_is_bound_again_leaves_no_process_thread_or_file(tmp_path):
    def open_files():
        links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        return sorted(Path(link).suffix for link in links if link.startswith(str(tmp_path)))

    with uncollected():
        threads = threading.active_count()
        runner = fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(env=Levels, num_envs_per_env_runner=2, seed=0, output=tmp_path / "parquet",
                                     record_actions=tmp_path / "actions", callbacks_class=AllEvents, **ASYNC)
        )  # fmt: skip
        runner.sample(num_timesteps=10)
        assert multiprocessing.active_children()
        assert open_files() == [".actions"]
        runner = None
        assert not what_stays(multiprocessing.active_children)
        assert not what_stays(lambda: threading.active_count() > threads)
        assert not open_files()


def test_a_metrics_logger_kept_by_a_callback_may_outlive_its_runner():
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=SPREAD, seed=0))
    runner.sample(num_timesteps=60)
    logger = runner.metrics
    logger.log_value("mine", 3, reduce="sum")
    counts = logger.peek()
    del runner
    assert logger.peek() == counts
    assert logger.peek("mine") == 3 and logger.peek("num_env_steps_sampled") == 60
