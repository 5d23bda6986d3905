"""`python -m benchmarks.peers`: other samplers and ours, measured on the same work, in turn.

Each runs in a process of its own, with the Python that it is installed in; `children` is what runs there.
"""
