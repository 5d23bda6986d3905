"""Checks of workers: member -> its answer on a face; those `ALONE` are true on ours."""

import socket
import threading
from typing import Any

import numpy as np
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback

from support.legacy_api.faces import ACT, OBS, all_to_p0, by_agent, keys


def _shapes(weights: dict[str, Any]) -> dict[str, int]:
    """Return the number of policies' weights, whose names and layers differ."""
    return {policy_id: sum(np.size(array) > 0 for array in each.values()) > 0 for policy_id, each in weights.items()}


def _weights(worker: Any, policy_id: str = "p0") -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in worker.get_weights()[policy_id].values()])


def _changed(worker: Any, act: Any) -> list[bool]:
    """Return whether the weights of each policy change."""
    before = [_weights(worker, policy_id) for policy_id in ("p0", "p1")]
    act()
    return [not np.array_equal(b, _weights(worker, id_)) for b, id_ in zip(before, ("p0", "p1"), strict=True)]


def _creation_args(f: Any) -> Any:
    args = f.fresh({"worker_index": 2, "num_workers": 4}).creation_args()
    return args["worker_index"], args["num_workers"], args["recreated_worker"], args["log_dir"]


def _waits_for_the_lock(worker: Any) -> bool:
    worker.lock()
    waiting = threading.Thread(target=lambda: (worker.lock(), worker.unlock()), daemon=True)
    waiting.start()
    waiting.join(0.05)
    waited = waiting.is_alive()
    worker.unlock()
    waiting.join(10)
    return waited and not waiting.is_alive()


def _add(f: Any, **more: Any) -> Any:
    worker = f.fresh()
    added = worker.add_policy("new", type(worker.policy_map["p0"]), observation_space=OBS, action_space=ACT,
                              policy_mapping_fn=lambda agent_id, *args, **kwargs: "new", policies_to_train=["new"],
                              **more)  # fmt: skip
    batch = worker.sample()
    return worker.policy_map["new"] is added, sorted(batch.policy_batches), worker.get_policies_to_train()


def _remove(f: Any) -> Any:
    worker = f.fresh()
    worker.remove_policy(policy_id="p1", policy_mapping_fn=all_to_p0, policies_to_train=["p0"])
    return sorted(worker.policy_map.keys()), sorted(worker.sample().policy_batches), worker.get_policies_to_train()


def _state(f: Any) -> Any:
    one, other = f.fresh(), f.fresh(seed=5)
    one.sample()
    one.set_is_policy_to_train(["p1"])
    other.set_state(one.get_state())
    return np.array_equal(_weights(one), _weights(other)), other.get_policies_to_train()


def _seq_no(f: Any) -> Any:
    one, other = f.fresh(), f.fresh(seed=5)
    one.set_weights(other.get_weights(), {"timestep": 3}, 7)
    return np.array_equal(_weights(one), _weights(other)), one.weights_seq_no, one.get_global_vars()["timestep"]


def _filters(worker: Any) -> Any:
    return {policy_id: each.buffer for policy_id, each in worker.get_filters(flush_after=True).items()}.keys()


def _synced(f: Any) -> Any:
    one, other = f.fresh(observation_filter="MeanStdFilter"), f.fresh(observation_filter="MeanStdFilter")
    one.sample()
    other.sync_filters(one.get_filters())
    counts = [f.count_of(each.get_filters()["p0"]) for each in (one, other)]
    return counts[0] == counts[1] > 5


def _gradients(f: Any, single: bool = False) -> Any:
    worker = f.fresh()
    grads, info = worker.compute_gradients(worker.sample())
    return sorted(grads), info["batch_count"], keys(info), _changed(worker, lambda: worker.apply_gradients(grads))


def _learnt(f: Any) -> Any:
    worker = f.fresh()
    info = worker.learn_on_batch(worker.sample())
    return keys(info)


def _sample_and_learn(f: Any) -> Any:
    info, count = f.fresh().sample_and_learn(10, 2, 5, ["advantages"])
    return keys(info), count


def _port(worker: Any) -> bool:
    with socket.socket() as server:
        server.bind(("", worker.find_free_port()))
        return True


def _in_group(f: Any) -> Any:
    worker = f.fresh()
    url = f"tcp://127.0.0.1:{worker.find_free_port()}"
    worker.setup_torch_data_parallel(url, 0, 1, "gloo")
    try:
        return torch.distributed.get_world_size(), worker.policy_map["p0"].distributed_world_size
    finally:
        worker.stop()
        if torch.distributed.is_initialized():  # RLlib's worker stays in the group
            torch.distributed.destroy_process_group()


class Counts(RLlibCallback):
    """A class of callbacks with an attribute."""

    hits = 3


def _metrics(f: Any) -> Any:
    worker = f.fresh()
    worker.sample()
    found = [(each.episode_length, each.episode_reward, each.agent_rewards, each.perf_stats.keys()) for each in
             worker.get_metrics()]  # fmt: skip
    return found, worker.get_metrics()


STATES_DIFFER = ("weights", "state", "param_groups", "policy_spec", "connector_configs", "_exploration_state")
"""Keys of states that RLlib has alone, or whose values are named or made otherwise."""


def _keys_of_state(f: Any) -> Any:
    worker = f.fresh(observation_filter="MeanStdFilter")
    worker.learn_on_batch(worker.sample())
    state = worker.get_state()
    return keys(state, STATES_DIFFER), f.count_of(state["filters"]["p0"]), type(state["filters"]["p0"]).__name__


def _columns(f: Any) -> Any:
    """Return the columns' dtypes, of the actions the kind alone, without the column that only ours has."""
    batch = f.fresh().sample()["p0"]
    return keys(dict(batch), ("actions", "weights_seq_no")), batch["actions"].dtype.kind


def _without_env(f: Any) -> Any:
    spaces = {"p0": (OBS, ACT), "p1": (OBS, ACT)}
    worker = f.fresh({"env_creator": lambda context: None, "spaces": spaces} if f.is_rllib else
                     {"env_creator": None, "spaces": spaces})  # fmt: skip
    return worker.env, worker.async_env, worker.sampler, worker.foreach_env(len), sorted(worker.get_weights())


OF_WORKERS = {
    "__init__": _without_env,
    "add_policy": _add,
    "apply": lambda f: f.worker.apply(lambda worker, a, b: (worker is f.worker, a, b), 1, b=2),
    "apply_gradients": _gradients,
    "assert_healthy": lambda f: f.worker.assert_healthy(),
    "async_env": lambda f: [type(env) for env in f.worker.async_env.get_sub_environments()],
    "callbacks": lambda f: f.fresh(callbacks_class=Counts).callbacks.hits,
    "compute_gradients": _gradients,
    "config": lambda f: (f.worker.config.seed, f.worker.config.rollout_fragment_length),
    "creation_args": _creation_args,
    "default_policy_class": lambda f: f.worker.default_policy_class.__name__,
    "env": lambda f: type(f.worker.env),
    "env_context": lambda f: (f.worker.env_context.worker_index, f.worker.env_context.vector_index),
    "env_creator": lambda f: type(f.worker.env_creator(f.worker.env_context)),
    "filters": lambda f: sorted(f.fresh(observation_filter="MeanStdFilter").filters),
    "find_free_port": lambda f: _port(f.worker),
    "for_policy": lambda f: f.worker.for_policy(lambda policy, k: (policy is f.policy, k), "p0", k=3),
    "foreach_env": lambda f: f.worker.foreach_env(lambda env: type(env)),
    "foreach_env_with_context": lambda f: f.worker.foreach_env_with_context(
        lambda env, context: (type(env), context.worker_index, context.vector_index)
    ),
    "foreach_policy": lambda f: sorted(f.worker.foreach_policy(lambda policy, policy_id, k: (policy_id, k), k=1)),
    "foreach_policy_to_train": lambda f: sorted(f.worker.foreach_policy_to_train(lambda policy, policy_id: policy_id)),
    "get_filters": lambda f: (f.worker.get_filters(), _filters(f.fresh(observation_filter="MeanStdFilter"))),
    "get_global_vars": lambda f: ((found := f.fresh().get_global_vars()).copy(),
                                  found["num_grad_updates_per_policy"]["x"]),
    "get_host": lambda f: f.worker.get_host(),
    "get_metrics": _metrics,
    "get_node_ip": lambda f: bool(socket.inet_aton(f.worker.get_node_ip())),
    "get_policies_to_train": lambda f: f.worker.get_policies_to_train(None),
    "get_policy": lambda f: (f.worker.get_policy("p0") is f.policy, f.worker.get_policy("p9"), f.worker.get_policy()),
    "get_spaces": lambda f: f.worker.get_spaces(),
    "get_state": _keys_of_state,
    "get_weights": lambda f: [_shapes(f.worker.get_weights(ids, inference_only=True)) for ids in (["p1"], None)],
    "global_vars": lambda f: f.worker.global_vars["timestep"],
    "input_reader": lambda f: f.fresh().input_reader.next().count,
    "io_context": lambda f: (f.worker.io_context.worker_index, f.worker.io_context.worker is f.worker),
    "is_policy_to_train": lambda f: f.fresh(policies_to_train=["p0"]).is_policy_to_train("p0", None),
    "last_batch": lambda f: ((w := f.fresh(fake_sampler=True)).last_batch, w.sample() is w.sample() is w.last_batch),
    "learn_on_batch": _learnt,
    "lock": lambda f: _waits_for_the_lock(f.worker),
    "make_module": lambda f: f.worker.make_module(),
    "make_sub_env_fn": lambda f: (type(env := f.worker.make_sub_env_fn(1)), env.context.vector_index),
    "metrics": lambda f: f.fresh().metrics.log_value("x", 1.0),
    "multi_rl_module_spec": lambda f: f.worker.multi_rl_module_spec,
    "num_env_steps_sampled_lifetime": lambda f: f.fresh().num_env_steps_sampled_lifetime,
    "num_workers": lambda f: f.fresh({"num_workers": 4, "worker_index": 1}).num_workers,
    "output_writer": lambda f: f.worker.output_writer.write(f.multi()),
    "ping": lambda f: f.worker.ping(),
    "policy_dict": lambda f: {id_: (spec.observation_space, spec.action_space) for id_, spec in
                              f.worker.policy_dict.items()},
    "policy_map": lambda f: sorted(f.worker.policy_map.keys()),
    "policy_mapping_fn": lambda f: f.worker.policy_mapping_fn is by_agent,
    "preprocessors": lambda f: sorted(f.worker.preprocessors),
    "recreated_worker": lambda f: f.fresh({"recreated_worker": True}).recreated_worker,
    "remove_policy": _remove,
    "sample": lambda f: (batch := f.fresh().sample(explore=False), batch.count, sorted(batch.policy_batches),
                         batch["p0"]["t"], batch["p1"]["rewards"], batch["p1"]["truncateds"],
                         batch["p1"]["terminateds"], batch["p0"]["agent_index"], [each.get("t") for each in
                         batch["p0"]["infos"]], _columns(f))[1:],
    "sample_and_learn": _sample_and_learn,
    "sample_with_count": lambda f: f.fresh().sample_with_count()[1],
    "sampler": lambda f: f.fresh().sampler.next().count,
    "seed": lambda f: f.fresh({"worker_index": 2, "num_workers": 2}).seed,
    "set_global_vars": lambda f: ((w := f.fresh()).set_global_vars({"timestep": 7, "x": 1}, policy_ids=["p1"]),
                                  w.global_vars["x"], [w.policy_map[i].global_timestep for i in ("p0", "p1")])[1:],
    "set_is_policy_to_train": lambda f: ((w := f.fresh()).set_is_policy_to_train(["p1"]), w.get_policies_to_train()),
    "set_policy_mapping_fn": lambda f: ((w := f.fresh()).set_policy_mapping_fn(all_to_p0),
                                        sorted(w.sample().policy_batches)),
    "set_state": _state,
    "set_weights": _seq_no,
    "setup_torch_data_parallel": _in_group,
    "spaces": lambda f: f.fresh({"spaces": {"p0": (OBS, ACT)}}).spaces,
    "stop": lambda f: f.fresh().stop(),
    "sync_filters": _synced,
    "total_rollout_fragment_length": lambda f: f.fresh(num_envs_per_env_runner=3).total_rollout_fragment_length,
    "unlock": lambda f: _waits_for_the_lock(f.worker),
    "weights_seq_no": lambda f: f.worker.weights_seq_no,
    "worker_index": lambda f: f.fresh({"worker_index": 2, "num_workers": 2}).worker_index,
}  # fmt: skip


WORKERS_ALONE = {
    "make_env": lambda f: (w := f.fresh(), w.make_env(), w.sample().count == 10)[-1],
    "preprocessing_enabled": lambda f: f.worker.preprocessing_enabled is False,
    "sample_get_state_and_metrics": lambda f: (
        [type(each).__name__ for each in f.fresh().sample_get_state_and_metrics()]
        == ["MultiAgentBatch", "dict", "list"]
    ),
}


def _run(f: Any) -> Any:
    outputs = f.env_runner(f.fresh()).run()
    found = [next(outputs) for _ in range(3)]
    return [getattr(each, "count", None) if hasattr(each, "policy_batches") else each.episode_length for each in found]


def _steps(f: Any) -> Any:
    runner = f.env_runner(f.fresh())
    found = [each for _ in range(12) for each in runner.step()]
    return sorted(type(each).__name__ for each in found)


OF_RUNNERS = {"run": _run, "step": _steps}
