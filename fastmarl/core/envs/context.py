"""What an environment is made from."""

import copy
from collections.abc import Mapping
from typing import Any


class EnvContext(dict):
    """The `env_config` an env is made from, and which of the runner's `num_envs` envs it is.

    What makes a batch of envs makes `num_envs` of them, at the first call. Arguments are those of RLlib's class of this
    name, and `num_envs`.

    Args:
        env_config: the options.
        worker_index, num_workers: which runner it is for, and of how many.
        vector_index: which of the runner's envs it is.
        remote: whether the env will be in a worker process.
        recreated_worker: whether the runner takes the place of one that was lost.
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
        """A copy, with those of these values that are given; `env_config` is copied as a whole."""
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
        """Set options that are missing to these values."""
        for name, value in defaults.items():
            self.setdefault(name, value)

    def __str__(self) -> str:
        return (f"{dict(self)!r} of env {self.vector_index} in runner {self.worker_index} of {self.num_workers}"
                f"{', in a worker process' * self.remote}")  # fmt: skip
