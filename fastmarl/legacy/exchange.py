"""Exchange between workers, and their states: weights, counters, filters, its state."""

import logging
import pickle
from collections.abc import Collection, Mapping
from typing import Any

from fastmarl.core.connectors.mean_std_filter import MeanStdFilter as FilterConnector
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.rllib_classes import fetched
from fastmarl.legacy.filters import FilterView, MeanStdFilter
from fastmarl.legacy.policies.policy import spec_of
from fastmarl.legacy.policies.policy_map import learns_if
from fastmarl.legacy.policies.policy_spec import as_policy_spec
from fastmarl.legacy.policy_worker import PolicyWorker

logger = logging.getLogger(__name__)


class ExchangingWorker(PolicyWorker):
    """The part of `RolloutWorker` that exchanges weights and filters, and has a state."""

    def get_weights(self, policies: Collection[str] | None = None, inference_only: bool = False) -> dict[str, Any]:
        """Return policy id -> parameter name -> array.

        Args:
            policies: Ids of the policies; None: all.
            inference_only: No effect, as in RLlib.
        """
        wanted = [policies] if isinstance(policies, str) else policies
        return {id_: policy.get_weights() for id_, policy in self.policy_map.items() if wanted is None or id_ in wanted}

    def set_weights(
        self,
        weights: Mapping[str, Any],
        global_vars: Mapping[str, Any] | None = None,
        weights_seq_no: int | None = None,
    ) -> None:
        """Load weights by policy id. Weights of unknown policies are ignored with a warning.

        Args:
            weights: Policy id -> parameter name -> array.
            global_vars: Passed to `set_global_vars()`.
            weights_seq_no: Number of these weights; if the worker has the weights of this number, nothing is copied.
        """
        if weights_seq_no is None or weights_seq_no != self.weights_seq_no:
            for policy_id, of_policy in weights.items():
                if policy_id in self.policy_map:
                    self.policy_map[policy_id].set_weights(fetched(of_policy))
                else:
                    logger.warning("set_weights(): there is no policy %r; its weights are ignored", policy_id)
        self.weights_seq_no = weights_seq_no
        if global_vars:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """Return {"timestep": ..., "num_grad_updates_per_policy": {policy id: ...}} and any other variables set."""
        return self.global_vars

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Collection[str] | None = None) -> None:
        """Update `global_vars`, and pass them to the policies that learn, those in `policy_ids` if it is given."""
        others = {name: value for name, value in global_vars.items() if name != "num_grad_updates_per_policy"}
        updates = global_vars.get("num_grad_updates_per_policy", {})
        self.global_vars["num_grad_updates_per_policy"].update(updates)
        self.global_vars.update(others)
        for policy_id in self.policy_map if policy_ids is None else policy_ids:
            if self._learns(policy_id):
                told = {**self.global_vars, "num_grad_updates": updates.get(policy_id)}
                self._known(policy_id).on_global_var_update(told)

    @property
    def filters(self) -> dict[str, FilterView]:
        """Views by policy id of the observation filters that are in use; policies without a filter are left out."""
        views = {}
        for policy_id in self.policy_map:
            connectors = self._runner.env_to_module.get(policy_id)
            for connector in () if connectors is None else connectors.connectors:
                if isinstance(connector, FilterConnector):
                    views[policy_id] = FilterView(connector)
        return views

    def get_filters(self, flush_after: bool = False) -> dict[str, MeanStdFilter]:
        """Return copies of the filters; with `flush_after`, clear the filters' buffers afterwards."""
        taken = {}
        for policy_id, view in self.filters.items():
            taken[policy_id] = view.as_serializable()
            if flush_after:
                view.reset_buffer()
        return taken

    def sync_filters(self, new_filters: Mapping[str, MeanStdFilter]) -> None:
        """Copy the statistics of `new_filters`, from `get_filters()` of this worker or another, into this worker's."""
        views = self.filters
        if missing := sorted(views.keys() - new_filters.keys()):
            raise ConfigError(f"expected a filter for each of {list(views)}, got none for {missing}")
        for policy_id, view in views.items():
            view.sync(new_filters[policy_id])

    def get_state(self) -> dict[str, Any]:
        """Return the state of policies (weights, optimizers, specs), the mapping function, and filters.

        Clears the filters' buffers. Running episodes are not part of the state.
        """
        filters = self.get_filters(flush_after=True)
        only_learning = self.config.checkpoint_trainable_policies_only
        states = {
            policy_id: {"policy_spec": spec_of(policy), **policy.get_state()}
            for policy_id, policy in self.policy_map.items()
            if not only_learning or self._learns(policy_id)
        }
        return {
            "policy_ids": list(self.policy_map),
            "policy_states": states,
            "policy_mapping_fn": self.policy_mapping_fn,
            "is_policy_to_train": self.is_policy_to_train,
            "filters": filters,
        }

    def set_state(self, state: Mapping[str, Any] | bytes) -> None:
        """Restore a state from `get_state()`, adding the policies that this worker lacks.

        Args:
            state: The state, or a pickle of it, which is unpickled and may run any code in it. "policy_states" may be
                called "state", as in older checkpoints. Other keys may be missing or None; what they stand for then
                stays as it is. A policy that this worker lacks is left out with a warning if its state has no
                "policy_spec".

        Raises:
            ConfigError: If the state is not a dict, or lacks the policies' states, or does not fit. After any error,
                nothing has changed.
        """
        if isinstance(state, bytes | bytearray):
            state = _unpickled(state)
        if not isinstance(state, Mapping):
            raise ConfigError(f"expected a dict from get_state(), or a pickle of it, got a {type(state).__name__}")
        policy_states = state.get("policy_states", state.get("state"))
        if not isinstance(policy_states, Mapping) or not all(isinstance(s, Mapping) for s in policy_states.values()):
            raise ConfigError(f'expected states by policy id under "policy_states", got {policy_states!r:.99}; '
                              f"the state has the keys {list(state)}")  # fmt: skip
        before = {policy_id: policy.get_state() for policy_id, policy in self.policy_map.items()}
        filters = self.get_filters()
        try:
            self._restore(state, policy_states)
        except BaseException:
            for policy_id in [policy_id for policy_id in self.policy_map if policy_id not in before]:
                self._runner.remove_module(policy_id)
                del self.policy_map[policy_id]
            for policy_id, of_policy in before.items():
                self.policy_map[policy_id].set_state(of_policy)
            self.sync_filters(filters)
            raise

    def _restore(self, state: Mapping[str, Any], policy_states: Mapping[str, Any]) -> None:
        to_train = state.get("is_policy_to_train")
        learns = self.is_policy_to_train if to_train is None else learns_if(to_train)
        for policy_id, of_policy in policy_states.items():
            if policy_id not in self.policy_map:
                spec = of_policy.get("policy_spec")
                if spec is None:
                    logger.warning("set_state(): there is no policy %r, and its state has no policy_spec to add it by; "
                                   "it is ignored", policy_id)  # fmt: skip
                    continue
                self._add(policy_id, None, as_policy_spec(policy_id, spec), None)
            self.policy_map[policy_id].set_state(of_policy)
        if state.get("filters") is not None:
            self.sync_filters(state["filters"])
        self.set_policy_mapping_fn(state.get("policy_mapping_fn"))  # last, because it can't be undone
        self.is_policy_to_train = learns


def _unpickled(state: bytes | bytearray) -> Any:
    try:
        return pickle.loads(state)
    except Exception as error:  # damage may cause any error
        raise ConfigError(f"this is not a pickle of a state: {type(error).__name__}: {error}") from error
