"""The attributes that RLlib's own loop keeps up to date, for code that reads them while fastmarl samples.

Nothing proves that callbacks don't read them: a helper function, getattr() or vars() may. So they are properties, which
make RLlib's value when they are read, or raise. From the next call on, RLlib's loop samples.
"""

import logging
from typing import Any

from fastmarl.core.errors import RunningEpisodeError
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.rllib.fast_path import Reason, reads
from fastmarl.rllib.sampling.hand_over import give_back

logger = logging.getLogger(__name__)
EPISODES, EARLIER, DONE = "_ongoing_episodes", "_ongoing_episodes_for_metrics", "_done_episodes_for_metrics"
BATCH, SHARED = "_cached_to_module", "_shared_data"
NAMES = frozenset((EPISODES, EARLIER, DONE, BATCH, SHARED))


class Attributes(dict[str, Any]):
    """The `__dict__` of a runner, in which vars() finds the attributes of the loop, too.

    Args:
        runner: The runner.
    """

    def __init__(self, runner: Any):
        super().__init__(vars(runner))
        self._runner = runner

    def __missing__(self, name: str) -> Any:
        if name in NAMES:
            return getattr(self._runner, name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or `default` if the runner has none of this name."""
        try:
            return self[name]
        except (KeyError, AttributeError):
            return default


def _of_loop(name: str) -> property:
    """Return a property that makes RLlib's value of an attribute, if fastmarl samples."""

    def read(runner: Any) -> Any:
        if runner._fast is not None:
            return runner._show(name)
        if name not in runner._loop:
            raise AttributeError(f"{type(runner).__name__!r} object has no attribute {name!r}")
        return runner._loop[name]

    def write(runner: Any, value: Any) -> None:
        if runner._fast is not None:
            runner._leave_fast_path(name)
        runner._loop[name] = value

    return property(read, write, doc="See RLlib's class.")


class LoopState:
    """The part of a runner that shows the state of RLlib's loop.

    Attributes:
        read_by_others: Names of attributes that code outside of fastmarl has read while fastmarl sampled, in order.
    """

    _fast: Any = None
    _lends_earlier_chunks = False  # true if RLlib's own method reads EARLIER next
    _calls: CallGuard
    _reasons: list[Reason]
    _finished_numbers: list[Any]
    _needs_initial_reset: bool

    _ongoing_episodes = _of_loop(EPISODES)
    _ongoing_episodes_for_metrics = _of_loop(EARLIER)
    _done_episodes_for_metrics = _of_loop(DONE)
    _cached_to_module = _of_loop(BATCH)
    _shared_data = _of_loop(SHARED)

    def _init_loop_state(self) -> None:
        self._loop: dict[str, Any] = {}
        self.read_by_others: dict[str, None] = {}
        self.__dict__ = Attributes(self)

    def _show(self, name: str) -> Any:
        """Return RLlib's value of an attribute while fastmarl samples.

        Raises:
            RunningEpisodeError: If fastmarl can't make it now.
        """
        if name == EARLIER and self._lends_earlier_chunks:
            self._lends_earlier_chunks = False
            return self._loop[name]
        self.read_by_others[name] = None
        if name in (EARLIER, DONE):
            give_back(self)
            self._fast.events.keep_chunks()
        elif self._calls.running is not None:
            return self._fast.events.shown(name)
        else:
            self._leave_fast_path(name)
        return self._loop[name]

    def _leave_fast_path(self, name: str) -> None:
        """Hand the running episodes over to RLlib's loop between two calls, because of the attribute `name`."""
        self.read_by_others[name] = None
        if self._calls.running is not None:
            raise RunningEpisodeError(f"the runner's {name} can't be set while sample() runs; set it between calls")
        if self._needs_initial_reset:
            raise RunningEpisodeError(
                f"the runner has no {name} after a call for episodes, whose running episodes fastmarl drops; from the "
                "next call on, RLlib's own loop samples and keeps them"
            )
        fast, self._fast = self._fast, None
        fast.hand_over()
        self._reasons = [*reads(self)]
        logger.warning("RLlib's own loop samples, which is slow: %s.", self._reasons[-1].text)
