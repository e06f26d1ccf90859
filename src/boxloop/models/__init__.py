"""Models: parameters, statistics, expect, solve. One file is one model."""

from boxloop.models.factor import FactorModel
from boxloop.models.mixture import Mixture
from boxloop.models.ppca import PrincipalModel

__all__ = ["FactorModel", "Mixture", "PrincipalModel"]
