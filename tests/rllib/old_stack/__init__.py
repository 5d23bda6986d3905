"""What RLlib's sampler of its old API stack hands out, compared bit by bit with what another one does."""
