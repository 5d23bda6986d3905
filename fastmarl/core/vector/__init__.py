"""Many envs behind one interface: single ones, batches that step in arrays, and those in worker processes."""
