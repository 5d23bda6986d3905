"""RLlib's runner and ours under the same config and seeds: everything they return and do must be equal."""
