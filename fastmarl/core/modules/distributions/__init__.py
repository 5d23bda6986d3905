"""Action distributions, which convert the network output "action_dist_inputs" to actions and log-probabilities.

Names and conventions follow RLlib. Runners sample with the classmethods `sample_and_logp` and `deterministic`, which
convert logits to actions in few torch operations, without creating an object.
"""
