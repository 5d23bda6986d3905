"""Connectors between envs and modules, which transform observations, rewards, outputs and actions.

See docs/connectors.md.
"""
