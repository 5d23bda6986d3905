"""Vectors step many envs through one interface: single ones, batches, or those in worker processes."""
