"""Device access for graphs.py: captures work, and marks points in the work queue to wait for.

Only this module accesses CUDA graphs, so all other logic can be tested on the CPU.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch

T = TypeVar("T")
ENDS = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # the second up to torch 2.7
CAPTURING = threading.Lock()  # torch allows only one capture at a time per process


class CudaGraphs:
    """Records work once as a CUDA graph, and replays it on the stream that is current at that time.

    Args:
        device: The CUDA device that runs the work.
        generator: Random generator on the device; each replay draws new numbers.
    """

    def __init__(self, device: torch.device, generator: torch.Generator):
        self.device = device
        self._generator = generator
        self._stream = torch.cuda.Stream(device)
        self._begin_pool()

    def warm_up(self, work: Callable[[], T]) -> T:
        """Call `work` on the capturing stream without capturing, so that libraries allocate their resources."""
        with self._in_order():
            return work()

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """Capture `work`; return a function that repeats it with the current values of its tensors.

        Raises:
            Exception: If `work` cannot be captured; raised by `work` or the device.
        """
        try:
            return self._captured(work)
        except torch.OutOfMemoryError:  # a capture cannot use memory cached for other streams
            torch.cuda.empty_cache()
            return self._captured(work)
        except Exception:
            self._end_failed_capture()
            raise

    def mark(self) -> torch.cuda.Event:
        """Return an event whose `synchronize()` waits for all work queued so far."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Switch to the capturing stream, ordered after all work queued so far and before all later work."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        # torch.cuda.graph() would wait for the entire device and free torch's cached memory, which a learner in this
        # process would have to allocate again.
        with CAPTURING, self._in_order():
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            # "thread_local", because other threads, such as a learner's, may allocate memory meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay

    def _begin_pool(self) -> None:
        """Create the memory pool that all graphs share.

        Graphs can share it because they are replayed sequentially and nothing in it outlives a replay. A first, almost
        empty graph keeps the pool alive.
        """
        self._pool = torch.cuda.graph_pool_handle()
        self._first = self._captured(lambda: torch.zeros(1, device=self.device))

    def _end_failed_capture(self) -> None:
        """Reset state that torch 2.11 leaves behind, which blocks random generators and freeing of cached memory."""
        end = next(getattr(torch._C, name) for name in ENDS if hasattr(torch._C, name))
        with suppress(RuntimeError):  # not needed in later versions
            end(self._stream.device_index, self._pool)
        self._begin_pool()  # a successful capture releases the generators; the old pool keeps page-locked memory
