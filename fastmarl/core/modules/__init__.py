"""PyTorch modules named as in RLlib, and default networks."""
