"""Posteriors over network weights: estimation, prediction, and an audit against the exact posterior."""

from boxloop.exports import export_lazily

export_lazily(__name__)
