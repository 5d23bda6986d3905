"""Peeks and logged values of the standalone runner against RLlib's; for whole reports, see the table of the API."""

from typing import Any

import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger as RLlibLogger
from support.rllib_api.pairs import MAKERS
from support.rllib_api.reports import report_of

pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env")

OWN = {  # keys of fastmarl alone
    "unattributed_reward",
    "num_env_step_failures",  # RLlib's has it after the first failure: keys here don't come and go
    "num_env_failures",
    "num_env_timeouts",
    "num_env_restarts",
    "num_env_steps_discarded",
    "stage_time_ms",
    "mean_env_wait_ms",
    "mean_inference_ms",
    "mean_raw_obs_processing_ms",
    "mean_action_processing_ms",
}


def make_pair(num_envs: int = 1, **callbacks: Any) -> tuple[Any, Any]:
    fields = {f"callbacks_{event}": function for event, function in callbacks.items()}
    return tuple(make(num_envs_per_env_runner=num_envs, **fields) for make in MAKERS.values())


def test_keys_that_rllib_does_not_have():
    ours, theirs = ({path.split("/")[0] for path in report_of(face)} for face in MAKERS)
    assert ours - theirs == OWN


@pytest.mark.parametrize(
    ("event", "num_envs"),
    [
        # With more envs, RLlib begins an episode within the next step of the others, which it has counted by then.
        ("on_episode_created", 1),
        ("on_episode_start", 1),
        ("on_episode_step", 1),
        ("on_episode_step", 2),
        ("on_episode_end", 1),
        ("on_episode_end", 2),
        ("on_sample_end", 3),
    ],
)
def test_callbacks_peek_the_counts_of_rllib(event, num_envs):
    seen: list[list[Any]] = [[], []]
    names = ("num_env_steps_sampled", "num_agent_steps_sampled", "num_module_steps_sampled", "num_episodes")
    keys = [name + life for name in names for life in ("", "_lifetime")]
    if num_envs > 1 and event != "on_sample_end":
        keys = keys[:-2]  # here an env is stepped after the callbacks of those before it

    def look(*, metrics_logger, **kwargs):
        found = [metrics_logger.peek(key, default=0) for key in keys]
        seen[isinstance(metrics_logger, RLlibLogger)].append([_without_nothing(each) for each in found])

    ours, theirs = make_pair(num_envs, **{event: look})
    for runner in (ours, theirs):
        for n in (7, 13, 5):
            runner.sample(num_timesteps=n * num_envs)
    n_calls = [len(side) for side in seen]
    assert max(n_calls) - min(n_calls) <= (event in ("on_episode_created", "on_episode_start"))  # at the last end
    assert seen[0][: min(n_calls)] == seen[1][: min(n_calls)] != []
    ours.stop()


def _without_nothing(value: Any) -> Any:
    """Counts without those of 0: RLlib has no others of agents that have not acted."""
    return {name: each for name, each in value.items() if each} or 0 if isinstance(value, dict) else value


def test_callbacks_of_rllib_log_as_in_rllib():
    def log(*, episode, metrics_logger, **kwargs):
        for key, options in (
            ("x", {}),
            ("window", {"window": 2}),
            (("a", "b"), {"reduce": "sum"}),
            (("a", "lifetime"), {"reduce": "lifetime_sum"}),
            ("percentiles", {"reduce": "percentiles", "window": 10}),
            ("item", {"reduce": "item"}),
            ("series", {"reduce": "item_series", "window": 2}),
        ):
            metrics_logger.log_value(key, episode.env_t + metrics_logger.peek("num_episodes"), **options)

    ours, theirs = make_pair(on_episode_end=log)
    reports = [[], []]
    for side, runner in enumerate((ours, theirs)):
        for n in (12, 13, 5):
            runner.sample(num_timesteps=n)
            reports[side].append(runner.get_metrics())
    root = RLlibLogger(root=True)
    for one, other in zip(*reports, strict=True):
        root.aggregate([other])
        expected = root.reduce(compile=True)
        for name in ("x", "window", "a", "percentiles", "item", "series"):
            assert one[name] == pytest.approx(expected[name], nan_ok=True), name
    ours.stop()
