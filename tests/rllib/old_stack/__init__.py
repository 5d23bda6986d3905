"""Compares the results of RLlib's sampler of its old API stack with another's, bit by bit."""
