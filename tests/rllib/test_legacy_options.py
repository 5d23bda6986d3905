"""Options that RLlib's `RolloutWorker` reads: `fastmarl.legacy` has them, or names the way out."""

import ast
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy as RLlibPolicy
from ray.rllib.connectors import util as of_connectors
from ray.rllib.env import env_runner
from ray.rllib.evaluation import env_runner_v2, rollout_worker, sampler
from ray.rllib.offline import io_context, json_reader
from support.legacy import config_with
from support.legacy_api.faces import LENGTH, Clock, by_agent

from fastmarl.errors import ConfigError
from fastmarl.legacy import JsonReader, RolloutWorker, RolloutWorkerConfig, get_global_worker
from fastmarl.legacy.config import WITHOUT_COUNTERPART

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib's and Gymnasium's own
PAGE = Path(__file__).parents[2] / "docs/old_stack.md"
MODULES = (rollout_worker, sampler, env_runner_v2, env_runner, of_connectors, json_reader, io_context)
FIELDS = vars(PPOConfig()).keys() - {"env", "_is_frozen"}  # the constructor's env_creator makes the env
OTHER_NAMES = {"_train_batch_size_per_learner": "train_batch_size_per_learner"}
COPIES = ("copy", "to_dict", "freeze", "update_from_dict", "deepcopy")
OURS = {option.name for option in fields(RolloutWorkerConfig)}
KINDS = {
    "plain": {},
    "auto": {"rollout_fragment_length": "auto"},
    "a filter and files": {"observation_filter": "MeanStdFilter", "output": "logdir"},
    "whole episodes": {"batch_mode": "complete_episodes"},
    "a mixture": {"input_": {"sampler": 1.0}},
}


class Recorded(PPOConfig):
    """A config that keeps the names of fields that are read, other than to copy it."""

    reads: set[str] | None = None

    def __getattribute__(self, name):
        if name in FIELDS and Recorded.reads is not None and not any(_is_copy(frame) for frame in _callers()):
            Recorded.reads.add(name)
        return super().__getattribute__(name)


def _callers() -> Iterator:
    frame = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _is_copy(frame) -> bool:
    return frame.f_code.co_name in COPIES and frame.f_code.co_filename.endswith(("config.py", "ppo.py", "copy.py"))


def _read_at_runtime(folder, options) -> set[str]:
    config = Recorded().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.environment(Clock).framework("torch").multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_agent)
    config.env_runners(num_env_runners=0, rollout_fragment_length=2 * LENGTH).debugging(seed=1)
    config.training(model={"fcnet_hiddens": [8]}, train_batch_size=40)
    for name, value in options.items():
        setattr(config, name, value)
    try:
        Recorded.reads = found = set()
        worker = rollout_worker.RolloutWorker(env_creator=Clock, config=config, default_policy_class=RLlibPolicy,
                                              log_dir=str(folder))  # fmt: skip
        worker.learn_on_batch(worker.sample())
        worker.compute_gradients(worker.sample())
        worker.get_state(), worker.get_metrics(), worker.stop()
    finally:
        Recorded.reads = None
    return found


def _read_by_source(module: ModuleType) -> Iterator[str]:
    """Yield the names in `config.x`, `config.get("x")`, `config["x"]` and `"x" in config`."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value):
            yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_config(node.func.value):
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_config(node.value):
            yield from [node.slice.value] if isinstance(node.slice, ast.Constant) else []
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and _is_config(node.comparators[0]):
            yield node.left.value


def _is_config(node: ast.AST) -> bool:
    return ast.unparse(node).split(".")[-1] == "config"


def _is_option(name) -> bool:
    method = inspect.isroutine(getattr(AlgorithmConfig, name, None)) if isinstance(name, str) else True
    return not method


@pytest.mark.slow
@pytest.mark.usefixtures("rllib_closes_its_files")
@pytest.mark.parametrize("kind", KINDS)
def test_options_that_rllibs_worker_reads(kind, tmp_path):
    read = {OTHER_NAMES.get(name, name) for name in _read_at_runtime(tmp_path, KINDS[kind])}
    assert len(read) > 35 and read - OURS - WITHOUT_COUNTERPART.keys() == set()


def test_options_in_the_source_of_rllibs_worker():
    """Those of branches that only TensorFlow, GPUs or other environments reach, too."""
    read = {name for module in MODULES for name in _read_by_source(module) if _is_option(name)} - {"is_multi_agent"}
    assert len(read) > 40 and read - OURS - WITHOUT_COUNTERPART.keys() == set()
    assert WITHOUT_COUNTERPART.keys() - read == {"_is_atari", "framework"}  # read by other modules
    assert WITHOUT_COUNTERPART.keys().isdisjoint(OURS)


def test_options_without_counterpart_are_named_at_once_and_on_the_page():
    options = dict.fromkeys(WITHOUT_COUNTERPART)
    with pytest.raises(ConfigError) as caught:
        config_with(**options)
    page = PAGE.read_text(encoding="utf-8")
    for name, way in WITHOUT_COUNTERPART.items():
        assert f"{name} ({way})" in str(caught.value)
        assert re.search(rf"^\| .*`{name}`.* \|.*\|$", page, re.MULTILINE), name
    with pytest.raises(TypeError, match="did you mean 'policies'"):
        config_with(polices=["p0"])
    with pytest.raises(ConfigError, match="got a PPOConfig"):
        RolloutWorker(config=PPOConfig())


def test_fragments_share_the_train_batch_as_rllibs_do():
    for workers, envs, size in ((1, 1, 10), (2, 2, 2000), (4, 3, 2500), (2, 20, 512), (3, 2, 4)):
        sizes = {"num_env_runners": workers, "num_envs_per_env_runner": envs, "train_batch_size": size}
        theirs = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        for name, value in sizes.items():
            setattr(theirs, name, value)
        theirs.rollout_fragment_length = "auto"
        ours = config_with(rollout_fragment_length="auto", **sizes)
        for index in range(1, workers + 1):
            assert ours.get_rollout_fragment_length(index) == theirs.get_rollout_fragment_length(index), sizes


def test_readers_return_a_share_of_the_train_batch(tmp_path):
    with RolloutWorker(config=config_with(output=str(tmp_path), rollout_fragment_length=5)) as worker:
        for _ in range(4):
            worker.sample()
    options = {"policies": {"default_policy", "p1"}, "env_config": {"num_agents": 2}, "train_batch_size": 50}
    theirs = json_reader.JsonReader(str(tmp_path), io_context.IOContext(config={**options, "num_env_runners": 2}))
    with RolloutWorker(config=config_with(train_batch_size=50, num_env_runners=2)) as worker:
        ours = JsonReader(tmp_path, worker.io_context)
        assert ours.batch_size == theirs.batch_size == 25
        assert ours.next().count == theirs.next().count == 30
        theirs.cur_file.close()


def test_the_process_of_a_worker(monkeypatch):
    """Its environment variables and its log level are set as by RLlib's worker, which is the global one."""
    monkeypatch.delenv("OF_LEGACY", raising=False)
    logger = logging.getLogger("fastmarl")
    monkeypatch.setattr(logger, "level", logger.level)
    given = {"extra_python_environs_for_driver": {"OF_LEGACY": 1}, "extra_python_environs_for_worker": {"OF_LEGACY": 2}}
    for index in (0, 1):
        with RolloutWorker(config=config_with(**given, log_level="ERROR"), worker_index=index) as worker:
            assert get_global_worker() is worker
            assert (os.environ["OF_LEGACY"], logger.level) == (str(index + 1), logging.ERROR)
    monkeypatch.delenv("OF_LEGACY")


@pytest.mark.parametrize("option", [
    {"log_level": "LOUD"}, {"train_batch_size": 0}, {"sampler_perf_stats_ema_coef": 2}, {"shuffle_buffer_size": -1},
    {"extra_python_environs_for_driver": ["A"]}, {"extra_python_environs_for_worker": {1: 2}},
], ids=str)  # fmt: skip
def test_invalid_options(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        config_with(**option)
