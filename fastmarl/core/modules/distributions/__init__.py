"""Action distributions, which turn a network's "action_dist_inputs" into actions and their log-probabilities.

Names and conventions follow RLlib. The classmethods `sample_and_logp` and `deterministic` are for sampling: they
convert logits to actions in few torch operations, without creating an object.
"""
