"""Ask the person at the notebook, with a widget in the running cell or an input box below it.

no shell, or IPython in a terminal   the terminal asks, or nobody can be asked
the client accepts no input          headless: denied at once, never a hang
otherwise                            a card is displayed; its page sends "hello", so clicks can arrive
no "hello" in time                   the card becomes plain text and an input box asks
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal

from aisotools.core.exceptions import ArgumentError
from aisotools.core.protocols import UserQuestion
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.notebook.approval.subjects import AnswerT, ApprovalSubject, PromptSubject, QuestionSubject
from aisotools.session.approvers import SLICE_S, ConsoleApprover, on_terminal

if TYPE_CHECKING:
    from aisotools.notebook.approval.widgets import ApprovalCard  # importing anywidget is slow


Notice = Literal["desktop", "sound"]
"""A way to draw attention to a card that waits, besides the page itself."""

HELLO_TIMEOUT_S = 2.0
"""Time for the page to report that it renders the card."""

_HEADLESS = (
    "Nobody can be asked: this notebook runs without a person at it. Run it in JupyterLab, "
    "give the session an approver, or a policy rule that allows the call."
)
# Cards that stay open after their answer: a notebook that was saved while a card waited renders it again, and
# learns what became of it. The oldest are closed.
_MAX_OPEN_CARDS = 20

_STALE = "This card is not the one that waits. Load the page again to see it."
_CONFIRMED = "Your decision has arrived."
_TYPED = "Answer in the box below the cell that asks."

_pending: dict[str, NotebookPrompt[Any]] = {}
_undelivered_records: dict[str, dict[str, Any]] = {}
"""Records that no page has taken in, by display id. The next cell displays them."""

_open_cards: list[ApprovalCard] = []


def can_ask(shell: Any) -> bool:
    """Return whether a person can be asked through this IPython shell; None stands for no shell."""
    if shell is None:
        return False
    kernel = kernel_of(shell)
    return on_terminal() if kernel is None else accepts_input(kernel)


def pending_prompts() -> tuple[NotebookPrompt[Any], ...]:
    """Return the prompts that wait for an answer, oldest first."""
    return tuple(_pending.values())


class NotebookApprover:
    """Asks in the notebook, below the running cell."""

    def __init__(
        self, *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S, notify: Collection[Notice] = ()
    ) -> None:
        """Ask through the running IPython shell.

        Args:
            shell: Another shell to ask through.
            hello_s: Seconds for a page to render the card before an input box asks instead.
            notify: How the page draws attention besides its title: a `desktop` notification while the
                person looks at something else, which their browser must permit, and a `sound`.
        """
        self._shell = shell
        self._hello_s = hello_s
        self._notify = tuple(notify)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Show `request` and return the answer, at the latest after its `timeout_s`."""
        return (await self.ask_many([request]))[0]

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        """Show several calls on one card and return one answer for each, in the same order."""
        if not requests:
            return []
        began_s = asyncio.get_running_loop().time()
        shell = self._shell if self._shell is not None else running_shell()
        kernel = kernel_of(shell)
        if kernel is None:
            console = ConsoleApprover()
            return [await console.ask(request) for request in requests]
        subject = ApprovalSubject(tuple(requests))
        if not accepts_input(kernel):
            denials = [Approval("deny", reason=_HEADLESS) for _ in requests]
            display_bundle(subject.record_bundle(denials))
            return denials
        prompt = NotebookPrompt(subject, kernel, began_s=began_s, notify=self._notify)
        return await prompt.answer(self._hello_s)

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Ask a model's question. Return None when nobody is there or nobody answers."""
        began_s = asyncio.get_running_loop().time()
        shell = self._shell if self._shell is not None else running_shell()
        kernel = kernel_of(shell)
        if kernel is None:
            return await ConsoleApprover().ask_user(question)
        if not accepts_input(kernel):
            return None
        subject = QuestionSubject(question)
        prompt = NotebookPrompt(subject, kernel, began_s=began_s, notify=self._notify)
        return (await prompt.answer(self._hello_s)).text


class NotebookPrompt(Generic[AnswerT]):
    """One prompt on the page: shows its subject, takes the first valid answer and leaves a record.

    ipykernel >= 7.4 delivers widget messages on other threads while the cell awaits, and an interrupt reaches
    the waiting task only when the event loop wakes. So messages are only ever scheduled on the loop that
    asked, and waiting is done in slices of `SLICE_S`.

    Attributes:
        subject: What is asked.
    """

    def __init__(
        self,
        subject: PromptSubject[AnswerT],
        kernel: Any,
        card: type[ApprovalCard] | None = None,
        *,
        began_s: float | None = None,
        notify: Collection[Notice] = (),
    ) -> None:
        """Prepare to ask from the running event loop.

        Args:
            subject: What is asked.
            kernel: The ipykernel whose input box asks when no page renders the card.
            card: Widget class to show instead of `ApprovalCard`.
            began_s: The loop's time from which `subject.timeout_s` counts; now, without it.
            notify: See `NotebookApprover`.
        """
        from aisotools.notebook.approval.widgets import ApprovalCard

        self.subject = subject
        self._kernel = kernel
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        if subject.timeout_s is not None:
            # Slightly before the gate's own deadline, which is running already: the record must still be
            # written by the time the gate cancels us. Race: the import above may take longer than that, so
            # the time counts from before it, or the gate's cancellation would be taken for a Stop.
            margin_s = min(0.1, 0.1 * subject.timeout_s)
            began_s = self._loop.time() if began_s is None else began_s
            self._deadline = began_s + subject.timeout_s - margin_s
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[AnswerT] = self._loop.create_future()
        self._card: ApprovalCard = (card or ApprovalCard)()
        self._card.on_msg(self._on_message)
        self._display_id = uuid.uuid4().hex
        self._nonce = secrets.token_hex(8)
        self._notify = tuple(notify)
        header = _cell_header(kernel)
        self._cell_began = header.get("date")
        self._cell = {
            "modelId": self._card.model_id,
            "displayId": self._display_id,
            "parent": str(header.get("msg_id", "")),
            "count": getattr(getattr(kernel, "shell", None), "execution_count", None),
        }
        self._record: dict[str, Any] | None = None
        self._pages: set[object] = set()
        self._first_page: object = None

    def __repr__(self) -> str:
        return f"<NotebookPrompt {self.subject.id}: {self.subject.title}>"

    def show(self) -> None:
        """Display the card below the running cell. May be repeated, for a page that lost it."""
        display_bundle(self._card.bundle() | self.subject.fallback_bundle(), self._display_id)

    async def answer(self, hello_s: float) -> AnswerT:
        """Show the prompt, wait for its answer, and replace it by a record of both.

        Args:
            hello_s: Seconds for a page to render the card before an input box asks instead.
        """
        _pending[self._display_id] = self
        answer: AnswerT | None = None
        try:
            self.show()
            if await self._wait_for(self._hello, self._loop.time() + hello_s):
                answered = await self._wait_for(self._answer, None)
                answer = self._answer.result() if answered else self._no_answer()
            elif self._expired():
                # An input box would still open for a moment, and its request would reach the page after the
                # cell has gone on.
                answer = self._no_answer()
            else:
                answer = await self._read_from_input_box()
            return answer
        finally:
            # Also when the cell is interrupted: otherwise the page would keep a card that does nothing.
            del _pending[self._display_id]
            self._answer.cancel()
            self._leave_record(self.subject.record_bundle(self._no_answer() if answer is None else answer))

    def _expired(self) -> bool:
        return self._deadline is not None and self._loop.time() >= self._deadline

    def _no_answer(self) -> AnswerT:
        return self.subject.no_answer("timeout" if self._expired() else "cancel")

    def _leave_record(self, record: dict[str, Any]) -> None:
        """Replace the card by the record, on every page that renders it now or later."""
        self._record = record
        display_bundle(record, self._display_id, update=True)
        _open_cards.append(self._card)
        while len(_open_cards) > _MAX_OPEN_CARDS:
            _open_cards.pop(0).close()
        if len(self._pages) < 2 and self._first_page in {None, *self._pages}:
            return
        # A page that was loaded again may not take in what the cell that asked displays. There the card
        # itself turns into the record; and the next cell displays it, unless the page says that its document
        # has it.
        if self._first_page not in self._pages:
            _display_with_next_cell(getattr(self._kernel, "shell", None), self._display_id, record)
        self._send_record(record)

    def _send_record(self, record: Mapping[str, Any]) -> None:
        title, *lines = record["text/plain"].split("\n")
        self._send("done", modelId=self._card.model_id, bundle=record, words=title, lines=lines)

    async def _read_from_input_box(self) -> AnswerT:
        # A late click must not compete with what is typed.
        self._answer.cancel()

        def show(bundle: Mapping[str, Any]) -> None:
            display_bundle(bundle, self._display_id, update=True)

        # `raw_input` belongs to ipykernel; other kernels have only the builtin.
        read_line = getattr(self._kernel, "raw_input", input)
        return await self.subject.read_typed(read_line, show, self._deadline)

    async def _wait_for(self, future: asyncio.Future[Any], until: float | None) -> bool:
        """Return whether `future` is done before `until` and the deadline, both in loop time."""
        ends = [end for end in (until, self._deadline) if end is not None]
        while not future.done():
            remaining_s = min((end - self._loop.time() for end in ends), default=SLICE_S)
            if remaining_s <= 0:
                return False
            await asyncio.wait([future], timeout=min(remaining_s, SLICE_S))
        return True

    def _on_message(self, _card: Any, message: Any, _buffers: Any) -> None:
        # Called on any thread. Race: the cell was interrupted and its loop closed before this message came;
        # then the prompt is gone too and the message has no meaning.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Any) -> None:
        """Handle a message of the page, on the loop that asked. The first valid answer wins."""
        kind = message.get("type") if isinstance(message, Mapping) else None
        if not isinstance(kind, str):
            return
        if kind == "stored" and self._record is not None:
            _undelivered_records.pop(self._display_id, None)
        elif self._answer.done():
            if kind in {"hello", "decision"}:
                self._tell_state()
        elif kind in {"hello", "here"}:
            self._receive_page(message)
        elif kind == "decision":
            self._receive_decision(message)

    def _tell_state(self) -> None:
        """Tell a page that comes late, or whose click did, what has become of the question."""
        if self._record is not None:
            self._send_record(self._record)
        elif self._answer.cancelled():
            self._send("typed", message=_TYPED)
        else:
            self._send("accepted", words=_CONFIRMED)

    def _receive_page(self, message: Mapping[str, Any]) -> None:
        if not self._hello.done():
            self._hello.set_result(None)
        self._track_page(message.get("type"), message.get("page"))
        if message.get("type") == "hello":
            remaining_s = None if self._deadline is None else self._deadline - self._loop.time()
            self._send(
                "show",
                nonce=self._nonce,
                first=self._first_page,
                cell=self._cell,
                attention=self._attention(),
                view=self.subject.card_payload(),
                remaining_s=remaining_s,
            )

    def _attention(self) -> dict[str, Any]:
        """Return how the page is to find the person: what waits, since when, and by which means."""
        began = self._cell_began
        age_s = 0.0
        if isinstance(began, datetime) and began.tzinfo is not None:
            # The clock of the machine that the page runs on; it may be ahead of this one.
            age_s = max(0.0, (datetime.now(UTC) - began).total_seconds())
        return {"title": self.subject.title, "age_ms": round(1000 * age_s), "notify": self._notify}

    def _receive_decision(self, message: Mapping[str, Any]) -> None:
        if message.get("id") != self.subject.id:
            return
        if message.get("nonce") != self._nonce:
            self._send("invalid", message=_STALE)
            return
        try:
            self._answer.set_result(self.subject.parse_reply(message))
        except ArgumentError as error:
            self._send("invalid", message=str(error))
        else:
            self._send("accepted", words=_CONFIRMED)

    def _track_page(self, kind: object, page: object) -> None:
        """Track which pages render the card. When another one comes, ask which are still there."""
        if not isinstance(page, str) or kind not in {"hello", "here"} or page in self._pages:
            return
        if kind == "hello" and self._first_page is not None:
            self._pages.clear()
            self._send("who")
        self._pages.add(page)
        if self._first_page is None:
            self._first_page = page

    def _send(self, kind: str, **content: Any) -> None:
        self._card.send({"type": kind, "id": self.subject.id, **content})


def accepts_input(kernel: Any) -> bool:
    """Return whether the client of this kernel can show an input box."""
    # ipykernel has no public way to ask. A kernel without this attribute is of another kind and may accept.
    return getattr(kernel, "_allow_stdin", None) is not False


def kernel_of(shell: Any) -> Any:
    """Return the Jupyter kernel of an IPython shell; None for a shell at a terminal, and for no shell."""
    return getattr(shell, "kernel", None)


def running_shell() -> Any:
    """Return the IPython shell of this process, or None. Does not import IPython."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


def display_bundle(bundle: Mapping[str, Any], display_id: str | None = None, *, update: bool = False) -> None:
    """Display a MIME bundle below the running cell, or update the display with that id."""
    from IPython.display import display

    display(dict(bundle), raw=True, display_id=display_id, update=update)


def _cell_header(kernel: Any) -> Mapping[str, Any]:
    """Return the header of the message that runs the cell; empty where the kernel does not tell."""
    get_parent = getattr(kernel, "get_parent", None)
    header: Mapping[str, Any] = get_parent().get("header", {}) if get_parent is not None else {}
    return header


def _display_with_next_cell(shell: Any, display_id: str, record: dict[str, Any]) -> None:
    if shell is None:
        return
    if not _undelivered_records:
        shell.events.register("pre_run_cell", _display_undelivered)
    _undelivered_records[display_id] = record


def _display_undelivered(_info: Any = None) -> None:
    shell = running_shell()
    if shell is not None:
        shell.events.unregister("pre_run_cell", _display_undelivered)
    while _undelivered_records:
        display_bundle(_undelivered_records.pop(next(iter(_undelivered_records))))
