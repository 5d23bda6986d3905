"""Device access for graphs.py: capturing work, and marking a point in the work queue that can be waited for.

CUDA graphs are only accessed here, so that all other logic can be tested on the CPU.
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
    """Records work once, and replays it as a unit (a CUDA graph) on the stream that is current at that time.

    Args:
        device: The CUDA device that runs the work.
        generator: Random generator on the device. Each replay produces new numbers.
    """

    def __init__(self, device: torch.device, generator: torch.Generator):
        self.device = device
        self._generator = generator
        self._stream = torch.cuda.Stream(device)
        self._begin_pool()

    def warm_up(self, work: Callable[[], T]) -> T:
        """Call `work` in the capturing stream without capturing, so that libraries allocate their resources."""
        with self._in_order():
            return work()

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return a function that repeats the work with the current values of its tensors.

        Raises:
            Exception: If `work` cannot be captured; raised by the work or the device.
        """
        try:
            return self._captured(work)
        except torch.OutOfMemoryError:  # a capture cannot use memory that is cached for other streams
            torch.cuda.empty_cache()
            return self._captured(work)
        except Exception:
            self._end_failed_capture()
            raise

    def mark(self) -> torch.cuda.Event:
        """Return an event whose `synchronize()` waits for all work queued until now."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Switch to the capturing stream, ordered after all work queued until now and before all later work."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        # Not by torch.cuda.graph(), which waits for the entire device and frees the memory cached by torch: a learner
        # in this process would have to allocate its memory again.
        with CAPTURING, self._in_order():
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            # "thread_local", because other threads, such as in a learner, may continue to allocate memory.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay

    def _begin_pool(self) -> None:
        """Create the memory pool shared by all graphs.

        Graphs can share it because they are replayed sequentially, and nothing in it outlives a replay. A first, almost
        empty graph keeps the pool alive.
        """
        self._pool = torch.cuda.graph_pool_handle()
        self._first = self._captured(lambda: torch.zeros(1, device=self.device))

    def _end_failed_capture(self) -> None:
        """Reset state left behind by torch 2.11, which blocks sampling by generators and freeing of cached memory."""
        end = next(getattr(torch._C, name) for name in ENDS if hasattr(torch._C, name))
        with suppress(RuntimeError):  # not needed by later versions
            end(self._stream.device_index, self._pool)
        self._begin_pool()  # a successful capture frees the generators; page-locked memory remains with the old pool
