"""RolloutWorker of RLlib's old API stack, with the fastmarl sampler."""

from typing import Any

from ray.rllib.evaluation.env_runner_v2 import EnvRunnerV2
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.evaluation.sampler import SyncSampler

from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.rllib.old_stack.env_runner import EnvRunner


class RolloutWorker(RLlibWorker):
    """Replaces the RLlib class of the same name; returns the same batches.

    ```python
    config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.env_runners(env_runner_cls=fastmarl.rllib.RolloutWorker)
    ```

    Args:
        arguments: Arguments of the RLlib class.
    """

    def __init__(self, **arguments: Any):
        self._runner: EnvRunner | None = None
        with exits_as_errors():
            super().__init__(**arguments)
        sampler = self.sampler
        if type(sampler) is SyncSampler and type(sampler._env_runner_obj) is EnvRunnerV2:
            self._runner = _in_the_place_of(sampler._env_runner_obj)
            sampler._env_runner_obj = self._runner
            sampler._env_runner = self._runner.run()

    @property
    def slow_path_reasons(self) -> list[str]:
        """Reasons for using RLlib connectors and collectors, as sentence fragments; empty if they are not used."""
        if self._runner is None:
            return ["the worker has no RLlib sampler"]
        reasons = self._runner.slow_path_reasons.items()
        return [f"policy {policy_id!r}: {'; '.join(each)}" for policy_id, each in reasons]

    @property
    def is_accelerated(self) -> bool | None:
        """True if fastmarl samples for all policies; None before the first call of sample()."""
        if self._runner is not None and not self._runner.has_looked:
            return None
        return not self.slow_path_reasons

    @property
    def inference_backends(self) -> dict[str, str]:
        """Policy id -> inference backend; empty before the first call."""
        return {} if self._runner is None else self._runner.backends()

    @exits_as_errors()
    def sample(self, **kwargs: Any) -> Any:
        """Sample a batch like the RLlib method."""
        if self._runner is None:
            return super().sample(**kwargs)
        self._runner.refresh()
        try:
            return super().sample(**kwargs)
        finally:
            self._runner.keep_states()


def _in_the_place_of(theirs: EnvRunnerV2) -> EnvRunner:
    return EnvRunner(
        worker=theirs._worker,
        base_env=theirs._base_env,
        multiple_episodes_in_batch=theirs._multiple_episodes_in_batch,
        callbacks=theirs._callbacks,
        perf_stats=theirs._perf_stats,
        rollout_fragment_length=theirs._rollout_fragment_length,
        count_steps_by=theirs._count_steps_by,
        render=theirs._render,
    )
