"""Engines that fit any model of the contract."""

from boxloop.exports import export_lazily

export_lazily(__name__)
