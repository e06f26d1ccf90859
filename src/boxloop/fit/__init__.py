"""Engines that fit any model of the contract."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
