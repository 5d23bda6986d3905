"""Action distributions under RLlib's names: from `action_dist_inputs` to actions and log-probabilities."""

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
