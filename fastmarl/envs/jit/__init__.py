"""Bundled environments, compiled by numba, that step in arrays."""
