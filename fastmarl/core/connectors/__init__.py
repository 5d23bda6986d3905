"""Between envs and modules: what is made of observations and rewards. See docs/connectors.md."""
