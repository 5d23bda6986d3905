"""Workers that are wrong in one way each: the comparison has to see all of them."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.evaluation.env_runner_v2 import EnvRunnerV2
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

Spoil = Callable[[Any], Any]


def _batches(spoil: Callable[[Any, MultiAgentBatch], Any]) -> type:
    """A worker that does this with itself and what it returns; what `spoil` returns stands in for it, if anything."""

    class Broken(RLlibWorker):
        def sample(self, **kwargs: Any) -> Any:
            batch = super().sample(**kwargs)
            changed = spoil(self, batch)
            return batch if changed is None else changed

    return Broken


def _last(spoil: Spoil) -> type:
    """Spoils the batch of the last policy."""

    def on(worker: Any, batch: MultiAgentBatch) -> None:
        spoil([*batch.policy_batches.values()][-1])

    return _batches(on)


def _column(name: str, change: Callable[[Any], Any]) -> type:
    def spoil(batch: SampleBatch) -> None:
        dict.__setitem__(batch, name, change(dict.__getitem__(batch, name)))

    return _last(spoil)


def _attribute(name: str, value: Any) -> type:
    return _last(lambda batch: setattr(batch, name, value))


def _metrics(spoil: Callable[[list], Any]) -> type:
    class Broken(RLlibWorker):
        def get_metrics(self) -> Any:
            metrics = super().get_metrics()
            return spoil(metrics) if metrics else metrics

    return Broken


def _replaced(**changes: Callable[[Any], Any]) -> type:
    """Changes fields of the last episode's metrics."""

    def spoil(metrics: list) -> list:
        last = metrics[-1]
        return [*metrics[:-1], last._replace(**{name: change(getattr(last, name)) for name, change in changes.items()})]

    return _metrics(spoil)


def _states(spoil: Callable[[dict], Any]) -> type:
    class Broken(RLlibWorker):
        def get_state(self) -> dict:
            state = super().get_state()
            spoil(state)
            return state

    return Broken


def _runners(**methods: Callable[..., Any]) -> type:
    """A worker whose EnvRunnerV2 has other methods."""
    spoilt = type("Spoilt", (EnvRunnerV2,), methods)

    class Broken(RLlibWorker):
        def sample(self, **kwargs: Any) -> Any:
            self.sampler._env_runner_obj.__class__ = spoilt
            return super().sample(**kwargs)

    return Broken


def _one_ulp(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data.ravel()[-1] = np.nextafter(data.ravel()[-1], np.inf, dtype=data.dtype)
    return data


def _read_only(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data.flags.writeable = False
    return data


def _other_info(infos: np.ndarray) -> np.ndarray:
    infos = infos.copy()
    infos[-1] = {**infos[-1], "more": 1}
    return infos


def _one_more(ids: np.ndarray) -> np.ndarray:
    ids = ids.copy()
    ids[-1] += 1
    return ids


def _swap(items: dict) -> None:
    """The first key becomes the last."""
    key = next(iter(items))
    items[key] = items.pop(key)


def _swap_columns(batch: SampleBatch) -> None:
    key = next(iter(batch))
    dict.__setitem__(batch, key, dict.pop(batch, key))


def _share(worker: Any, batch: MultiAgentBatch) -> None:
    """Rewards lie where those of the first call lie."""
    for name, part in batch.policy_batches.items():
        memory = worker.__dict__.setdefault("memory", {}).setdefault(name, np.zeros(4096, np.float32))
        n = len(part["rewards"])
        memory[:n] = part["rewards"]
        dict.__setitem__(part, "rewards", memory[:n])


def _draws(generator: Callable[[Any], Any]) -> type:
    return _batches(lambda worker, batch: generator(worker) and None)


def _no_start(self: Any, episode: Any, env_id: Any) -> None:
    """Forgets the callback on_episode_start."""


def _other_order(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Evaluates the policies in another order."""
    to_eval = kwargs["to_eval"]
    turned = dict(reversed(to_eval.items()))
    results = EnvRunnerV2._do_policy_eval(self, to_eval=turned)
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


BROKEN: dict[str, type] = {
    "a bit of a reward": _column("rewards", _one_ulp),
    "a bit of an observation": _column("obs", _one_ulp),
    "float64 rewards": _column("rewards", lambda data: data.astype(np.float64)),
    "int32 times": _column("t", lambda data: data.astype(np.int32)),
    "read-only": _column("obs", _read_only),
    "shape of log probabilities": _column("action_logp", lambda data: data[:, None]),
    "an info's content": _column("infos", _other_info),
    "infos as a list": _column("infos", list),
    "an episode of its own": _column("eps_id", _one_more),
    "one unroll": _column("unroll_id", np.zeros_like),
    "lengths of sequences": _column("seq_lens", lambda lens: lens.astype(np.int64)),
    "a column less": _last(lambda batch: dict.pop(batch, "t")),
    "a column more": _last(lambda batch: dict.__setitem__(batch, "more", np.zeros(len(batch)))),
    "order of columns": _last(_swap_columns),
    "training": _attribute("_is_training", True),
    "max_seq_len": _attribute("max_seq_len", 99),
    "zero_padded": _attribute("zero_padded", True),
    "time_major": _attribute("time_major", False),
    "gradient updates": _attribute("num_grad_updates", 7.0),
    "accessed keys": _last(lambda batch: batch.accessed_keys.add("zzz")),
    "added keys": _last(lambda batch: batch.added_keys.add("zzz")),
    "an attribute more": _attribute("more", 1),
    "count": _last(lambda batch: setattr(batch, "count", batch.count + 1)),
    "env steps": _batches(lambda worker, batch: setattr(batch, "count", batch.count + 1)),
    "order of policies": _batches(lambda worker, batch: _swap(batch.policy_batches)),
    "a policy less": _batches(lambda worker, batch: batch.policy_batches.popitem() and None),
    "no multi-agent batch": _batches(lambda worker, batch: next(iter(batch.policy_batches.values()))),
    "shared memory": _batches(_share),
    "a draw of random": _draws(lambda worker: random.random()),
    "a draw of NumPy": _draws(lambda worker: np.random.random()),  # noqa: NPY002
    "a draw of a space": _draws(lambda worker: worker.policy_map["p0"].action_space.sample()),
    "reward of an episode": _replaced(episode_reward=lambda reward: reward + 1e-9),
    "length of an episode": _replaced(episode_length=np.int64),
    "rewards of agents": _replaced(agent_rewards=lambda rewards: dict(reversed(rewards.items()))),
    "names of times": _replaced(perf_stats=lambda stats: {}),
    "times of connectors": _replaced(connector_metrics=lambda found: {name: {} for name in found}),
    "custom metrics": _replaced(custom_metrics=lambda found: {**found, "x": 1}),
    "a faulty episode": _replaced(episode_faulty=lambda faulty: True),
    "order of metrics": _metrics(lambda metrics: [*metrics, metrics[0]]),
    "state of policies": _states(_weights),
    "states of agents": _states(_clear_states),
    "no callback at starts": _runners(_call_on_episode_start=_no_start),
    "order of forward passes": _runners(_do_policy_eval=_other_order),
    "total of rewards": _runners(_process_observations=_forgets_rewards),
    "time": LateTime,
    "no weights": NoWeights,
    "no flush": NoFlush,
}

SEEN_AS: dict[str, str] = {
    "a bit of a reward": "['rewards']: 1 of",
    "a bit of an observation": "['obs']: 1 of",
    "float64 rewards": "['rewards']: ndarray",
    "int32 times": "['t']: ndarray",
    "read-only": "['obs']: ndarray",
    "shape of log probabilities": "['action_logp']: ndarray",
    "an info's content": "['infos'][",
    "infos as a list": "['infos']: ndarray",
    "an episode of its own": "['eps_id'][",
    "one unroll": "['unroll_id'][",
    "lengths of sequences": "['seq_lens']: ndarray",
    "a column less": "keys ['t'] are missing",
    "a column more": "['more'] are too many",
    "order of columns": "in another order",
    "training": "_is_training",
    "max_seq_len": "max_seq_len",
    "zero_padded": "zero_padded",
    "time_major": "time_major",
    "gradient updates": "num_grad_updates",
    "accessed keys": "accessed_keys",
    "added keys": "added_keys",
    "an attribute more": "['more'] are too many",
    "count": "['count']",
    "env steps": ".count",
    "order of policies": "policy_batches: keys in another order",
    "a policy less": "keys ['p1'] are missing",
    "no multi-agent batch": "/ SampleBatch",
    "shared memory": "share memory",
    "a draw of random": "generators[0]",
    "a draw of NumPy": "generators[1]",
    "a draw of a space": "['state']['state']",
    "reward of an episode": ".episode_reward",
    "length of an episode": ".episode_length",
    "rewards of agents": ".agent_rewards: keys in another order",
    "names of times": ".perf_stats",
    "times of connectors": ".connector_metrics",
    "custom metrics": ".custom_metrics",
    "a faulty episode": ".episode_faulty",
    "order of metrics": ": list of 2 / list of 3",
    "state of policies": "['weights']",
    "states of agents": "StateBufferConnector",
    "no callback at starts": "tape of callback",
    "order of forward passes": "['actions']",
    "total of rewards": ".episode_reward",
    "time": "['global_timestep']",
    "no weights": "['weights']",
    "no flush": "['buffer']",
}
"""Where the comparison sees it: a part of one of its lines."""
