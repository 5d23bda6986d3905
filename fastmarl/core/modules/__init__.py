"""PyTorch modules, named as in RLlib, and the default networks."""
