"""Two views of the same things: the features of one that can be inferred from the other, and what follows from them."""

from boxloop.twoview.canonical import Canonical, Products, RelevanceModel
from boxloop.twoview.channels import Channel, Composed, GaussianNoise, PixelShuffle, TimeShift, self_views
from boxloop.twoview.conditional import Conditional
from boxloop.twoview.crossfit import cross_fitted
from boxloop.twoview.diagnosis import Diagnosis, diagnose
from boxloop.twoview.expectation import Ambiguity, Estimated, Expectation
from boxloop.twoview.generator import GeneratorModel
from boxloop.twoview.inference import RelevanceFit
from boxloop.twoview.linear import fit_fixed
from boxloop.twoview.objective import relevance_loss
from boxloop.twoview.ratio import density_ratio
from boxloop.twoview.ridge import choose_ridge
from boxloop.twoview.significance import Significance, significance
from boxloop.twoview.training import RelevanceLoss, channel_error
from boxloop.twoview.views import FiniteView, FourierView, LinearView, NetworkView, View, ViewPair

__all__ = [
    "Ambiguity",
    "Canonical",
    "Channel",
    "Composed",
    "Conditional",
    "Diagnosis",
    "Estimated",
    "Expectation",
    "FiniteView",
    "FourierView",
    "GaussianNoise",
    "GeneratorModel",
    "LinearView",
    "NetworkView",
    "PixelShuffle",
    "Products",
    "RelevanceFit",
    "RelevanceLoss",
    "RelevanceModel",
    "Significance",
    "TimeShift",
    "View",
    "ViewPair",
    "channel_error",
    "choose_ridge",
    "cross_fitted",
    "density_ratio",
    "diagnose",
    "fit_fixed",
    "relevance_loss",
    "self_views",
    "significance",
]
