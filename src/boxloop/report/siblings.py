"""The files beside a page: which of them an earlier report wrote, and may be replaced."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from boxloop.data import fingerprint_file

SUFFIXES = (".md", ".json", ".png", ".boxloop")


def page_files(page: Path) -> list[Path]:
    """The page and the files beside it.

    Raises:
        ValueError: a name that does not end in ``.html``.
    """
    if page.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{page}: the name of a page must end in .html")
    return [page, *(page.with_suffix(suffix) for suffix in SUFFIXES)]


def check_replaceable(files: Iterable[Path], record: Path) -> None:
    """Refuse to replace files that no report wrote, or that have changed since.

    Args:
        files: those that are there and would be replaced.
        record: the JSON file of the earlier report, which holds the SHA-256 of the others.

    Raises:
        FileExistsError: one that is not as a report wrote it, or a link that leads nowhere; nothing has been written.
    """
    written = _digests(record)
    for file in files:
        if not file.is_symlink() and not file.exists():
            continue
        ours = (
            file.exists()
            and written is not None
            and (file == record or written.get(file.suffix) == fingerprint_file(file))
        )
        if not ours:
            raise FileExistsError(
                f"{file}: not written by a report, or changed since; give another name for the page, or --force "
                "(force=True) to replace it"
            )


def _digests(record: Path) -> dict[str, Any] | None:
    """What a report noted of the files beside it; None where the file is none of a report."""
    try:
        facts = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or "verdict" not in facts or not isinstance(facts.get("files"), dict):
        return None
    found: dict[str, Any] = facts["files"]
    return found
