"""Episodes returned by a runner, complete or in chunks."""
