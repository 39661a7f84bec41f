"""Asking the person at the notebook: by a card in the running cell, else by an input box, else not at all.

    no shell, or IPython in a terminal   the terminal asks, or nobody is there
    the front end takes no input         headless: denied at once, never a hang
    else the card is shown; it says hello from the page, so that a click is known to arrive
    no hello in time                     the card becomes plain text, and an input box below it asks

ipykernel >= 7.4 hands over a widget's messages while the cell awaits, in whatever thread; its Stop button
reaches the waiting task only when the loop wakes. So what comes from the page only ever schedules on the loop
that asked, and waiting is done in slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from aisotools.core.exceptions import ArgumentError
from aisotools.core.protocols import UserQuestion
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.notebook.approval.subjects import Answer, ApprovalSubject, PromptSubject, QuestionSubject
from aisotools.session.approvers import SLICE_S, ConsoleApprover, on_terminal

if TYPE_CHECKING:
    from aisotools.notebook.approval.widgets import ApprovalCard  # which takes its time


HELLO_TIMEOUT_S = 2.0
"""How long the page has to show that its card is alive."""

_HEADLESS = (
    "Nobody can be asked: this notebook runs without a person at it. Run it in JupyterLab, "
    "give the session an approver, or a policy rule that allows the call."
)

_pending: dict[str, NotebookPrompt[Any]] = {}
_unseen: list[dict[str, Any]] = []
_left_open: list[ApprovalCard] = []
_MOST_LEFT_OPEN = 20


def can_ask(shell: Any) -> bool:
    """Whether a person can be asked through this IPython shell; None is no shell."""
    if shell is None:
        return False
    kernel = getattr(shell, "kernel", None)
    return on_terminal() if kernel is None else accepts_input(kernel)


def pending_prompts() -> tuple[NotebookPrompt[Any], ...]:
    """The questions that wait for an answer, the oldest first."""
    return tuple(_pending.values())


class NotebookApprover:
    """Asks in the notebook, below the cell that runs."""

    def __init__(self, *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S) -> None:
        """Ask through the running IPython shell.

        Args:
            shell: Another shell to ask through.
            hello_s: How long a page has to show that its card is alive, before an input box asks instead.
        """
        self._shell = shell
        self._hello_s = hello_s

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Show `request` and wait for the answer, at most for its `timeout_s`."""
        return (await self.ask_many([request]))[0]

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        """Show several calls on one card, and wait for the answers to all of them; in the same order."""
        if not requests:
            return []
        shell = self._shell if self._shell is not None else running_shell()
        kernel = getattr(shell, "kernel", None)
        if kernel is None:
            console = ConsoleApprover()
            return [await console.ask(request) for request in requests]
        matter = ApprovalSubject(tuple(requests))
        if not accepts_input(kernel):
            denials = [Approval("deny", reason=_HEADLESS) for _ in requests]
            _display(matter.record(denials))
            return denials
        return await NotebookPrompt(matter, kernel).answer(self._hello_s)

    async def inquire(self, inquiry: UserQuestion) -> str | None:
        """Put a model's own question to the person; None when nobody is there, or answers."""
        shell = self._shell if self._shell is not None else running_shell()
        kernel = getattr(shell, "kernel", None)
        if kernel is None:
            return await ConsoleApprover().inquire(inquiry)
        if not accepts_input(kernel):
            return None
        return (await NotebookPrompt(QuestionSubject(inquiry), kernel).answer(self._hello_s)).text


class NotebookPrompt(Generic[Answer]):
    """One question on the page.

    Attributes:
        matter: What is asked.
    """

    def __init__(
        self, matter: PromptSubject[Answer], kernel: Any, card: type[ApprovalCard] | None = None
    ) -> None:
        """Prepare to ask through `kernel`, from the running event loop; `card` is another card to show."""
        self.matter = matter
        self._kernel = kernel
        self._loop = asyncio.get_running_loop()
        # A moment before the gate's own limit, which runs already, so that the record says what happened.
        timeout_s = matter.timeout_s
        self._ends_s = (
            None if timeout_s is None else self._loop.time() + max(timeout_s - 0.1, 0.9 * timeout_s)
        )
        from aisotools.notebook.approval.widgets import ApprovalCard

        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[Answer] = self._loop.create_future()
        self._card: ApprovalCard = (card or ApprovalCard)()
        self._card.on_msg(self._from_page)
        self._display_id = uuid.uuid4().hex
        self._pages: set[object] = set()
        self._first_page: object = None

    def __repr__(self) -> str:
        return f"<Question {self.matter.id} about {self.matter.words}>"

    def show(self) -> None:
        """Show the card below the running cell; again if the page has lost it."""
        _display(self._card.bundle() | self.matter.question(), self._display_id)

    async def answer(self, hello_s: float) -> Answer:
        """Show the question, wait for its answer, and leave a record of both."""
        _pending[self._display_id] = self
        answer: Answer | None = None
        try:
            self.show()
            if not await self._comes(self._greeted, self._loop.time() + hello_s):
                answer = await self._by_input()  # no page shows the card
            elif await self._comes(self._answer, None):
                answer = self._answer.result()
            else:
                answer = self._unanswered()
            return answer
        finally:
            del _pending[self._display_id]
            self._answer.cancel()
            self._leave(self.matter.record(self._unanswered() if answer is None else answer))

    def _unanswered(self) -> Answer:
        late = self._ends_s is not None and self._loop.time() >= self._ends_s
        return self.matter.unanswered("timeout" if late else "cancel")

    def _leave(self, record: dict[str, Any]) -> None:
        """Put the record in place of the card, on every page that shows it.

        A page that was loaded again takes in nothing more of the cell that asked: there the card itself turns
        into the record, and the next cell stores it.
        """
        _display(record, self._display_id, update=True)
        if len(self._pages) < 2 and self._first_page in {None, *self._pages}:
            self._card.close()
            return
        words, *lines = record["text/plain"].split("\n")
        self._send("done", words=words, lines=lines)
        _left_open.append(self._card)
        while len(_left_open) > _MOST_LEFT_OPEN:
            _left_open.pop(0).close()
        if self._first_page not in self._pages:
            _show_with_next_cell(getattr(self._kernel, "shell", None), record)

    async def _by_input(self) -> Answer:
        """The answer typed into the input box."""
        self._answer.cancel()

        def show(bundle: Mapping[str, Any]) -> None:
            _display(bundle, self._display_id, update=True)

        return await self.matter.typed(getattr(self._kernel, "raw_input", input), show, self._ends_s)

    async def _comes(self, future: asyncio.Future[Any], until_s: float | None) -> bool:
        """Wait for `future` until `until_s` or the end of the question, whichever is first."""
        ends = [end for end in (until_s, self._ends_s) if end is not None]
        while not future.done():
            left_s = min((end - self._loop.time() for end in ends), default=SLICE_S)
            if left_s <= 0:
                return False
            await asyncio.wait([future], timeout=min(left_s, SLICE_S))
        return True

    def _from_page(self, _card: Any, message: Any, _buffers: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop that asked is gone, and the question with it
            self._loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Any) -> None:
        """Take a message of the page, on the loop that asked. The first answer wins."""
        if self._answer.done() or not isinstance(message, Mapping):
            return
        if not self._greeted.done():
            self._greeted.set_result(None)
        self._see(message.get("type"), message.get("page"))
        if message.get("type") == "hello":
            remaining_s = None if self._ends_s is None else self._ends_s - self._loop.time()
            self._send("show", view=self.matter.view(), remaining_s=remaining_s)
        elif message.get("type") == "decision" and message.get("id") == self.matter.id:
            try:
                self._answer.set_result(self.matter.read(message))
            except ArgumentError as error:
                self._send("invalid", message=str(error))

    def _see(self, kind: object, page: object) -> None:
        """Keep track of the pages that show the card; when one more comes, ask which still do."""
        if not isinstance(page, str) or kind not in {"hello", "here"} or page in self._pages:
            return
        if kind == "hello" and self._first_page is not None:
            self._pages.clear()
            self._send("who")
        self._pages.add(page)
        if self._first_page is None:
            self._first_page = page

    def _send(self, kind: str, **content: Any) -> None:
        self._card.send({"type": kind, "id": self.matter.id, **content})


def accepts_input(kernel: Any) -> bool:
    # There is no public way to ask; None would mean that the kernel is of another kind, and may.
    return getattr(kernel, "_allow_stdin", None) is not False


def _show_with_next_cell(shell: Any, record: dict[str, Any]) -> None:
    """Have the next cell show a record that the page could not take in."""
    if shell is None:
        return
    if not _unseen:
        shell.events.register("pre_run_cell", _show_unseen)
    _unseen.append(record)


def _show_unseen(_info: Any = None) -> None:
    shell = running_shell()
    if shell is not None:
        shell.events.unregister("pre_run_cell", _show_unseen)
    while _unseen:
        _display(_unseen.pop(0))


def running_shell() -> Any:
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


def _display(bundle: Mapping[str, Any], display_id: str | None = None, *, update: bool = False) -> None:
    from IPython.display import display

    display(dict(bundle), raw=True, display_id=display_id, update=update)
