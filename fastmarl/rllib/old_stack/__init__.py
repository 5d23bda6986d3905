"""The old API stack of RLlib: RolloutWorker with the fastmarl sampler."""
