"""What a runner returns: episodes, whole or in chunks."""
