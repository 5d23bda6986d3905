"""One case, played through one class of runner."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tree
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.module_to_env import NormalizeAndClipActions
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from rllib.differential import batch_pieces
from rllib.differential.callbacks import EndsOnly, note_step
from rllib.differential.compare import Comparison, Report, columns
from rllib.differential.configs import Setup, Shifted, make_config
from rllib.differential.mappings import mapping_fn
from rllib.recordings import Recording


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A call of sample(); arguments that are None are not given."""

    num_timesteps: int | None = None
    num_episodes: int | None = None
    explore: bool | None = None
    random_actions: bool | None = None
    force_reset: bool | None = None

    def on(self, runner: Any) -> Any:
        return runner.sample(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class GetMetrics:
    """A call of get_metrics()."""

    def on(self, runner: Any) -> Any:
        return Report(runner.get_metrics())


@dataclass(frozen=True, kw_only=True)
class SetState:
    """A call of set_state() as an Algorithm makes it, with weights moved by `shift`."""

    seq_no: int
    shift: float = 0.1
    lifetime: int | None = None

    def on(self, runner: Any) -> Any:
        weights = runner.get_state(components="rl_module")["rl_module"]
        state = {"rl_module": moved(weights, self.shift), "weights_seq_no": self.seq_no}
        if self.lifetime is not None:
            state["num_env_steps_sampled_lifetime"] = self.lifetime
        return runner.set_state(state)


def moved(weights: Any, shift: float) -> Any:
    """Weights with this added to all real numbers."""

    def move(weight: Any) -> Any:
        is_real = isinstance(weight, np.ndarray) and weight.dtype.kind == "f"
        return weight + np.asarray(shift, weight.dtype) if is_real else weight

    return tree.map_structure(move, weights)


@dataclass(frozen=True)
class Make:
    """make_env() or make_module(), as users may call it."""

    what: str

    def on(self, runner: Any) -> Any:
        return getattr(runner, f"make_{self.what}")()


@dataclass(frozen=True)
class Remap:
    """Another mapping function, given as `Algorithm.add_module()` gives it. That may say "p0" and "p1"."""

    kind: str

    def on(self, runner: Any) -> Any:
        function = mapping_fn(["p1", "p0"], None, self.kind)
        runner.config._is_frozen = False
        runner.config.multi_agent(policy_mapping_fn=function)


@dataclass(frozen=True)
class Change:
    """A change that users make to a runner between two calls: one of CHANGES."""

    what: str

    def on(self, runner: Any) -> Any:
        runner.config._is_frozen = False
        CHANGES[self.what](runner)


DEFAULT_TO_ENV = ("GetActions", "TensorToNumpy", "UnBatchToIndividualItems", "ModuleToAgentUnmapping",
                  "RemoveSingleTsTimeRankFromBatch", "NormalizeAndClipActions", "ListifyDataForVectorEnv")  # fmt: skip


@dataclass(frozen=True)
class Put:
    """Adds a piece to a new runner: an env-to-module piece behind all others, or a module-to-env piece before the
    default one with this number."""

    name: str
    place: int | None = None

    def on(self, runner: Any) -> Any:
        if self.place is None:
            runner._env_to_module.append(batch_pieces.TO_MODULE[self.name]())
        else:
            pipeline, piece = runner._module_to_env, batch_pieces.TO_ENV[self.name]()
            if self.place < len(DEFAULT_TO_ENV):
                pipeline.insert_before(DEFAULT_TO_ENV[self.place], piece)
            else:
                pipeline.append(piece)


def _add_callback(runner: Any) -> None:
    runner._callbacks.append(EndsOnly())


def _add_function(runner: Any) -> None:
    runner.config.callbacks(on_episode_step=note_step)


def _remove_function(runner: Any) -> None:
    runner.config.callbacks_on_episode_step = None


def _add_connector(runner: Any) -> None:
    runner._env_to_module.append(Shifted())


def _clip(runner: Any) -> None:
    (unsquash,) = runner._module_to_env[NormalizeAndClipActions]
    unsquash.normalize_actions, unsquash.clip_actions = False, True


CHANGES = {
    "callback added": _add_callback,
    "function added": _add_function,
    "function removed": _remove_function,
    "connector added": _add_connector,
    "actions clipped": _clip,
}

Call = Sample | GetMetrics | SetState | Make | Remap | Change | Put


class Playable(Protocol):
    """The attributes of a case that `play()` reads."""

    @property
    def calls(self) -> tuple[Any, ...]: ...
    @property
    def worker_index(self) -> int | None: ...
    @property
    def mixes_columns(self) -> bool:
        """True if modules with different outputs act together."""

    @property
    def drops_episodes(self) -> bool:
        """True if sample() returns whole episodes by default."""

    def make_config(self) -> AlgorithmConfig: ...


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case to compare.

    `worker_index` is the runner's; `raises` names the error that ends the last call; with `is_subclass`, the runner is
    one of rllib.differential.rewriting.
    """

    setup: Setup
    calls: tuple[Call, ...]
    expects_fast: bool
    worker_index: int | None = 1
    raises: str | None = None
    is_subclass: bool = False

    def make_config(self) -> AlgorithmConfig:
        return make_config(self.setup)

    @property
    def mixes_columns(self) -> bool:
        return len({*self.setup.modules.values()}) > 1

    @property
    def drops_episodes(self) -> bool:
        return self.setup.batch_mode == "complete_episodes"


@dataclass
class Run(Recording):
    """The results of a runner, which stops at the first error."""

    error: BaseException | None = None
    mixes_columns: bool = False

    @property
    def episodes(self) -> list[Any]:
        return [episode for part in self.returned if isinstance(part, list) for episode in part]

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        return columns(self.episodes)


def play(case: Playable, runner_class: type = RLlibEnvRunner) -> Run:
    """Build everything from scratch under fixed seeds, make the calls, stop at the first error."""
    run = Run(mixes_columns=case.mixes_columns)
    with run.taken_down(), warnings.catch_warnings():
        # Every runner registers its envs under this one name.
        warnings.filterwarnings("ignore", ".*Overriding environment rllib-multi-agent-env")
        try:
            runner = runner_class(config=case.make_config(), worker_index=case.worker_index)
            _play(case, runner, run)
        except Exception as error:
            run.error = error
    return run


def _play(case: Playable, runner: Any, run: Run) -> None:
    try:
        run.returned.append(runner.get_spaces())
        for call in case.calls:
            run.returned.append(call.on(runner))
        run.state = runner.get_state()
    finally:
        run.note_path(runner)
        runner.stop()


def differences(want: Run, got: Run) -> Iterator[str]:
    """One line for each difference between two runs of a case."""
    compare = Comparison(want.mixes_columns)
    yield from compare(_described(want.error), _described(got.error), "error")
    yield from want.differences(got, compare)


def wrong_path(case: Case, run: Run) -> Iterator[str]:
    """A line if the fast loop did not run where it should, or did where it should not."""
    if run.is_accelerated not in (None, case.expects_fast):
        yield f"accelerated: {case.expects_fast} / {run.is_accelerated}, as {run.slow_path_reasons}"


def _described(error: BaseException | None) -> tuple[str, str, str]:
    """Class, text and cause."""
    return (type(error).__name__, str(error), type(getattr(error, "__cause__", None)).__name__)
