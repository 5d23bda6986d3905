"""The samplers that `python -m benchmarks.peers` measures, on the same work: one file each, with one function, `build`.

This package stands by itself, so that it runs in a peer's own virtual environment, where fastmarl is not installed.
`python -m peer_samplers` measures one of them, as told over a pipe; see `__main__.py`.
"""
