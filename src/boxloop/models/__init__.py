"""Models: parameters, statistics, expect, solve. One file is one model."""

from boxloop.exports import export_lazily

export_lazily(__name__)
