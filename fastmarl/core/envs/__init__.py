"""Kinds of multi-agent environments: how they are created, recognised and checked."""
