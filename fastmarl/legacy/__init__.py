"""The API of RLlib's old stack without Ray: `RolloutWorker`, `EnvRunnerV2`, policies, batches, files."""
