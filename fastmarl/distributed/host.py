"""The host of a runner in an actor, and the messages it exchanges with the fleet."""

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
from fastmarl.core.store.request import Request
from fastmarl.distributed.shared_weights import Form
from fastmarl.play.arena.evaluation import Evaluation, evaluate
from fastmarl.runner.loop.runner_metrics import Increment
from fastmarl.runner.runner import MultiAgentEnvRunner, begin_increments, take_increment

MakeBatch = Callable[[list[MultiAgentEpisode], MultiRLModule], Any]
ENV_STEPS = "num_env_steps_sampled_lifetime"
OF_GROUP = ("rl_module", "weights_seq_no")  # components of the runner state stored once per group


def columns_of(episodes: list[MultiAgentEpisode], module: MultiRLModule) -> Any:
    """Return the columns of all modules: `fastmarl.batches.columns(episodes)`."""
    return columns(episodes)


@dataclass
class RunnerPlan:
    """Instructions for a host to create a runner.

    Attributes:
        config: Config of the runner.
        make_batch: Function that converts the episodes of a call to a batch.
        state: Initial state of the runner.
        is_module_wanted: True to return a copy of the modules in `HostReady.module`.
    """

    config: EnvRunnerConfig
    make_batch: MakeBatch
    state: dict[str, Any] = field(default_factory=dict)
    is_module_wanted: bool = False


@dataclass
class HostReady:
    """Report of a host after creating its runner.

    Attributes:
        pid: Process id.
        node: Name of the machine.
        module: A copy of the runner modules on the CPU, if requested.
        seeds_each_episode: True if the envs can be seeded per episode.
        form: Names, shapes and dtypes of the runner weights, if they are passed through shared memory.
    """

    pid: int
    node: str
    module: MultiRLModule | None
    seeds_each_episode: bool
    form: Form | None = None


@dataclass
class HostReport:
    """The result of a call of sample().

    Attributes:
        batch: Result of `make_batch`.
        weights_seq_no: Sequence number of the weights used.
        increment: Increments of the runner counters.
        state: State from which a replacement would continue if this runner were lost.
    """

    batch: Any
    weights_seq_no: int
    increment: Increment
    state: dict[str, Any]


class HostFailure(Exception):
    """An error raised by a host in another process.

    Args:
        error: The pickled error, or empty bytes if it cannot be pickled.
        text: Traceback of the error.
    """

    def __init__(self, error: bytes, text: str):
        super().__init__(error, text)
        self.error, self.text = error, text

    @classmethod
    def of(cls, error: BaseException) -> "HostFailure":
        return cls(pickled_error(error), "".join(traceback.format_exception(error)))

    def original(self, otherwise: Callable[[str], Exception]) -> Exception:
        """Return the original error with its traceback as a note.

        If it cannot be pickled, `otherwise` creates an error from the last line of the traceback.
        """
        error: Exception
        try:
            error = pickle.loads(self.error)
        except Exception:  # its class may raise any error
            error = otherwise(self.text.strip().rpartition("\n")[2])
        error.add_note(f"there:\n{self.text}")
        return error


class RunnerHost:
    """Creates a runner and calls it for a fleet.

    Each call carries the sequence number of the latest weights, and the weights unless the runner already has them.

    Attributes:
        weights_seq_no: Sequence number of the runner weights, or -1 for initial weights.
    """

    def __init__(self) -> None:
        self._runner: MultiAgentEnvRunner | None = None
        self.weights_seq_no = -1

    def call(self, method: str, seq_no: int, weights: Mapping[str, Any] | None, *args: Any) -> Any:
        """Load the weights and call one of the methods below."""
        if weights is not None:
            self.runner.set_weights(dict(weights), weights_seq_no=seq_no)
            self.weights_seq_no = seq_no
        return getattr(self, method)(*args)

    @property
    def runner(self) -> MultiAgentEnvRunner:
        assert self._runner is not None, "start() comes first"
        return self._runner

    def start(self, plan: RunnerPlan) -> HostReady:
        """Create the runner and set its initial state."""
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

    def sample(self, request: Request) -> HostReport:
        """Call `runner.sample()` and convert its episodes to a batch."""
        episodes = self.runner.sample(**request._asdict())
        try:
            batch = self._make_batch(episodes, self.runner.module)
            state = self.runner.get_state([*CONNECTOR_OPTIONS, ENV_STEPS])
        finally:
            increment = take_increment(self.runner)  # also after an error: undelivered samples do not count
        return HostReport(batch, self.weights_seq_no, increment, state)

    def evaluate(self, num_episodes: int, seeds: Sequence[int] | None, explore: bool) -> Evaluation:
        return evaluate(self.runner, episodes=num_episodes, seeds=seeds, explore=explore)

    def apply(self, function: Callable[..., Any], args: tuple) -> Any:
        """Return the result of `function(runner, *args)`."""
        return function(self.runner, *args)

    def get_state(self) -> dict[str, Any]:
        """Return the runner state without the components stored by the group."""
        return self.runner.get_state(not_components=OF_GROUP)

    def check_state(self, state: dict[str, Any]) -> None:
        """Check that the runners of the group can restore this state.

        Raises:
            ConfigError: If they cannot.
        """
        self.runner.check_state(state)

    def set_state(self, state: dict[str, Any]) -> None:
        self.runner.set_state(state)

    def get_connectors(self) -> dict[str, Any]:
        """Return option -> connector state for options whose connectors have state."""
        states = {option: side.get_state() for option, side in self.runner.env_to_module.sides().items()}
        return {option: state for option, state in states.items() if state}

    def set_connectors(self, states: dict[str, Any]) -> None:
        sides = self.runner.env_to_module.sides()
        for option, state in states.items():
            sides[option].set_state(state)

    def merge_connectors(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the connector states of several runners, per option, without changing this runner."""
        sides = self.runner.env_to_module.sides()
        known = {option: [each[option] for each in states if option in each] for option in sides}
        return {option: sides[option].merge_states(of_side) for option, of_side in known.items() if of_side}

    def stop(self) -> None:
        """Close the envs of this runner."""
        if self._runner is not None:
            self._runner.stop()
