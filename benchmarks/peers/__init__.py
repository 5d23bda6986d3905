"""`python -m benchmarks.peers`: measure other samplers and ours on the same work, in turn.

Each runs in a process of its own, with the Python in which it is installed; `children` is the code that runs there.
"""
