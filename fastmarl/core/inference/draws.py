"""Which actions are drawn from logits without torch, on the CPU."""

import numpy as np

from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Categorical, MultiCategorical
from fastmarl.core.native._draws import ActionDraws, ChoiceDraws, GaussianDraws


def make_draws(kind: type[Distribution], rng: np.random.Generator) -> ActionDraws | None:
    """What draws by the same distribution as torch, from another stream of random numbers.

    For exactly these kinds: Categorical, MultiCategorical, DiagGaussian. None: leave it to the distribution.
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
