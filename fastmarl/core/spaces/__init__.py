"""Spaces: the leaves of their values, nested values, and action masks."""
