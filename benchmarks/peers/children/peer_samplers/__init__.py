"""The samplers that `python -m benchmarks.peers` measures on the same work: one file each, with a function `build`.

This package is independent of fastmarl, which is not installed in a peer's virtual environment. `python -m
peer_samplers` measures one of them, controlled through a pipe; see `__main__.py`.
"""
