"""Advantages and value targets of trajectories, all at once.

Generalised advantage estimation: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
Estimation".
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.core.kernels.returns import gae

VALUES_BOOTSTRAPPED = "values_bootstrapped"


def add_advantages(
    columns: dict[str, Any], length_S: np.ndarray, last_value_S: np.ndarray, config: Mapping[str, Any]
) -> None:
    """Add "advantages" and "value_targets", and with a critic "values_bootstrapped", float32 [n].

    Args:
        columns: "rewards" [n] and, with `use_critic`, "vf_preds" [n]: s trajectories, one after the other.
        length_S: int64 [s], their steps.
        last_value_S: float64 [s], what comes after each trajectory's last step; 0 where it terminated.
        config: "gamma", "lambda", "use_gae", "use_critic", as in RLlib: without GAE the advantages are discounted
            returns, less the values if there is a critic.

    Raises:
        BatchError: GAE without a critic, or values are missing.
    """
    if config["use_gae"] and not config["use_critic"]:
        raise BatchError("use_gae=True needs values, but use_critic=False; set both or none in policy_config")
    rewards = columns[Columns.REWARDS]
    values = _values(columns) if config["use_critic"] else np.zeros(len(rewards))
    is_gae, gamma = config["use_gae"], float(config["gamma"])
    advantages = np.empty(len(rewards))
    baseline, lambda_ = (values, float(config["lambda"])) if is_gae else (np.zeros(len(rewards)), 1.0)
    gae(rewards, baseline, last_value_S, length_S, gamma, lambda_, advantages)
    if is_gae:
        targets = advantages + values
    else:
        targets = advantages if config["use_critic"] else np.zeros(len(rewards))
        advantages = advantages - values
    columns[Columns.ADVANTAGES] = advantages.astype(np.float32)
    columns[Columns.VALUE_TARGETS] = targets.astype(np.float32)
    if config["use_critic"]:
        columns[VALUES_BOOTSTRAPPED] = _next_values(values, length_S, last_value_S)


def _values(columns: Mapping[str, Any]) -> np.ndarray:
    """float64 [n]"""
    if Columns.VF_PREDS not in columns:
        raise BatchError(f"advantages need {Columns.VF_PREDS!r}, which the policy's module does not put out; add it, "
                         f"or set use_critic=False and use_gae=False in policy_config")  # fmt: skip
    return np.asarray(columns[Columns.VF_PREDS], np.float64)


def _next_values(values: np.ndarray, length_S: np.ndarray, last_value_S: np.ndarray) -> np.ndarray:
    """float32 [n]: the value after each step."""
    following = np.empty(len(values), np.float32)
    following[:-1] = values[1:]
    following[np.cumsum(length_S) - 1] = last_value_S
    return following
