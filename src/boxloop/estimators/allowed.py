"""The classes that a model file may name."""

from __future__ import annotations

import boxloop.distributions as laws
import boxloop.models as models
from boxloop.distributions import (
    Dirichlet,
    MixturePrior,
    NormalInverseGamma,
    NormalInverseWishart,
    SphericalNormalInverseGamma,
    StickBreaking,
    TiedInverseWishart,
    WordDirichlet,
)
from boxloop.models import RelevancePrior, VariationalFactor, VariationalMixture

BAYESIAN = (
    Dirichlet,
    MixturePrior,
    NormalInverseGamma,
    NormalInverseWishart,
    RelevancePrior,
    SphericalNormalInverseGamma,
    StickBreaking,
    TiedInverseWishart,
    VariationalFactor,
    VariationalMixture,
    WordDirichlet,
)
"""Laws over the parameters of models, and their parts."""

CLASSES: dict[str, type] = {
    **{name: getattr(room, name) for room in (laws, models) for name in room.__all__},
    **{kind.__name__: kind for kind in BAYESIAN},
}
"""Every law and model of the library, by name."""
