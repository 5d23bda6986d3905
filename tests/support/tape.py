"""Capture as a CUDA graph does it, on the CPU: operations are noted once and repeated without Python.

What a graph can't do fails here, too: to look at a number, and to notice anything but what lies in its tensors.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TapeCapture:
    """Stands in for `fastmarl.core.nets.graph_device.CudaGraphs`.

    Attributes:
        n_captures, n_replays: how often.
    """

    device = torch.device("cpu")

    def __init__(self):
        self.n_captures = self.n_replays = 0
        self.marks = []

    def warm_up(self, work):
        return work()

    def capture(self, work):
        self.n_captures += 1
        tape = Tape()
        with tape:
            work()
        return lambda: self._replay(tape)

    def _replay(self, tape):
        self.n_replays += 1
        with torch.no_grad():
            tape.replay()

    def mark(self):
        self.marks.append(WaitedFor())
        return self.marks[-1]


class WaitedFor:
    done = False

    def synchronize(self):
        self.done = True


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self._notes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        self._notes.append((func, args, kwargs, outputs))
        return outputs

    def replay(self):
        for func, args, kwargs, outputs in self._notes:
            if any(returned.alias_info is not None for returned in func._schema.returns):
                if func._schema.is_mutable:
                    func(*args, **kwargs)
                continue  # views stay where they are
            for old, new in zip(tree_leaves(outputs), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor):
                    old.copy_(new)
