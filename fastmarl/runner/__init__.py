"""The standalone runner, which samples from envs with modules and manages their state."""
