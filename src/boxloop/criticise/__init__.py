"""Criticism: where a fitted model fails, with error bars."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
