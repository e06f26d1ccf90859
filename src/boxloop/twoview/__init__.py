"""Two views of the same things: the features of one that can be inferred from the other, and what follows from them."""

from boxloop.exports import export_lazily

export_lazily(__name__)
