"""RLlib's PPO, learning from the runners that are ready first."""

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from types import FunctionType
from typing import Any

from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    NUM_AGENT_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
)

from fastmarl.core.errors import ConfigError

CONNECTORS = [COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR]
TAG = "fastmarl: first ready"
POLL_S = 0.005  # poll timeout; short, because the RLlib method waits for all runners, not just the first

logger = logging.getLogger(__name__)


class FirstReadyPPO(PPO):
    """RLlib's PPO without waiting for the slowest runner.

    ```python
    config = PPOConfig(algo_class=fastmarl.rllib.FirstReadyPPO)
    ```

    In each iteration, RLlib waits until every runner has sampled, so with `batch_mode="complete_episodes"` or slow
    environments, all wait for the longest episode. This class learns as soon as enough steps have arrived; the other
    runners keep sampling, and their episodes are part of a later batch. Results differ from RLlib and from run to run,
    because batches depend on the speed of the runners, and episodes started before an update are off-policy (the PPO
    ratio uses the policy that sampled them).

    Raises:
        ConfigError: On RLlib's old API stack, or if `max_requests_in_flight_per_env_runner` is not 1.
    """

    def setup(self, config: Any) -> None:
        if not config.enable_env_runner_and_connector_v2:
            raise ConfigError("FirstReadyPPO requires RLlib's new API stack; enable it with config.api_stack(...)")
        if config.max_requests_in_flight_per_env_runner != 1:  # queued calls would sample with old weights
            raise ConfigError(f"FirstReadyPPO requires max_requests_in_flight_per_env_runner=1, got "
                              f"{config.max_requests_in_flight_per_env_runner}")  # fmt: skip
        super().setup(config)
        # Otherwise RLlib requests the connector states of all runners and waits for the slowest.
        changed: Any = config.copy(copy_frozen=False)
        changed._dont_auto_sync_env_runner_states = True
        changed.freeze()
        self.config = changed
        self._begun: dict[int, int] = {}  # runner -> index of the training step in which it started sampling
        self._number = 0  # number of training steps in this process

    def training_step(self) -> None:
        """Sample, update, and synchronise the weights and connectors of all runners."""
        states: dict[int, Any] = {}
        self._number += 1
        sample = partial(sample_first_ready, connector_states=states, begun=self._begun, number=self._number)
        _sampling_by(sample, PPO.training_step)(self)
        group = self.env_runner_group
        # Only waiting runners are synced: statistics that the others have gathered since their last update will also be
        # in their next state, and would count twice.
        if states or not group.num_remote_workers():
            _wait_for_weights(group, states, self.config.sync_filters_on_rollout_workers_timeout_s)
        if states or not group.num_remote_workers():
            group.sync_env_runner_states(
                config=self.config,
                env_steps_sampled=self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0),
                connector_states=list(states.values()),
                env_runner_indices_to_update=list(states),
                env_to_module=self.env_to_module_connector,
                module_to_env=self.module_to_env_connector,
            )


def sample_first_ready(
    *,
    worker_set: Any,
    connector_states: dict[int, Any],
    begun: dict[int, int],
    number: int,
    max_agent_steps: int | None = None,
    max_env_steps: int | None = None,
    sample_timeout_s: float | None = None,
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """Replace `synchronous_parallel_sample()` of RLlib, without waiting for all runners.

    Runners that are still sampling when enough steps have arrived continue; a later call returns their samples, which
    use the weights from when they started.

    Args:
        worker_set: EnvRunnerGroup of the algorithm.
        connector_states: Filled with runner -> connector states, for all runners that are idle at the end.
        begun: Runner -> index of the call in which it started sampling; updated in place.
        number: Index of this call.
        max_agent_steps: Minimum number of agent steps to sample, or None to count env steps.
        max_env_steps: Minimum number of env steps to sample.
        sample_timeout_s: Maximum seconds to wait for the next result before returning early, or None for no limit.
        options: Other arguments of the RLlib function, which is called if there are no remote runners.

    Returns:
        (episodes, metrics of each sampled part).
    """
    limits = {"max_agent_steps": max_agent_steps, "max_env_steps": max_env_steps, "sample_timeout_s": sample_timeout_s}
    if worker_set.num_remote_workers() <= 0:
        found: tuple[list[Any], list[Any]] = synchronous_parallel_sample(worker_set=worker_set, **limits, **options)
        return found
    episodes: list[Any] = []
    metrics: list[Any] = []
    n_steps, heard_at = 0, monotonic()
    busy: set[int] = set()
    # Weights queued for a busy runner date from the end of the call in which it started sampling. RLlib sends no newer
    # ones until they arrive, so a runner that started before the previous call would continue with stale weights.
    late = {runner for runner, began in begun.items() if began < number - 1}
    while n_steps < (max_agent_steps or max_env_steps or 1):
        healthy = set(worker_set.healthy_worker_ids())
        busy &= healthy
        idle = healthy - busy
        waiting = late & connector_states.keys()
        for runner in idle if idle == waiting and not busy else idle - waiting:
            if worker_set.foreach_env_runner_async(_sample, tag=TAG, remote_worker_ids=[runner]):  # 0: still sampling
                connector_states.pop(runner, None)
                begun[runner] = number
                late.discard(runner)
            busy.add(runner)
        for runner, (part, of_part, states) in worker_set.fetch_ready_async_reqs(tags=TAG, timeout_seconds=POLL_S):
            busy.discard(runner)
            episodes += part
            metrics.append(of_part)
            connector_states[runner] = states
            n_steps += _agent_steps(of_part) if max_agent_steps else int(of_part.get(NUM_ENV_STEPS_SAMPLED, 0))
            heard_at = monotonic()
        if worker_set.num_healthy_remote_workers() <= 0:
            logger.warning("No healthy EnvRunner is left; RLlib restores failed ones if the config allows it.")
            break
        if sample_timeout_s is not None and monotonic() - heard_at > sample_timeout_s:
            logger.warning("No EnvRunner has finished sampling within sample_timeout_s=%s seconds; increase it, or "
                           "reduce rollout_fragment_length.", sample_timeout_s)  # fmt: skip
            break
    return episodes, metrics


def _wait_for_weights(group: Any, states: dict[int, Any], timeout_s: float) -> None:
    """Wait until the runners in `states` have received the weights; remove runners that time out.

    RLlib sends no new state to a runner while one is pending.
    """
    deadline, runners = monotonic() + timeout_s, set(states)
    while runners.intersection(group.healthy_worker_ids()) and monotonic() < deadline:
        runners -= {runner for runner, _ in group.fetch_ready_async_reqs(tags="set_state", timeout_seconds=POLL_S)}
    for runner in runners:
        del states[runner]


def _sample(runner: Any) -> tuple[list[Any], Any, Any]:
    return runner.sample(), runner.get_metrics(), runner.get_state(components=CONNECTORS)


def _agent_steps(metrics: Any) -> int:
    return sum(int(steps) for steps in metrics[NUM_AGENT_STEPS_SAMPLED].values())


def _sampling_by(sample: Callable[..., Any], training_step: Any) -> Any:
    """Return a copy of the method that calls `sample` instead of `synchronous_parallel_sample()`."""
    names = {**training_step.__globals__, synchronous_parallel_sample.__name__: sample}
    return FunctionType(
        training_step.__code__, names, training_step.__name__, training_step.__defaults__, training_step.__closure__
    )
