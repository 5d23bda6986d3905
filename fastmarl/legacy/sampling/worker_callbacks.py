"""Worker callbacks, called with the arguments of both the runner and the old RLlib API stack."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from fastmarl.core.callbacks import ARGUMENTS, Callbacks, Listener, listeners
from fastmarl.legacy.sampling.episode_view import EpisodeV2, SubEnvironments

OF_EPISODES = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")
OF_RUNNER = (*OF_EPISODES, "on_environment_created")
ALL_ARGUMENTS = {
    **ARGUMENTS,
    **{event: (*ARGUMENTS[event], "worker", "base_env", "policies") for event in OF_EPISODES},
    "on_sample_end": (*ARGUMENTS["on_sample_end"], "worker"),
    "on_create_policy": ("policy_id", "policy"),
    "on_sub_environment_created": ("worker", "sub_environment", "env_context"),
    "on_postprocess_trajectory": (
        "worker",
        "episode",
        "agent_id",
        "policy_id",
        "policies",
        "postprocessed_batch",
        "original_batches",
    ),
    "on_learn_on_batch": ("policy", "train_batch", "result"),
}
"""Event -> keyword arguments of its callbacks."""


class WorkerCallbacks:
    """Callbacks of a worker, which they reference only weakly to avoid a reference cycle.

    Args:
        worker: The RolloutWorker.
        config: Config of the worker.

    Attributes:
        worker: Function that returns the worker.
        given: The instance of `callbacks_class`, or a tuple of instances if it lists several classes.
    """

    def __init__(self, worker: Any, config: Any):
        self.worker = weakref.ref(worker)
        kinds = config.callbacks_class
        several = isinstance(kinds, list | tuple)
        objects: list[Any] = []

        def made(kind: Callable[[], Any]) -> Any:
            objects.append(kind())
            return objects[-1]

        makers = [
            partial(made, kind) if callable(kind) else kind
            for kind in (kinds if several else [] if kinds is None else [kinds])
        ]
        functions = {event: getattr(config, f"callbacks_{event}") for event in ARGUMENTS}
        self._by_event = listeners(makers, functions, ALL_ARGUMENTS)
        self.given: Any = tuple(objects) if several else objects[0] if objects else Callbacks()

    def has(self, event: str) -> bool:
        """Return whether a callback listens for the event."""
        return bool(self._by_event[event])

    def call(self, event: str, **arguments: Any) -> None:
        """Call the callbacks of an event, adding the argument "worker" if the event has it."""
        if "worker" in ALL_ARGUMENTS[event]:
            arguments["worker"] = self.worker()
        for listener in self._by_event[event]:
            listener(**arguments)

    def of_runner(self) -> dict[str, Listener]:
        """Return event name -> function for the runner of the worker to call."""
        wanted = [event for event in OF_RUNNER if self.has(event)]
        if self.has("on_sub_environment_created"):
            wanted.append("on_environment_created")
        return {event: partial(self._from_runner, event) for event in wanted}

    def _from_runner(self, event: str, **arguments: Any) -> None:
        worker: Any = self.worker()
        env = arguments["env"]
        if event in OF_EPISODES:
            arguments["episode"] = EpisodeV2(arguments["episode"], worker, arguments["env_index"])
            arguments |= {"base_env": SubEnvironments(env), "policies": worker.policy_map}
        self.call(event, **arguments)
        if event == "on_environment_created":
            for index, sub_environment in enumerate(env.envs):
                context = arguments["env_context"].copy_with_overrides(vector_index=index)
                self.call("on_sub_environment_created", sub_environment=sub_environment, env_context=context)
