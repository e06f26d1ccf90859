"""Sources of rows: where they live and how to reduce them."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
