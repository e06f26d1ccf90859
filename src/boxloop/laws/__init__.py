"""Laws: batches of distributions, and the exponential families that mixtures are made of."""

from boxloop.laws.categorical import Categorical
from boxloop.laws.columns import CategoricalColumns
from boxloop.laws.counts import Bernoulli, Poisson
from boxloop.laws.full import FullGaussian
from boxloop.laws.gaussian import DiagonalGaussian, SphericalGaussian
from boxloop.laws.logits import LogitBernoulli, LogPoisson
from boxloop.laws.lowrank import LowRankGaussian
from boxloop.laws.multinomial import Multinomial
from boxloop.laws.normal_mixture import NormalMixtureLaw
from boxloop.laws.tied import TiedGaussian
from boxloop.laws.tied_lowrank import TiedLowRankGaussian

__all__ = [
    "Bernoulli",
    "Categorical",
    "CategoricalColumns",
    "DiagonalGaussian",
    "FullGaussian",
    "LogPoisson",
    "LogitBernoulli",
    "LowRankGaussian",
    "Multinomial",
    "NormalMixtureLaw",
    "Poisson",
    "SphericalGaussian",
    "TiedGaussian",
    "TiedLowRankGaussian",
]
