"""The episodes that a runner returns, whole or in chunks."""
