"""Vectors step many envs through one interface: single envs, batches that step in arrays, or envs in worker
processes."""
