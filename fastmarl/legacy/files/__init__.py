"""Readers and writers of batch files."""
