"""RLlib's old API stack: RolloutWorker with the fastmarl sampler."""
