"""Forward passes launched together: buckets, packing, capture, replay. A tape on the CPU stands in for a CUDA graph."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tape import TapeCapture

from fastmarl.core.nets import graphs
from fastmarl.core.nets.graphs import LEAST_ROWS, GraphCall, Sizes, TickGraphs
from fastmarl.core.nets.transfer import Packing
from fastmarl.errors import ModuleOutputError


class Net:
    """Adds `shift` to its inputs; counts Python's calls, and keeps what it saw."""

    def __init__(self, module_id, shift=1.0):
        self.module_id = module_id
        self.weight = torch.tensor(shift)
        self.n_calls = 0
        self.seen = None
        self.refused = ""
        self.launched = None

    def on_device(self, tensors, *, explore):
        self.n_calls += 1
        self.seen = tensors
        total = tensors[0] + self.weight if explore else tensors[0] - self.weight
        return {"sum": total, ("nested", "count"): tensors[-1].sum(-1)}

    def refuse_capture(self, reason):
        self.refused = reason


def call_of(net, n, rng):
    arrays = [rng.normal(size=(n, 3)), rng.integers(0, 9, (n, 2)).astype(np.uint8)]
    return GraphCall(net, arrays)


def check(outputs, call, *, explore=True):
    weight = call.member.weight.numpy()
    values = call.arrays[0].astype(np.float32)
    np.testing.assert_array_equal(outputs["sum"], values + weight if explore else values - weight)
    np.testing.assert_array_equal(outputs["nested", "count"], call.arrays[-1].sum(-1))
    assert outputs["nested", "count"].dtype == np.int64 and outputs["sum"].dtype == np.float32


@pytest.fixture
def capture():
    return TapeCapture()


@pytest.fixture
def ticks(capture):
    return TickGraphs(capture)


# Sizes.


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=50))
def test_sizes_are_few_and_large_enough(batches):
    sizes, used = Sizes(), set()
    for n in batches:
        grew = sizes.grow(n)
        size = sizes.of(n)
        assert size >= n
        if grew:
            used.clear()
            assert size == sizes.largest < max(n * 9 / 8, n + LEAST_ROWS)
        used.add(size)
        assert size < 2 * n or size < 2 * LEAST_ROWS
        assert len(used) <= sizes.largest.bit_length()


def test_sizes_do_not_change_without_need():
    sizes = Sizes()
    assert sizes.grow(100) and not sizes.grow(100) and not sizes.grow(3)
    assert [sizes.of(n) for n in (1, 13, 14, 26, 27, 52, 53, 100)] == [13, 13, 26, 26, 52, 52, 104, 104]


# Packing.


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["f4", "i8", "u1", "?"]), st.integers(0, 5), st.integers(1, 3)), max_size=8))
def test_packed_arrays_lie_apart_and_keep_their_numbers(columns):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, shape).astype(dtype) for dtype, *shape in columns]
    packing = Packing([(torch.from_numpy(array).dtype, array.shape) for array in arrays])
    buffer = torch.full((packing.n_bytes,), 0xAB, dtype=torch.uint8)
    for view, array in zip(packing.views(buffer), arrays, strict=True):
        view.copy_(torch.from_numpy(array))
    for view, array in zip(packing.views(buffer), arrays, strict=True):
        np.testing.assert_array_equal(view.numpy(), array)
        assert view.data_ptr() % 16 == buffer.data_ptr() % 16 or not view.numel()


# Launches.


@pytest.mark.parametrize("explore", [True, False])
def test_outputs_are_those_of_the_modules(ticks, rng, explore):
    nets = [Net("a"), Net("b", 5.0)]
    for n, m in [(3, 20), (3, 20), (8, 17), (1, 1), (30, 2), (9, 20)]:
        calls = [call_of(nets[0], n, rng), call_of(nets[1], m, rng)]
        launch = ticks.launch(calls, explore=explore)
        for call in calls:
            check(launch.outputs(call.member), call, explore=explore)


def test_modules_of_a_tick_are_one_capture_and_python_is_not_called_again(ticks, capture, rng):
    nets = [Net("a"), Net("b")]
    for i in range(5):
        calls = [call_of(net, 20 - i, rng) for net in nets]
        launch = ticks.launch(calls, explore=True)
        check(launch.outputs(nets[0]), calls[0])
    assert (capture.n_captures, capture.n_replays) == (1, 4)
    assert [net.n_calls for net in nets] == [2, 2]  # as a warm-up, and captured
    assert [ticks.n_sizes(net) for net in nets] == [1, 1]


def test_captures_are_by_acting_modules_batch_size_and_exploration(ticks, capture, rng):
    a, b = Net("a"), Net("b")
    for n, explore in [(64, True), (60, True), (64, False), (32, True), (17, False), (17, True)]:
        call = call_of(a, n, rng)
        check(ticks.launch([call], explore=explore).outputs(a), call, explore=explore)
    assert capture.n_captures == 4
    ticks.launch([call_of(a, 64, rng), call_of(b, 2, rng)], explore=True)
    assert capture.n_captures == 5
    assert ticks.n_sizes(a) == 2


def test_a_larger_batch_than_ever_drops_the_smaller_sizes(ticks, capture, rng):
    net = Net("a")
    for n in (20, 100, 20, 100):
        call = call_of(net, n, rng)
        check(ticks.launch([call], explore=True).outputs(net), call)
    assert capture.n_captures == 3 and ticks.n_sizes(net) == 2


def test_padding_repeats_the_last_row(ticks, rng):
    net = Net("a")
    for n in (20, 17):
        call = call_of(net, n, rng)
        ticks.launch([call], explore=True)
        for seen, array in zip(net.seen, call.arrays, strict=True):
            assert len(seen) == 24
            np.testing.assert_array_equal(seen[n:].numpy(), np.repeat(array[-1:], 24 - n, 0).astype(seen.numpy().dtype))


def test_pending_launches_do_not_disturb_each_other(ticks, capture, rng):
    net = Net("a")
    ticks.launch([call_of(net, 12, rng)], explore=True).outputs(net)
    calls = [call_of(net, 10 + i, rng) for i in range(3)]
    launches = [ticks.launch([call], explore=True) for call in calls]
    assert not any(mark.done for mark in capture.marks[1:])
    for launch, call, mark in reversed(list(zip(launches, calls, capture.marks[1:], strict=True))):
        check(launch.outputs(net), call)
        assert mark.done
    again = call_of(net, 12, rng)
    check(ticks.launch([again], explore=True).outputs(net), again)


def test_memory_on_the_host_is_used_again(ticks, rng):
    net = Net("a")
    addresses = set()
    for _ in range(6):
        launch = ticks.launch([call_of(net, 8, rng)], explore=True)
        addresses.add(launch.outputs(net)["sum"].ctypes.data)
    assert len(addresses) == 1


def test_numbers_in_weights_are_read_at_each_replay(ticks, rng):
    net = Net("a")
    for shift in (1.0, 7.0):
        net.weight.fill_(shift)
        call = call_of(net, 8, rng)
        check(ticks.launch([call], explore=True).outputs(net), call)
    assert net.n_calls == 2


def test_a_forgotten_module_is_captured_again(ticks, capture, rng):
    a, b = Net("a"), Net("b")
    ticks.launch([call_of(a, 8, rng), call_of(b, 8, rng)], explore=True)
    ticks.launch([call_of(b, 8, rng)], explore=True)
    a.weight = torch.tensor(-3.0)  # elsewhere
    ticks.forget(a)
    assert ticks.n_sizes(a) == 0 and ticks.n_sizes(b) == 1
    calls = [call_of(a, 8, rng), call_of(b, 8, rng)]
    launch = ticks.launch(calls, explore=True)
    check(launch.outputs(a), calls[0])
    check(launch.outputs(b), calls[1])


def test_random_numbers_are_new_in_each_replay(ticks, rng):
    class Noise(Net):
        generator = torch.Generator().manual_seed(0)

        def on_device(self, tensors, *, explore):
            return {"noise": torch.empty_like(tensors[0]).exponential_(generator=self.generator)}

    net = Noise("a")
    drawn = [ticks.launch([call_of(net, 8, rng)], explore=True).outputs(net)["noise"].tobytes() for _ in range(4)]
    assert len(set(drawn)) == 4


def test_there_are_never_many_programs(monkeypatch, ticks, capture, rng):
    monkeypatch.setattr(graphs, "MOST_PROGRAMS", 6)
    nets = [Net(name) for name in "abc"]
    for net in nets:
        ticks.launch([call_of(net, 256, rng)], explore=True)
    for _ in range(60):
        calls = [call_of(net, int(rng.integers(1, 257)), rng) for net in nets if rng.random() < 0.7]
        launch = ticks.launch(calls, explore=True) if calls else None
        for call in calls:
            check(launch.outputs(call.member), call)
    assert capture.n_captures <= 7
    assert capture.n_replays > 40


def test_nothing_is_noted_for_gradients(ticks, rng):
    net = Net("a")
    net.weight.requires_grad_()
    for _ in range(2):
        call = call_of(net, 8, rng)
        launch = ticks.launch([call], explore=True)
        np.testing.assert_array_equal(launch.outputs(net)["sum"], call.arrays[0].astype(np.float32) + np.float32(1))


# Errors.


class WrongRows(Net):
    def on_device(self, tensors, *, explore):
        return {"values": tensors[0].sum()} if explore else {"values": tensors[0][:2]}


@pytest.mark.parametrize("explore", [True, False])
def test_outputs_of_other_length_are_an_error(ticks, rng, explore):
    calls = [call_of(Net("good"), 8, rng), call_of(WrongRows("bad"), 8, rng)]
    with pytest.raises(ModuleOutputError, match=r"'bad'.*expected 8 rows in output 'values'.*got shape"):
        ticks.launch(calls, explore=explore)


class Writer(Net):
    def on_device(self, tensors, *, explore):
        tensors[0].mul_(2)
        return {"values": tensors[0]}


def test_writing_into_the_batch_raises(ticks, rng):
    calls = [call_of(Net("good"), 8, rng), call_of(Writer("bad"), 8, rng)]
    with pytest.raises(ModuleOutputError, match=r"'bad'.*modified its input batch"):
        ticks.launch(calls, explore=True)


class WriterAtFirst(Net):
    def on_device(self, tensors, *, explore):
        if not self.n_calls:
            tensors[0].mul_(2)
        return super().on_device(tensors, explore=explore)


def test_writing_into_the_batch_only_once_raises_with_all_suspects(ticks, rng):
    calls = [call_of(Net("good"), 8, rng), call_of(WriterAtFirst("bad"), 8, rng)]
    with pytest.raises(ModuleOutputError, match=r"\['good', 'bad'\]: one of these modified its input batch"):
        ticks.launch(calls, explore=True)


class Peeking(Net):
    def on_device(self, tensors, *, explore):
        assert tensors[0].sum().item() < 1e9
        return super().on_device(tensors, explore=explore)


def test_modules_that_cannot_be_captured_are_left_out_of_a_correct_tick(ticks, capture, rng):
    good, bad = Net("good"), Peeking("bad")
    calls = [call_of(good, 8, rng), call_of(bad, 8, rng)]
    with pytest.warns(RuntimeWarning, match="module 'bad' cannot be captured.*not permitted when stream is capturing"):
        launch = ticks.launch(calls, explore=True)
    for call in calls:
        check(launch.outputs(call.member), call)
    assert bad.refused.startswith("operation not permitted") and not good.refused
    check(ticks.launch(calls[:1], explore=True).outputs(good), calls[0])
    assert ticks.n_sizes(good) == 1


def test_if_only_all_together_fail_all_are_left_out(ticks, capture, rng, monkeypatch):
    def fail_together(work):
        if "partial" not in repr(work):
            raise RuntimeError("out of memory")

    monkeypatch.setattr(capture, "capture", fail_together)
    nets = [Net("a"), Net("b")]
    with pytest.warns(RuntimeWarning, match="out of memory"):
        ticks.launch([call_of(net, 8, rng) for net in nets], explore=True)
    assert [net.refused for net in nets] == ["out of memory"] * 2
