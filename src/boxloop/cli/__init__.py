"""The command line: one file per command, loaded only when it is called."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
