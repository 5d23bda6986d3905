"""The standalone runner's report and peeks against those of RLlib's runner, over the same envs and calls."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger as RLlibLogger

import fastmarl

pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-multi-agent-env")

PIECES = "the standalone runner has no such connector pieces, and times all of its connectors as one"
LENGTHS = "how many steps of chunks RLlib's pipeline looks at: here it looks at none"
OWN = "of fastmarl alone"
DIFFERENT = {  # beginning of a key's path -> why one of the two reports has it alone
    "connector_pipeline_timer": "RLlib's timers of resets are at the top by a mistyped argument",
    "timers": "RLlib's timers of resets are at the top by a mistyped argument",
    "env_to_module_connector/timers": PIECES,
    "module_to_env_connector/timers": PIECES,
    "env_to_module_sum_episodes_length_in": LENGTHS,
    "env_to_module_sum_episodes_length_out": LENGTHS,
    "num_env_step_failures": "RLlib's has it after the first failure: keys here don't come and go",
    "unattributed_reward": OWN,
    "num_env_failures": OWN,
    "num_env_timeouts": OWN,
    "num_env_restarts": OWN,
    "num_env_steps_discarded": OWN,
    "stage_time_ms": OWN,
    "mean_env_wait_ms": "a name of RLlib's old stack",
    "mean_inference_ms": "a name of RLlib's old stack",
    "mean_raw_obs_processing_ms": "a name of RLlib's old stack",
    "mean_action_processing_ms": "a name of RLlib's old stack",
}
TIMES = ("sample", "time_between_sampling", "episode_duration_sec_mean")


class Walk(MultiAgentEnv):
    """Agents are rewarded with 1 and 2; an episode has 5 steps."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, (2,), np.float32))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(3))
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: np.zeros(2, np.float32) for agent in "ab"}, {}

    def step(self, actions):
        self.t += 1
        over = self.t == 5
        flags = dict.fromkeys(("a", "b", "__all__"), over)
        return {agent: np.zeros(2, np.float32) for agent in "ab"}, {"a": 1.0, "b": 2.0}, flags, flags, {}


def module_of(agent_id: str, episode: Any, **kwargs: Any) -> str:
    return f"p_{agent_id}"


def make_pair(num_envs: int = 1, **callbacks: Any) -> tuple[Any, Any]:
    config = (
        PPOConfig()
        .environment(Walk)
        .multi_agent(policies={"p_a", "p_b"}, policy_mapping_fn=module_of)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        .callbacks(**callbacks)
        .debugging(seed=1)
    )
    ours = fastmarl.EnvRunnerConfig(
        env=Walk,
        policies={"p_a", "p_b"},
        policy_mapping_fn=module_of,
        num_envs_per_env_runner=num_envs,
        seed=1,
        **{f"callbacks_{event}": function for event, function in callbacks.items()},
    )
    return fastmarl.MultiAgentEnvRunner(ours), RLlibEnvRunner(config=config)


def paths_of(report: Any, prefix: str = "") -> set[str]:
    if not isinstance(report, dict):
        return {prefix[:-1]}
    return {path for name, value in report.items() for path in paths_of(value, f"{prefix}{name}/")}


def begins(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def of_algorithm(*reports: Any) -> dict[str, Any]:
    """Return the report that RLlib's Algorithm would give."""
    root = RLlibLogger(root=True)
    for report in reports:
        root.aggregate([report])
    return root.reduce(compile=True)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_report_has_the_keys_of_rllib_and_their_values(num_envs):
    ours, theirs = make_pair(num_envs)
    for runner in (ours, theirs):
        for n in (12, 9, 8):
            runner.sample(num_timesteps=n * num_envs)
    got, expected = ours.get_metrics(), of_algorithm(theirs.get_metrics())
    alone = paths_of(got) ^ paths_of(expected)
    unexplained = {path for path in alone if not any(begins(path, name) for name in DIFFERENT)}
    assert not unexplained
    assert all(any(begins(path, name) for path in alone) for name in DIFFERENT)
    for path in paths_of(got) & paths_of(expected):
        one, other = got, expected
        for name in path.split("/"):
            one, other = one[name], other[name]
        if path in TIMES or path.endswith("timer"):
            assert one > 0 and other > 0, path
        else:
            assert one == other, path
    ours.stop()


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
