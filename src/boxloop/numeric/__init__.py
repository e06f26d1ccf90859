"""Linear algebra and random streams that the distributions and models share."""

from boxloop.exports import export_lazily

export_lazily(__name__)
