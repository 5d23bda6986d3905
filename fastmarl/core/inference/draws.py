"""Selection of compiled draws of actions from logits, for the CPU."""

import numpy as np

from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Categorical, MultiCategorical
from fastmarl.core.native._draws import ActionDraws, ChoiceDraws, GaussianDraws


def make_draws(kind: type[Distribution], rng: np.random.Generator) -> ActionDraws | None:
    """Make a sampler for the distributions Categorical, MultiCategorical and DiagGaussian, without their subclasses.

    It draws by the same probabilities as torch, from another stream of random numbers. None: `kind` must draw itself.
    """
    bound, attributes = vars(kind).get("bound", (kind, ()))
    given = dict(attributes)
    if bound is Categorical:
        return ChoiceDraws(rng)
    if bound is MultiCategorical:
        return ChoiceDraws(rng, given["nvec"], given["shape"])
    if bound is DiagGaussian:
        return GaussianDraws(rng, given.get("shape"))
    return None
