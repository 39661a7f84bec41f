"""session.put and session.get, in a real worker, honest and hostile."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from aisotools.core.events import CallFinished
from aisotools.core.exceptions import ToolError, UsageError
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.data import Payload
from aisotools.session.session import Session
from aisotools.session.transfer import GetVariable, check_variable
from tests.conftest import OpenSession


@pytest.fixture
def session(real_session: OpenSession) -> Session:
    return real_session(approver=AllowAll())


@pytest.mark.sample(4)
@pytest.mark.parametrize("value", ["text \u00fc", b"\x00\xff", [1, {"a": None}], 2.5, 10**40, None, True])
async def test_values_go_in_and_come_out(session: Session, value: Any) -> None:
    await session.put("x", value)
    seen = await session.call("python", {"code": "repr(x)"})
    assert eval(seen.value["result"]) == repr(value)
    back = await session.get("x")
    assert (type(back), back) == (type(value), value)


async def test_arrays_and_frames(session: Session) -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    await session.put("a", np.arange(1_000_000.0))
    await session.put("df", pd.DataFrame({"n": [1, 2], "s": ["x", "y"]}))
    done = await session.call("python", {"code": "b = a * 2; df['m'] = df.n + 1"}, timeout_s=60)
    assert not done.is_error, done.content
    assert (await session.get("b")).sum() == np.arange(1_000_000.0).sum() * 2
    assert (await session.get("df")).to_dict("list") == {"n": [1, 2], "s": ["x", "y"], "m": [2, 3]}
    assert all(len(str(e.result.value)) < 1000 for e in session.events if isinstance(e, CallFinished))


async def test_nobody_is_asked_for_what_the_session_itself_does(real_session: OpenSession) -> None:
    session = real_session(approver=None)
    await session.put("x", 1)
    assert await session.get("x") == 1


async def test_mode_plan_lets_nothing_in(real_session: OpenSession) -> None:
    session = real_session(policy=Policy(mode="plan"))
    with pytest.raises(ToolError, match="plan allows only reading"):
        await session.put("x", 1)


@pytest.mark.parametrize("name", ["a b", "1x", "", "class", "x;y", 3, "x.y"])
async def test_names_that_are_none(session: Session, name: Any) -> None:
    for act in (session.get(name), session.put(name, 1)):
        with pytest.raises(UsageError, match="cannot be the name"):
            await act


async def test_value_that_cannot_be_sent_is_reported(session: Session) -> None:
    with pytest.raises(ToolError, match="'f' is function, which cannot travel"):
        await session.put("f", lambda: 1)
    with pytest.raises(ToolError, match="no variable 'nosuch'"):
        await session.get("nosuch")
    await session.call("python", {"code": "g = lambda: 1; big = bytes(60 << 20)"})
    with pytest.raises(ToolError, match="'g' is function, which cannot travel"):
        await session.get("g")
    with pytest.raises(ToolError, match="at most"):
        await session.get("big")


async def test_a_model_cannot_call_what_carries_values(session: Session) -> None:
    for name in ("session.put", "session.get"):
        assert "no tool named" in (await session.call(name, {"name": "x"})).content


HOSTILE = """
import aisotools.session.transfer as t, aisotools.sandbox.data as p, pickle, base64
class Evil:
    def __reduce__(self): return (__import__('os').system, ('touch owned',))
def forged(name, value): return p.Payload(kind=KIND, data=DATA, form="frame")
t.pack = forged
x = 1
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("'npy'", "pickle.dumps(Evil())"),
        ("'pickle'", "pickle.dumps(Evil())"),
        ("'json'", "b'[' * 100000"),
        ("'arrow'", "b'\\xff' * 100"),
        ("'text\\nx'", "b''"),
        ("'npy'", "bytes(46 << 20)"),
    ],
)
async def test_a_worker_that_lies_is_not_believed(session: Session, kind: str, data: str) -> None:
    code = HOSTILE.replace("KIND", kind).replace("DATA", data)
    assert not (await session.call("python", {"code": code})).is_error
    with pytest.raises(ToolError):
        await session.get("x")
    assert session.workspace is not None
    assert not (session.workspace / "owned").exists()


@pytest.mark.parametrize(
    "value", [5, "text", "/\n", "x" * 100 + "\n", "bytes/\n" + "QQ==" * (1 << 19), "bytes/\n\u20ac"]
)
async def test_a_value_that_is_no_payload_is_refused(value: Any) -> None:
    """Padding between two pieces that are decoded one after the other is no base64 either."""
    received = await GetVariable("x").receive(ToolResult(content="", value=value))
    assert received.is_error
    assert "'x' came out of the sandbox malformed" in received.content


@pytest.mark.parametrize("size", [0, 1, 786_431, 786_432, 786_433, 3_000_000])
async def test_a_payload_is_the_same_in_pieces(size: int) -> None:
    data = random.Random(size).randbytes(size)
    tool = GetVariable("x")
    value = f"bytes/form\n{base64.b64encode(data).decode()}"
    assert (await tool.receive(ToolResult(content="", value=value))).content == f"x: bytes, {size:,} bytes."
    assert tool.payload == Payload(kind="bytes", data=data, form="form")


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "class", "a-b", "x\n"])
def test_a_name_that_python_could_not_use_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_variable(name)


def test_ordinary_names_are_taken() -> None:
    for name in ("x", "_y1", "größe"):
        check_variable(name)
