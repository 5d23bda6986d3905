"""Readers and writers of batches in files."""
