"""The module that is sent to a remote kernel, run in this process."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.integrations.jupyter_gateway import payload
from aisotools.integrations.jupyter_gateway.payload import RESULT_MIME, MimeValue


def test_an_answer_has_both_forms_and_plain_text_only_if_spoken() -> None:
    spoken = MimeValue({"a": 1})._repr_mimebundle_()
    assert spoken[RESULT_MIME] == {"a": 1}
    assert json.loads(spoken["text/plain"]) == {"a": 1}
    assert MimeValue({"a": 1}, spoken=False)._repr_mimebundle_()["text/plain"] == ""


def test_hello_settles_in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKSPACE", "")
    info = payload.hello("work/space")._value
    assert info["folder"] == str(tmp_path / "work" / "space")
    assert Path.cwd() == tmp_path / "work" / "space"
    assert info["python"] == list(sys.version_info[:2])
    assert (info["pydantic"], info["cloudpickle"]) == (True, True)


def test_parts_are_joined_once() -> None:
    text = base64.b64encode(b"some data").decode()
    payload.take(text[:5])
    payload.take(text[5:])
    assert payload.take_all() == b"some data"
    assert payload.take_all() == b""


def test_a_synchronous_tool_runs_without_the_loop() -> None:
    async def ready() -> int:
        return 7

    assert payload._run_to_end(ready()) == 7


def test_a_synchronous_tool_that_awaits_is_refused() -> None:
    class Suspending:
        def __await__(self) -> Any:
            yield

    async def waits() -> None:
        await Suspending()

    with pytest.raises(RuntimeError, match="not `async def` has nothing to await"):
        payload._run_to_end(waits())


def test_a_result_is_handed_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "_results", {"n": (b"a", b"b")})
    assert payload.answer("n", True)._value == {"nonce": "n", "pieces": ["YQ==", "Yg=="]}
    with pytest.raises(KeyError):
        payload.answer("n", True)
