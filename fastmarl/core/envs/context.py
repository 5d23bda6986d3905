"""The configuration passed to functions that create environments."""

import copy
from collections.abc import Mapping
from typing import Any

from fastmarl.core.objects.public import public


@public("fastmarl.envs")
class EnvContext(dict):
    """The `env_config` of an env, plus the indices of the env and its runner.

    A function that creates a batch of envs is called once, to create `num_envs` of them. Arguments are as in RLlib's
    class of the same name, plus `num_envs`.

    Args:
        env_config: Options of the env.
        worker_index: Index of the runner.
        vector_index: Index of the env in the runner.
        remote: True if the env runs in a worker process.
        num_workers: Number of runners.
        recreated_worker: True if the runner replaces one that was lost.
        num_envs: Number of envs of the runner.
    """

    def __init__(
        self,
        env_config: Mapping,
        worker_index: int,
        vector_index: int = 0,
        remote: bool = False,
        num_workers: int | None = None,
        recreated_worker: bool = False,
        *,
        num_envs: int = 1,
    ):
        super().__init__(env_config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.remote = remote
        self.num_workers = num_workers
        self.recreated_worker = recreated_worker
        self.num_envs = num_envs

    def copy_with_overrides(
        self,
        env_config: Mapping | None = None,
        worker_index: int | None = None,
        vector_index: int | None = None,
        remote: bool | None = None,
        num_workers: int | None = None,
        recreated_worker: bool | None = None,
    ) -> "EnvContext":
        """Return a copy with the given values replaced, including all of `env_config`.

        `env_config`, `worker_index`, `vector_index`, `remote`, `num_workers` and `recreated_worker` are kept if None.
        """
        given: dict[str, Any] = {
            "worker_index": worker_index,
            "vector_index": vector_index,
            "remote": remote,
            "num_workers": num_workers,
            "recreated_worker": recreated_worker,
        }
        own = {name: getattr(self, name) for name, value in given.items() if value is None}
        options = self if env_config is None else copy.deepcopy(env_config)
        return EnvContext(options, **{**given, **own}, num_envs=self.num_envs)

    def set_defaults(self, defaults: Mapping) -> None:
        """Set missing options to their values in `defaults`."""
        for name, value in defaults.items():
            self.setdefault(name, value)

    def __str__(self) -> str:
        return (f"{dict(self)!r} of env {self.vector_index} in runner {self.worker_index} of {self.num_workers}"
                f"{', in a worker process' * self.remote}")  # fmt: skip
