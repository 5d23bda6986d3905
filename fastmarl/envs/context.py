"""What an environment is made from."""

from typing import Any


class EnvContext(dict):
    """The `env_config` an env is made from, and which of the envs it is."""

    def __init__(self, env_config: Any, worker_index: int, vector_index: int):
        super().__init__(env_config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = 0
