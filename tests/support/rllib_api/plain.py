"""Answers of RLlib's classes and of ours in a form in which they can be compared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

OF_ONE = ("id_", "t", "t_started", "is_terminated", "is_truncated", "agent_id", "module_id", "multi_agent_episode_id")
OF_MANY = ("id_", "env_t", "env_t_started", "is_terminated", "is_truncated")
BUFFERS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")


def plain(value: Any) -> Any:
    """Lists, dicts and numbers, whatever classes they were of; an episode as a dict of what is in it."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if hasattr(value, "policy_batches"):
        return plain(value.policy_batches)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items() if key != "eps_id"}  # random in RLlib's batches
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "agent_episodes"):
        made = plain({name: getattr(value, name) for name in (*OF_MANY, "agent_episodes")})
        for part in made["agent_episodes"].values():
            del part["id_"]  # random, where none was given
        return made
    if hasattr(value, "multi_agent_episode_id"):
        return plain({name: getattr(value, name) for name in (*OF_ONE, *BUFFERS)})
    if hasattr(value, "lookback"):
        return [plain(value.data), value.lookback]
    return value
