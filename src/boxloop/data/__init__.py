"""Sources of rows: where they live and how to reduce them."""

from boxloop.exports import export_lazily

export_lazily(__name__)
