"""PyTorch modules under RLlib's names, and the default networks."""
