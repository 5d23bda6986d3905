"""Hosts in Ray's actors."""

import contextlib
import pickle
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fastmarl.core.errors import ConfigError, RemoteEnvRunnerError
from fastmarl.core.exits import as_error
from fastmarl.distributed.actors import ActorLost, Actors
from fastmarl.distributed.host import HostFailure, RunnerHost

try:
    import ray
    from ray.exceptions import RayError, RaySystemError, RayTaskError
except ImportError as error:
    raise ImportError(f"env runners in other processes need Ray: pip install 'fastmarl[ray]' ({error})") from error

FETCH_TIMEOUT_S = 60.0  # for a result that Ray says is there
OURS = ("max_restarts", "max_task_retries", "max_concurrency", "scheduling_strategy", "lifetime", "name")


class HostActor:
    """What Ray runs in another process: a host, whose errors are returned whole."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # the other cores are for other processes
        self._host = RunnerHost()

    def call(self, method: str, *args: Any) -> Any:
        """See `RunnerHost.call()`. The result comes in a tuple: of a generator Ray would send the first item alone."""
        try:
            return (self._host.call(method, *args),)
        except (Exception, SystemExit) as raised:
            return HostFailure.of(as_error(raised))


class RayActors(Actors):
    """See `Actors`.

    Args:
        placement_strategy: "SPREAD" over the nodes of the cluster, or Ray's "DEFAULT", which fills them.
        options: of Ray's actors, such as `num_cpus`.

    Raises:
        ConfigError: options that the group has for itself.
    """

    lends_arrays = True
    late_start = "; are there enough free CPUs in Ray's cluster?"

    def __init__(self, placement_strategy: str, options: Mapping[str, Any]):
        if own := [name for name in options if name in OURS]:
            raise ConfigError(f"actor_options can't have {own}: the group decides these by itself")
        try:
            self._remote_class = ray.remote(HostActor).options(
                **{"num_cpus": 1, **options},
                scheduling_strategy=placement_strategy,
                max_restarts=0,
                max_task_retries=0,
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Ray does not take actor_options={dict(options)!r:.200}: {error}") from error
        if not ray.is_initialized():
            ray.init()
        self._session = _session()

    @property
    def is_running(self) -> bool:
        """Also false where another Ray was begun since, or the same cluster joined anew, which ends the actors of
        before. None is begun for this question."""
        return ray.is_initialized() and _session() == self._session

    def start(self) -> Any:
        return self._remote_class.remote()

    def call(self, handle: Any, method: str, *args: Any) -> Hashable:
        try:
            return handle.call.remote(method, *args)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ConfigError(f"what {method}() needs can't be sent to another process: {error}") from error

    def put(self, value: Any) -> Hashable:
        return ray.put(value)

    def fetch(self, reference: Any) -> Any:
        return ray.get(reference, timeout=FETCH_TIMEOUT_S)

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        return ray.wait(references, num_returns=num_returns, timeout=timeout_s)[0]

    def is_answered(self, reference: Any) -> bool:
        return bool(ray.wait([reference], timeout=0, fetch_local=False)[0])

    def get(self, reference: Any) -> Any:
        try:
            value = ray.get(reference, timeout=FETCH_TIMEOUT_S)
        except RayTaskError:  # what it has returned can't be pickled, or what it was sent can't be unpickled
            raise
        except RaySystemError as error:
            if isinstance(error.client_exc, Exception):  # what it has returned can't be unpickled
                problem = f"what came of a call can't be unpickled in this process: {error.client_exc!r}"
                raise RemoteEnvRunnerError(problem) from error.client_exc
            raise ActorLost(f"has ended: {error}") from error
        except RayError as error:
            raise ActorLost(f"has ended: {error}") from error
        if isinstance(value, HostFailure):
            raise value
        (result,) = value
        return result

    def kill(self, handle: Any) -> None:
        if self.is_running:  # else Ray has ended it, and would begin anew for this
            with contextlib.suppress(RayError, ValueError):  # it is unknown by now
                ray.kill(handle)


def _session() -> tuple[str, str]:
    """What tells this process's time in a cluster from others: clusters on one machine number their jobs alike."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()
