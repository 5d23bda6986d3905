"""Turns the runner's episodes into batches."""
