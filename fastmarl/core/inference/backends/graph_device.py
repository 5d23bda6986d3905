"""All that graphs.py asks of a device: capture, and a mark in the queue of work to wait for.

Nothing else in the package calls CUDA for this, so that its logic is the same, and tested, on the CPU.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch

T = TypeVar("T")
ENDS = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # the second until torch 2.7
CAPTURING = threading.Lock()  # torch allows one capture at a time in a process


class CudaGraphs:
    """Work is recorded once and then launched as a whole (a CUDA graph), on the stream that is then current.

    Args:
        device: a CUDA device, where the work is done.
        generator: on it; what the work draws from. Each replay draws again.
    """

    def __init__(self, device: torch.device, generator: torch.Generator):
        self.device = device
        self._generator = generator
        self._stream = torch.cuda.Stream(device)
        self._begin_pool()

    def warm_up(self, work: Callable[[], T]) -> T:
        """Call `work` where it will be captured, so that libraries load and allocate what they need."""
        with self._in_order():
            return work()

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return what repeats the same work each time it is called, with the numbers that its tensors hold then.

        Raises:
            Exception: `work` can't be captured: what it raised, or what the device did.
        """
        try:
            return self._captured(work)
        except torch.OutOfMemoryError:  # a capture can't use memory that is cached for others
            torch.cuda.empty_cache()
            return self._captured(work)
        except Exception:
            self._end_failed_capture()
            raise

    def mark(self) -> torch.cuda.Event:
        """After all work that was queued until now; its `synchronize()` waits until that is done."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Be on our own stream, between the work that is queued by now and the work that will be."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        # Not by torch.cuda.graph(), which waits for the whole device and gives back the memory that torch has cached:
        # a learner in this process would have to allocate its own again.
        with CAPTURING, self._in_order():
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            # Other threads, such as a learner's, may go on allocating memory: "thread_local".
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay

    def _begin_pool(self) -> None:
        """Have memory for graphs. They are replayed one after the other, and nothing in it outlives a replay, so they
        can share it; a first one, which does next to nothing, keeps it alive."""
        self._pool = torch.cuda.graph_pool_handle()
        self._first = self._captured(lambda: torch.zeros(1, device=self.device))

    def _end_failed_capture(self) -> None:
        """Do what torch 2.11 leaves undone: its generators could draw nothing, and no cached memory be given back."""
        end = next(getattr(torch._C, name) for name in ENDS if hasattr(torch._C, name))
        with suppress(RuntimeError):  # later versions have done it
            end(self._stream.device_index, self._pool)
        self._begin_pool()  # a capture that succeeds sets generators free; page-locked memory stays with the old pool
