"""Episodes returned by runners, complete or in chunks."""
