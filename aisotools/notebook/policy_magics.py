"""`%policy` and `%approvals`: what may run, why, and what was allowed for the rest of the session."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, cast, get_args

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from aisotools.call_line import parse_call
from aisotools.events import Decision, ToolCall
from aisotools.exceptions import AisotoolsError
from aisotools.notebook import frame
from aisotools.notebook.ask import pending_questions
from aisotools.notebook.current import current_session
from aisotools.notebook.listing import table
from aisotools.notebook.policy_page import MODES, rule_sentence, show_policy
from aisotools.policy import Mode
from aisotools.question import EFFECT_WORDS
from aisotools.session import Session
from aisotools.ticket import Ticket


@magics_class
class PolicyMagics(Magics):
    """The magics about what may run."""

    @no_var_expand
    @line_magic
    def policy(self, line: str) -> None:
        """Show the policy, set its mode, or explain a call.

        `%policy` shows it; `%policy plan`, `safe` or `auto` sets the mode for this session; `%policy why NAME
        key=value ...` tells what would happen to a call that a model makes, and why.
        """
        word, _, rest = line.strip().partition(" ")
        session = current_session()
        if word == "why":
            _display(_explained(session, rest))
        elif word in get_args(Mode) and not rest:
            try:
                session.policy = dataclasses.replace(session.policy, mode=cast("Mode", word))
            except AisotoolsError as error:
                raise UsageError(str(error)) from None
            print(f"Mode {word}: {MODES[word]}.")
        elif not line.strip():
            _display(show_policy(session.effective_policy, session.grants.list()))
        else:
            raise UsageError(f"%policy takes plan, safe, auto or `why NAME key=value`, not {line.strip()!r}.")

    @magic_arguments()
    @argument("action", nargs="?", help="revoke")
    @argument("which", nargs="?", help="the number of a grant, or all")
    @no_var_expand
    @line_magic
    def approvals(self, line: str) -> None:
        """List what was allowed for the session and ask again what is open; or take something back.

        `%approvals revoke 2` takes back the second grant, `%approvals revoke all` all of them.
        """
        options = parse_argstring(self.approvals, line)
        grants = current_session().grants
        if options.action is None:
            _display(show_approvals(current_session()))
            for question in pending_questions():
                question.show()  # a page that was loaded again may have lost the card
        elif options.action != "revoke" or options.which is None:
            raise UsageError("%approvals takes nothing, or `revoke NUMBER`, or `revoke all`.")
        elif options.which == "all":
            print(f"{len(grants)} approvals were taken back.")
            grants.clear()
        else:
            grant = grants.revoke(int(options.which)) if options.which.isdecimal() else None
            if grant is None:
                known = ", ".join(str(g.id) for g in grants.list()) or "none"
                raise UsageError(f"There is no approval {options.which!r} to take back. Numbers: {known}.")
            print(f"Taken back: {grant.words}.")


def show_approvals(session: Session) -> dict[str, str]:
    """What was allowed for the rest of the session, and what is being asked."""
    rows: list[tuple[str, ...]] = [
        (str(grant.id), grant.scope, grant.words, time.strftime("%H:%M", time.localtime(grant.granted_s)))
        for grant in session.grants.list()
    ]
    rows += [("asked", "", question.matter.words, "waiting") for question in pending_questions()]
    if not rows:
        told = "Nothing was allowed beyond single calls, and nothing is being asked."
        return {"text/html": frame.note(told), "text/plain": told}
    return table(("", "scope", "allows", "since"), rows)


def _explained(session: Session, line: str) -> dict[str, str]:
    schemas = {tool.name: tool.parameters_schema() for tool in session.registry.list()}
    try:
        typed = parse_call(line, schemas)
        call = ToolCall("why", typed.name, typed.arguments, origin="model")
        ticket = session.explain(call)
    except AisotoolsError as error:
        raise UsageError(str(error)) from None
    facts = ticket.facts
    grant = session.grants.covering(ticket)
    decision = ticket.evaluation.decision
    rows = [
        ("a model's call", _DECIDED[decision], "; ".join(ticket.evaluation.reasons)),
        (
            "effect",
            EFFECT_WORDS[ticket.effect],
            "" if facts.certain else "not all could be seen",
        ),
        *((name, ", ".join(values), "") for name, values in _seen(ticket) if values),
        *(("rule", rule.decision.value, rule_sentence(rule)) for rule in ticket.evaluation.matched),
    ]
    if decision is Decision.ASK and grant is not None:
        rows.append(("but", "allowed", f"you allowed {grant.words}"))
    return table(("", "", "because"), rows)


_DECIDED = {Decision.ALLOW: "runs", Decision.ASK: "is asked about", Decision.DENY: "is denied"}


def _seen(ticket: Ticket) -> list[tuple[str, tuple[str, ...]]]:
    facts = ticket.facts
    return [
        ("runs", facts.commands),
        ("reads", facts.reads),
        ("writes", facts.writes),
        ("talks to", facts.hosts),
    ]


def _display(bundle: dict[str, Any]) -> None:
    from IPython.display import display

    display(bundle, raw=True)
