"""Markov chain Monte Carlo: kernels, adaptation, diagnostics, checks."""

from boxloop.laws.priors import FactorPrior, MixturePrior
from boxloop.sample.annealed import Annealing, annealed_importance, pilot
from boxloop.sample.bayesian import sample_factors, sample_mixture
from boxloop.sample.bridge import Ladder
from boxloop.sample.calibrate import JointCheck, RankCheck, check_joint, check_ranks
from boxloop.sample.check import KernelCheck, check_reversible, transition
from boxloop.sample.draws import Draws, SampleWarning
from boxloop.sample.factor_posterior import FactorPosterior
from boxloop.sample.gibbs import Gibbs
from boxloop.sample.hmc import HMC
from boxloop.sample.independent import Generalised, Independent
from boxloop.sample.mala import MALA
from boxloop.sample.mixture_posterior import MixturePosterior
from boxloop.sample.posterior import latent_target, parameter_target, sample_latent, sample_parameters
from boxloop.sample.pseudo_marginal import PseudoMarginal
from boxloop.sample.random_walk import RandomWalk
from boxloop.sample.sampling import sample
from boxloop.sample.target import Target

__all__ = [
    "HMC",
    "MALA",
    "Annealing",
    "Draws",
    "FactorPosterior",
    "FactorPrior",
    "Generalised",
    "Gibbs",
    "Independent",
    "JointCheck",
    "KernelCheck",
    "Ladder",
    "MixturePosterior",
    "MixturePrior",
    "PseudoMarginal",
    "RandomWalk",
    "RankCheck",
    "SampleWarning",
    "Target",
    "annealed_importance",
    "check_joint",
    "check_ranks",
    "check_reversible",
    "latent_target",
    "parameter_target",
    "pilot",
    "sample",
    "sample_factors",
    "sample_latent",
    "sample_mixture",
    "sample_parameters",
    "transition",
]
