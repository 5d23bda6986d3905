"""Check whether fastmarl can accelerate an AlgorithmConfig; if not, report how to change the config."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

import fastmarl.rllib
from fastmarl.core.errors import ConfigError, shown
from fastmarl.rllib.sampling.fast_path import CODES, Reason
from fastmarl.rllib.stand_in import untested_ray

HOW_TO_SET = "config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)"


@dataclass(frozen=True, kw_only=True)
class ConfigReport:
    """The result of `check_config()`.

    Attributes:
        is_accelerated: True if fastmarl would sample, not the RLlib loop.
        reasons: Reasons for falling back to the RLlib loop; empty if `is_accelerated`.
        is_set: True if the config's `env_runner_cls` is the fastmarl class or a subclass.
    """

    is_accelerated: bool
    reasons: tuple[Reason, ...]
    is_set: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-serializable dict."""
        reasons = [{"code": code, "reason": text, "what_to_change": CODES[code]} for code, text in self.reasons]
        return {"is_accelerated": self.is_accelerated, "is_set": self.is_set, "reasons": reasons}

    def __str__(self) -> str:
        lines = ["accelerated: fastmarl samples with this config"]
        if not self.is_accelerated:
            lines = ["not accelerated: RLlib's own loop samples with this config"]
        for code, text in self.reasons:
            lines += [f"- {text} [{code}]", f"  {CODES[code]}"]
        if not self.is_set:
            lines.append(f"env_runner_cls is not fastmarl's, but was checked as if it were. To set it: {HOW_TO_SET}")
        return "\n".join(lines)


def check_config(config: Any) -> ConfigReport:
    """Build an env runner from a config in this process, as a worker would, and check whether it is accelerated.

    Args:
        config: An AlgorithmConfig; it is not modified. Its envs and module are built once. Only the RLlib env check
            steps the envs, unless the config disables it.

    Raises:
        ConfigError: If `config` is not an AlgorithmConfig, is not multi-agent, or its env runner cannot be built.
    """
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"expected an AlgorithmConfig, got {shown(config)}")
    checked = config.copy(copy_frozen=False)
    ours, found = fastmarl.rllib.MultiAgentEnvRunner, checked.env_runner_cls
    is_set = isinstance(found, type) and issubclass(found, ours)
    if not is_set:
        checked.env_runners(env_runner_cls=ours)
    with _quiet():
        runner = _built(checked)
        try:
            reasons = _reasons(runner)
        finally:
            runner.stop()
    return ConfigReport(is_accelerated=not reasons, reasons=tuple(reasons), is_set=is_set)


def _built(config: AlgorithmConfig) -> Any:
    """Build a local runner with envs, which normally only remote runners have."""
    if not config.is_multi_agent:
        raise ConfigError("expected a multi-agent config; set policies with config.multi_agent(policies=...)")
    config.env_runners(num_env_runners=0)
    try:
        config.validate()
        config.freeze()
        return config.env_runner_cls(config=config, worker_index=0)
    except Exception as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"can't build the config's env runner: {type(error).__name__}: {text:.300}") from error


def _reasons(runner: Any) -> list[Reason]:
    if (text := untested_ray()) is not None:
        return [Reason("untested_ray", text)]
    from fastmarl.rllib.runner import MultiAgentEnvRunner
    from fastmarl.rllib.sampling.fast_path import slow_path_reasons
    from fastmarl.rllib.sampling.internals import Internals

    return slow_path_reasons(Internals(runner), MultiAgentEnvRunner)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the logs and warnings of Ray and Gymnasium while a runner is built."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
