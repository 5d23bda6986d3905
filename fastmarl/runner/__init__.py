"""The runner, which samples with envs and modules and keeps their state."""
