"""RLlib's classes under fastmarl's names, for versions of Ray not tested with fastmarl."""

import logging
from typing import Any, ClassVar, Literal

import ray
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker

from fastmarl.core.errors import ConfigError
from fastmarl.rllib.fixes import parse_fixes

TESTED = ("2.58.0", "2.58.1", "2.59.0", "2.60.0")


def untested_ray() -> str | None:
    """Return why the fast path cannot run with the installed version of Ray, or None if it can."""
    if ray.__version__ in TESTED:
        return None
    return f"Ray {ray.__version__} is not one of the versions tested with fastmarl ({', '.join(TESTED)})"


logger = logging.getLogger(__name__)


class MultiAgentEnvRunner(RLlibEnvRunner):
    """The RLlib class with a warning and the attributes of fastmarl.rllib.runner.MultiAgentEnvRunner."""

    fixes: ClassVar[frozenset[str]] = frozenset()
    sampler: ClassVar[str] = "exact"
    is_accelerated: ClassVar[bool] = False
    slow_path_codes: ClassVar[list[str]] = ["untested_ray"]
    inference_backends: ClassVar[dict[str, str]] = {}

    @classmethod
    def options(cls, *, fixes: Any = (), sampler: Literal["exact", "fast"] = "exact") -> type["MultiAgentEnvRunner"]:
        """Return this class, which has no options.

        Raises:
            ConfigError: If corrections were requested.
        """
        if parse_fixes(fixes):
            raise ConfigError(f"can't enable fixes: {untested_ray()}")
        return cls

    def __init__(self, config: Any, **kwargs: Any):
        self.slow_path_reasons = [str(untested_ray())]
        logger.warning("Sampling with RLlib's own class, which is slow: %s.", *self.slow_path_reasons)
        super().__init__(config=config, **kwargs)

    def get_metrics(self) -> Any:
        """Return the RLlib metrics, with runner counts of 0 (accelerated) and 1 (slow path).

        They are merged as maxima, because sums over runners would require RLlib internals.
        """
        self.metrics.log_value("num_accelerated_env_runners", 0, reduce="max")
        self.metrics.log_value(("num_slow_path_env_runners", *self.slow_path_codes), 1, reduce="max")
        return super().get_metrics()


class RolloutWorker(RLlibWorker):
    """The RLlib class with a warning."""

    is_accelerated: ClassVar[bool] = False
    inference_backends: ClassVar[dict[str, str]] = {}

    def __init__(self, **arguments: Any):
        self.slow_path_reasons = [str(untested_ray())]
        logger.warning("Sampling with RLlib's own class, which is slow: %s.", *self.slow_path_reasons)
        super().__init__(**arguments)


class PPOTorchLearner(RLlibLearner):
    """The RLlib class with a warning."""

    @classmethod
    def options(cls, *, update: Literal["exact", "fast"] = "exact") -> type["PPOTorchLearner"]:
        """Return this class, which has no options."""
        return cls

    def build(self) -> None:
        logger.warning("Learning with RLlib's own class, which is slow: %s.", untested_ray())
        super().build()
