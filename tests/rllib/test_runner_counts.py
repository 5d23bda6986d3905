"""How many runners are accelerated, in results: counted once each, whatever is reported when, and by RLlib's logger."""

import pathlib
import re
from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from fastmarl.rllib import MultiAgentEnvRunner, stand_in
from fastmarl.rllib.metrics import RunnerCounts
from fastmarl.rllib.sampling.fast_path import CODES

DOCS = pathlib.Path(__file__).parents[2] / "docs"


class Reporter:
    """The logger of one runner, and what it counts."""

    def __init__(self, worker_index: int):
        self.logger = MetricsLogger(root=False)
        self.counts = RunnerCounts(worker_index)

    def report(self, *codes: str) -> dict:
        self.counts.log(self.logger, not codes, set(codes))
        return self.logger.reduce()


class Algorithm:
    """The logger of an Algorithm."""

    def __init__(self) -> None:
        self.logger = MetricsLogger(root=True)

    def take(self, *reports: dict, key: str = "env_runners") -> None:
        self.logger.aggregate([*reports], key=key)

    def result(self, key: str = "env_runners") -> tuple[Any, Any]:
        result = self.logger.reduce(compile=True)[key]
        return result["num_accelerated_env_runners"], result.get("num_slow_path_env_runners")


def test_runners_are_added_up_and_each_is_counted_once() -> None:
    algorithm, (one, two, three) = Algorithm(), (Reporter(i) for i in (1, 2, 3))
    for _ in range(3):  # iterations
        for _ in range(4):  # of several reports
            algorithm.take(one.report(), two.report("vector_env", "module"))
        algorithm.take(three.report("module"), three.report("module"))
        assert algorithm.logger.peek(("env_runners", "num_accelerated_env_runners")) == 1
        assert algorithm.result() == (1, {"vector_env": 1, "module": 2})


def test_the_latest_report_counts() -> None:
    algorithm, one = Algorithm(), Reporter(1)
    algorithm.take(one.report())
    algorithm.take(one.report("connector_piece"))
    assert algorithm.result() == (0, {"connector_piece": 1})
    algorithm.take(one.report())
    assert algorithm.result() == (1, {"connector_piece": 0})


def test_runners_that_no_longer_report_are_not_counted() -> None:
    algorithm, one, two = Algorithm(), Reporter(1), Reporter(2)
    algorithm.take(one.report(), two.report())
    assert algorithm.result()[0] == 2
    algorithm.take(two.report(), Reporter(2).report())  # it was restarted within an iteration
    assert algorithm.result()[0] == 1
    assert algorithm.result()[0] == 1  # no runner has reported since


def test_evaluation_is_counted_apart() -> None:
    algorithm = Algorithm()
    algorithm.take(Reporter(1).report(), Reporter(2).report("module"))
    algorithm.take(Reporter(1).report(), key="evaluation")
    assert algorithm.result() == (1, {"module": 1})
    assert algorithm.result("evaluation") == (1, None)


def test_reports_go_through_loggers_in_between() -> None:
    algorithm, between = Algorithm(), MetricsLogger(root=False)
    for _ in range(2):
        between.aggregate([Reporter(1).report(), Reporter(2).report("module")])
        algorithm.take(between.reduce())
    assert algorithm.result() == (1, {"module": 1})


def test_a_checkpoint_is_restored_without_fastmarl_and_counts_go_on() -> None:
    first = Algorithm()
    first.take(Reporter(1).report(), Reporter(2).report("module"))
    first.result()
    state = first.logger.get_state()
    assert "fastmarl" not in repr(state)
    algorithm = Algorithm()
    algorithm.logger.set_state(state)
    one, two = Reporter(1), Reporter(2)
    for _ in range(3):
        for _ in range(2):
            algorithm.take(one.report(), two.report("module"))
        assert algorithm.result() == (1, {"module": 1})
    algorithm.take(one.report(), two.report())
    assert algorithm.result() == (2, {"module": 0})


# Real runners.


class CountsArguments(ConnectorV2):
    """Counts the arguments that RLlib's loop alone gives it."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        assert len(kwargs) >= 0
        return batch


def make_runner(cls: type = MultiAgentEnvRunner, **env_runners: Any) -> Any:
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies=["p0"], policy_mapping_fn=lambda agent_id, *args, **kwargs: "p0")
        .env_runners(num_env_runners=0, **env_runners)
    )
    return cls(config=config, worker_index=1)


def counts_in(report: dict) -> dict[str, Any]:
    return {
        name: {code: one.peek() for code, one in part.items()} if isinstance(part, dict) else part.peek()
        for name, part in report.items()
        if name.endswith("_env_runners")
    }


@pytest.mark.filterwarnings("ignore")
def test_a_runner_reports_once_it_has_sampled() -> None:
    runner = make_runner(env_to_module_connector=lambda env, spaces, device: CountsArguments(), episodes_to_numpy=False)
    assert counts_in(runner.get_metrics()) == {} and runner.slow_path_codes == []
    runner.sample(num_timesteps=4)
    assert runner.slow_path_codes == ["episodes_to_numpy", "connector_piece"]
    slow = {
        "num_accelerated_env_runners": 0,
        "num_slow_path_env_runners": {"connector_piece": 1, "episodes_to_numpy": 1},
    }
    for _ in range(2):
        assert counts_in(runner.get_metrics()) == slow
    runner._env_to_module.remove(CountsArguments.__name__)
    runner.episodes_to_numpy = True
    runner.sample(num_timesteps=4, force_reset=True)
    assert runner.is_accelerated and runner.slow_path_codes == []
    cured = {
        "num_accelerated_env_runners": 1,
        "num_slow_path_env_runners": {"connector_piece": 0, "episodes_to_numpy": 0},
    }
    assert counts_in(runner.get_metrics()) == cured


@pytest.mark.filterwarnings("ignore")
def test_an_untested_version_is_reported() -> None:
    runner = make_runner(stand_in.MultiAgentEnvRunner)
    for _ in range(2):
        runner.sample(num_timesteps=4)
        found = counts_in(runner.get_metrics())
        assert found == {"num_accelerated_env_runners": 0, "num_slow_path_env_runners": {"untested_ray": 1}}


def test_every_code_is_documented() -> None:
    section = (DOCS / "rllib.md").read_text().partition("| code | RLlib")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*CODES]
