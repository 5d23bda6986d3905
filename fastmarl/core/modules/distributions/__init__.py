"""Action distributions: from a net's outputs ("action_dist_inputs") to actions and their log-probabilities.

Names and conventions are RLlib's. The two classmethods `sample_and_logp` and `deterministic` are for sampling: they go
from logits to actions in few torch operations, without making an object.
"""

from fastmarl.core.modules.distributions.base import Deterministic, Distribution, n_logits_of
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from fastmarl.core.modules.distributions.nested import MultiDistribution, choice_slices, get_action_dist_cls

__all__ = [
    "Bernoulli",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "MultiCategorical",
    "MultiDistribution",
    "choice_slices",
    "get_action_dist_cls",
    "n_logits_of",
]
