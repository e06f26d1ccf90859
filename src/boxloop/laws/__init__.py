"""Laws: batches of distributions, and the exponential families that mixtures are made of."""

from boxloop.laws.categorical import Categorical
from boxloop.laws.counts import Bernoulli, Poisson
from boxloop.laws.full import FullGaussian
from boxloop.laws.gaussian import DiagonalGaussian, SphericalGaussian
from boxloop.laws.lowrank import LowRankGaussian
from boxloop.laws.multinomial import Multinomial
from boxloop.laws.tied import TiedGaussian

__all__ = [
    "Bernoulli",
    "Categorical",
    "DiagonalGaussian",
    "FullGaussian",
    "LowRankGaussian",
    "Multinomial",
    "Poisson",
    "SphericalGaussian",
    "TiedGaussian",
]
