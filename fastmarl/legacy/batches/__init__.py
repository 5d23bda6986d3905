"""Batches of steps: the classes of RLlib's old API stack."""
