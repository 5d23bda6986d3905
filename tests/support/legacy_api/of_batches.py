"""Checks of batches and of the small classes: member -> its answer on a face."""

from typing import Any

import numpy as np

from support.legacy_api.faces import ACT, OBS

CONSTANTS = (
    "ACTIONS", "ACTION_DIST", "ACTION_DIST_INPUTS", "ACTION_LOGP", "ACTION_PROB", "AGENT_INDEX", "ATTENTION_MASKS",
    "CUR_OBS", "DONES", "ENV_ID", "EPS_ID", "INFOS", "NEXT_OBS", "OBS", "OBS_EMBEDS", "PREV_ACTIONS", "PREV_REWARDS",
    "RETURNS_TO_GO", "REWARDS", "SEQ_LENS", "T", "TERMINATEDS", "TRUNCATEDS", "UNROLL_ID", "VALUES_BOOTSTRAPPED",
    "VF_PREDS",
)  # fmt: skip


def _columns(batch: Any) -> dict[str, Any]:
    return {name: np.asarray(column) for name, column in dict(batch).items()}


def _packed(batch: Any) -> Any:
    batch.compress(columns={"obs"})
    return type(batch["obs"][0]).__name__, batch["obs"].shape, batch.decompress_if_needed({"obs"})["obs"]


def _of_all(multi: Any) -> Any:
    return {policy_id: _columns(batch) for policy_id, batch in multi.policy_batches.items()}


def _moved(batch: Any) -> Any:
    batch.to_device("cpu")
    return [(type(column).__name__, str(column.dtype)) for name, column in batch.items() if name in ("obs", "rewards")]


def _tracked(f: Any, name: str) -> Any:
    batch = f.batch()
    batch["mine"], _ = batch["rewards"] * 2, batch["eps_id"]
    del batch["mine"]
    return name, sorted({"mine", "eps_id", "rewards"} & getattr(batch, name))


def _intercepted(f: Any) -> Any:
    batch, calls = f.batch(), []
    batch.set_get_interceptor(lambda column: (calls.append(1), column * 2)[1])
    found = (
        batch["rewards"],
        batch["rewards"],
        len(calls),
        list(batch.intercepted_values),
        batch.get_interceptor is None,
    )
    batch.set_get_interceptor(None)
    return *found, batch["rewards"], batch.intercepted_values


def _by_sequence(f: Any) -> Any:
    batch = f.SampleBatch({"obs": np.arange(12.0).reshape(3, 4), "seq_lens": np.array([4, 2, 4], np.int32)})
    batch.enable_slicing_by_batch_id()
    part = batch[1:3]
    batch.disable_slicing_by_batch_id()
    return part["obs"], part["seq_lens"]


def _shuffled(f: Any) -> Any:
    np.random.seed(3)  # noqa: NPY002, as RLlib draws
    return _columns(f.batch().shuffle())


OF_SAMPLE_BATCHES = {
    **{name: lambda f, name=name: getattr(f.SampleBatch, name) for name in CONSTANTS},
    "__init__": lambda f: (f.SampleBatch({"a": [1, 2]}, b=np.ones(2), _max_seq_len=3, _num_grad_updates=4).count,
                           f.sequences().max_seq_len),
    "accessed_keys": lambda f: _tracked(f, "accessed_keys"),
    "added_keys": lambda f: _tracked(f, "added_keys"),
    "agent_steps": lambda f: (f.batch().agent_steps(), f.sequences().agent_steps()),
    "as_multi_agent": lambda f: _of_all(f.batch().as_multi_agent("m")),
    "columns": lambda f: f.batch().columns(["rewards", "t"]),
    "compress": lambda f: _packed(f.batch()),
    "concat": lambda f: _columns(f.batch().concat(f.batch(4))),
    "copy": lambda f: ((b := f.batch()), c := b.copy(), c["rewards"].fill(0), _columns(b),
                       b.copy(shallow=True)["obs"] is b["obs"])[3:],
    "count": lambda f: (f.batch().count, f.sequences().count),
    "decompress_if_needed": lambda f: _packed(f.batch()),
    "deleted_keys": lambda f: _tracked(f, "deleted_keys"),
    "disable_slicing_by_batch_id": lambda f: ((b := f.batch()).enable_slicing_by_batch_id(),
                                              b.disable_slicing_by_batch_id(), b[1:3]["rewards"]),
    "enable_slicing_by_batch_id": _by_sequence,
    "env_steps": lambda f: (f.batch().env_steps(), f.sequences().env_steps()),
    "get": lambda f: (f.batch().get("rewards"), f.batch().get("none"), f.batch().get("none", 3)),
    "get_interceptor": _intercepted,
    "intercepted_values": _intercepted,
    "is_single_trajectory": lambda f: [bool(f.batch()[0:n].is_single_trajectory()) for n in (6, 3)],
    "is_terminated_or_truncated": lambda f: (bool(f.batch().is_terminated_or_truncated()),
                                             bool(f.batch()[0:2].is_terminated_or_truncated())),
    "is_training": lambda f: (f.batch().is_training, f.SampleBatch({"a": np.ones(1)}, _is_training=True).is_training),
    "max_seq_len": lambda f: (f.batch().max_seq_len, f.sequences().max_seq_len),
    "num_grad_updates": lambda f: (f.batch().num_grad_updates, f.batch()[0:2].num_grad_updates),
    "right_zero_pad": lambda f: _columns(f.sequences().right_zero_pad(4)),
    "rows": lambda f: list(f.batch().rows()),
    "set_get_interceptor": _intercepted,
    "set_training": lambda f: ((b := f.batch()).set_training(True), b.is_training, b.set_training(False),
                               b.is_training),
    "shuffle": _shuffled,
    "size_bytes": lambda f: f.batch().size_bytes(),
    "slice": lambda f: (_columns(f.batch().slice(1, 4)), _columns(f.sequences().slice(2, 5))),
    "split_by_episode": lambda f: [_columns(part) for part in f.batch().split_by_episode()],
    "time_major": lambda f: (f.batch().time_major, f.SampleBatch({"a": np.ones((2, 1))}, _time_major=True).time_major),
    "timeslices": lambda f: [_columns(part) for options in ({"size": 2}, {"num_slices": 3})
                             for part in f.batch().timeslices(**options)],
    "to_device": lambda f: _moved(f.batch()),
    "zero_padded": lambda f: ((b := f.sequences()).zero_padded, b.right_zero_pad(4), b.zero_padded)[::2],
}  # fmt: skip

OF_MULTI_AGENT_BATCHES = {
    "__init__": lambda f: f.MultiAgentBatch({"p": f.batch()}, 3).count,
    "agent_steps": lambda f: f.multi().agent_steps(),
    "as_multi_agent": lambda f: ((m := f.multi()).as_multi_agent() is m),
    "compress": lambda f: ((m := f.multi()).compress(columns={"obs"}), type(m["p0"]["obs"][0]).__name__,
                           m.decompress_if_needed({"obs"})["p0"]["obs"]),
    "copy": lambda f: ((m := f.multi()), c := m.copy(), c["p0"]["rewards"].fill(0), _of_all(m))[3],
    "count": lambda f: f.multi().count,
    "decompress_if_needed": lambda f: _of_all(f.multi().decompress_if_needed()),
    "env_steps": lambda f: f.multi().env_steps(),
    "policy_batches": lambda f: sorted(f.multi().policy_batches),
    "size_bytes": lambda f: f.multi().size_bytes(),
    "timeslices": lambda f: [(part.count, {id_: (b["eps_id"], b["t"], b["rewards"]) for id_, b in
                                           part.policy_batches.items()}) for part in f.multi().timeslices(2)],
    "to_device": lambda f: _moved(f.multi().to_device("cpu")["p1"]),
    "wrap_as_needed": lambda f: [type(f.MultiAgentBatch.wrap_as_needed({id_: f.batch()}, 6)).__name__ for id_ in
                                 ("default_policy", "p0")],
}  # fmt: skip


class A:
    """Stands in for a policy class."""


def _spec(f: Any) -> Any:
    return f.PolicySpec(A, OBS, ACT, {"lr": 1})


OF_SPECS = {
    "__init__": lambda f: (_spec(f) == _spec(f), _spec(f) == f.PolicySpec(config={"lr": 1})),
    "action_space": lambda f: _spec(f).action_space,
    "config": lambda f: (_spec(f).config, f.PolicySpec().config),
    "deserialize": lambda f: f.PolicySpec.deserialize(_spec(f).serialize()) == _spec(f),
    "from_state": lambda f: f.PolicySpec.from_state({"policy_class": A, "config": {"lr": 2}}).config,
    "get_state": lambda f: _spec(f).get_state(),
    "observation_space": lambda f: _spec(f).observation_space,
    "policy_class": lambda f: _spec(f).policy_class,
    "serialize": lambda f: (_spec(f).serialize()["policy_class"], _spec(f).serialize()["config"]),
}


def _context(f: Any) -> Any:
    return f.EnvContext({"x": 1}, 2, 3, True, 4, True)


OF_CONTEXTS = {
    "__init__": lambda f: dict(_context(f)),
    "copy_with_overrides": lambda f: [
        (dict(each), each.worker_index, each.vector_index, each.remote, each.num_workers, each.recreated_worker)
        for each in (
            _context(f).copy_with_overrides(),
            _context(f).copy_with_overrides({"y": 2}, 5, 6, False, 7, False),
        )
    ],
    "num_workers": lambda f: _context(f).num_workers,
    "recreated_worker": lambda f: _context(f).recreated_worker,
    "remote": lambda f: _context(f).remote,
    "set_defaults": lambda f: ((c := _context(f)).set_defaults({"x": 5, "z": 6}), dict(c)),
    "vector_index": lambda f: _context(f).vector_index,
    "worker_index": lambda f: _context(f).worker_index,
}


def _filter(f: Any) -> Any:
    """Return a filter that has seen two observations."""
    made = f.filter_of(2)
    for row in ([1.0, 2.0], [3.0, 6.0]):
        made(np.array(row, np.float32))
    return made


def _stats(f: Any, made: Any) -> Any:
    return [f.moments(each) for each in (made.running_stats, made.buffer)]


OF_FILTERS = {
    "apply_changes": lambda f: ((one := _filter(f)), one.apply_changes(_filter(f), with_buffer=True), _stats(f, one))[
        2
    ],
    "as_serializable": lambda f: _stats(f, _filter(f).as_serializable()),
    "buffer": lambda f: ((one := _filter(f)).reset_buffer(), one(np.ones(2, np.float32)), _stats(f, one))[2],
    "clip": lambda f: (_filter(f).clip, _filter(f)(np.array([1e9, -1e9], np.float32), update=False)),
    "copy": lambda f: ((one := _filter(f)), other := one.copy(), other(np.ones(2, np.float32)), _stats(f, one))[3],
    "demean": lambda f: _filter(f).demean,
    "destd": lambda f: (_filter(f).destd, _filter(f)(np.array([1.5, 7.0]), update=False)),
    "is_concurrent": lambda f: _filter(f).is_concurrent,
    "reset_buffer": lambda f: ((one := _filter(f)).reset_buffer(), _stats(f, one)),
    "running_stats": lambda f: _stats(f, _filter(f)),
    "sync": lambda f: ((one := f.filter_of(2)), one.sync(_filter(f)), _stats(f, one))[2],
}  # fmt: skip
FILTERS_ALONE = {
    "no_preprocessor": lambda f: _filter(f).no_preprocessor is True,
    "shape": lambda f: _filter(f).shape == [(2,)],
}
