"""RLlib's old API stack: its RolloutWorker with fastmarl's sampler."""
