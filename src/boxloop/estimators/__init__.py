"""scikit-learn classes, thin: they choose an initialiser and an engine, nothing else."""

from boxloop.exports import export_lazily

export_lazily(__name__)
