"""One case of the old stack, played through one class of worker."""

import atexit
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.models import modelv2
from rllib.old_stack.calls import Call
from rllib.old_stack.compare import Comparison, Text
from rllib.old_stack.memory import columns
from rllib.old_stack.readers import WRITERS
from rllib.old_stack.setups import Setup, generators_of, make_worker
from rllib.recordings import Recording

SCRATCH = Path(tempfile.gettempdir()) / f"fastmarl-old-stack-{os.getpid()}"
"""Where cases with an output write: the same folder for both runs, as its name is in their configs."""
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case to compare. It continues after a call that raises, so that the calls after an error are compared, too."""

    setup: Setup
    calls: tuple[Call, ...]
    twin: bool = False
    """Whether there is a second worker in the process, which is asked the same right after the first."""
    raises: str | None = None
    """The error that some call raises, or the making of the worker; None: no call may raise."""


@dataclass(frozen=True)
class Raised:
    """An error in place of what a call returns."""

    kind: str
    text: Text
    cause: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        return cls(type(error).__name__, Text(error), type(error.__cause__).__name__)


@dataclass
class Run(Recording):
    """The results of a worker, which goes on after errors."""

    errors: list[BaseException] = field(default_factory=list)
    left: dict[str, Any] = field(default_factory=dict)
    written: list[Any] = field(default_factory=list)

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        for i, value in enumerate(self.returned):
            yield from columns(value, f"call {i}")


def play(case: Case, worker_class: type = RLlibWorker) -> Run:
    """Build everything from scratch under fixed seeds, and make the calls."""
    run, setup = Run(), case.setup
    modelv2._cache.clear()  # RLlib keeps 999 preprocessors for good; making one draws from the space
    writes_files = setup.output is not None and setup.output not in WRITERS
    if writes_files:
        shutil.rmtree(SCRATCH, ignore_errors=True)
        setup = replace(setup, output=str(SCRATCH / str(setup.output)))
    with run.taken_down(), _silence():
        try:
            worker = make_worker(setup, worker_class)
        except Exception as error:
            _note_error(run, error)
        else:
            _play(case, setup, worker, run)
    if writes_files:
        run.written = [*_files(Path(str(setup.output)))]
    return run


def _play(case: Case, setup: Setup, worker: Any, run: Run) -> None:
    workers = [worker]
    if case.twin:
        workers.append(make_worker(replace(setup, worker_index=setup.worker_index + 1), type(worker)))
    for call in case.calls:
        for one in workers:
            try:
                run.returned.append(call.on(one, setup))
            except Exception as error:
                _note_error(run, error)
    run.note_path(worker)
    run.left = _left(worker, remote=setup.remote_envs)
    run.state = worker.get_state()
    try:
        worker.stop()
    except Exception as error:
        _note_error(run, error)
    file = getattr(worker.output_writer, "cur_file", None)
    if file is not None:
        file.close()


def _note_error(run: Run, error: BaseException) -> None:
    run.errors.append(error)
    run.returned.append(Raised.of(error))


def _left(worker: Any, *, remote: bool) -> dict[str, Any]:
    """Return a worker's public attributes at the end, before get_state() flushes its filters."""
    policies = {name: worker.policy_map[name] for name in worker.policy_map.keys()}  # noqa: SIM118 (not a plain dict)
    return {
        "metrics": worker.get_metrics() if worker.sampler is None or worker.sampler.perf_stats.iters else [],
        "extra batches": worker.sampler and worker.sampler.get_extra_batches(),
        "weights": worker.get_weights(),
        "global_vars": worker.get_global_vars(),
        "weights_seq_no": worker.weights_seq_no,
        "filters": worker.filters,
        "last_batch": worker.last_batch,
        "policies": {name: _of_policy(policy) for name, policy in policies.items()},
        "preprocessors": [*worker.preprocessors],
        "spaces of envs": [] if remote else worker.foreach_env(_generators_of_env),
        "class of env": type(worker.async_env).__name__,
    }


def _of_policy(policy: Any) -> dict[str, Any]:
    exploration = getattr(policy, "exploration", None)
    return {
        "class": type(policy),
        "global_timestep": policy.global_timestep,
        "num_grad_updates": policy.num_grad_updates,
        "exploration": exploration and exploration.get_state(),
        "views": {name: _of_view(view) for name, view in policy.view_requirements.items()},
        "generators": [generators_of(policy.observation_space), generators_of(policy.action_space)],
        "connectors": [str(policy.agent_connectors), str(policy.action_connectors)],
        "timers": [*policy.agent_connectors.timers, *policy.action_connectors.timers],
    }


def _of_view(view: Any) -> list[Any]:
    used = [view.used_for_compute_actions, view.used_for_training]
    return [view.data_col, view.shift_arr, view.batch_repeat_value, *used, generators_of(view.space)]


def _generators_of_env(env: Any) -> list[Any]:
    if hasattr(env, "observation_spaces"):
        found = [*env.observation_spaces.values(), *env.action_spaces.values()]
    else:
        found = [env.observation_space, env.action_space]
    return [generators_of(space) for space in found]


def _files(folder: Path) -> Iterator[Any]:
    """Read the files of writers, with names that lack the time, and parsed lines."""
    for path in sorted(folder.glob("*")):
        yield path.name.rsplit("_", 1)[-1]
        yield [json.loads(line) for line in path.read_text().splitlines()]


def differences(want: Run, got: Run) -> Iterator[str]:
    """One line for each difference between two runs of a case."""
    compare = Comparison()
    yield from want.differences(got, compare)
    yield from compare(want.left, got.left, "left")
    yield from compare(want.written, got.written, "written")


@contextmanager
def _silence() -> Iterator[None]:
    """Without RLlib's warnings, many of which tell that the old stack is old."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
