"""Action distributions: from a net's outputs ("action_dist_inputs") to actions and their log-probabilities.

Names and conventions are RLlib's. The two classmethods `sample_and_logp` and `deterministic` are for sampling: they go
from logits to actions in few torch operations, without making an object.
"""
