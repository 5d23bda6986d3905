"""Turns the episodes of a runner into batches."""
