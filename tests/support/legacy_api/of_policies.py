"""Checks of policies and of their map: member -> its answer on a face; those `ALONE` are true on ours."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.legacy_api.faces import keys

OBS = np.zeros((4, 2), np.float32)


def _acted(result: Any) -> Any:
    actions, states, extra = result
    return np.shape(actions), len(states), sorted(extra)


def _batch(f: Any) -> Any:
    return f.fresh(rollout_fragment_length=20).sample()["p0"]


def _learns(f: Any, how: Any) -> Any:
    """Return whether a call changes the policy's weights."""
    worker = f.fresh()
    policy, batch = worker.policy_map["p0"], worker.sample()["p0"]
    before = policy.get_weights()
    before = {name: np.array(array) for name, array in before.items()}
    how(policy, batch)
    return any(not np.array_equal(array, before[name]) for name, array in policy.get_weights().items())


def _step(policy: Any, batch: Any) -> Any:
    return policy.apply_gradients(policy.compute_gradients(batch)[0])


def _loaded(policy: Any, batch: Any) -> Any:
    policy.load_batch_into_buffer(batch, 0)
    return policy.learn_on_loaded_batch(0, 0)


def _counts(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name != "learner_stats"}, keys(info)


def _pair(f: Any) -> tuple[Any, Any]:
    return f.fresh().policy_map["p0"], f.fresh(seed=7).policy_map["p0"]


def _same_weights(one: Any, other: Any) -> bool:
    return all(np.array_equal(array, other.get_weights()[name]) for name, array in one.get_weights().items())


def _set(f: Any, how: Any) -> bool:
    one, other = _pair(f)
    how(one, other)
    return _same_weights(one, other)


def _checkpoint(f: Any, policy: Any) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        policy.export_checkpoint(folder)
        return [path.name for path in Path(folder).iterdir() if path.suffix == ".pkl"]


def _restored(f: Any) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        f.policy.export_checkpoint(folder)
        return _same_weights(f.policy, f.Policy.from_checkpoint(folder))


def _model_files(f: Any) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        f.policy.export_model(folder)
        return [path.name for path in Path(folder).iterdir()]


def _global_vars(f: Any) -> Any:
    policy = f.fresh().policy_map["p0"]
    policy.on_global_var_update({"timestep": 5, "num_grad_updates": 3})
    return policy.global_timestep, policy.num_grad_updates


OF_POLICIES = {
    "action_space": lambda f: f.policy.action_space,
    "action_space_struct": lambda f: f.policy.action_space_struct,
    "apply": lambda f: f.policy.apply(lambda policy, a, b: (policy is f.policy, a, b), 1, b=2),
    "apply_gradients": lambda f: _learns(f, _step),
    "compute_actions": lambda f: _acted(f.policy.compute_actions(OBS)),
    "compute_actions_from_input_dict": lambda f: _acted(
        f.policy.compute_actions_from_input_dict(f.SampleBatch({"obs": OBS}), explore=True)
    ),
    "compute_gradients": lambda f: _learns(f, lambda policy, batch: policy.compute_gradients(batch)),
    "compute_log_likelihoods": lambda f: np.shape(f.policy.compute_log_likelihoods(np.zeros(4, np.int64), OBS)),
    "compute_single_action": lambda f: _acted(f.policy.compute_single_action(OBS[0], explore=False)),
    "config": lambda f: (f.policy.config["gamma"], f.policy.config["clip_param"]),
    "dist_class": lambda f: f.policy.dist_class(torch.zeros(4, 3), f.policy.model).logp(torch.zeros(4).long()),
    "export_checkpoint": lambda f: _checkpoint(f, f.policy),
    "export_model": _model_files,
    "framework": lambda f: f.policy.framework,
    "from_state": lambda f: _same_weights(f.policy, f.Policy.from_state(f.policy.get_state())),
    "from_checkpoint": _restored,
    "get_host": lambda f: f.policy.get_host(),
    "get_initial_state": lambda f: f.policy.get_initial_state(),
    "get_num_samples_loaded_into_buffer": lambda f: ((policy := f.fresh().policy_map["p0"]),
                                                     policy.load_batch_into_buffer(_batch(f)),
                                                     policy.get_num_samples_loaded_into_buffer())[2],
    "get_session": lambda f: f.policy.get_session(),
    "get_state": lambda f: keys(f.policy.get_state(), ("weights", "state", "param_groups", "policy_spec",
                                                       "connector_configs", "_exploration_state")),
    "get_weights": lambda f: all(isinstance(array, np.ndarray) for array in f.policy.get_weights().values()),
    "global_timestep": _global_vars,
    "is_recurrent": lambda f: bool(f.policy.is_recurrent()),
    "learn_on_batch": lambda f: (_learns(f, lambda policy, batch: policy.learn_on_batch(batch)),
                                 _counts(f.fresh().policy_map["p0"].learn_on_batch(_batch(f)))),
    "learn_on_loaded_batch": lambda f: _learns(f, _loaded),
    "load_batch_into_buffer": lambda f: f.fresh().policy_map["p0"].load_batch_into_buffer(_batch(f)),
    "loss": lambda f: type(f.policy).loss is not f.Policy.__dict__.get("loss"),
    "num_grad_updates": _global_vars,
    "num_state_tensors": lambda f: f.policy.num_state_tensors(),
    "observation_space": lambda f: f.policy.observation_space,
    "observation_space_struct": lambda f: f.policy.observation_space_struct,
    "on_global_var_update": _global_vars,
    "postprocess_trajectory": lambda f: {"advantages", "value_targets"}
    <= f.policy.postprocess_trajectory(_batch(f)[0:5]).keys(),
    "set_state": lambda f: _set(f, lambda one, other: other.set_state(one.get_state())),
    "set_weights": lambda f: _set(f, lambda one, other: other.set_weights(one.get_weights())),
}  # fmt: skip
POLICIES_ALONE = {
    "callbacks": lambda f: f.policy.callbacks.on_learn_on_batch(policy=f.policy, train_batch=None, result={}) is None,
    "get_connector_metrics": lambda f: f.policy.get_connector_metrics() == {},
    "maybe_remove_time_dimension": lambda f: f.policy.maybe_remove_time_dimension({"obs": 1}) == {"obs": 1},
    "reset_connectors": lambda f: f.policy.reset_connectors(0) is None,
    "get_exploration_state": lambda f: f.policy.get_exploration_state() == {},
}

OF_POLICY_MAPS = {
    "cache": lambda f: sorted(f.worker.policy_map.cache.keys()),
    "get": lambda f: (f.worker.policy_map.get("p0") is f.policy, f.worker.policy_map.get("p9")),
    "items": lambda f: sorted(policy_id for policy_id, _ in f.worker.policy_map.items()),
    "keys": lambda f: sorted(f.worker.policy_map.keys()),
    "policy_states_are_swappable": lambda f: f.worker.policy_map.policy_states_are_swappable,
    "update": lambda f: ((m := f.fresh().policy_map).update({"x": f.policy}), m["x"] is f.policy, len(m))[1:],
    "values": lambda f: [type(policy).__name__ for policy in f.worker.policy_map.values()],
}
POLICY_MAPS_ALONE = {"capacity": lambda f: f.worker.policy_map.capacity >= len(f.worker.policy_map)}
