"""The command line: one file per command, loaded only when it is called."""

from boxloop.cli.group import main

__all__ = ["main"]
