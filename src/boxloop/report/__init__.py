"""What a reader gets: numbers as text, figures, and pages. Import the file you need; figures load matplotlib."""

from boxloop.exports import export_lazily

export_lazily(__name__)
