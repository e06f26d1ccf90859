"""Parquet files behind a URL, by fsspec: object stores, HTTP, and whatever else it knows."""

from __future__ import annotations

from errno import ENOENT
from os import PathLike
from typing import Any

from boxloop.data.folder import missing_path_error, natural_sort_key

SUBFOLDERS_HINT = (
    "; there are subfolders: name one of them, or give what dask.dataframe.read_parquet makes of all"
)
"""The message about a folder whose files are in subfolders."""


def is_remote(data: str | PathLike[str]) -> bool:
    """Whether a table is named by a URL."""
    return isinstance(data, str) and "://" in data


def list_remote_files(url: str) -> list[str]:
    """The URLs of the Parquet file or files there, in natural order; files without a byte are left out."""
    system, path = _open_filesystem(url)
    if not system.exists(path):
        raise missing_path_error(url)
    entries = system.ls(path, detail=True) if system.isdir(path) else [system.info(path)]
    names = [
        info["name"]
        for info in entries
        if info["type"] == "file" and info["size"] and info["name"].lower().endswith((".parquet", ".pq"))
    ]
    if not names:
        deeper = SUBFOLDERS_HINT if any(info["type"] == "directory" for info in entries) else ""
        raise ValueError(
            f"{url}: there is no Parquet file with any content, and only Parquet is read by URL{deeper}"
        )
    return [system.unstrip_protocol(name) for name in sorted(names, key=natural_sort_key)]


def open_remote(url: str) -> Any:
    """A file object that reads what it is asked for, or FileNotFoundError of the process that reads."""
    system, path = _open_filesystem(url)
    try:
        return system.open(path, "rb")
    except FileNotFoundError as error:
        why = "the process that reads it does not find it: every worker must be able to read all files"
        raise FileNotFoundError(ENOENT, why, url) from error


def _open_filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(f"{url}: reading a URL needs fsspec: pip install boxloop[dask]") from error
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        raise ImportError(f"{url}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error
    return system, str(path)
