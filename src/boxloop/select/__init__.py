"""Selection: candidates, criteria with error bars, and the exact path over alpha."""

from boxloop.exports import export_lazily

export_lazily(__name__)
