"""scikit-learn classes, thin: they choose an initialiser and an engine, nothing else."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
