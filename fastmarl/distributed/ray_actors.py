"""Hosts in Ray actors."""

import contextlib
import pickle
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fastmarl.core.errors import ConfigError, RemoteEnvRunnerError
from fastmarl.core.errors.exits import as_error
from fastmarl.distributed.actors import ActorLost, Actors
from fastmarl.distributed.host import HostFailure, RunnerHost

try:
    import ray
    from ray.exceptions import RayError, RaySystemError, RayTaskError
except ImportError as error:
    raise ImportError(f"env runners in other processes need Ray: pip install ray ({error})") from error

FETCH_TIMEOUT_S = 60.0  # for a result that Ray reports as ready
OURS = ("max_restarts", "max_task_retries", "max_concurrency", "scheduling_strategy", "lifetime", "name")


class HostActor:
    """Class of the Ray actors: a host that returns errors with their tracebacks instead of raising them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # the other cores are for other processes
        self._host = RunnerHost()

    def call(self, method: str, *args: Any) -> Any:
        """Call the host; see `RunnerHost.call()`.

        The result is wrapped in a tuple, because Ray would send only the first item of a generator.
        """
        try:
            return (self._host.call(method, *args),)
        except (Exception, SystemExit) as raised:
            return HostFailure.of(as_error(raised))


class RayActors(Actors):
    """The transport to Ray actors; see `Actors`.

    Args:
        placement_strategy: "SPREAD" over the nodes of the cluster, or "DEFAULT", which fills one node after another.
        options: Options of Ray actors, such as `num_cpus`.

    Raises:
        ConfigError: If an option is reserved for the group, or Ray rejects it.
    """

    lends_arrays = True
    late_start = "; check that Ray's cluster has enough free CPUs"

    def __init__(self, placement_strategy: str, options: Mapping[str, Any]):
        if own := [name for name in options if name in OURS]:
            raise ConfigError(f"actor_options must not contain {own}, which the group sets")
        try:
            self._remote_class = ray.remote(HostActor).options(
                **{"num_cpus": 1, **options},
                scheduling_strategy=placement_strategy,
                max_restarts=0,
                max_task_retries=0,
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Ray rejects actor_options={dict(options)!r:.200}: {error}") from error
        if not ray.is_initialized():
            ray.init()
        self._session = _session()

    @property
    def is_running(self) -> bool:
        """True if Ray still runs the session of these actors, which ends if Ray restarts or rejoins the cluster.

        This check never starts Ray.
        """
        return ray.is_initialized() and _session() == self._session

    def start(self) -> Any:
        return self._remote_class.remote()

    def call(self, handle: Any, method: str, *args: Any) -> Hashable:
        try:
            return handle.call.remote(method, *args)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ConfigError(f"the arguments of {method}() can't be sent to another process: {error}") from error

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
        except RayTaskError:  # the result cannot be pickled, or the arguments cannot be unpickled
            raise
        except RaySystemError as error:
            if isinstance(error.client_exc, Exception):  # the result cannot be unpickled
                problem = f"the result of a call can't be unpickled in this process: {error.client_exc!r}"
                raise RemoteEnvRunnerError(problem) from error.client_exc
            raise ActorLost(f"has ended: {error}") from error
        except RayError as error:
            raise ActorLost(f"has ended: {error}") from error
        if isinstance(value, HostFailure):
            raise value
        (result,) = value
        return result

    def kill(self, handle: Any) -> None:
        if self.is_running:  # else Ray has shut down, and would start again for this call
            with contextlib.suppress(RayError, ValueError):  # the actor is already unknown
                ray.kill(handle)


def _session() -> tuple[str, str]:
    """Return an id of the Ray session of this process. Job ids alone may be equal in clusters on the same machine."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()
