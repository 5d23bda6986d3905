"""Lifetime counters of a runner, and the part of them that modules receive."""

import collections
import enum

import numpy as np
import pytest
import torch
from support.actors import make_runner

from fastmarl.errors import ConfigError
from fastmarl.modules import RLModule, RLModuleSpec


class Scheduled(RLModule):
    """Remembers the env steps at which it was asked to explore."""

    def setup(self):
        self.layer = torch.nn.Linear(2, 3)
        self.asked_at = []

    def _forward_exploration(self, batch, t, **kwargs):
        self.asked_at.append(t)
        return {"action_dist_inputs": self.layer(batch["obs"])}


def scheduled_runner(**options):
    runner = make_runner(policies={"p": RLModuleSpec(Scheduled)}, num_envs_per_env_runner=2, **options)
    return runner.module["p"], runner


def test_schedules_go_on_from_call_to_call():
    module, runner = scheduled_runner()
    runner.sample(num_timesteps=6)
    runner.sample(num_timesteps=2, random_actions=True)
    runner.sample(num_timesteps=4)
    assert module.asked_at == [0, 2, 4, 8, 10]


def test_a_runner_of_several_takes_its_steps_for_those_of_all():
    module, runner = scheduled_runner(num_env_runners=3)
    runner.sample(num_timesteps=4)
    runner.sample(num_timesteps=4)
    assert module.asked_at == [0, 6, 12, 18]


def test_schedules_go_on_where_a_restored_runner_stood(tmp_path):
    _, runner = scheduled_runner()
    runner.sample(num_timesteps=10)
    runner.save_to_path(tmp_path / "runner")
    module, restored = scheduled_runner()
    restored.restore_from_path(tmp_path / "runner")
    restored.sample(num_timesteps=4)
    assert module.asked_at == [10, 12]


def test_schedules_go_on_after_a_failed_call():
    module, runner = scheduled_runner()
    runner.sample(num_timesteps=4)
    step, runner.env.envs[1].step = runner.env.envs[1].step, lambda actions: 1 / 0
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=4)
    runner.env.envs[1].step = step
    made = runner.get_metrics()["num_env_steps_sampled_lifetime"]
    runner.sample(num_timesteps=2)
    assert module.asked_at[-1] == made


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None])
def test_impossible_numbers_of_runners(number):
    with pytest.raises(ConfigError, match="num_env_runners"):
        make_runner(num_env_runners=number)


def test_all_lifetime_counters_survive_a_checkpoint(tmp_path):
    def logging(**options):
        def log(*, metrics_logger, **kwargs):
            metrics_logger.log_value(("hits", "total"), 2.5, reduce="lifetime_sum")

        return make_runner(callbacks_on_episode_end=log, **options)

    def lifetime(runner):
        report = runner.get_metrics()
        return {key: value for key, value in report.items() if key.endswith("_lifetime") or key == "hits"}

    runner = logging()
    runner.sample(num_timesteps=35)
    runner.save_to_path(tmp_path / "runner")
    wanted = lifetime(runner)
    assert wanted["hits"] == {"total": 7.5}
    restored = logging()
    restored.restore_from_path(tmp_path / "runner")
    assert lifetime(restored) == wanted
    restored.sample(num_timesteps=5)
    assert restored.get_metrics()["num_agent_steps_sampled_lifetime"] == {"a": 40, "b": 40}
    (state,) = (restored.get_state("lifetime_counters")[name] for name in ["lifetime_counters"])
    (*_, last) = state["last_episodes"]
    for wrong in (
        {},
        {**state, "num_episodes": -1},
        {**state, "last_episodes": {}},
        {**state, "last_episodes": [{**last, "duration_s": "1"}]},
        {**state, "last_episodes": [{**last, "agent_returns": {"a": None}}]},
        {**state, "last_episodes": [{**last, "agent_returns": 1.0}]},
        {**state, "last_episodes": [{"env_steps": 1}]},
    ):
        with pytest.raises(ConfigError):
            restored.set_state({"lifetime_counters": wrong})


def test_means_over_episodes_continue_after_a_checkpoint(tmp_path):
    runner, restored = make_runner(), make_runner()
    runner.sample(num_timesteps=35)
    restored.restore_from_path(runner.save_to_path(tmp_path))
    (before, after) = (each.get_metrics() for each in (runner, restored))
    names = [
        name for name in before if name.startswith(("episode_", "agent_episode_", "module_episode_", "agent_steps"))
    ]
    assert len(names) == 10
    assert {name: before[name] for name in names} == {name: after[name] for name in names}
    assert before["episode_len_mean"] > 0


class Team(enum.Enum):
    RED = 1
    BLUE = 2


ODD_IDS = {
    "np.int64": np.arange(2),
    "Enum": list(Team),
    "StrEnum": list(enum.StrEnum("Side", "LEFT RIGHT")),
    "bytes, frozenset": [b"a", frozenset("b")],
    "namedtuple, object": [collections.namedtuple("Named", "team number")("a", 1), object()],
}


@pytest.mark.parametrize("ids", ODD_IDS.values(), ids=ODD_IDS)
def test_any_agent_id_keeps_its_name_in_metrics_after_a_checkpoint(ids, tmp_path):
    runner, restored = (make_runner(env_config={"agents": ids}) for _ in range(2))
    runner.sample(num_episodes=1)
    restored.restore_from_path(runner.save_to_path(tmp_path))
    restored.sample(num_episodes=1)
    metrics = restored.get_metrics()
    for name in ("agent_episode_returns_mean", "agent_steps"):
        assert metrics[name] == {str(agent_id): 10 for agent_id in ids}
    assert metrics["num_agent_steps_sampled_lifetime"] == {str(agent_id): 20 for agent_id in ids}
