"""Parts of sentences."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str]) -> str:
    """Items as a sentence lists them.

    Example:
        >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
        ('a', 'a and b', 'a, b and c')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def counted(count: int, what: str) -> str:
    """A number of things, in the plural where it is due.

    Example:
        >>> counted(1, "component"), counted(3, "component")
        ('1 component', '3 components')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"
