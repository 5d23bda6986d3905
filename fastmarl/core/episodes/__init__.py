"""Episodes that a runner returns, whole or in chunks."""
