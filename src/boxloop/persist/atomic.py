"""Files that are either the old one or the new one, whole, whatever happens while they are written.

The new bytes go to a temporary file beside the target, are synced, and take the target's name in one rename. A
writer holds a lock on its temporary file, so the next save can distinguish a file still being written from the leftover
of a killed process, even where process ids are used again.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EISDIR
from pathlib import Path
from typing import IO


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at ``path`` by ``data``, or leave it as it was.

    A link at ``path`` is replaced, not followed. The permissions are those of the file that is replaced. A device or
    pipe, ``/dev/null`` say, is not replaced.

    Args:
        path: the target, in a folder that exists.
        data: its whole new content.

    Raises:
        OSError: the disk is full, the folder is missing or not writable; the old file is whole.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_atomic(Path(folder, "note"), b"new")
        ...     Path(folder, "note").read_bytes()
        b'new'
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(EISDIR, "a folder is there; give the name of a file", str(target))
    if target.exists() and not target.is_file():
        raise OSError(f"{target}: a device or pipe cannot be replaced; give the name of an ordinary file")
    _remove_leftovers(target)
    with open_temporary(target) as (file, temporary):
        with suppress(OSError):  # nothing to replace, or a file system without permissions
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, target)
    _sync_folder(target.parent)


@contextmanager
def open_temporary(target: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new locked file beside ``target``; gone at the end unless it was renamed."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            with suppress(OSError):  # a file system without locks: its leftovers are never swept
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:
                raise BlockingIOError(f"another process is saving {target} at this moment")
            yield file, temporary
    finally:
        temporary.unlink(missing_ok=True)


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of this target whose writer is dead."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.\d+-[0-9a-f]{{8}}\.tmp")
    for leftover in target.parent.iterdir():
        if pattern.fullmatch(leftover.name):
            with suppress(OSError):
                _remove_unlocked(leftover)


def _remove_unlocked(leftover: Path) -> None:
    descriptor = os.open(leftover, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        leftover.unlink()
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
