from .canonical import Canonical, RelevanceModel
from .channels import (
    Channel,
    Composed,
    GaussianNoise,
    PixelShuffle,
    TimeShift,
    mean_displacement as mean_displacement,
    self_views,
)
from .coder import (
    Coder as Coder,
    HeldError as HeldError,
    SquaredError as SquaredError,
    coded as coded,
    leftover as leftover,
    linear_code as linear_code,
    moments_of as moments_of,
)
from .conditional import Conditional, Function as Function
from .constraints import CONSTRAINTS as CONSTRAINTS
from .crossfit import cross_fitted, fold_products as fold_products
from .diagnosis import Diagnosis, diagnose
from .expectation import Ambiguity, Estimated, Expectation
from .generator import (
    GeneratorModel,
    most_relevant as most_relevant,
    standardised as standardised,
    with_mixture as with_mixture,
)
from .inference import RelevanceFit, values as values, with_one as with_one
from .linear import fit_fixed
from .moments import Products
from .objective import relevance_loss
from .permuted import combined as combined, exchanged as exchanged, reordered as reordered, rotated as rotated
from .ratio import density_ratio
from .ridge import RIDGES as RIDGES, choose_ridge
from .rows import chosen_rows as chosen_rows, folds_of as folds_of
from .significance import Scores as Scores, Significance, significance
from .training import BATCH_RATIO as BATCH_RATIO, HeldOut as HeldOut, RelevanceLoss, channel_error
from .views import (
    FiniteView,
    FixedFeatures as FixedFeatures,
    FourierView,
    LinearView,
    NetworkView,
    View,
    ViewPair,
)

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
