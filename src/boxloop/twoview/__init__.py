"""Two views of the same things: the features of one that can be inferred from the other, and what follows from them."""

from boxloop.twoview.canonical import Canonical, Products, RelevanceModel
from boxloop.twoview.objective import relevance_loss
from boxloop.twoview.views import FiniteView, FourierView, LinearView, NetworkView, View, ViewPair

__all__ = [
    "Canonical",
    "FiniteView",
    "FourierView",
    "LinearView",
    "NetworkView",
    "Products",
    "RelevanceModel",
    "View",
    "ViewPair",
    "relevance_loss",
]
