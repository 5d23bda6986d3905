"""Spaces: the leaves of their values, nested values, and masks of actions."""
