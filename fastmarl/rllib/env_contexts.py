"""49: an EnvContext of its own for every env of a runner, with the env's place as `vector_index`."""

from collections.abc import Callable
from typing import Any

from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.utils import _gym_env_creator
from ray.tune.registry import ENV_CREATOR, _global_registry


class VectorIndex:
    """The place of the env that is made next."""

    def __init__(self) -> None:
        self.next = 0


def numbered(env: Any, index: VectorIndex) -> Callable[[EnvContext], Any]:
    """What makes the configured env, as RLlib does, from a context of its own.

    It is a function, so that Gymnasium, which copies deeply what it has registered, leaves it as it is.

    Args:
        env: `config.env`: a class, a function, or a name known to Ray or Gymnasium.
        index: counted on.
    """

    def make(shared: EnvContext) -> Any:
        context = shared.copy_with_overrides(vector_index=index.next)
        index.next += 1
        if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env):
            return _global_registry.get(ENV_CREATOR, env)(context)
        return _gym_env_creator(env_context=context, env_descriptor=env)

    return make
