"""Converts episodes to columns for learners: flat, as sequences, or aligned by env step."""
