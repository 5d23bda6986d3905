"""The batches for processes without RLlib are those of RLlib."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.policy import sample_batch as theirs

from fastmarl.errors import BatchError
from fastmarl.legacy.batches import sample_batch as ours

BOTH = (ours, theirs)
SETTINGS = ("count", "zero_padded", "max_seq_len", "time_major", "num_grad_updates", "is_training")


@st.composite
def columns_of_steps(draw, with_infos=True):
    """(columns, settings) of a batch without sequences."""
    n = draw(st.integers(1, 9))
    ts = np.arange(n)
    columns = {
        "obs": draw(st.sampled_from([
            ts[:, None] + np.float32([0.5, 7]),
            {"a": ts * 2, "b": {"c": np.float32(ts), "d": np.zeros((n, 2, 2), np.uint8)}},
            (ts, np.float64(ts)),
            torch.arange(n * 3).reshape(n, 3),
        ])),
        "rewards": draw(st.sampled_from([np.float32(ts), ts.tolist(), [0.25] * n])),
        "terminateds": np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        "eps_id": np.sort(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))),
        "t": ts,
        "agent_index": np.zeros(n, np.int64),
        "unroll_id": np.zeros(n, np.int64),
    }  # fmt: skip
    if draw(st.booleans()):
        columns["truncateds"] = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    if with_infos and draw(st.booleans()):
        infos = [{"step": i} for i in range(n)]
        columns["infos"] = draw(st.sampled_from([infos, np.array(infos, object)]))
    names = draw(st.permutations(sorted(columns)))
    updates = draw(st.sampled_from([None, 0, 3, 2.5]))
    return {name: columns[name] for name in names}, {"_num_grad_updates": updates}


@st.composite
def columns_of_sequences(draw):
    """(columns, settings) of a batch with sequences."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    n, q = sum(lengths), len(lengths)
    columns = {
        "obs": np.arange(n * 2, dtype=np.float32).reshape(n, 2),
        "actions": {"a": np.arange(n), "b": np.float32(np.arange(n))},
        "infos": np.array([{"step": i} for i in range(n)], object),
        "terminateds": np.zeros(n, bool),
        "seq_lens": draw(st.sampled_from([lengths, np.array(lengths, np.int32), np.array(lengths)])),
        "state_in_0": np.arange(q * 3, dtype=np.float32).reshape(q, 3),
        "state_in_1": np.arange(q),
    }
    return columns, {"_max_seq_len": draw(st.sampled_from([None, 4, 6])), "_num_grad_updates": 2}


def copies(columns):
    return pickle.loads(pickle.dumps(columns))


def two(drawn):
    """The batch of either module."""
    columns, settings = drawn
    return [module.SampleBatch(copies(columns), **settings) for module in BOTH]


def plain(value):
    """A value in which any difference shows, but that arrays of objects are like lists."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    array = np.asarray(value)
    if array.dtype == object or isinstance(value, list):
        return list(value)
    return array.dtype.str, array.shape, array.tolist()


def assert_same(own, other):
    if isinstance(other, theirs.MultiAgentBatch):
        assert isinstance(own, ours.MultiAgentBatch)
        assert (own.count, own.agent_steps(), len(own)) == (other.count, other.agent_steps(), len(other))
        assert list(own.policy_batches) == list(other.policy_batches)
        for policy_id, batch in other.policy_batches.items():
            assert_same(own[policy_id], batch)
        return
    assert isinstance(own, ours.SampleBatch)
    assert plain(dict(own)) == plain(dict(other))
    assert [getattr(own, name) for name in SETTINGS] == [getattr(other, name) for name in SETTINGS]


def assert_all_same(own, other):
    assert len(own) == len(other)
    for one, another in zip(own, other, strict=True):
        assert_same(one, another)


ANY = columns_of_steps() | columns_of_sequences()


@given(ANY, st.booleans())
def test_batches_have_the_columns_counts_and_settings(drawn, is_training):
    own, other = two(drawn)
    assert_same(own, other)
    assert repr(own) == repr(other)
    assert (len(own), own.agent_steps(), own.env_steps()) == (len(other), other.agent_steps(), other.env_steps())
    assert plain(own["dones"]) == plain(other["dones"])
    assert own.get("nothing", 5) == other.get("nothing", 5) == 5
    assert plain(tuple(own.columns(["obs"]))) == plain(tuple(other.columns(["obs"])))
    for batch in (own, other):
        batch.set_training(is_training)
    assert own.is_training == other.is_training
    assert_same(own.as_multi_agent(), other.as_multi_agent())
    assert_same(own.as_multi_agent("p"), other.as_multi_agent("p"))
    assert_same(pickle.loads(pickle.dumps(own)), other)


@given(ANY, st.data())
def test_slices_of_steps(drawn, data):
    own, other = two(drawn)
    end = data.draw(st.none() | st.integers(1, own.count + 2))
    begin = data.draw(st.none() | st.integers(0, own.count if end is None else min(end, own.count)))
    assert_same(own[begin:end], other[begin:end])


@given(columns_of_sequences(), st.data())
def test_slices_within_sequences(drawn, data):
    own, other = two(drawn)
    end = data.draw(st.integers(1, own.count))
    begin = data.draw(st.integers(0, end - 1))
    assert_same(own.slice(begin, end), other.slice(begin, end))
    ends = np.cumsum(own["seq_lens"])
    first = int(np.searchsorted(ends, begin, "right"))
    begin = int(ends[first - 1]) if first else 0
    after = int(np.searchsorted(ends, end, "left")) + 1
    assert_same(own.slice(begin, end, first, after), other.slice(begin, end, first, after))


@given(columns_of_sequences(), st.integers(4, 7), st.data())
def test_padding_and_slices_of_padded_sequences(drawn, length, data):
    columns, settings = drawn
    columns = {name: column for name, column in columns.items() if name != "infos"}  # RLlib slices these unpadded
    own, other = two((columns, settings))
    assert_same(own.right_zero_pad(length), other.right_zero_pad(length))
    end = data.draw(st.integers(1, own.count))
    begin = data.draw(st.integers(0, end))
    assert_same(own[begin:end], other[begin:end])
    assert_same(own.copy(), other.copy())


def test_infos_are_padded_and_sliced_like_other_columns():
    own = ours.SampleBatch({"obs": np.arange(3), "infos": np.array([{"i": i} for i in range(3)], object),
                            "seq_lens": [1, 2]})  # fmt: skip
    own.right_zero_pad(3)
    assert own["infos"].tolist() == [{"i": 0}, None, None, {"i": 1}, {"i": 2}, None]
    assert own[1:3]["infos"].tolist() == [{"i": 1}, {"i": 2}, None]
    with pytest.raises(BatchError, match="can't be padded"):
        ours.SampleBatch({"obs": np.arange(3), "seq_lens": [1, 2]}).right_zero_pad(1)


@given(columns_of_steps(), st.data())
def test_timeslices(drawn, data):
    own, other = two(drawn)
    size = data.draw(
        st.sampled_from([d for d in range(1, own.count + 1) if own.count % d == 0])
    )  # RLlib ends with these
    assert_all_same(own.timeslices(size), other.timeslices(size))
    assert_all_same(own.timeslices(k=size), other.timeslices(k=size))
    number = data.draw(st.integers(1, own.count))
    assert_all_same(own.timeslices(num_slices=number), other.timeslices(num_slices=number))


def test_timeslices_end_with_a_shorter_one():
    pieces = ours.SampleBatch({"obs": np.arange(5)}).timeslices(2)
    assert [piece["obs"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4]]
    for none in ({"size": 0}, {"num_slices": 0}, {}):
        with pytest.raises(BatchError, match="positive size"):
            ours.SampleBatch({"obs": np.arange(5)}).timeslices(**none)


@given(columns_of_steps(), st.sampled_from([None, "eps_id", "dones"]), st.booleans())
def test_episodes(drawn, key, has_ids):
    own, other = two(drawn)
    if not has_ids:
        del own["eps_id"], other["eps_id"]
        key = None if key == "eps_id" else key
    assert_all_same(own.split_by_episode(key), other.split_by_episode(key))
    assert own.is_single_trajectory() == other.is_single_trajectory()
    assert own.is_terminated_or_truncated() == bool(other.is_terminated_or_truncated())


@given(columns_of_steps(with_infos=False))
def test_rows(drawn):
    own, other = two(drawn)
    assert [plain(row) for row in own.rows()] == [plain(row) for row in other.rows()]


@given(columns_of_steps(with_infos=False), st.integers(0, 99))
def test_shuffled_steps(drawn, seed):
    shuffled = []
    for batch in two(drawn):
        np.random.seed(seed)  # noqa: NPY002, from which both draw
        shuffled.append(batch.shuffle())
    assert_same(*shuffled)


def test_shuffled_sequences_and_infos_stay_together():
    steps = ours.SampleBatch({"obs": np.arange(50), "infos": np.array([{"i": i} for i in range(50)], object)})
    assert [info["i"] for info in steps.shuffle()["infos"]] == steps["obs"].tolist() != list(range(50))
    lengths = np.arange(1, 30)
    sequences = ours.SampleBatch({"obs": np.repeat(lengths, lengths), "state_in_0": lengths, "seq_lens": lengths})
    with pytest.raises(BatchError, match="right_zero_pad"):
        sequences.shuffle()
    sequences.right_zero_pad(30).shuffle()
    assert sequences["seq_lens"].tolist() == sequences["state_in_0"].tolist() != lengths.tolist()
    rows = [[length] * length + [0] * (30 - length) for length in sequences["seq_lens"]]
    assert sequences["obs"].reshape(-1, 30).tolist() == rows


@given(ANY, st.booleans())
def test_copies(drawn, shallow):
    own, other = two(drawn)
    copied = own.copy(shallow)
    assert_same(copied, other.copy(shallow))
    assert np.shares_memory(copied["terminateds"], own["terminateds"]) == shallow


@given(st.lists(columns_of_steps(), min_size=1, max_size=3), st.booleans())
def test_joined_batches(drawn, with_empty):
    names = set.intersection(*(set(columns) for columns, _ in drawn)) - {"obs", "infos"}
    drawn = [({name: c for name, c in columns.items() if name in names}, settings) for columns, settings in drawn]
    own, other = zip(*map(two, drawn), strict=True)
    if with_empty:
        own, other = (ours.SampleBatch(), *own), (theirs.SampleBatch(), *other)
    assert_same(ours.concat_samples(own), theirs.concat_samples(other))
    assert_same(own[0].concat(own[-1]), other[0].concat(other[-1]))


@given(ANY, st.integers(1, 3))
def test_a_batch_joined_with_itself(drawn, n):
    own, other = two(drawn)
    assert_same(ours.concat_samples([own] * n), theirs.concat_samples([other] * n))


@given(st.lists(columns_of_sequences(), min_size=1, max_size=3), st.booleans())
def test_joined_sequences(drawn, padded):
    has_length = drawn[0][1]
    own, other = zip(*(two((columns, has_length)) for columns, _ in drawn), strict=True)
    if padded:
        own, other = ([batch.right_zero_pad(5) for batch in batches] for batches in (own, other))
    assert_same(ours.concat_samples(own), theirs.concat_samples(other))


@given(columns_of_steps(), columns_of_steps())
def test_joined_batches_of_policies(one, another):
    batches = []
    for module, first, second in zip(BOTH, two(one), two(another), strict=True):
        several = [module.MultiAgentBatch({"p": first, "q": second}, 5), module.MultiAgentBatch({"p": first}, 3), first]
        batches.append(module.concat_samples([*several, module.SampleBatch()]))
        assert module.MultiAgentBatch.wrap_as_needed({"default_policy": first}, 3) is first
    assert_same(*batches)
    assert_same(*(batch.copy() for batch in batches))
    assert batches[0].as_multi_agent() is batches[0]
    assert_same(*(module.concat_samples([]) for module in BOTH))


@pytest.mark.parametrize("change", [
    {"obs": np.zeros(2)},
    {"obs": np.zeros(2), "rewards": (np.zeros(2), np.zeros(2)), "seq_lens": [2]},
    {"obs": np.zeros(2), "rewards": np.zeros(2)},
])  # fmt: skip
def test_batches_that_are_not_alike_cant_be_joined(change):
    first = ours.SampleBatch({"obs": np.zeros(2), "rewards": (np.zeros(2),), "seq_lens": [2]})
    with pytest.raises(BatchError):
        ours.concat_samples([first, ours.SampleBatch(change)])


@given(columns_of_steps(), st.booleans(), st.sampled_from([{"obs"}, {"obs", "new_obs"}, {"t", "rewards"}]))
def test_packed_columns_are_read_by_either(drawn, bulk, names):
    columns, settings = drawn
    if isinstance(columns["obs"], tuple | torch.Tensor):  # which RLlib can't pack
        columns["obs"] = columns["t"]
    own, other = two((columns, settings))
    packed = own.copy().compress(bulk, names), other.copy().compress(bulk, names)
    for batch in packed:
        for name in names & set(columns):
            assert "AAAA" in str(batch[name])  # base 64 of LZ4's header
    again = ours.SampleBatch(dict(packed[1])).decompress_if_needed(names)
    assert plain(dict(again)) == plain(dict(own))
    again = theirs.SampleBatch(dict(packed[0])).decompress_if_needed(names)
    assert plain(dict(again)) == plain(dict(own))


@st.composite
def multi_agent_steps(draw):
    """Policy id -> columns of distinct (episode, step, agent)s in any order."""
    steps = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 2)), min_size=1, unique=True))
    policy_of = draw(st.lists(st.sampled_from("pq"), min_size=3, max_size=3))
    policies = {}
    for policy_id in sorted(set(policy_of)):
        of_policy = [step for step in steps if policy_of[step[2]] == policy_id]
        if of_policy:
            eps_id, t, agent_index = np.array(of_policy).T
            obs = np.float32(np.arange(len(of_policy)))[:, None]
            policies[policy_id] = {"obs": obs, "eps_id": eps_id, "t": t, "agent_index": agent_index, "unroll_id": t}
    return policies


@given(multi_agent_steps(), st.integers(1, 4))
def test_timeslices_of_policies(policies, k):
    pieces = []
    for module in BOTH:
        batches = {policy_id: module.SampleBatch(copies(columns)) for policy_id, columns in policies.items()}
        pieces.append(module.MultiAgentBatch(batches, 1).timeslices(k))
    for own, other in zip(*pieces, strict=True):
        other.policy_batches = {id_: other.policy_batches[id_] for id_ in own.policy_batches}  # in order of rows there
        assert len(other.policy_batches) == len(own.policy_batches)
        assert_same(own, other)


def test_dones_are_made_of_the_others():
    for module in BOTH:
        batch = module.SampleBatch({"obs": np.zeros(2), "terminateds": np.array([False, True])})
        with pytest.raises(KeyError):
            batch["dones"] = np.zeros(2)
        with pytest.raises(KeyError):
            module.SampleBatch(obs=np.zeros(2), dones=np.zeros(2))


def test_names_of_columns_are_rllibs():
    names = [name for name in vars(ours.SampleBatch) if name.isupper()]
    assert len(names) > 20
    assert {name: getattr(ours.SampleBatch, name) for name in names} == {
        name: getattr(theirs.SampleBatch, name) for name in names
    }
