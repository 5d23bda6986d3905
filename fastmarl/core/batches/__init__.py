"""Converts episodes to the columns that learners train on: flat, in sequences, or aligned by env step."""
