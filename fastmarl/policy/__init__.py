"""Trained modules that act without a runner, an environment or Ray. See docs/deploy.md."""

from fastmarl.policy.policy import Policy as Policy
