"""Converts episodes to columns for learners: flat, in sequences, or aligned by env step."""
