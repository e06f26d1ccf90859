"""Markov chain Monte Carlo: kernels, adaptation, diagnostics, checks."""

from boxloop.sample.calibrate import JointCheck, RankCheck, check_joint, check_ranks
from boxloop.sample.check import KernelCheck, check_reversible, transition
from boxloop.sample.draws import Draws, SampleWarning
from boxloop.sample.gibbs import Gibbs
from boxloop.sample.hmc import HMC
from boxloop.sample.independent import Generalised, Independent
from boxloop.sample.mala import MALA
from boxloop.sample.posterior import latent_target, parameter_target, sample_latent, sample_parameters
from boxloop.sample.pseudo_marginal import PseudoMarginal
from boxloop.sample.random_walk import RandomWalk
from boxloop.sample.sampling import sample
from boxloop.sample.target import Target

__all__ = [
    "HMC",
    "MALA",
    "Draws",
    "Generalised",
    "Gibbs",
    "Independent",
    "JointCheck",
    "KernelCheck",
    "PseudoMarginal",
    "RandomWalk",
    "RankCheck",
    "SampleWarning",
    "Target",
    "check_joint",
    "check_ranks",
    "check_reversible",
    "latent_target",
    "parameter_target",
    "sample",
    "sample_latent",
    "sample_parameters",
    "transition",
]
