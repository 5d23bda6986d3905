"""Action distributions, which turn the network output "action_dist_inputs" into actions and log-probabilities.

Names and conventions follow RLlib. The classmethods `sample_and_logp` and `deterministic` are for sampling: they
convert logits to actions in few torch operations, without creating an object.
"""
