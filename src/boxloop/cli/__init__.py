"""The command line: one file per command, loaded only when it is called."""

from boxloop.exports import export_lazily

export_lazily(__name__)
