"""How a step ends a trajectory or an episode, in bits."""

TERMINATED, TRUNCATED = 1, 2
FAILED = 4  # beside them, or alone: the env has failed in this step, and was made anew
