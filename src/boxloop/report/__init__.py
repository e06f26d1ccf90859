"""What a reader gets: numbers as text, figures, and pages. Import the file you need; figures load matplotlib."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
