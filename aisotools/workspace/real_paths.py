"""How real paths lie to each other. They are texts, as many are compared at each look at a workspace."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from pathlib import Path

from aisotools.workspace.paths import MAX_LINKS


def lies_to(workspace: str, folder: str) -> str:
    """Return how a workspace lies to a folder: "is", "contains" or "lies in"; empty if none of these."""
    if workspace == folder:
        return "is"
    if folder.startswith(f"{workspace.rstrip('/')}/"):
        return "contains"
    return "lies in" if workspace.startswith(f"{folder.rstrip('/')}/") else ""


def leads_into(path: str, folders: AbstractSet[str]) -> bool:
    """Return whether the path, or a link on its way, enters one of these real folders.

    A file that a link in a workspace stands for counts: sandboxed code can point the link elsewhere.
    """
    if not path.startswith("/"):
        try:
            path = f"{Path.cwd()}/{path}"
        except FileNotFoundError:  # the current folder is gone
            return False
    parts, place, links = path.split("/")[::-1], "", 0
    while parts:
        part = parts.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            place = place.rpartition("/")[0]
            continue
        place = f"{place}/{part}"
        if place in folders:
            return True
        try:
            link = os.readlink(place)  # noqa: PTH115 - done for each part at each import
        except (OSError, ValueError):  # no link, nothing there, or no path
            continue
        links += 1
        if links > MAX_LINKS:
            return False  # the kernel opens no such path either
        parts += link.split("/")[::-1]
        place = "" if link.startswith("/") else place.rpartition("/")[0]
    return False


def resolve(path: str, known: dict[str, str]) -> str:
    """Return the real path; `known` has those that were found before, as most entries share their parents."""
    real = known.get(path)
    if real is None:
        parent, _, name = path.rpartition("/")
        if not parent or name in {"", ".", ".."} or os.path.islink(path):  # noqa: PTH114 - many entries
            real = os.path.realpath(path)
        else:
            real = f"{resolve(parent, known).rstrip('/')}/{name}"
        known[path] = real
    return real
