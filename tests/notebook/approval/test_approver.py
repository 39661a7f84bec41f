from __future__ import annotations

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aisotools.notebook.approval.approver import NotebookApprover, can_ask, pending_prompts
from tests.notebook.client import WIDGET_VIEW, Notebook, Run, decision
from tests.notebook.inert import assert_inert
from tests.policy.test_prompts import a_request
from tests.waiting import HANG_S

SETUP = """
import asyncio, time
from aisotools.policy.approvers import request_approval, request_approvals
from aisotools.core.types import ApprovalRequest, Effect, ToolCall, ToolDefinition
from aisotools.notebook.approval.approver import NotebookApprover, pending_prompts

SCHEMA = {"type": "object", "properties": {"key": {"type": "string", "writeOnly": True}}}
WORDS = {"call": "sandbox_bash with exactly these arguments", "shape": "sandbox_bash running only make <b>"}
OFFER = {"remember": WORDS}

def request(timeout_s=600.0, preview=None, effect=Effect.LOCAL_MUTATION, **arguments):
    return ApprovalRequest(
        id=f"r{time.monotonic_ns()}", call=ToolCall("c1", "sandbox_bash", arguments, origin="model"),
        definition=ToolDefinition("sandbox_bash", "Runs a command.", SCHEMA),
        effect=effect, level="confined", reasons=("it writes files",), timeout_s=timeout_s,
        preview=preview or {},
    )

async def ask(hello_s=60.0, **arguments):
    answer = await request_approval(NotebookApprover(hello_s=hello_s), request(**arguments))
    scope = [answer.remember] if answer.remember else []
    print(answer.outcome, answer.arguments, repr(answer.reason), len(pending_prompts()), *scope)

async def ask_many(*requests, hello_s=60.0):
    for answer in await request_approvals(NotebookApprover(hello_s=hello_s), requests):
        print(answer.outcome, repr(answer.reason))
"""


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    notebook = Notebook()
    notebook.run(SETUP)
    yield notebook
    notebook.close()


def the_record(run: Run) -> dict[str, Any]:
    """What is left on the page; there is one thing only, and it is not a widget."""
    (record,) = run.shown.values()
    assert record.keys() == {"text/html", "text/plain"}
    assert_inert(record["text/html"])
    return record


def test_approve_while_the_cell_runs(notebook: Notebook) -> None:
    run = notebook.start("await ask(command='make')")
    card = notebook.card(run)
    assert WIDGET_VIEW in run.displays[0]
    assert "May this run?  sandbox_bash" in run.displays[0]["text/plain"]
    (shown,) = run.from_kernel
    assert shown["view"]["fields"][0]["text"] == "make"
    assert 0 < shown["remaining_s"] <= 600
    notebook.decide(run, "approve")
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve None '' 0\n"
    assert the_record(run)["text/plain"].startswith("✓ Approved: sandbox_bash\n")
    assert card not in run.closed, "a page that was saved while it waited renders it again"


def test_deny_with_a_reason(notebook: Notebook) -> None:
    run = notebook.start("await ask(command='make')")
    notebook.card(run)
    notebook.decide(run, "deny", reason=" too <b>broad</b> ", edits={"command": "ignored"})
    notebook.until(run, lambda: run.ended)
    assert run.text == "deny None 'too <b>broad</b>' 0\n"
    assert "reason: too &lt;b&gt;broad&lt;/b&gt;" in the_record(run)["text/html"]


def test_edits_are_what_runs(notebook: Notebook) -> None:
    run = notebook.start("await ask(command='make', n=1)")
    notebook.card(run)
    notebook.decide(run, "approve", edits={"command": "make -n", "n": "2"})
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve {'command': 'make -n', 'n': 2} '' 0\n"
    assert "Approved with changed arguments" in the_record(run)["text/plain"]
    assert "make -n" in the_record(run)["text/plain"]


def test_bad_edits_are_reported_and_asked_again(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    notebook.card(run)
    notebook.decide(run, "approve", whole='{"n": 1, "n": 2}')
    notebook.until(run, lambda: run.from_kernel[-1]["type"] == "invalid")
    assert "'n' occurs twice" in run.from_kernel[-1]["message"]
    notebook.decide(run, "approve", edits={"n": "one"})
    notebook.until(run, lambda: "is not valid JSON" in run.from_kernel[-1].get("message", ""))
    notebook.decide(run, "approve", edits={})
    notebook.until(run, lambda: run.ended)
    assert run.text.startswith("approve None")


def test_an_invalid_reply_is_no_answer(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    card = notebook.card(run)
    shown = run.from_kernel[0]
    for message in (
        {**decision(shown, outcome="approve"), "id": "another"},
        {"type": "decision", "outcome": "approve"},
        {"type": "decision", "id": shown["id"], "outcome": "approve"},
        {**decision(shown, outcome="approve"), "nonce": "another"},
        decision(shown, outcome="timeout"),
        decision(shown, outcome=["approve"]),
        decision(shown, outcome="approve", edits={"n": 3}),
        decision(shown, outcome="approve", whole=["{}"]),
        decision(shown, outcome="approve", edits=[1]),
        {"type": ["decision"]},
        "approve",
        None,
    ):
        notebook.send(card, message)
    notebook.decide(run, "deny", reason="last")
    notebook.until(run, lambda: run.ended)
    assert run.text == "deny None 'last' 0\n"


def test_the_first_answer_wins(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)\nawait ask(n=2)")
    first = notebook.card(run)
    notebook.decide(run, "deny", reason="first")
    notebook.decide(run, "approve")
    notebook.until(run, lambda: len(run.cards) == 2)
    notebook.send(first, decision(run.from_kernel[0], outcome="approve"))
    run.from_kernel.clear()
    notebook.card(run)
    notebook.decide(run, "deny", reason="second")
    notebook.until(run, lambda: run.ended)
    assert [line for line in run.text.splitlines() if line.startswith(("deny", "approve"))] == [
        "deny None 'first' 0",
        "deny None 'second' 0",
    ]


def test_without_hello_an_input_box_asks(notebook: Notebook) -> None:
    run = notebook.start("await ask(hello_s=0.2, command='make')")
    assert notebook.typed("not today") == "[y]es, [n]o, or why not: "
    notebook.until(run, lambda: run.ended)
    assert run.text == "deny None 'not today' 0\n"
    assert "Denied" in the_record(run)["text/plain"]


def test_while_the_input_box_asks_the_card_is_plain_text(notebook: Notebook) -> None:
    run = notebook.start("await ask(hello_s=0.2, command='make')")
    notebook.until(run, lambda: run.shown and WIDGET_VIEW not in the_only(run))
    assert "Answer in the box below." in the_only(run)["text/html"]
    assert_inert(the_only(run)["text/html"])
    notebook.typed("y")
    notebook.until(run, lambda: run.ended)
    assert run.text.startswith("approve")


def the_only(run: Run) -> dict[str, Any]:
    (shown,) = run.shown.values()
    return shown


def test_headless_is_denied_without_asking(notebook: Notebook) -> None:
    run = notebook.run("await ask(command='make')", allow_stdin=False)
    assert run.text.startswith("deny None 'Nobody can be asked: this notebook runs without a person")
    assert not run.cards
    assert "Denied" in the_record(run)["text/plain"]


def test_time_runs_out(notebook: Notebook) -> None:
    run = notebook.start("await ask(timeout_s=2, command='make')")
    notebook.card(run)
    notebook.until(run, lambda: run.ended)
    assert run.text == "timeout None 'Nobody answered within 2 s.' 0\n"
    assert "Not answered in time" in the_record(run)["text/plain"]


def test_time_that_a_card_takes_to_be_made_counts(notebook: Notebook) -> None:
    """The gate counts from before, and its cancellation is no Stop."""
    code = """
from aisotools.notebook.approval.approver import NotebookPrompt
from aisotools.notebook.approval.subjects import ApprovalSubject
kernel, loop = get_ipython().kernel, asyncio.get_running_loop()
class Subject(ApprovalSubject):
    async def read_typed(self, *_):
        print("an input box")

for late_s in (0, 1000):
    prompt = NotebookPrompt(Subject((request(timeout_s=1000.0),)), kernel, began_s=loop.time() - late_s)
    waiting = asyncio.create_task(prompt.answer(1000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
"""
    run = notebook.run(code)
    first, second = run.shown.values()
    assert "Stopped before an answer" in first["text/plain"]
    assert "Not answered in time" in second["text/plain"]
    assert not run.text, "there was no time left for an input box"


def test_time_runs_out_at_the_input_box_and_the_next_one_works(notebook: Notebook) -> None:
    run = notebook.start("await ask(hello_s=0.1, timeout_s=1.5, command='make')\nprint(input('next: '))")
    assert "y" in notebook.client.get_stdin_msg(timeout=HANG_S)["content"]["prompt"]
    notebook.until(run, lambda: run.text)
    assert run.text.startswith("timeout")
    assert notebook.typed("mine") == "next: "
    notebook.until(run, lambda: run.ended)
    assert run.text.endswith("mine\n")


@pytest.mark.parametrize("hello_s", [50.0, 0.1], ids=["card", "input box"])
def test_stop_while_waiting(notebook: Notebook, hello_s: float) -> None:
    run = notebook.start(f"await ask(hello_s={hello_s}, command='make')")
    if hello_s < 1:
        notebook.client.get_stdin_msg(timeout=HANG_S)
    else:
        notebook.card(run)
    notebook.manager.interrupt_kernel()
    notebook.until(run, lambda: run.ended)
    assert run.error == "CancelledError"
    assert "Stopped before an answer" in the_record(run)["text/plain"]
    after = notebook.run(
        "import threading; print(pending_prompts(), [t.name for t in threading.enumerate()])"
    )
    assert after.text.startswith("() ")
    assert "aisotools-asking" not in after.text
    with pytest.raises(queue.Empty):
        notebook.client.get_stdin_msg(timeout=0.1)


def test_two_questions_at_once(notebook: Notebook) -> None:
    run = notebook.start("await asyncio.gather(ask(n=1), ask(n=2))\nprint('end')")
    notebook.until(run, lambda: len(run.cards) == 2 and len(run.displays) == 2)
    for card in run.cards:
        notebook.send(card, {"type": "hello"})
    notebook.until(run, lambda: len(run.from_kernel) == 2)
    for card, shown in zip(run.cards, run.from_kernel, strict=True):
        notebook.send(card, decision(shown, outcome="approve"))
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve None '' 1\napprove None '' 0\nend\n"


# --- pages that come and go


def a_second_page(notebook: Notebook, run: Run, *, first_is_there: bool) -> None:
    notebook.until(run, lambda: run.cards and run.displays)
    card = run.cards[-1]
    notebook.send(card, {"type": "hello", "page": "one"})
    notebook.until(run, lambda: run.from_kernel)
    notebook.send(card, {"type": "hello", "page": "two"})
    notebook.until(run, lambda: any(m["type"] == "who" for m in run.from_kernel))
    notebook.send(card, {"type": "here", "page": "two"})
    if first_is_there:
        notebook.send(card, {"type": "here", "page": "one"})
    notebook.decide(run, "approve")
    notebook.until(run, lambda: run.ended)


def test_a_page_that_was_loaded_again_gets_its_record_with_the_next_cell(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    a_second_page(notebook, run, first_is_there=False)
    done = run.from_kernel[-1]
    assert (done["type"], done["words"]) == ("done", "✓ Approved: sandbox_bash")
    assert done["bundle"] == the_record(run)
    assert run.cards[-1] not in run.closed, "the page still shows it"
    later = notebook.run("1")
    assert "✓ Approved: sandbox_bash" in the_record(later)["text/plain"]
    assert not notebook.run("2").shown, "once is enough"


def test_a_record_that_the_page_has_stored_is_not_displayed_again(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    a_second_page(notebook, run, first_is_there=False)
    notebook.send(run.cards[-1], {"type": "stored"})
    notebook.run("await asyncio.sleep(0)")  # messages are taken in their order, and scheduled
    assert not notebook.run("1").shown


def test_a_page_says_that_a_record_is_stored_before_there_is_one(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    notebook.card(run)
    notebook.send(run.cards[-1], {"type": "stored"})
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)
    assert run.text.startswith("deny")


def test_another_window_learns_what_was_decided(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    a_second_page(notebook, run, first_is_there=True)
    assert run.from_kernel[-1]["type"] == "done"
    the_record(run)
    assert not notebook.run("1").shown, "the first window shows the record in its place"


def test_a_page_knows_the_cell_that_asks(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    notebook.until(run, lambda: run.cards and run.displays)
    notebook.send(run.cards[-1], {"type": "hello", "page": "one"})
    notebook.until(run, lambda: run.from_kernel)
    shown = run.from_kernel[0]
    (display_id,) = run.shown
    assert shown["first"] == "one"
    assert shown["cell"]["parent"] == run.msg_id
    assert shown["cell"]["displayId"] == display_id
    assert shown["cell"]["modelId"] == run.displays[0][WIDGET_VIEW]["model_id"] == run.cards[-1]
    assert isinstance(shown["cell"]["count"], int)
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)


def test_a_page_knows_what_waits_and_since_when_and_how_to_tell(notebook: Notebook) -> None:
    run = notebook.start(
        "await asyncio.sleep(0.2)\n"
        "asker = NotebookApprover(hello_s=60, notify=['sound'])\n"
        "await request_approval(asker, request(n=1));"
    )
    notebook.card(run)
    attention = run.from_kernel[0]["attention"]
    assert attention["title"] == "Use sandbox_bash"
    assert attention["notify"] == ["sound"]
    assert 200 <= attention["age_ms"] < 1000 * HANG_S
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)


def test_a_decision_is_confirmed_and_a_late_page_learns_what_it_was(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    card = notebook.card(run)
    notebook.decide(run, "deny", reason="no")
    notebook.until(run, lambda: run.ended)
    assert [m["type"] for m in run.from_kernel] == ["show", "accepted"]
    assert card not in run.closed
    for late in ({"type": "hello", "page": "late"}, decision(run.from_kernel[0], outcome="approve")):
        run.from_kernel.clear()
        notebook.send(card, late)
        notebook.until(run, lambda: run.from_kernel)
        assert run.from_kernel[0]["type"] == "done"
        assert run.from_kernel[0]["bundle"] == the_record(run)
        assert run.from_kernel[0]["modelId"] == card


def test_a_decision_of_another_card_is_refused_with_what_to_do(notebook: Notebook) -> None:
    run = notebook.start("await ask(n=1)")
    card = notebook.card(run)
    notebook.send(card, {**decision(run.from_kernel[0], outcome="approve"), "nonce": "0" * 16})
    notebook.until(run, lambda: run.from_kernel[-1]["type"] == "invalid")
    assert "Load the page again" in run.from_kernel[-1]["message"]
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)
    assert run.text.startswith("deny")


def test_two_cards_have_two_nonces(notebook: Notebook) -> None:
    nonces = set()
    for _ in range(2):
        run = notebook.start("await ask(n=1)")
        notebook.card(run)
        nonces.add(run.from_kernel[0]["nonce"])
        notebook.decide(run, "deny")
        notebook.until(run, lambda run=run: run.ended)
    assert len(nonces) == 2


def test_a_page_that_comes_while_the_input_box_asks_says_so(notebook: Notebook) -> None:
    run = notebook.start("await ask(hello_s=0, n=1)")
    notebook.until(run, lambda: run.cards and run.displays)
    notebook.send(run.cards[-1], {"type": "hello", "page": "late"})
    prompt = notebook.typed("n")
    assert prompt
    notebook.until(run, lambda: run.ended)
    notebook.until(run, lambda: run.from_kernel)
    assert run.from_kernel[0]["type"] in {"typed", "done"}


def test_only_so_many_cards_stay_open(notebook: Notebook) -> None:
    notebook.run("from aisotools.notebook.approval import approver; approver._MAX_OPEN_CARDS = 3")
    closed: list[str] = []
    cards = []
    for _ in range(5):
        run = notebook.start("await ask(n=1)")
        cards.append(notebook.card(run))
        notebook.decide(run, "deny")
        notebook.until(run, lambda run=run: run.ended)
        closed += run.closed
    notebook.run("approver._MAX_OPEN_CARDS = 20")
    assert closed[-2:] == cards[:2]


def test_a_question_can_be_shown_again(notebook: Notebook) -> None:
    run = notebook.start(
        "t = asyncio.create_task(ask(n=1))\n"
        "while not pending_prompts():\n    await asyncio.sleep(0)\n"
        "pending_prompts()[0].show()\nawait t"
    )
    notebook.until(run, lambda: len(run.displays) == 2)
    notebook.card(run)
    notebook.decide(run, "approve")
    notebook.until(run, lambda: run.ended)
    the_record(run)


# --- approvals that are remembered


def test_approve_and_remember(notebook: Notebook) -> None:
    run = notebook.start("await ask(command='make', preview={'remember': WORDS})")
    notebook.card(run)
    assert run.from_kernel[0]["view"]["remember"] == [
        {"scope": "call", "words": "sandbox_bash with exactly these arguments"},
        {"scope": "shape", "words": "sandbox_bash running only make <b>"},
    ]
    notebook.decide(run, "approve", remember="shape")
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve None '' 0 shape\n"
    record = the_record(run)
    assert record["text/plain"].startswith("✓ Approved and remembered: sandbox_bash\n")
    scope = "until the session ends, not asked again for sandbox_bash running only make"
    assert scope in record["text/plain"]
    assert f"{scope} &lt;b&gt;" in record["text/html"]


def test_scopes_not_offered_or_not_shown_are_not_remembered(notebook: Notebook) -> None:
    run = notebook.start("await ask(command='make', preview={'remember': WORDS})")
    notebook.card(run)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"remember": "tool"}, "was not offered"),
        ({"remember": ["call"]}, "was not offered"),
        ({"remember": True}, "was not offered"),
        ({"remember": "call", "edits": {"command": "rm"}}, "once only"),
    ]
    for number, (more, message) in enumerate(wrong, 2):
        notebook.decide(run, "approve", **more)
        notebook.until(run, lambda number=number: len(run.from_kernel) == number)
        assert message in run.from_kernel[-1]["message"]
    notebook.decide(run, "deny", remember="call")
    notebook.until(run, lambda: run.ended)
    assert run.text == "deny None '' 0\n"


def test_the_input_box_offers_it_too(notebook: Notebook) -> None:
    run = notebook.start("await ask(hello_s=0.1, command='make', preview={'remember': WORDS})")
    notebook.until(run, lambda: run.shown and WIDGET_VIEW not in the_only(run))
    for text in (the_only(run)["text/html"], the_only(run)["text/plain"]):
        assert "sandbox_bash running only make" in text
    notebook.typed("s")
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve None '' 0 shape\n"


def test_secrets_are_masked_everywhere(notebook: Notebook) -> None:
    run = notebook.start("await ask(command='make', key='hunter2!')\nawait ask(0.1, key='hunter2!')")
    notebook.card(run)
    (secret,) = [field for field in run.from_kernel[0]["view"]["fields"] if field["name"] == "key"]
    assert not secret["editable"]
    notebook.decide(run, "approve", edits={"key": "another"})
    notebook.until(run, lambda: run.from_kernel[-1]["type"] == "invalid")
    notebook.decide(run, "approve", edits={"command": "make -n"})
    notebook.until(run, lambda: "approve" in run.text)
    assert "{'command': 'make -n', 'key': 'hunter2!'}" in run.text, "the tool gets it"
    notebook.typed("y")
    notebook.until(run, lambda: run.ended)
    seen = repr((run.displays, run.shown, run.from_kernel))
    assert "hunter2" not in seen
    assert "secret, not shown" in seen


# --- several calls at once

MANY = (
    "await ask_many(request(command='ls', preview=OFFER), request(key='hunter2!', n=1), "
    "request(command='rm -r x', effect=Effect.DESTRUCTIVE){more})"
)


def test_a_batch_is_one_card_and_the_risky_start_unselected(notebook: Notebook) -> None:
    run = notebook.start(MANY.format(more=""))
    notebook.card(run)
    rows = run.from_kernel[0]["view"]["rows"]
    assert [row["selected"] for row in rows] == [True, True, False]
    assert [row["summary"] for row in rows] == ["ls", "key=•••••••• (secret, not shown) n=1", "rm -r x"]
    assert len(run.displays) == 1
    assert "hunter2" not in repr((run.displays, run.from_kernel))
    notebook.decide(run, "approve", selected=[rows[0]["id"], rows[2]["id"]])
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve ''\ndeny 'It was not among the calls that were approved.'\napprove ''\n"
    record = the_record(run)
    assert record["text/plain"].startswith("2 of 3 calls approved\n  ✓ Approved: sandbox_bash  ls\n")
    assert "hunter2" not in repr(record)


def test_code_that_does_not_fit_the_line_is_open(notebook: Notebook) -> None:
    padded = "ls" + " x" * 200 + "; make install"
    run = notebook.start(f"await ask_many(request(command={padded!r}), request(command='ls'))")
    notebook.card(run)
    assert [row["open"] for row in run.from_kernel[0]["view"]["rows"]] == [True, False]
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)


def test_deny_all_of_a_batch(notebook: Notebook) -> None:
    run = notebook.start(MANY.format(more=""))
    notebook.card(run)
    every = [row["id"] for row in run.from_kernel[0]["view"]["rows"]]
    notebook.decide(run, "deny", selected=every, reason="not <now>")
    notebook.until(run, lambda: run.ended)
    assert run.text == "deny 'not <now>'\n" * 3
    assert "0 of 3 calls approved" in the_record(run)["text/plain"]


def test_an_invalid_reply_to_a_batch_is_no_answer(notebook: Notebook) -> None:
    run = notebook.start(MANY.format(more=""))
    notebook.card(run)
    every: list[Any] = [None, [], "r", ["another"], [["r"]], [{}], {"r": 1}]
    for number, wrong in enumerate(every, 2):
        notebook.decide(run, "approve", selected=wrong)
        notebook.until(run, lambda number=number: len(run.from_kernel) == number)
        assert run.from_kernel[-1]["type"] == "invalid"
    notebook.decide(run, "deny")
    notebook.until(run, lambda: run.ended)
    assert run.text == "deny ''\n" * 3


def test_a_batch_at_the_input_box_is_asked_one_after_another(notebook: Notebook) -> None:
    run = notebook.start(MANY.format(more=", hello_s=0.1"))
    assert notebook.typed("y")
    notebook.until(run, lambda: run.shown and "This is 2 of 3" in the_only(run)["text/html"])
    notebook.typed("too broad")
    notebook.typed("")
    notebook.until(run, lambda: run.ended)
    assert run.text == "approve ''\ndeny 'too broad'\ndeny ''\n"
    assert "1 of 3 calls approved" in the_record(run)["text/plain"]


def test_a_batch_headless(notebook: Notebook) -> None:
    run = notebook.run(MANY.format(more=""), allow_stdin=False)
    assert run.text.count("deny 'Nobody can be asked: this notebook runs without a person") == 3
    the_record(run)


def test_a_batch_ends_with_its_shortest_time(notebook: Notebook) -> None:
    run = notebook.start("await ask_many(request(n=1), request(n=2, timeout_s=2))")
    notebook.card(run)
    notebook.until(run, lambda: run.ended)
    assert run.text == "timeout 'Nobody answered within 2 s.'\n" * 2
    assert "Not answered in time" in the_record(run)["text/plain"]


def test_stop_while_a_batch_waits(notebook: Notebook) -> None:
    run = notebook.start(MANY.format(more=""))
    notebook.card(run)
    notebook.manager.interrupt_kernel()
    notebook.until(run, lambda: run.ended)
    assert run.error == "CancelledError"
    assert the_record(run)["text/plain"].count("Stopped before an answer") == 3
    assert "()" in notebook.run("print(pending_prompts())").text


# --- without a kernel


@pytest.mark.parametrize(
    ("shell", "can"),
    [
        (None, False),
        (SimpleNamespace(), False),  # IPython in a terminal; here there is no terminal
        (SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=False)), False),
        (SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True)), True),
        (SimpleNamespace(kernel=SimpleNamespace()), True),
    ],
)
def test_can_ask(shell: Any, can: bool) -> None:
    assert can_ask(shell) is can


async def test_without_notebook_and_terminal_nobody_is_asked() -> None:
    answer = await NotebookApprover().ask(a_request({"command": "make"}))
    assert answer.outcome == "deny"
    assert "Nobody can be asked" in answer.reason
    assert pending_prompts() == ()
