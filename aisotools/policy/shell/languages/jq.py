"""The jq programs whose every word is known.

A jq program cannot write files or run programs; what it can do is read modules and, in kin of jq such as yq,
load files or run commands by functions of their own. So a program is taken apart into tokens, with the
programs inside of its strings, and every function must be one that only computes, or be defined in it.
"""

from __future__ import annotations

import re

from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.languages.reading import MAX_PROGRAM_CHARS, NotPlain, ProgramReading

_TOKEN = re.compile(
    r"(?P<blank>[ \t\n]+|\#[^\n\\]*(?=\n|$))"
    r"|(?P<text>\")"
    r"|(?P<field>\.[A-Za-z_][A-Za-z0-9_-]*|\$__loc__|\$\s*[A-Za-z_][A-Za-z0-9_]*|@[a-z0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+)"
    r"|(?P<open>[({\[])"
    r"|(?P<close>[)}\]])"
    r"|(?P<operator>\?//=|\?//|//=|//|\|=|\+=|-=|\*=|/=|%=|==|!=|<=|>=|\.\.|[.|,:;=<>+*/%?-])"
)
_IN_TEXT = re.compile(r"[^\"\\]+")
_DEFINED = re.compile(r"\bdef\s+([A-Za-z_]\w*)\s*(?:\(([\w\s;$]*)\))?\s*:", re.ASCII)
_WORDS = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FUNCTIONS = name_set(
    "abs acos add all any arrays ascii ascii_downcase ascii_upcase asin atan atan2 booleans bsearch builtins "
    "capture cbrt ceil combinations contains cos debug del delpaths drem empty endswith env error exp exp10 "
    "exp2 explode fabs finites first flatten floats floor from_entries fromdate fromdateiso8601 fromjson "
    "fromstream "
    "frexp gamma get_search_list getpath gmtime group_by gsub halt halt_error has have_decnum "
    "have_literal_numbers "
    "implode in index indices infinite input input_filename input_line_number inputs inside isempty "
    "iserror isinfinite "
    "isnan isnormal isvalid iterables join keys keys_unsorted last ldexp length limit localtime log "
    "log10 log2 ltrim "
    "ltrimstr map map_values match max max_by mktime min min_by modf nan normals not now nth nulls "
    "numbers objects "
    "path paths pick pow pow10 range recurse recurse_down repeat reverse rindex round rtrim rtrimstr scalars "
    "scan select setpath significand sin skip sort sort_by split splits sqrt startswith strflocaltime "
    "strftime strings "
    "strptime sub tan test to_entries toarray toboolean todate todateiso8601 tojson tonumber tostream "
    "tostring transpose "
    "trim trimstr truncate_stream trunc type unique unique_by until utf8bytelength values walk while "
    "with_entries "
    "ascii getpath leaf_paths limit ltrimstr splits tojson abs toarray have_decnum min_by null true false "
    # of yq
    "anchor alias comments headcomment linecomment footcomment document_index di fileindex fi filename "
    "explode "
    "upcase downcase to_yaml to_json to_props to_csv to_tsv to_xml from_yaml from_json style tag kind "
    "line column "
    "sortkeys sort_keys contains shuffle key parent omit ireduce filter with to_number to_string"
)
_KEYWORDS = name_set("if then elif else end and or as def reduce foreach try catch label")
_CLOSED_BY = {"(": ")", "[": "]", "{": "}", "\\(": ")"}
_MAX_DEPTH = 50


def read_jq(program: str) -> ProgramReading:
    """Return what a jq program does. Raises nothing."""
    if len(program) > MAX_PROGRAM_CHARS:
        return ProgramReading("a program that is too long to read")
    try:
        _check_tokens(program)
    except NotPlain as reason:
        return ProgramReading(str(reason))
    return ProgramReading()


def _check_tokens(program: str) -> None:
    """Check every token of a program.

    Raises:
        NotPlain: One is not known.
    """
    defined = {
        name
        for match in _DEFINED.finditer(program)
        for name in _WORDS.findall(match[1] + " " + (match[2] or ""))
    }
    stack: list[str] = []  # what is open; `"` for a text
    previous = ""
    position = 0
    while position < len(program):
        if stack and stack[-1] == '"':
            position = _skip_in_text(program, position, stack)
            continue
        match = _TOKEN.match(program, position)
        if match is None:
            raise NotPlain(f"{program[position : position + 10]!r}, which is not plain jq")
        position = match.end()
        kind, text = match.lastgroup, match[0]
        if kind == "blank":
            continue
        if kind in {"text", "open"}:
            stack.append(text)
            if len(stack) > _MAX_DEPTH:
                raise NotPlain("something that is nested too deeply")
        elif kind == "close":
            if not stack or _CLOSED_BY.get(stack.pop()) != text:
                raise NotPlain("a bracket that closes nothing")
        elif kind == "name" and text.lower() not in _FUNCTIONS and text not in defined | _KEYWORDS:
            is_key = stack[-1:] == ["{"] and previous in {"{", ","}
            is_label = previous == "break"
            if text != "break" and not is_key and not is_label:
                raise NotPlain(f"{text}, which is unknown")
        previous = text
    if stack:
        raise NotPlain("something that is opened and never closed")


def _skip_in_text(program: str, position: int, stack: list[str]) -> int:
    """Return where to go on after a piece of a text; what it opens or closes is put on `stack`."""
    if plain := _IN_TEXT.match(program, position):
        return plain.end()
    if program[position] == '"':
        stack.pop()
        return position + 1
    if program.startswith("\\(", position):
        stack.append("\\(")
        if len(stack) > _MAX_DEPTH:
            raise NotPlain("something that is nested too deeply")
    return position + 2
