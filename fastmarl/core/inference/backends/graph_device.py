"""All that graphs.py asks of a device: capture, and a mark in the queue of work to wait for.

Nothing else in the package calls CUDA for this, so that its logic is the same, and tested, on the CPU.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class CudaGraphs:
    """Work is recorded once and then launched as a whole (a CUDA graph), on the stream that is then current.

    Args:
        device: a CUDA device, where the work is done.
        generator: on it; what the work draws from. Each replay draws again.
    """

    def __init__(self, device: torch.device, generator: torch.Generator):
        self.device = device
        self._generator = generator
        # Graphs are replayed one after the other, and nothing in the pool outlives a replay, so they can share it.
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, work: Callable[[], T]) -> T:
        """Call `work` where it will be captured, so that libraries load and allocate what they need."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """What does the same work again each time it is called, with whatever its tensors hold then.

        Raises:
            Exception: `work` can't be captured: what it raised, or what the device did.
        """
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with (
            # Where a capture fails, torch.cuda.graph does not go back to the stream that was current, but this does.
            torch.cuda.stream(torch.cuda.current_stream(self.device)),
            # Other threads, such as a learner's, may go on allocating memory: "thread_local".
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            work()
        return graph.replay

    def mark(self) -> torch.cuda.Event:
        """After all work that was queued until now; its `synchronize()` waits until that is done."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event
