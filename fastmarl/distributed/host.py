"""A runner in an actor, and the messages between it and its fleet."""

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastmarl.core.batches.flat import columns
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.modules.base import copied
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.processes.protocol import pickled_error
from fastmarl.core.runner.metrics import Increment
from fastmarl.core.runner.runner import MultiAgentEnvRunner, begin_increments, take_increment
from fastmarl.distributed.shared_weights import Form
from fastmarl.play.arena.evaluation import Evaluation, evaluate

MakeBatch = Callable[[list[MultiAgentEpisode], MultiRLModule], Any]
ENV_STEPS = "num_env_steps_sampled_lifetime"
OF_GROUP = ("rl_module", "weights_seq_no")  # components of a runner's state that the group has once for all


def columns_of(episodes: list[MultiAgentEpisode], module: MultiRLModule) -> Any:
    """The columns of all modules: `fastmarl.batches.columns(episodes)`."""
    return columns(episodes)


@dataclass
class RunnerPlan:
    """What a host is to make.

    Attributes:
        config: of its runner.
        make_batch: what is made of the episodes of one call.
        state: what the runner goes on with.
        is_module_wanted: whether `HostReady.module` is.
    """

    config: EnvRunnerConfig
    make_batch: MakeBatch
    state: dict[str, Any] = field(default_factory=dict)
    is_module_wanted: bool = False


@dataclass
class HostReady:
    """What a host tells when its runner is made.

    Attributes:
        pid: of its process.
        node: name of its machine.
        module: a copy of the runner's modules, on the CPU, if they are wanted.
        seeds_each_episode: whether its envs can be seeded for each episode.
        form: of the runner's weights, if they come in shared memory.
    """

    pid: int
    node: str
    module: MultiRLModule | None
    seeds_each_episode: bool
    form: Form | None = None


@dataclass
class HostReport:
    """What came of a call of sample().

    Attributes:
        batch: what `make_batch` has made.
        weights_seq_no: of the weights that acted.
        increment: what the runner has counted.
        state: what another runner would go on with, if this one were lost.
    """

    batch: Any
    weights_seq_no: int
    increment: Increment
    state: dict[str, Any]


class HostFailure(Exception):
    """An error that a host has raised in another process.

    Args:
        error: the error, pickled; empty if that can't be done.
        text: its traceback.
    """

    def __init__(self, error: bytes, text: str):
        super().__init__(error, text)
        self.error, self.text = error, text

    @classmethod
    def of(cls, error: BaseException) -> "HostFailure":
        return cls(pickled_error(error), "".join(traceback.format_exception(error)))

    def original(self, otherwise: Callable[[str], Exception]) -> Exception:
        """The error, or what `otherwise` makes of its last line if that can't be pickled; its traceback is a note."""
        error: Exception
        try:
            error = pickle.loads(self.error)
        except Exception:  # its class may raise whatever it likes
            error = otherwise(self.text.strip().rpartition("\n")[2])
        error.add_note(f"there:\n{self.text}")
        return error


class RunnerHost:
    """Makes a runner, and hands on to it what a fleet wants.

    Each call brings the number of the newest weights, and the weights, too, if the runner hasn't been sent them.

    Attributes:
        weights_seq_no: of those that it has; -1: those that it was made with.
    """

    def __init__(self) -> None:
        self._runner: MultiAgentEnvRunner | None = None
        self.weights_seq_no = -1

    def call(self, method: str, seq_no: int, weights: Mapping[str, Any] | None, *args: Any) -> Any:
        """Take the weights, and call a method of these below."""
        if weights is not None:
            self.runner.set_weights(dict(weights), weights_seq_no=seq_no)
            self.weights_seq_no = seq_no
        return getattr(self, method)(*args)

    @property
    def runner(self) -> MultiAgentEnvRunner:
        assert self._runner is not None, "start() comes first"
        return self._runner

    def start(self, plan: RunnerPlan) -> HostReady:
        """Make the runner."""
        runner = MultiAgentEnvRunner(plan.config)
        try:
            begin_increments(runner)
            runner.set_state(plan.state)
            module = copied(runner.module).cpu() if plan.is_module_wanted else None
        except BaseException:
            runner.stop()
            raise
        self._runner, self._make_batch = runner, plan.make_batch
        can_be_seeded = all(getattr(env, "seeds_each_episode", True) for env in runner.env.envs)
        return HostReady(os.getpid(), socket.gethostname(), module, can_be_seeded)

    def sample(self, arguments: dict[str, Any]) -> HostReport:
        """A call of `runner.sample()`, and what is made of its episodes."""
        episodes = self.runner.sample(**arguments)
        try:
            batch = self._make_batch(episodes, self.runner.module)
            state = self.runner.get_state([*CONNECTOR_OPTIONS, ENV_STEPS])
        finally:
            increment = take_increment(self.runner)  # on an error, too: what is not delivered is not counted
        return HostReport(batch, self.weights_seq_no, increment, state)

    def evaluate(self, num_episodes: int, seeds: Sequence[int] | None, explore: bool) -> Evaluation:
        return evaluate(self.runner, episodes=num_episodes, seeds=seeds, explore=explore)

    def apply(self, function: Callable[..., Any], args: tuple) -> Any:
        """`function(runner, *args)`"""
        return function(self.runner, *args)

    def get_state(self) -> dict[str, Any]:
        """All but what the group has."""
        return self.runner.get_state(not_components=OF_GROUP)

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises ConfigError if the runners of the group can't take it."""
        self.runner.check_state(state)

    def set_state(self, state: dict[str, Any]) -> None:
        self.runner.set_state(state)

    def get_connectors(self) -> dict[str, Any]:
        """Option -> the state of its connectors, if they have one."""
        states = {option: side.get_state() for option, side in self.runner.env_to_module.sides().items()}
        return {option: state for option, state in states.items() if state}

    def set_connectors(self, states: dict[str, Any]) -> None:
        sides = self.runner.env_to_module.sides()
        for option, state in states.items():
            sides[option].set_state(state)

    def merge_connectors(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state of several runners' connectors, by option; nothing is changed here."""
        sides = self.runner.env_to_module.sides()
        known = {option: [each[option] for each in states if option in each] for option in sides}
        return {option: sides[option].merge_states(of_side) for option, of_side in known.items() if of_side}

    def stop(self) -> None:
        """Close the envs."""
        if self._runner is not None:
            self._runner.stop()
