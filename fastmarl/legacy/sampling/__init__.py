"""Conversion of runner episodes to batches."""
