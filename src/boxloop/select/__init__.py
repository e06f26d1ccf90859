"""Selection: candidates, criteria with error bars, and the exact path over alpha."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
