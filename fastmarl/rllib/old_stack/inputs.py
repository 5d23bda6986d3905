"""Builds the input columns of a policy like RLlib's inference collectors."""

from typing import Any, NamedTuple

import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.policy.sample_batch import SampleBatch

from fastmarl.core.native._trajectories import last_observations, rows_before
from fastmarl.rllib.old_stack.output_rows import OutputRows
from fastmarl.rllib.old_stack.trajectory import Trajectory, as_array, saved
from fastmarl.rllib.old_stack.views import ACTIONS, CONSTANT_TO_ACT, LISTS, OBS, STATE_OUT, View, Views

NO_STEP = -1  # step number of an agent's first observation in RLlib connectors


class OutputView(NamedTuple):
    """A column of earlier policy outputs, which may end with a constant entry.

    RLlib appends that entry if the column does not exist when the agent first acts.

    Attributes:
        source: Name of the output.
        at: Index into the last steps, or an array of k indices.
        is_last_entry: True where `at` refers to the constant entry, as a bool or an array of k.
        shows_last_entry: True if any of `is_last_entry` is True.
        has_last_entry: True if the column ends with the constant entry.
        initial: Value before the first step, and of the constant entry.
    """

    source: str
    at: Any
    is_last_entry: Any
    shows_last_entry: bool
    has_last_entry: bool
    initial: np.ndarray


class PolicyInputs:
    """Builds policy inputs from the steps of the acting agents.

    RLlib has one collector per agent, which keeps the last `views.before` values of each column: observations up to the
    current one, outputs and outcomes up to the last step. A column that does not exist yet when the agent first acts
    also ends with an entry that never changes.

    Args:
        policy: The policy.
        views: View requirements of the policy.
        outputs: Rows of the policy outputs.
        initial_states: States before the first step.
    """

    def __init__(self, policy: Any, views: Views, outputs: OutputRows, initial_states: list[Any]):
        self._views, self._outputs = views, outputs
        self._size = policy.config["model"]["max_seq_len"] if policy.is_recurrent() else None
        of_outputs = (view for view in views.inputs if view.source == ACTIONS or view.source.startswith(STATE_OUT))
        self._output_views = {view.name: _output_view(view, views, initial_states) for view in of_outputs}

    def batch(self, acting: list[Trajectory]) -> SampleBatch:
        """Return the batch that RLlib would pass to `compute_actions_from_input_dict()`."""
        n = len(acting)
        if self._views.sees_observations_alone:
            columns = {OBS: self.observations(acting)}
        else:
            columns = self._columns(acting)
        lengths = [] if self._size is None else [1] * n
        batch = SampleBatch(
            columns, seq_lens=lengths, _max_seq_len=self._size, _zero_padded=False, _num_grad_updates=0.0
        )
        if "state_in_0" in batch:
            batch[SampleBatch.SEQ_LENS] = np.ones(n, np.int32)
        return batch

    def _columns(self, acting: list[Trajectory]) -> dict[str, Any]:
        rows = np.empty((len(acting), self._views.before), np.int64)
        has_initial = rows_before(acting, self._views.before, rows)
        windows: dict[str, list[np.ndarray]] = {}  # list column -> its window of each agent
        columns = {}
        for view in self._views.inputs:
            source = view.source
            if source == OBS and view.shift == 0 and not any(one.has_other_dtypes for one in acting):
                columns[view.name] = self.observations(acting)
            elif source in CONSTANT_TO_ACT:
                name = CONSTANT_TO_ACT[source]
                columns[view.name] = np.concatenate([as_array([getattr(one, name)]) for one in acting])
            elif source in LISTS:
                if source not in windows:
                    windows[source] = [self._window(view, one) for one in acting]
                columns[view.name] = np.concatenate([_seen(window, view.shifts) for window in windows[source]])
            else:
                columns[view.name] = self._of_outputs(self._output_views[view.name], rows, has_initial)
        return columns

    def observations(self, acting: list[Trajectory]) -> Any:
        """Return the current observations of these agents, [n, ...] or nested arrays."""
        observations = last_observations(acting)
        if not isinstance(observations[0], (dict, tuple)):
            return stacked(observations)
        leaves = zip(*map(tree.flatten, observations), strict=True)
        return tree.unflatten_as(observations[0], [stacked([*leaf]) for leaf in leaves])

    def _window(self, view: View, one: Trajectory) -> np.ndarray:
        """Return the column values that the RLlib collector of this agent would keep."""
        values = getattr(one, LISTS[view.source])[-one.before :]
        if view.source == SampleBatch.T:
            n_initial = one.n_initial_in_window
            values = [*[NO_STEP] * n_initial, *values[n_initial:]]
        if view.source in self._views.zeros or view.initial is None:
            return as_array(values or [view.initial] * one.before)
        n_initial = one.n_initial_in_window if values else one.before
        return as_array([*[view.initial] * n_initial, *values[n_initial:], view.initial])

    def _of_outputs(self, view: OutputView, rows: np.ndarray, has_initial: bool) -> np.ndarray:
        """Return a view of the policy outputs; `rows` are the rows of the last steps, from `rows_before()`."""
        seen, initial = rows[:, view.at], view.initial
        if view.source in self._outputs.names:
            values = self._outputs.take(view.source, seen)
            if values.dtype != initial.dtype:
                values = values.astype(_dtype(rows, values.dtype, initial.dtype, view.has_last_entry), copy=False)
            if view.shows_last_entry or has_initial:
                values[(seen < 0) | view.is_last_entry] = initial
            return saved(values)
        return saved(np.broadcast_to(initial, (*seen.shape, *initial.shape)).copy())


def _output_view(view: View, views: Views, initial_states: list[Any]) -> OutputView:
    is_state = view.source.startswith(STATE_OUT)
    has_last_entry = is_state or view.source not in views.zeros
    initial = initial_states[int(view.source.removeprefix(STATE_OUT))] if is_state else view.initial
    n = views.before + has_last_entry
    at: Any = (view.shifts + n - 1) % n
    is_last_entry: Any = at == views.before
    shows_last_entry = bool(is_last_entry.any())
    at = np.minimum(at, views.before - 1)
    if len(at) == 1:
        is_last_entry, at = bool(is_last_entry[0]), int(at[0])
    return OutputView(view.source, at, is_last_entry, shows_last_entry, has_last_entry, np.asarray(initial))


def _dtype(rows: np.ndarray, of_outputs: np.dtype, of_initial: np.dtype, has_last_entry: bool) -> np.dtype:
    """Return the common dtype of a column; in RLlib, each agent's dtype depends on its last steps."""
    n_initial = (rows < 0).sum(axis=1) + has_last_entry
    n = rows.shape[1] + has_last_entry
    kinds = [(n_initial == 0, of_outputs), (n_initial == n, of_initial)]
    kinds.append(((n_initial > 0) & (n_initial < n), np.result_type(of_outputs, of_initial)))
    found = [saved(np.empty(0, dtype)).dtype for has, dtype in kinds if has.any()]
    return np.result_type(*found)


def _seen(window: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    seen = window[shifts + len(window) - 1]
    return seen if len(seen) == 1 else seen[None]


def stacked(observations: list[Any]) -> np.ndarray:
    """Stack observations to [n, ...] like RLlib, which first casts each float64 observation to float32."""
    values = np.array(observations)
    if values.dtype != np.float64:
        return values
    if all(getattr(obs, "dtype", np.float64) == np.float64 for obs in observations):
        return values.astype(np.float32)
    rows = [np.array([obs]) for obs in observations]
    return np.concatenate([row.astype(np.float32) if row.dtype == np.float64 else row for row in rows])
