"""Batches of steps: the classes of the old RLlib API stack."""
