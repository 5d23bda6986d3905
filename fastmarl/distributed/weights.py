"""The latest weights of a fleet, and conversion of weights from all accepted formats."""

from collections.abc import Mapping
from threading import RLock
from typing import Any

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import as_rl_module
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.distributed.actors import Actors
from fastmarl.distributed.parts import owned


class NewestWeights:
    """The weights carried by calls. Any thread may publish new ones at any time.

    Args:
        actors: The transport, which keeps a copy.

    Attributes:
        newest: (reference to the weights, their sequence number), always replaced together.
    """

    def __init__(self, actors: Actors):
        self._actors = actors
        self._publishing = RLock()  # other threads wait
        self._guard = CallGuard()  # rejects a signal handler, which would wait for itself
        self.newest: tuple[Any, int] = (None, -1)

    def check_idle(self) -> None:
        """Check that `publish()` can be called.

        Raises:
            RunnerBusyError: If a signal handler calls this while `publish()` is running.
        """
        with self._publishing:
            self._guard.check("set_weights()")

    def publish(self, weights: Mapping[str, Any], least: int = 0) -> int:
        """Publish these weights and return their sequence number: the next one, or `least` if that is higher.

        Raises:
            RunnerBusyError: If a signal handler calls this while it is running.
        """
        reference = self._actors.put(dict(weights))
        with self._publishing:
            return self._guard.run("set_weights()", self._renew, {"reference": reference, "least": least})

    def _renew(self, reference: Any, least: int) -> int:
        seq_no = max(least, self.newest[1] + 1)
        self.newest = self._actors.publish(reference, seq_no), seq_no
        return seq_no

    def fetch(self) -> tuple[dict[str, Any], int]:
        """Return a copy of the weights, and their sequence number."""
        reference, seq_no = self.newest
        return owned(self._actors.fetch(reference)), seq_no


def weights_by_module(module: MultiRLModule, given: torch.nn.Module | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return module id -> weights for any argument of `set_weights()`: all modules, the only module, or a mapping.

    Raises:
        ConfigError: If a single module is given but there are several.
    """
    if isinstance(given, MultiRLModule):
        return given.get_state()
    if not isinstance(given, torch.nn.Module):
        return given
    if len(module) != 1:
        raise ConfigError(f"got a single module for the modules {list(module)}; pass all of them to set_weights(), or "
                          f"a dict of module id -> weights")  # fmt: skip
    return dict.fromkeys(module, as_rl_module(given).get_state())


def check_all(module: MultiRLModule, weights: Mapping[str, Any]) -> None:
    """Check that these are the weights of all modules.

    Raises:
        ConfigError: If they belong to other modules, or some are missing.
    """
    module.check_state(weights)
    if lacking := [module_id for module_id in module if module_id not in weights]:
        raise ConfigError(f"set_weights() requires the weights of all modules, but {lacking} are missing")
