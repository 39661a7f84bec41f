"""Paths as texts, of files that need not be there."""

from __future__ import annotations

from collections.abc import Iterator


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or lies below it, as far as their texts tell.

    Both are absolute, or relative to the same folder. Neither has `..` in it, or a slash at the end.
    """
    return path == folder or path.startswith(f"{folder}/")


def with_folders(path: str) -> Iterator[str]:
    """Yield a path, and then each folder that it lies in, but for the root and the folder it starts from."""
    yield path
    while path := path.rpartition("/")[0]:
        yield path
