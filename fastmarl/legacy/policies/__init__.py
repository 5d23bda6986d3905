"""Policies: a module and its learning algorithm."""
