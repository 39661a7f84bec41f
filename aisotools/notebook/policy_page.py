"""What `%policy` shows: a policy in sentences, as a page and as plain text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aisotools.conditions import Condition
from aisotools.events import Decision
from aisotools.grants import Grant
from aisotools.notebook import frame
from aisotools.notebook.text import readable
from aisotools.policy import PROTECTED_FOLDERS, PROTECTED_NAMES, Policy, Rule

MODES: Mapping[str, str] = {
    "plan": "only what reads runs; everything else is denied",
    "safe": "what reads runs; everything else is asked about",
    "auto": "what stays in the workspace runs; what destroys, reaches out or leaves it is asked about",
}
"""What each mode does, in words."""

_DECISIONS = {Decision.ALLOW: "run", Decision.ASK: "are asked about", Decision.DENY: "are denied"}
_TYPED = (
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


def show_policy(policy: Policy, grants: Sequence[Grant] = ()) -> dict[str, str]:
    """A policy as a page: its mode, its rules, what narrows it, what is protected, what was allowed."""
    first = f"Mode {policy.mode}: {MODES[policy.mode]}."
    told = [first] if policy.mode == "plan" else [first, _TYPED]
    sections: list[tuple[str, list[str]]] = [("", told)]
    if policy.rules:
        title = "Rules (where several fit, the strictest decides)"
        sections.append((title, [rule_sentence(rule) for rule in policy.rules]))
    for bound in policy.bounds:
        narrower = [f"Mode {bound.mode}: {MODES[bound.mode]}."]
        narrower += [rule_sentence(rule) for rule in bound.rules]
        sections.append(("Narrowed further (by the workspace's own file, or for an agent)", narrower))
    protected = (
        f"No call may write {', '.join(PROTECTED_NAMES)}, nor anything in {', '.join(PROTECTED_FOLDERS)}: "
        "something outside the sandbox might run it. What is changed there all the same is put back."
    )
    sections.append(("Always protected", [protected]))
    allowed = [f"{grant.id}. {grant.words}" for grant in grants]
    if allowed:
        sections.append(("You allowed, until the session ends (%approvals revoke NUMBER)", allowed))
    else:
        sections.append(("You allowed", ["Nothing beyond single calls."]))
    hint = "%policy plan, safe or auto sets the mode; %policy why NAME key=value explains a call."
    return _page(f"policy \N{MIDDLE DOT} mode {policy.mode}", sections, hint)


def rule_sentence(rule: Rule) -> str:
    """A rule as a sentence."""
    whose = "Calls of any tool" if rule.tool == "*" else f"Calls of {rule.tool}"
    words = " ".join(filter(None, [whose, when_words(rule), _DECISIONS[rule.decision]]))
    return f"{words}: {rule.reason.rstrip('.')}." if rule.reason else f"{words}."


def when_words(rule: Rule) -> str:
    """The further condition of a rule, in words; empty without one."""
    if rule.when is None:
        return ""
    if not isinstance(rule.when, Condition):
        return f"for which {getattr(rule.when, '__name__', 'a function')} says so"
    return " and ".join(_condition(key, value) for key, value in rule.when.wanted.items())


def _condition(key: str, wanted: Any) -> str:
    if key == "arguments":
        return "with " + " and ".join(f"{name} like {_listed(value)}" for name, value in wanted.items())
    return _FACTS[key, wanted] if isinstance(wanted, bool) else _CONDITIONS[key].format(_listed(wanted))


def _listed(wanted: Any) -> str:
    return " or ".join(map(str, wanted)) if isinstance(wanted, list | tuple) else str(wanted)


def _page(title: str, sections: Sequence[tuple[str, Sequence[str]]], hint: str) -> dict[str, str]:
    body, lines = "", [title]
    for heading, sentences in sections:
        shown = [readable(sentence) for sentence in sentences]
        items = "".join(f"<li>{frame.escape(one)}</li>" for one in shown)
        top = f'<div style="margin-top:6px;opacity:.75">{frame.escape(heading)}</div>' if heading else ""
        body += f'{top}<ul style="margin:2px 0;padding-left:1.4em;list-style:none">{items}</ul>'
        lines += ["", heading] if heading else [""]
        lines += [f"  {one}" for one in shown]
    return {
        "text/html": frame.box(f"<strong>{frame.escape(title)}</strong>", body + frame.note(hint)),
        "text/plain": "\n".join([*lines, "", hint]),
    }
