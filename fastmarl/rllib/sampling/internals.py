"""Private attributes of a runner: attributes used by samplers, and attributes set only by the RLlib loop.

Check them against each new version of Ray, together with the names in fast_path.py and the methods overridden in
runner.py.
"""

from operator import attrgetter
from typing import Any

EPISODES, EARLIER, DONE = "_ongoing_episodes", "_ongoing_episodes_for_metrics", "_done_episodes_for_metrics"
BATCH, SHARED = "_cached_to_module", "_shared_data"
OF_LOOP = frozenset((EPISODES, EARLIER, DONE, BATCH, SHARED))


def _attribute(name: str) -> Any:
    """Return a property that reads and sets an attribute of the runner."""

    def write(internals: "Internals", value: Any) -> None:
        setattr(internals.runner, name, value)

    return property(attrgetter(f"runner.{name}"), write)


class Internals:
    """Private attributes and methods of a runner, named without the underscore.

    They are looked up at each access, because subclasses and callbacks may replace them.

    Args:
        runner: The runner, whose public attributes are read directly.
    """

    def __init__(self, runner: Any):
        self.runner = runner

    # Of RLlib.
    cached_to_module = _attribute("_cached_to_module")
    callbacks = _attribute("_callbacks")
    device = _attribute("_device")
    done_episodes_for_metrics = _attribute("_done_episodes_for_metrics")
    env_to_module = _attribute("_env_to_module")
    log_env_steps = _attribute("_log_env_steps")
    make_on_episode_callback = _attribute("_make_on_episode_callback")
    metrics_num_env_steps_sampled = _attribute("_metrics_num_env_steps_sampled")
    metrics_num_try_env_step = _attribute("_metrics_num_try_env_step")
    module_to_env = _attribute("_module_to_env")
    needs_initial_reset = _attribute("_needs_initial_reset")
    ongoing_episodes = _attribute("_ongoing_episodes")
    prune_zero_len_sa_episodes = _attribute("_prune_zero_len_sa_episodes")
    seed = _attribute("_seed")
    shared_data = _attribute("_shared_data")
    try_env_reset = _attribute("_try_env_reset")
    weights_seq_no = _attribute("_weights_seq_no")
    # Of fastmarl.
    bulk_metrics = _attribute("_bulk_metrics")
    finished_numbers = _attribute("_finished_numbers")
    lends_earlier_chunks = _attribute("_lends_earlier_chunks")
    loop = _attribute("_loop")


def of_loop(name: str) -> Any:
    """Return a property for an attribute of the RLlib loop, which computes RLlib's value while fastmarl samples.

    Static checks cannot rule out that callbacks read it, for example in a helper function, with getattr() or vars().
    After a read, the RLlib loop samples from the next call on.
    """

    def read(runner: Any) -> Any:
        if runner._fast is not None:
            return runner._show(name, runner._fast)
        if name not in runner._loop:
            raise AttributeError(f"{type(runner).__name__!r} object has no attribute {name!r}")
        return runner._loop[name]

    def write(runner: Any, value: Any) -> None:
        if runner._fast is not None:
            runner._leave_fast_path(name, runner._fast)
        runner._loop[name] = value

    return property(read, write, doc="As in RLlib's class.")


class Attributes(dict[str, Any]):
    """The `__dict__` of a runner, in which vars() also finds the attributes of the loop.

    Args:
        runner: The runner.
    """

    def __init__(self, runner: Any):
        super().__init__(vars(runner))
        self._runner = runner

    def __missing__(self, name: str) -> Any:
        if name in OF_LOOP:
            return getattr(self._runner, name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or `default` if the runner does not have it."""
        try:
            return self[name]
        except (KeyError, AttributeError):
            return default
