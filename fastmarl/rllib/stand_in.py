"""What stands in for fastmarl's runner with versions of Ray that it was not tested with: RLlib's own class."""

import logging
from typing import Any, ClassVar, Literal

from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker

from fastmarl.core.errors import ConfigError
from fastmarl.rllib.fixes import parse_fixes
from fastmarl.rllib.versions import untested_ray

logger = logging.getLogger(__name__)


class MultiAgentEnvRunner(RLlibEnvRunner):
    """RLlib's class, which says so. Attributes as those of fastmarl.rllib.runner.MultiAgentEnvRunner."""

    fixes: ClassVar[frozenset[str]] = frozenset()
    sampler: ClassVar[str] = "exact"
    is_accelerated: ClassVar[bool] = False
    slow_path_codes: ClassVar[list[str]] = ["untested_ray"]
    inference_backends: ClassVar[dict[str, str]] = {}

    @classmethod
    def options(cls, *, fixes: Any = (), sampler: Literal["exact", "fast"] = "exact") -> type["MultiAgentEnvRunner"]:
        """This class: there is nothing to choose.

        Raises:
            ConfigError: corrections are asked for.
        """
        if parse_fixes(fixes):
            raise ConfigError(f"fixes can't be switched on: {untested_ray()}")
        return cls

    def __init__(self, config: Any, **kwargs: Any):
        self.slow_path_reasons = [str(untested_ray())]
        logger.warning("RLlib's own class samples, which is slow: %s.", *self.slow_path_reasons)
        super().__init__(config=config, **kwargs)

    def get_metrics(self) -> Any:
        """See RLlib's method. How many runners there are is not said: that takes internals that may have changed."""
        self.metrics.log_value("num_accelerated_env_runners", 0, reduce="max")
        self.metrics.log_value(("num_slow_path_env_runners", *self.slow_path_codes), 1, reduce="max")
        return super().get_metrics()


class RolloutWorker(RLlibWorker):
    """RLlib's class, which says so."""

    is_accelerated: ClassVar[bool] = False
    inference_backends: ClassVar[dict[str, str]] = {}

    def __init__(self, **arguments: Any):
        self.slow_path_reasons = [str(untested_ray())]
        logger.warning("RLlib's own class samples, which is slow: %s.", *self.slow_path_reasons)
        super().__init__(**arguments)


class PPOTorchLearner(RLlibLearner):
    """RLlib's class, which says so."""

    @classmethod
    def options(cls, *, update: Literal["exact", "fast"] = "exact") -> type["PPOTorchLearner"]:
        """This class: there is nothing to choose."""
        return cls

    def build(self) -> None:
        logger.warning("RLlib's own class learns, which is slow: %s.", untested_ray())
        super().build()
