"""Criticism: where a fitted model fails, with error bars."""

from boxloop.exports import export_lazily

export_lazily(__name__)
