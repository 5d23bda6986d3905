"""PyTorch modules under RLlib's names, and default networks."""
