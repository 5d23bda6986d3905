"""Action distributions, named as in RLlib; they map `action_dist_inputs` to actions and log-probabilities."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.modules.distributions.base import Deterministic as Deterministic
    from fastmarl.core.modules.distributions.base import Distribution as Distribution
    from fastmarl.core.modules.distributions.base import num_dist_inputs as num_dist_inputs
    from fastmarl.core.modules.distributions.continuous import DiagGaussian as DiagGaussian
    from fastmarl.core.modules.distributions.discrete import Bernoulli as Bernoulli
    from fastmarl.core.modules.distributions.discrete import Categorical as Categorical
    from fastmarl.core.modules.distributions.discrete import MultiCategorical as MultiCategorical
    from fastmarl.core.modules.distributions.nested import MultiDistribution as MultiDistribution
    from fastmarl.core.modules.distributions.nested import choice_slices as choice_slices
    from fastmarl.core.modules.distributions.nested import get_action_dist_cls as get_action_dist_cls

__all__, __getattr__ = imported_when_used(__name__)
