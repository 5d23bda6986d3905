"""Vectors step many envs through one interface: single envs, batches, or envs in worker processes."""
