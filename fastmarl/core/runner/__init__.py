"""The runner: it samples with envs and modules, and keeps their state."""
