"""Pictures: numpy arrays and matplotlib axes in, axes out. They know no model, so that every room may draw.

Result objects call them from their ``plot`` methods, and only there: importing this room loads matplotlib. Nothing
here touches pyplot; a figure that is made belongs to its caller, as ``axes.figure``.
"""

from boxloop.exports import export_lazily

export_lazily(__name__)
