"""Linear algebra and random streams that the distributions and models share."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
