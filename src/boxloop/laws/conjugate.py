"""Conjugate priors: prior and summed features in, posterior out; draws from explicit streams.

Every prior is a batch. Its posterior under sums with more leading axes has these axes too: with one prior over k
components and the sums of c chains, (c, k, p), the posterior is (c, k) laws at once. Gelman et al., *Bayesian Data
Analysis*, 3rd edition, chapter 3.

For variational inference every law of components also says what it expects of a row's log-density: that of a plug-in
member of the family plus a number (``plug_in``), how far it is from its prior (``divergence``), and what it predicts
(``predictive``).
"""

from boxloop.laws.dirichlet import Dirichlet
from boxloop.laws.gamma import InverseGamma, draw_log_gamma
from boxloop.laws.normal_inverse_gamma import NormalInverseGamma, SphericalNormalInverseGamma
from boxloop.laws.normal_inverse_wishart import NormalInverseWishart
from boxloop.laws.sticks import StickBreaking
from boxloop.laws.tied_wishart import TiedInverseWishart
from boxloop.laws.wishart import wishart_root
from boxloop.laws.words import WordDirichlet

__all__ = [
    "Dirichlet",
    "InverseGamma",
    "NormalInverseGamma",
    "NormalInverseWishart",
    "SphericalNormalInverseGamma",
    "StickBreaking",
    "TiedInverseWishart",
    "WordDirichlet",
    "draw_log_gamma",
    "wishart_root",
]
