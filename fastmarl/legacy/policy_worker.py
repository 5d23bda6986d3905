"""Worker policies: training, adding and removing them, and exchanging weights and filters with other workers."""

import logging
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import gymnasium as gym
import torch

from fastmarl.core.connectors.mean_std_filter import MeanStdFilter as FilterConnector
from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.specs import RLModuleSpec
from fastmarl.core.objects.rllib_classes import fetched
from fastmarl.legacy.batches.sample_batch import DEFAULT_POLICY_ID
from fastmarl.legacy.config import RolloutWorkerConfig
from fastmarl.legacy.filters import FilterView, MeanStdFilter
from fastmarl.legacy.policies.policy import Policy, spec_of
from fastmarl.legacy.policies.policy_map import MappingFn, PolicyMap, ToTrain, for_runner, learns_if
from fastmarl.legacy.policies.policy_spec import PolicySpec, as_policy_spec
from fastmarl.legacy.policies.torch_policy import TorchPolicy
from fastmarl.legacy.sampling.env_runner_v2 import EnvRunnerV2
from fastmarl.legacy.sampling.episode_view import EpisodeV2
from fastmarl.legacy.sampling.worker_callbacks import WorkerCallbacks
from fastmarl.runner.runner import MultiAgentEnvRunner

logger = logging.getLogger(__name__)


class PolicyWorker:
    """Manages the policies of a sampling runner; the subclass `RolloutWorker` adds envs, inputs and outputs.

    Args:
        runner: Runner with a module for each policy.
        config: Config of the worker.
        default_policy_class: Function (module, config) -> Policy, for specs without a class.
        callbacks: The callbacks of `config`.

    Attributes:
        config: RolloutWorkerConfig.
        default_policy_class: The argument `default_policy_class`.
        env_runner: The `EnvRunnerV2` that samples.
        policy_map: Policy id -> Policy.
        policy_mapping_fn: Function (agent_id, episode) -> policy id, optionally with a keyword argument `worker`, or
            None if there is a single policy.
        is_policy_to_train: Function (policy id, batch or None) -> bool, or None if all policies are trained.
        global_vars: See `get_global_vars()`.
        weights_seq_no: Sequence number of the weights in the last `set_weights()`, or None.
    """

    def __init__(
        self,
        runner: MultiAgentEnvRunner,
        config: RolloutWorkerConfig,
        default_policy_class: Callable[..., Policy],
        callbacks: WorkerCallbacks,
    ):
        self._runner, self.config, self._callbacks = runner, config, callbacks
        self.default_policy_class = default_policy_class
        self.policy_map = PolicyMap(config.policy_config, default_policy_class, config.max_seq_len, callbacks)
        for policy_id, module in runner.module.items():
            self.policy_map[policy_id] = self.policy_map.make(policy_id, config.policy_spec(policy_id), module)
        self.env_runner = EnvRunnerV2(runner, self.policy_map.acting, config.max_seq_len, callbacks,
                                      config.sampler_perf_stats_ema_coef)  # fmt: skip
        self.policy_mapping_fn = config.policy_mapping_fn
        chosen = config.policies_to_train
        self.is_policy_to_train = None if chosen is None else learns_if(chosen)
        self.global_vars: dict[str, Any] = {"timestep": 0, "num_grad_updates_per_policy": defaultdict(int)}
        self.weights_seq_no: int | None = None
        self._in_process_group = False
        self._announce_policies()

    def _announce_policies(self) -> None:
        """Call `on_create_policy` for each policy, as RLlib does when a worker creates one."""
        for policy_id, policy in self.policy_map.items():
            self._callbacks.call("on_create_policy", policy_id=policy_id, policy=policy)

    @property
    def callbacks(self) -> Any:
        """The instance of `callbacks_class`, or a tuple of instances if that is a list."""
        return self._callbacks.given

    @property
    def policy_dict(self) -> dict[str, PolicySpec]:
        """Policy id -> spec of the policy."""
        return {policy_id: spec_of(policy) for policy_id, policy in self.policy_map.items()}

    def mapped(self, agent_id: Hashable, episode: EpisodeV2) -> str:
        """Return the policy id to which the mapping function maps the agent `agent_id` of `episode`."""
        if self.policy_mapping_fn is None:
            return next(iter(self.policy_map))
        return for_runner(self.policy_mapping_fn, self)(agent_id, episode.episode)

    def _learns(self, policy_id: str, batch: Any = None) -> bool:
        return self.is_policy_to_train is None or bool(self.is_policy_to_train(policy_id, batch))

    def _known(self, policy_id: str) -> Policy:
        if policy_id not in self.policy_map:
            raise ConfigError(f"there is no policy {policy_id!r}; the policies are {list(self.policy_map)}")
        return self.policy_map[policy_id]

    # Learning.

    def learn_on_batch(self, samples: Any) -> dict[str, Any]:
        """Update every trainable policy.

        Args:
            samples: MultiAgentBatch, or a SampleBatch for "default_policy".

        Returns:
            Policy id -> result of its `learn_on_batch()`.
        """
        samples = samples.as_multi_agent()
        return {
            policy_id: self._known(policy_id).learn_on_batch(batch.decompress_if_needed())
            for policy_id, batch in samples.policy_batches.items()
            if self._learns(policy_id, samples)
        }

    def compute_gradients(self, samples: Any, single_agent: bool = False) -> tuple[Any, dict[str, Any]]:
        """Compute the gradients of every trainable policy without updating it.

        Args:
            samples: MultiAgentBatch, or a SampleBatch for "default_policy".
            single_agent: Return only the gradients and statistics of "default_policy", not dicts keyed by policy id.

        Returns:
            (policy id -> gradients; policy id -> statistics, with the number of env steps as "batch_count")
        """
        samples = samples.as_multi_agent()
        gradients, infos = {}, {}
        for policy_id, batch in samples.policy_batches.items():
            if self._learns(policy_id, samples):
                policy = self._known(policy_id)
                gradients[policy_id], infos[policy_id] = policy.compute_gradients(batch.decompress_if_needed())
        if single_agent:
            return gradients[DEFAULT_POLICY_ID], {**infos[DEFAULT_POLICY_ID], "batch_count": samples.count}
        return gradients, {**infos, "batch_count": samples.count}

    def apply_gradients(self, grads: Any) -> None:
        """Apply `grads`, as returned by `compute_gradients()`, to every trainable policy."""
        of_policies = grads if isinstance(grads, dict) else {DEFAULT_POLICY_ID: grads}
        for policy_id, gradients in of_policies.items():
            if self._learns(policy_id):
                self._known(policy_id).apply_gradients(gradients)

    def setup_torch_data_parallel(self, url: str, world_rank: int, world_size: int, backend: str) -> None:
        """Join a torch process group, in which policies average their gradients over all workers.

        Args:
            url: Address of the group, such as "tcp://127.0.0.1:29500"; see `get_node_ip()` and `find_free_port()`.
            world_rank: Index of this worker in the group.
            world_size: Number of workers in the group.
            backend: "gloo" for the CPU, or "nccl" for GPUs.

        Raises:
            ConfigError: If a policy is not a TorchPolicy.
        """
        policies = [policy for policy in self.policy_map.values() if isinstance(policy, TorchPolicy)]
        if len(policies) < len(self.policy_map):
            kinds = {policy_id: type(policy).__name__ for policy_id, policy in self.policy_map.items()}
            raise ConfigError(f"all policies must be TorchPolicies, got {kinds}")
        torch.distributed.init_process_group(backend, init_method=url, rank=world_rank, world_size=world_size)
        self._in_process_group = True
        for policy in policies:
            policy.distributed_world_size = world_size

    def _leave_process_group(self) -> None:
        if self._in_process_group:
            self._in_process_group = False
            torch.distributed.destroy_process_group()

    # Policies.

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy | None:
        """Return the policy `policy_id`, or None if it does not exist."""
        return self.policy_map.get(policy_id)

    def add_policy(
        self,
        policy_id: str,
        policy_cls: Callable[..., Policy] | None = None,
        policy: Policy | None = None,
        *,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        config: Mapping[str, Any] | None = None,
        policy_state: Mapping[str, Any] | None = None,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: ToTrain | None = None,
        module_spec: RLModuleSpec | torch.nn.Module | None = None,
    ) -> Policy:
        """Add a policy. It acts only in episodes that start later.

        Args:
            policy_id: Id of the policy.
            policy_cls: Function (module, config) -> Policy; None for the `default_policy_class` of the worker.
            policy: The policy to add, instead of `policy_cls`, `config` and `module_spec`.
            observation_space: Observation space of its module; None for the space of the agents mapped to it.
            action_space: Action space of its module; None for the space of the agents mapped to it.
            config: Options of this policy.
            policy_state: Initial state, as returned by `policy.get_state()`.
            policy_mapping_fn: Mapping function for new episodes; None changes nothing.
            policies_to_train: Ids of the policies to train, or a function (see `set_is_policy_to_train()`); None
                changes nothing.
            module_spec: Its module, or a spec of it; None for the default network.

        Raises:
            ConfigError: If the id is taken, or both a policy and arguments to create one are passed. Errors leave the
                worker unchanged, except those raised by `on_create_policy`.
        """
        if policy is not None and not (policy_cls is None and config is None and module_spec is None):
            raise ConfigError("pass either policy, or policy_cls, config and module_spec to create one, not both")
        if policy_id in self.policy_map:
            raise ConfigError(f"policy {policy_id!r} already exists; call remove_policy(policy_id={policy_id!r}) "
                              f"first, or choose an id other than {list(self.policy_map)}")  # fmt: skip
        learns = self.is_policy_to_train if policies_to_train is None else learns_if(policies_to_train)
        module = module_spec if policy is None else policy.module
        spec = PolicySpec(policy_cls, observation_space, action_space, config, module=module)
        added = self._add(policy_id, policy, spec, policy_mapping_fn, policy_state)
        self.is_policy_to_train = learns
        return added

    def _add(
        self,
        policy_id: str,
        policy: Policy | None,
        spec: PolicySpec,
        policy_mapping_fn: MappingFn | None,
        policy_state: Mapping[str, Any] | None = None,
    ) -> Policy:
        of_runner = None if policy_mapping_fn is None else for_runner(policy_mapping_fn, self)
        if self.config.env is None:
            spec.spaces(policy_id)  # checks that there are any, as there is no env to take them from
            of_runner = None
        module = self._runner.add_module(policy_id, spec.module_spec(), new_agent_to_module_mapping_fn=of_runner)
        try:
            added = policy or self.policy_map.make(policy_id, spec, module)
            if policy_state is not None:
                added.set_state(policy_state)
        except BaseException:
            self._runner.remove_module(policy_id)
            raise
        self.policy_map[policy_id] = added
        self.policy_mapping_fn = policy_mapping_fn or self.policy_mapping_fn
        if policy is None:
            self._announce_policies()
        return added

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: ToTrain | None = None,
    ) -> None:
        """Remove a policy. It continues to act in running episodes until they finish, and batches include its steps.

        Args:
            policy_id: Id of the policy.
            policy_mapping_fn: Mapping function for new episodes; None changes nothing.
            policies_to_train: Ids of the policies to train, or a function (see `set_is_policy_to_train()`); None
                changes nothing.

        Raises:
            ConfigError: If the policy does not exist or is the only one; nothing changes.
        """
        self._known(policy_id)
        if len(self.policy_map) == 1:
            raise ConfigError(f"{policy_id!r} is the only policy; add another one before removing it")
        learns = self.is_policy_to_train if policies_to_train is None else learns_if(policies_to_train)
        of_runner = None if policy_mapping_fn is None else for_runner(policy_mapping_fn, self)
        if self.config.env is None:
            of_runner = None
        self._runner.remove_module(policy_id, new_agent_to_module_mapping_fn=of_runner)
        self.policy_map.remove(policy_id, self.env_runner.episodes_under_way())
        self.policy_mapping_fn = policy_mapping_fn or self.policy_mapping_fn
        self.is_policy_to_train = learns

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Set the function that maps agents to policies in new episodes, unless `policy_mapping_fn` is None."""
        if policy_mapping_fn is not None:
            of_runner = for_runner(policy_mapping_fn, self)
            if self.config.env is not None:
                self._runner.set_policy_mapping_fn(of_runner)
            self.policy_mapping_fn = policy_mapping_fn

    def set_is_policy_to_train(self, is_policy_to_train: ToTrain | None) -> None:
        """Choose the policies to train.

        Args:
            is_policy_to_train: Ids of the policies, or a function (policy id, batch or None) -> bool; None changes
                nothing.
        """
        if is_policy_to_train is not None:
            self.is_policy_to_train = learns_if(is_policy_to_train)

    def get_policies_to_train(self, batch: Any = None) -> set[str]:
        """Return the ids of the policies to train, on `batch` if it is given."""
        return {policy_id for policy_id in self.policy_map if self._learns(policy_id, batch)}

    def for_policy(self, func: Callable[..., Any], policy_id: str = DEFAULT_POLICY_ID, **kwargs: Any) -> Any:
        """Call func(policy, ...) for the policy `policy_id` and return its result."""
        return func(self._known(policy_id), **kwargs)

    def foreach_policy(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Call func(policy, policy id, ...) for each policy and return the list of results."""
        return [func(policy, policy_id, **kwargs) for policy_id, policy in self.policy_map.items()]

    def foreach_policy_to_train(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Call func(policy, policy id, ...) for each trainable policy and return the list of results."""
        learning_ids = self.get_policies_to_train()
        return [func(policy, id_, **kwargs) for id_, policy in self.policy_map.items() if id_ in learning_ids]

    # Weights, filters, state.

    def get_weights(self, policies: Collection[str] | None = None, inference_only: bool = False) -> dict[str, Any]:
        """Return policy id -> parameter name -> array.

        Args:
            policies: Ids of the policies; None for all.
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
        """Load the weights of policies. Weights of unknown policies are ignored with a warning.

        Args:
            weights: Policy id -> parameter name -> array.
            global_vars: Passed to `set_global_vars()`.
            weights_seq_no: Sequence number of these weights; they are not loaded if the worker already has weights with
                this number.
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
        """Return "timestep", "num_grad_updates_per_policy" (keyed by policy id) and any other variables set."""
        return self.global_vars

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Collection[str] | None = None) -> None:
        """Update `global_vars` and pass them to the trainable policies among `policy_ids`, by default among all."""
        others = {name: value for name, value in global_vars.items() if name != "num_grad_updates_per_policy"}
        updates = global_vars.get("num_grad_updates_per_policy", {})
        self.global_vars["num_grad_updates_per_policy"].update(updates)
        self.global_vars.update(others)
        for policy_id in self.policy_map if policy_ids is None else policy_ids:
            if self._learns(policy_id):
                global_vars = {**self.global_vars, "num_grad_updates": updates.get(policy_id)}
                self._known(policy_id).on_global_var_update(global_vars)

    @property
    def filters(self) -> dict[str, FilterView]:
        """Policy id -> view of the observation filter in use; policies without a filter are left out."""
        views = {}
        for policy_id in self.policy_map:
            connectors = self._runner.env_to_module.get(policy_id)
            for connector in () if connectors is None else connectors.connectors:
                if isinstance(connector, FilterConnector):
                    views[policy_id] = FilterView(connector)
        return views

    def get_filters(self, flush_after: bool = False) -> dict[str, MeanStdFilter]:
        """Return copies of the filters; if `flush_after`, then clear the filter buffers."""
        taken = {}
        for policy_id, view in self.filters.items():
            taken[policy_id] = view.as_serializable()
            if flush_after:
                view.reset_buffer()
        return taken

    def sync_filters(self, new_filters: Mapping[str, MeanStdFilter]) -> None:
        """Set the filters to `new_filters`, as returned by `get_filters()` of any worker."""
        views = self.filters
        if missing := sorted(views.keys() - new_filters.keys()):
            raise ConfigError(f"expected a filter for each of {list(views)}, got none for {missing}")
        for policy_id, view in views.items():
            view.sync(new_filters[policy_id])

    def get_state(self) -> dict[str, Any]:
        """Return the policy states (weights, optimizers, specs), the mapping function, and the filters.

        This clears the filter buffers. Running episodes are not part of the state.
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
        """Restore a state returned by `get_state()`, adding missing policies.

        Args:
            state: The state, or a pickle of it; unpickling may run arbitrary code. "policy_states" may be named
                "state", as in older checkpoints. Parts whose key is missing or None are unchanged. A policy that this
                worker does not have is skipped with a warning if its state has no "policy_spec".

        Raises:
            ConfigError: If the state is not a dict, has no policy states, or does not match. Errors leave the worker
                unchanged.
        """
        if isinstance(state, bytes | bytearray):
            state = _unpickled(state)
        if not isinstance(state, Mapping):
            raise ConfigError(f"expected a dict from get_state(), or a pickle of it, got a {type(state).__name__}")
        policy_states = state.get("policy_states", state.get("state"))
        if not isinstance(policy_states, Mapping) or not all(isinstance(s, Mapping) for s in policy_states.values()):
            raise ConfigError(f'"policy_states" must be a dict of policy id -> state, got {policy_states!r:.99}; '
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
                    logger.warning("set_state(): there is no policy %r, and its state has no policy_spec to create it "
                                   "from; it is ignored", policy_id)  # fmt: skip
                    continue
                self._add(policy_id, None, as_policy_spec(policy_id, spec), None)
            self.policy_map[policy_id].set_state(of_policy)
        if state.get("filters") is not None:
            self.sync_filters(state["filters"])
        self.set_policy_mapping_fn(state.get("policy_mapping_fn"))  # last, because it cannot be undone
        self.is_policy_to_train = learns


def _unpickled(state: bytes | bytearray) -> Any:
    try:
        return pickle.loads(state)
    except Exception as error:  # damage may cause any error
        raise ConfigError(f"can't unpickle the state: {type(error).__name__}: {error}") from error
