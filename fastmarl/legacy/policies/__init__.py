"""Policies: a module, and how it learns."""
