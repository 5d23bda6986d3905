"""Policies, each consisting of a module and its learning algorithm."""
