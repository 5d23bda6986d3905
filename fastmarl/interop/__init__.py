"""Vector environments for other frameworks, with one row per agent of each environment."""
