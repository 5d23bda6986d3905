"""Workers that are wrong in one way each: the comparison has to see all of them."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.evaluation.env_runner_v2 import EnvRunnerV2
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from rllib.differential.broken import one_ulp, read_only, spoiling, swap_first


def _batches(spoil: Callable[[Any, MultiAgentBatch], Any]) -> type:
    return spoiling(RLlibWorker, "sample", spoil)


def _last(spoil: Callable[[SampleBatch], Any]) -> type:
    """Spoils the batch of the last policy."""
    return _batches(lambda worker, batch: spoil([*batch.policy_batches.values()][-1]))


def _column(name: str, change: Callable[[Any], Any]) -> type:
    return _last(lambda batch: dict.__setitem__(batch, name, change(dict.__getitem__(batch, name))))


def _attribute(name: str, value: Any) -> type:
    return _last(lambda batch: setattr(batch, name, value))


def _metrics(spoil: Callable[[list], Any]) -> type:
    return spoiling(RLlibWorker, "get_metrics", lambda worker, metrics: metrics and spoil(metrics))


def _replaced(**changes: Callable[[Any], Any]) -> type:
    """Changes fields of the last episode's metrics."""

    def spoil(metrics: list) -> None:
        new = {name: change(getattr(metrics[-1], name)) for name, change in changes.items()}
        metrics[-1] = metrics[-1]._replace(**new)

    return _metrics(spoil)


def _states(spoil: Callable[[dict], Any]) -> type:
    return spoiling(RLlibWorker, "get_state", lambda worker, state: spoil(state))


def _runners(**methods: Callable[..., Any]) -> type:
    """A worker whose EnvRunnerV2 has other methods."""
    spoilt = type("Spoilt", (EnvRunnerV2,), methods)

    class Broken(RLlibWorker):
        def sample(self, **kwargs: Any) -> Any:
            self.sampler._env_runner_obj.__class__ = spoilt
            return super().sample(**kwargs)

    return Broken


def _other_info(infos: np.ndarray) -> np.ndarray:
    infos = infos.copy()
    infos[-1] = {**infos[-1], "more": 1}
    return infos


def _one_more(ids: np.ndarray) -> np.ndarray:
    ids = ids.copy()
    ids[-1] += 1
    return ids


def _swap_columns(batch: SampleBatch) -> None:
    key = next(iter(batch))
    dict.__setitem__(batch, key, dict.pop(batch, key))


def _swap_policies(worker: Any, batch: MultiAgentBatch) -> None:
    swap_first(batch.policy_batches)


def _draw_action(worker: Any, batch: MultiAgentBatch) -> None:
    worker.policy_map["p0"].action_space.sample()


def _reversed(items: dict) -> dict:
    return dict(reversed(items.items()))


def _add_column(batch: SampleBatch) -> None:
    dict.__setitem__(batch, "more", np.zeros(len(batch)))


def _share(worker: Any, batch: MultiAgentBatch) -> None:
    """Rewards lie where those of the first call lie."""
    for name, part in batch.policy_batches.items():
        memory = worker.__dict__.setdefault("memory", {}).setdefault(name, np.zeros(4096, np.float32))
        n = len(part["rewards"])
        memory[:n] = part["rewards"]
        dict.__setitem__(part, "rewards", memory[:n])


def _no_start(self: Any, episode: Any, env_id: Any) -> None:
    """Forgets the callback on_episode_start."""


def _other_order(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Evaluates the policies in another order."""
    to_eval = kwargs["to_eval"]
    results = EnvRunnerV2._do_policy_eval(self, to_eval=_reversed(to_eval))
    return {name: results[name] for name in to_eval}


def _forgets_rewards(self: Any, **kwargs: Any) -> Any:
    """Adds nothing to an episode's total."""
    outputs = EnvRunnerV2._process_observations(self, **kwargs)
    for episode in self._active_episodes.values():
        episode.total_reward = 0.0
    return outputs


def _clear_states(state: dict) -> None:
    for policy in state["policy_states"].values():
        kind, connectors = policy["connector_configs"]["agent"]
        kept = [one for one in connectors if one[0] != "StateBufferConnector"]
        policy["connector_configs"]["agent"] = (kind, kept)


def _weights(state: dict) -> None:
    weights = next(iter(state["policy_states"].values()))["weights"]
    name = next(iter(weights))
    weights[name] = weights[name] + 1e-7


class OnePolicy(RLlibWorker):
    """Returns the batch of the first policy."""

    def sample(self, **kwargs: Any) -> Any:
        return next(iter(super().sample(**kwargs).policy_batches.values()))


class LateTime(RLlibWorker):
    """Counts a step too many."""

    def sample(self, **kwargs: Any) -> Any:
        for policy in self.policy_map.cache.values():
            policy.global_timestep += 1
        return super().sample(**kwargs)


class NoWeights(RLlibWorker):
    """Ignores all weights with a number."""

    def set_weights(self, weights: Any, global_vars: Any = None, weights_seq_no: Any = None) -> None:
        super().set_weights({}, global_vars, weights_seq_no)


class NoFlush(RLlibWorker):
    """Keeps what it should flush from its filters."""

    def get_filters(self, flush_after: bool = False) -> dict:
        return super().get_filters(flush_after=False)


BROKEN: dict[str, tuple[type, str]] = {
    "a bit of a reward": (_column("rewards", one_ulp), "['rewards']: 1 of"),
    "a bit of an observation": (_column("obs", one_ulp), "['obs']: 1 of"),
    "float64 rewards": (_column("rewards", lambda data: data.astype(np.float64)), "['rewards']: ndarray"),
    "int32 times": (_column("t", lambda data: data.astype(np.int32)), "['t']: ndarray"),
    "read-only": (_column("obs", read_only), "['obs']: ndarray"),
    "shape of log probabilities": (_column("action_logp", lambda data: data[:, None]), "['action_logp']: ndarray"),
    "an info's content": (_column("infos", _other_info), "['infos']["),
    "infos as a list": (_column("infos", list), "['infos']: ndarray"),
    "an episode of its own": (_column("eps_id", _one_more), "['eps_id']["),
    "one unroll": (_column("unroll_id", np.zeros_like), "['unroll_id']["),
    "lengths of sequences": (_column("seq_lens", lambda lens: lens.astype(np.int64)), "['seq_lens']: ndarray"),
    "a column less": (_last(lambda batch: dict.pop(batch, "t")), "keys ['t'] are missing"),
    "a column more": (_last(_add_column), "['more'] are too many"),
    "order of columns": (_last(_swap_columns), "in another order"),
    "training": (_attribute("_is_training", True), "_is_training"),
    "max_seq_len": (_attribute("max_seq_len", 99), "max_seq_len"),
    "zero_padded": (_attribute("zero_padded", True), "zero_padded"),
    "time_major": (_attribute("time_major", False), "time_major"),
    "gradient updates": (_attribute("num_grad_updates", 7.0), "num_grad_updates"),
    "accessed keys": (_last(lambda batch: batch.accessed_keys.add("zzz")), "accessed_keys"),
    "added keys": (_last(lambda batch: batch.added_keys.add("zzz")), "added_keys"),
    "an attribute more": (_attribute("more", 1), "['more'] are too many"),
    "count": (_last(lambda batch: setattr(batch, "count", batch.count + 1)), "['count']"),
    "env steps": (_batches(lambda worker, batch: setattr(batch, "count", batch.count + 1)), ".count"),
    "order of policies": (_batches(_swap_policies), "policy_batches: keys in another order"),
    "a policy less": (_batches(lambda worker, batch: batch.policy_batches.popitem()), "keys ['p1'] are missing"),
    "no multi-agent batch": (OnePolicy, "/ SampleBatch"),
    "shared memory": (_batches(_share), "share memory"),
    "a draw of random": (_batches(lambda worker, batch: random.random()), "generators[0]"),
    "a draw of NumPy": (_batches(lambda worker, batch: np.random.random()), "generators[1]"),  # noqa: NPY002
    "a draw of a space": (_batches(_draw_action), "['state']['state']"),
    "reward of an episode": (_replaced(episode_reward=lambda reward: reward + 1e-9), ".episode_reward"),
    "length of an episode": (_replaced(episode_length=np.int64), ".episode_length"),
    "rewards of agents": (_replaced(agent_rewards=_reversed), ".agent_rewards: keys in another order"),
    "names of times": (_replaced(perf_stats=lambda stats: {}), ".perf_stats"),
    "times of connectors": (_replaced(connector_metrics=lambda found: {k: {} for k in found}), ".connector_metrics"),
    "custom metrics": (_replaced(custom_metrics=lambda found: {**found, "x": 1}), ".custom_metrics"),
    "a faulty episode": (_replaced(episode_faulty=lambda faulty: True), ".episode_faulty"),
    "order of metrics": (_metrics(lambda metrics: metrics.append(metrics[0])), ": list of 2 / list of 3"),
    "state of policies": (_states(_weights), "['weights']"),
    "states of agents": (_states(_clear_states), "StateBufferConnector"),
    "no callback at starts": (_runners(_call_on_episode_start=_no_start), "tape of callback"),
    "order of forward passes": (_runners(_do_policy_eval=_other_order), "['actions']"),
    "total of rewards": (_runners(_process_observations=_forgets_rewards), ".episode_reward"),
    "time": (LateTime, "['global_timestep']"),
    "no weights": (NoWeights, "['weights']"),
    "no flush": (NoFlush, "['buffer']"),
}
"""Name -> the worker, and where the comparison sees it: a part of one of its lines."""
