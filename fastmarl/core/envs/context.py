"""What an environment is made from."""

from typing import Any


class EnvContext(dict):
    """The `env_config` an env is made from, and which of the runner's `num_envs` envs it is.

    What makes a batch of envs makes `num_envs` of them, at the first call.

    Args:
        worker_index, num_workers: which runner it is for, and of how many.
        remote: whether the env will be in a worker process.
    """

    def __init__(
        self,
        env_config: Any,
        worker_index: int,
        vector_index: int,
        num_envs: int = 1,
        *,
        num_workers: int = 1,
        remote: bool = False,
    ):
        super().__init__(env_config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = remote
        self.num_envs = num_envs
