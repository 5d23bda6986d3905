"""What RLlib's sampler of its old API stack hands out, compared to the bit with what another one does."""
