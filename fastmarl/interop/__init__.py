"""Vector environments of other frameworks, with a row for each agent of each environment."""
