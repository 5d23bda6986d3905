"""Between envs and modules: changes of observations, rewards, outputs and actions. See docs/connectors.md."""
