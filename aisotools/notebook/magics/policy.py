"""`%policy` and `%approvals`: the rules in force, the reasons for a decision, session-wide approvals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from aisotools.core.exceptions import AisotoolsError
from aisotools.core.types import Decision, ToolCall
from aisotools.notebook.approval.approver import pending_prompts
from aisotools.notebook.current import current_session
from aisotools.notebook.magics.arguments import parse_call
from aisotools.notebook.render import html
from aisotools.notebook.render.listing import table_bundle
from aisotools.notebook.render.text import readable
from aisotools.policy.grants import Grant
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.prompts import EFFECT_LABELS, LINKS_LABEL, UNKNOWN_LABEL, describe_links
from aisotools.policy.rules import Condition, Mode, Policy, Rule
from aisotools.workspace.protected_groups import PROTECTED_GROUPS, ProtectedGroup

if TYPE_CHECKING:
    from aisotools.session.session import Session

_PROTECTION = (
    "No call may write files that programs outside the sandbox run or obey merely because they are there, in "
    "any letter case. What is changed there all the same is put back."
)
_PROTECTED_EXAMPLES = ("conftest.py", "pyproject.toml", "Makefile", "package.json", ".envrc", ".vscode/")

MODE_DESCRIPTIONS: Mapping[str, str] = {
    "plan": "only what reads runs; everything else is denied",
    "safe": "what reads runs; everything else is asked about",
    "auto": "what stays in the workspace runs; what destroys, reaches out or leaves it is asked about",
}
"""Description of each mode."""

_DECISIONS = {Decision.ALLOW: "run", Decision.ASK: "are asked about", Decision.DENY: "are denied"}
_PERSON_RULES = (
    "What you type in a cell runs in the sandbox without a card. A card asks when it runs on the host, or "
    "when it destroys what undo cannot bring back."
)
_CONDITIONS = {
    "paths": "that touch a path like {}",
    "reads": "that read a path like {}",
    "writes": "that write a path like {}",
    "hosts": "that talk to a host like {}",
    "commands": "that run a command like {}",
    "effect": "whose effect is {}",
    "origin": "made by a {}",
}
_FACTS = {
    ("outside", True): "that write outside the workspace",
    ("outside", False): "that write nothing outside the workspace",
    ("certain", True): "of which everything could be seen beforehand",
    ("certain", False): "of which not everything could be seen beforehand",
}


def policy_bundle(
    policy: Policy, grants: Sequence[Grant] = (), not_enforced: Sequence[str] = ()
) -> dict[str, str]:
    """Return a policy in sentences: mode, rules, bounds, protected paths and grants.

    Args:
        policy: The policy.
        grants: What a person has allowed.
        not_enforced: See `Session.not_enforced`.
    """
    mode_sentences = [f"Mode {policy.mode}: {MODE_DESCRIPTIONS[policy.mode]}."]
    if policy.mode != "plan":
        mode_sentences.append(_PERSON_RULES)
    sections: list[tuple[str, list[str]]] = [("", mode_sentences)]
    if policy.rules:
        title = "Rules (where several fit, the strictest decides)"
        sections.append((title, [rule_sentence(rule) for rule in policy.rules]))
    for bound in policy.bounds:
        sentences = [f"Mode {bound.mode}: {MODE_DESCRIPTIONS[bound.mode]}."]
        sentences += [rule_sentence(rule) for rule in bound.rules]
        sections.append(("Narrowed further (by the workspace's own file, or for an agent)", sentences))
    if not_enforced:
        title = "Rules that decide about calls only, by what can be told of them beforehand"
        sections.append((title, [f"{sentence[0].upper()}{sentence[1:]}." for sentence in not_enforced]))
    protection = [
        f"{_PROTECTION} They include {', '.join(_PROTECTED_EXAMPLES)}; `%policy protected` lists all of them."
    ]
    if policy.allow_protected:
        protection.append(f"Allowed for this workspace all the same: {', '.join(policy.allow_protected)}.")
    sections.append(("Always protected", protection))
    granted = [f"{grant.id}. {grant.description}" for grant in grants]
    if granted:
        sections.append(("You allowed, until the session ends (%approvals revoke NUMBER)", granted))
    else:
        sections.append(("You allowed", ["Nothing beyond single calls."]))
    hint = "%policy plan, safe or auto sets the mode; %policy why NAME key=value explains a call."
    return _sections_bundle(f"policy \N{MIDDLE DOT} mode {policy.mode}", sections, hint)


def protected_bundle(policy: Policy) -> dict[str, str]:
    """Return the protected names, by the programs that run or obey them."""
    sections = [("", [_PROTECTION]), ("", [_group_sentence(group) for group in PROTECTED_GROUPS])]
    if policy.allow_protected:
        sections.append(("Allowed for this workspace all the same", list(policy.allow_protected)))
    return _sections_bundle("protected names", sections, "")


def _group_sentence(group: ProtectedGroup) -> str:
    """Return what is protected from one kind of program, as a sentence."""
    names = [*group.names, *group.paths, *(f"{folder}/" for folder in group.folders)]
    return f"{group.programs}: {', '.join(names)} ({group.reason})."


def rule_sentence(rule: Rule) -> str:
    """Return a rule as a sentence."""
    calls = "Calls of any tool" if rule.tool == "*" else f"Calls of {rule.tool}"
    words = " ".join(filter(None, [calls, when_words(rule), _DECISIONS[rule.decision]]))
    return f"{words}: {rule.reason.rstrip('.')}." if rule.reason else f"{words}."


def when_words(rule: Rule) -> str:
    """Return the condition of a rule in words; empty without one."""
    if rule.when is None:
        return ""
    if not isinstance(rule.when, Condition):
        return f"for which {getattr(rule.when, '__name__', 'a function')} returns true"
    return " and ".join(_condition_words(key, value) for key, value in rule.when.expected.items())


def _condition_words(key: str, pattern: Any) -> str:
    if key == "arguments":
        return "with " + " and ".join(
            f"{name} like {_alternatives(value)}" for name, value in pattern.items()
        )
    if isinstance(pattern, bool):
        return _FACTS[key, pattern]
    return _CONDITIONS[key].format(_alternatives(pattern))


def _alternatives(pattern: Any) -> str:
    return " or ".join(map(str, pattern)) if isinstance(pattern, list | tuple) else str(pattern)


def _sections_bundle(title: str, sections: Sequence[tuple[str, Sequence[str]]], hint: str) -> dict[str, str]:
    body, lines = "", [title]
    for heading, sentences in sections:
        shown = [readable(sentence) for sentence in sentences]
        items = "".join(f"<li>{html.escape(one)}</li>" for one in shown)
        top = f'<div style="margin-top:6px;opacity:.75">{html.escape(heading)}</div>' if heading else ""
        body += f'{top}<ul style="margin:2px 0;padding-left:1.4em;list-style:none">{items}</ul>'
        lines += ["", heading] if heading else [""]
        lines += [f"  {one}" for one in shown]
    return {
        "text/html": html.box(f"<strong>{html.escape(title)}</strong>", body + html.note(hint)),
        "text/plain": "\n".join([*lines, "", hint]),
    }


@magics_class
class PolicyMagics(Magics):
    """Magics for the policy and approvals."""

    @no_var_expand
    @line_magic
    def policy(self, line: str) -> None:
        """Show the policy, set its mode, or explain a call.

        `%policy` shows it; `%policy plan`, `safe` or `auto` sets the mode for this session; `%policy why NAME
        key=value ...` shows what would happen to a call that a model makes, and why; `%policy protected`
        lists the names of files that no call may write.
        """
        word, _, rest = line.strip().partition(" ")
        session = current_session()
        if word == "why":
            _display(_explain(session, rest))
        elif word in get_args(Mode) and not rest:
            try:
                session.policy = dataclasses.replace(session.policy, mode=cast("Mode", word))
            except AisotoolsError as error:
                raise UsageError(str(error)) from None
            print(f"Mode {word}: {MODE_DESCRIPTIONS[word]}.")
        elif word == "protected" and not rest:
            _display(protected_bundle(session.effective_policy))
        elif not line.strip():
            _display(policy_bundle(session.effective_policy, session.grants.list(), session.not_enforced))
        else:
            raise UsageError(
                f"%policy takes plan, safe, auto, protected or `why NAME key=value`, not {line.strip()!r}."
            )

    @magic_arguments()
    @argument("action", nargs="?", help="revoke")
    @argument("which", nargs="?", help="the number of a grant, or all")
    @no_var_expand
    @line_magic
    def approvals(self, line: str) -> None:
        """List session-wide approvals and show pending prompts again; or revoke approvals.

        `%approvals revoke 2` revokes the second grant, `%approvals revoke all` all of them.
        """
        options = parse_argstring(self.approvals, line)
        grants = current_session().grants
        if options.action is None:
            _display(approvals_bundle(current_session()))
            # A page that was reloaded may have lost its card.
            for prompt in pending_prompts():
                prompt.show()
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
            print(f"Taken back: {grant.description}.")


def approvals_bundle(session: Session) -> dict[str, str]:
    """Return a table of session-wide approvals and of pending prompts."""
    rows: list[tuple[str, ...]] = [
        (
            str(grant.id),
            grant.scope,
            grant.description,
            time.strftime("%H:%M", time.localtime(grant.granted_s)),
        )
        for grant in session.grants.list()
    ]
    rows += [("asked", "", prompt.subject.title, "waiting") for prompt in pending_prompts()]
    if not rows:
        message = "Nothing was allowed beyond single calls, and nothing is being asked."
        return {"text/html": html.note(message), "text/plain": message}
    return table_bundle(("", "scope", "allows", "since"), rows)


def _explain(session: Session, line: str) -> dict[str, str]:
    schemas = {tool.name: tool.parameters_schema() for tool in session.registry.list()}
    try:
        parsed = parse_call(line, schemas)
        call = ToolCall("why", parsed.name, parsed.arguments, origin="model")
        prepared = session.explain(call)
    except AisotoolsError as error:
        raise UsageError(str(error)) from None
    facts = prepared.facts
    grant = session.grants.find(prepared)
    decision = prepared.evaluation.decision
    rows = [
        ("a model's call", _DECISION_VERBS[decision], "; ".join(prepared.evaluation.reasons)),
        (
            "effect",
            UNKNOWN_LABEL if facts.basis == "nothing" else EFFECT_LABELS[prepared.effect],
            "" if facts.certain else "not all could be seen",
        ),
        *((name, ", ".join(values), "") for name, values in _findings(prepared) if values),
        *(("rule", rule.decision.value, rule_sentence(rule)) for rule in prepared.evaluation.matched),
    ]
    if decision is Decision.ASK and grant is not None:
        rows.append(("but", "allowed", f"you allowed {grant.description}"))
    elif prepared.is_tried:
        rows.append(("first", "is tried", "without the right to change anything; asked only if that fails"))
    return table_bundle(("", "", "because"), rows)


_DECISION_VERBS = {Decision.ALLOW: "runs", Decision.ASK: "is asked about", Decision.DENY: "is denied"}


def _findings(prepared: PreparedCall) -> list[tuple[str, tuple[str, ...]]]:
    facts = prepared.facts
    return [
        ("runs", facts.commands),
        ("reads", facts.reads),
        ("writes", facts.writes),
        ("talks to", facts.hosts),
        (LINKS_LABEL, tuple(filter(None, [describe_links(facts)]))),
    ]


def _display(bundle: dict[str, Any]) -> None:
    from IPython.display import display

    display(bundle, raw=True)
