"""Parts of sentences."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need."""


def counted(count: int, what: str) -> str:
    """A number of things, in the plural where it is due.

    Example:
        >>> counted(1, "component"), counted(3, "component")
        ('1 component', '3 components')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def escape_controls(text: str, keep: str = "\n") -> str:
    r"""Text with its control characters written out: they could move the cursor, hide words or turn their direction.

    Args:
        text: which may come from data or file names.
        keep: control characters that stay.

    Example:
        >>> escape_controls("a\x1b[2Jb\u202ec")
        'a\\x1b[2Jb\\u202ec'
    """
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in hidden and c not in keep and c not in JOINERS
        else c
        for c in text
    )
