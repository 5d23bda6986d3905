"""Captures, on a stand-in for torch.cuda that keeps the books of one: test_gpu.py has the same on a real device."""

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from fastmarl.core.nets.graph_device import ENDS, CudaGraphs

INVALID = "operation failed due to a previous error during capture"


class Cuda:
    """Notes what is called.

    Attributes:
        graphs_in: by pool; one that has had graphs, and has none, is gone.
        recording: pools that captures allocate in.
        recording_on_host: the same of page-locked memory; only torch can end that.
        is_capturing: as generators have it, which can't be used otherwise then.
        is_invalid: an operation was not permitted, so that the capture can't end well.
        fails_cleanly: torch ends a capture that failed, as later versions than 2.11 do.
    """

    def __init__(self, monkeypatch, fails_cleanly):
        self.fails_cleanly = fails_cleanly
        self.recording, self.recording_on_host, self.n_pools = set(), set(), 0
        self.graphs_in = Counter()
        self.is_capturing = self.is_invalid = False
        self.log = []
        stand_ins = {
            "CUDAGraph": lambda: Graph(self),
            "Stream": lambda device: Stream(self, "ours"),
            "current_stream": lambda device: Stream(self, "current"),
            "empty_cache": lambda: self.log.append("empty cache"),
            "graph_pool_handle": self.new_pool,
            "stream": self.on,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        for name in ENDS:
            monkeypatch.delattr(torch._C, name, raising=False)
        monkeypatch.setattr(torch._C, ENDS[not fails_cleanly], self.end_allocating, raising=False)

    def new_pool(self):
        self.n_pools += 1
        return (0, self.n_pools)

    @contextmanager
    def on(self, stream):
        self.log.append("enter")
        try:
            yield
        finally:
            self.log.append("leave")

    def end_allocating(self, device, pool):
        if pool not in self.recording:
            raise RuntimeError("not currently recording to mempool_id")
        self.recording.remove(pool)

    def not_permitted(self):
        """Do as .item() does in a capture."""
        self.is_invalid = True
        raise RuntimeError("operation not permitted when stream is capturing")


class Stream(SimpleNamespace):
    device_index = 0

    def __init__(self, cuda, name):
        super().__init__(cuda=cuda, name=name)

    def wait_stream(self, other):
        self.cuda.log.append(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, cuda):
        self.cuda = cuda

    def register_generator_state(self, generator):
        assert self.cuda.log[-1] == "enter"  # it allocates on the device that is then current

    def capture_begin(self, pool, capture_error_mode):
        assert pool not in self.cuda.recording | self.cuda.recording_on_host, "already recording to mempool_id"
        assert self.cuda.graphs_in.get(pool) != 0, "use_count > 0 INTERNAL ASSERT FAILED"
        self.pool = pool
        self.cuda.graphs_in[pool] += 1
        self.cuda.recording.add(pool)
        self.cuda.recording_on_host.add(pool)
        self.cuda.is_capturing, self.cuda.is_invalid = True, False
        self.cuda.log.append("begin")

    def capture_end(self):
        self.cuda.log.append("end")
        if not self.cuda.is_invalid or self.cuda.fails_cleanly:
            self.cuda.recording.remove(self.pool)
            self.cuda.recording_on_host.remove(self.pool)
            self.cuda.is_capturing = False
        if self.cuda.is_invalid:
            raise RuntimeError(INVALID)

    def replay(self):
        assert not self.cuda.is_capturing

    def __del__(self):
        self.cuda.graphs_in[self.pool] -= 1


@pytest.fixture(params=[True, False], ids=["ended by torch", "not ended"])
def cuda(request, monkeypatch):
    return Cuda(monkeypatch, request.param)


@pytest.fixture
def graphs(cuda):
    made = CudaGraphs(torch.device("cpu"), torch.Generator())
    cuda.log.clear()
    return made


def test_a_capture_comes_after_all_work_before_it_and_disturbs_nothing_else(cuda, graphs):
    graphs.capture(lambda: cuda.log.append("work"))()
    assert cuda.log == [
        "ours waits for current", "enter", "begin", "work", "end", "leave", "current waits for ours",
    ]  # fmt: skip


def test_after_a_failed_capture_generators_and_memory_are_free_and_others_can_be_captured(cuda, graphs):
    replay = graphs.capture(lambda: None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=INVALID) as failure:
            graphs.capture(cuda.not_permitted)
        assert "not permitted" in str(failure.value.__context__)
        assert not cuda.recording and not cuda.is_capturing
        replay()
        graphs.capture(lambda: None)()
    assert cuda.log.count("enter") == cuda.log.count("leave")


def test_others_can_be_captured_when_all_graphs_are_gone(graphs):
    for _ in range(2):
        replay = graphs.capture(lambda: None)
        del replay


def test_captures_without_enough_memory_are_retried_after_emptying_the_cache(cuda, graphs):
    def work():
        if "empty cache" not in cuda.log:
            raise torch.OutOfMemoryError("out of memory")

    graphs.capture(work)()
    assert cuda.log.count("begin") == 2 and cuda.log.count("empty cache") == 1
    assert not cuda.recording


def test_captures_that_never_fit_are_errors(cuda, graphs):
    def work():
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        graphs.capture(work)
    assert not cuda.recording and not cuda.is_capturing
