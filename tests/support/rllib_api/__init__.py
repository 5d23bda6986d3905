"""RLlib's API as rows of a table, each with a check that runs it on both faces."""
