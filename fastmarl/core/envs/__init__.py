"""Kinds of multi-agent environments, and how they are made, told apart and checked."""
