"""``python -m boxloop``: the command line."""

from boxloop.cli import main

main()
