"""Posteriors over network weights: estimation, prediction, and an audit against the exact posterior."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
