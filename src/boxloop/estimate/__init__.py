"""Engines that fit any model of the contract."""

from boxloop.estimate.em import EMState, accelerated_em, em
from boxloop.estimate.errors import ParameterErrors, standard_errors
from boxloop.estimate.gradient import AscentState, generalised_em, gradient_ascent
from boxloop.estimate.online import Batches, OnlinePlan, OnlineState, online_em
from boxloop.estimate.restarts import race
from boxloop.estimate.start import PARTITIONS, Sample, start_mixture

__all__ = [
    "PARTITIONS",
    "AscentState",
    "Batches",
    "EMState",
    "OnlinePlan",
    "OnlineState",
    "ParameterErrors",
    "Sample",
    "accelerated_em",
    "em",
    "generalised_em",
    "gradient_ascent",
    "online_em",
    "race",
    "standard_errors",
    "start_mixture",
]
