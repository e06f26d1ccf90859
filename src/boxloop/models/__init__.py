"""Models: parameters, statistics, expect, solve. One file is one model."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
