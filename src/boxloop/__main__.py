"""``python -m boxloop``: the command line."""

from boxloop.cli import main

if __name__ == "__main__":
    main()
