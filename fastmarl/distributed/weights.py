"""The newest weights of a group, and what may be given as such."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import as_rl_module
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.distributed.actors import Actors
from fastmarl.distributed.parts import owned


class NewestWeights:
    """What calls take along. Any thread may publish others at any time.

    Args:
        actors: keep a copy.

    Attributes:
        newest: a reference to them, and their number. It is replaced as a whole.
    """

    def __init__(self, actors: Actors):
        self._actors = actors
        self._publishing = Lock()
        self.newest: tuple[Any, int] = (None, -1)

    def publish(self, weights: Mapping[str, Any], least: int = 0) -> int:
        """Make these the newest, with the next number, or `least` if that is higher; returns the number."""
        reference = self._actors.put(dict(weights))
        with self._publishing:
            seq_no = max(least, self.newest[1] + 1)
            self.newest = reference, seq_no
        return seq_no

    def fetch(self) -> tuple[dict[str, Any], int]:
        """A copy, and their number."""
        reference, seq_no = self.newest
        return owned(self._actors.fetch(reference)), seq_no


def weights_for(module: MultiRLModule, given: torch.nn.Module | Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of all modules, by module id; see `EnvRunnerGroup.set_weights()`.

    Raises:
        ConfigError: they are those of other modules, or some are missing.
    """
    if isinstance(given, MultiRLModule):
        weights: Mapping[str, Any] = given.get_state()
    elif isinstance(given, torch.nn.Module):
        if len(module) != 1:
            raise ConfigError(f"there are the modules {list(module)}, so give set_weights() all of them, or weights by "
                              f"module id")  # fmt: skip
        weights = dict.fromkeys(module, as_rl_module(given).get_state())
    else:
        weights = given
    module.check_state(weights)
    if lacking := [module_id for module_id in module if module_id not in weights]:
        raise ConfigError(f"set_weights() needs the weights of all modules; those of {lacking} are missing")
    return weights
