"""Tools for spaces: leaves of their values, nested values and action masks."""
