"""Many envs behind one interface."""
