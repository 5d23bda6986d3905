"""What agents act with: torch modules under RLlib's names, and the default nets."""
