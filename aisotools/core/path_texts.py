"""Paths as texts, of files that need not be there."""

from __future__ import annotations


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or lies below it, as far as their texts tell.

    Both are absolute, or relative to the same folder. Neither has `..` in it, or a slash at the end.
    """
    return path == folder or path.startswith(f"{folder}/")
