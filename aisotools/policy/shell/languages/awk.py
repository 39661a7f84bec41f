"""The awk programs that certainly only compute and print, to a known command perhaps, or read known files.

One pass over the tokens, with a stack of what is open. It accepts only what gawk, mawk, busybox and the
original awk take apart alike: where a slash may begin a pattern or divide, where a word is a keyword in some
of them only, or where a number runs into a name, there is a doubt.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.languages.reading import MAX_PROGRAM_CHARS, NotPlain, ProgramReading

_TOKEN = re.compile(
    r"(?P<blank>[ \t]+|\\\n|\#[^\n\\]*(?=\n|$))"
    r"|(?P<newline>\n)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\[^\n])*\")"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![A-Za-z0-9_.]))"
    r"|(?P<operator>\*\*=|&&|\|\||\+\+|--|\*\*|!~|[-+*/%^=<>!]=|>>|\|&|[-+*/%^=<>!~?:,;(){}\[\]$|])"
)
_BRACKET = r"\[\^?(?:\[:[a-z]+:\]|[^/\\\n\[\]]|\\[^\]\[\n])+\]"
_REGEX = re.compile(rf"/(?:[^/\\\n\[\]]|\\[^\n]|{_BRACKET})*/")
_FUNCTION = re.compile(
    r"function[ \t]+([A-Za-z_]\w*)[ \t]*\([ \t]*(?:[A-Za-z_]\w*[ \t]*(?:,[ \t]*[A-Za-z_]\w*[ \t]*)*)?\)\s*\{",
    re.ASCII,
)
_VARIABLE = r"(?:\$?[A-Za-z_][A-Za-z0-9_]*(?:\[[A-Za-z0-9_]+\])?|\$[0-9]+)"
_END = r"(?=[ \t]*(?:[;)}\n]|$))"
_GETLINE = re.compile(rf"[ \t]{{0,20}}(?!<)({_VARIABLE})?(?:[ \t]{{0,20}}<[ \t]*\"([^\"\\\n]*)\")?{_END}")
_LITERAL = re.compile(rf"[ \t]*\"([^\"\\\n]*)\"{_END}")
_OPENS_CALL = re.compile(r"[ \t]*\(")

_FUNCTIONS = name_set(
    "length substr index split sub gsub match sprintf sin cos atan2 exp log sqrt int rand srand tolower "
    "toupper "
    "close fflush gensub strftime systime mktime asort asorti strtonum and or xor lshift rshift compl "
    "patsplit "
    "typeof isarray"
)
_MEAN_MORE = name_set(
    "system ARGV ARGC SYMTAB FUNCTAB default switch case func BEGINFILE ENDFILE extension load include "
    "namespace"
)
"""They run programs, change what is read, or are keywords of some implementations only."""
_KEYWORDS = name_set(
    "BEGIN END function if while for do else return exit print printf next nextfile break continue delete "
    "getline in"
)
_BINARY = name_set("+ - * / % ^ ** < <= == != >= ~ !~ && || ? : = += -= *= /= %= ^= **=")
_UNARY = frozenset(("!", "-", "+"))
_BREAKABLE = frozenset((",", "&&", "||", "do", "else"))
"""A line may end after these in the middle of a statement."""
_NO_PATTERN_AFTER = frozenset((")", "++", "--", "length", "]"))
_NO_DIVISION_AFTER = frozenset(("++", "--", "length"))
_MAX_DEPTH = 50
_PRINTED_TO = frozenset(("/dev/stderr", "/dev/stdout"))

_State = Literal["start", "operand", "optional", "operator", "block", "end"]
"""What may come: a statement or rule, an operand, perhaps an operand, an operator, `{`, or an end."""

_EXPRESSION = frozenset(("start", "operand", "optional"))


class _AwkToken(NamedTuple):
    kind: str
    text: str


def read_awk(program: str, functions: frozenset[str] = frozenset()) -> ProgramReading:
    """Return what an awk program does. Raises nothing.

    Args:
        program: The program.
        functions: Names of further functions that only compute.
    """
    if len(program) > MAX_PROGRAM_CHARS:
        return ProgramReading("a program that is too long to read")
    reader = _AwkReader(program, functions)
    try:
        reader.read()
    except NotPlain as reason:
        return ProgramReading(str(reason))
    return ProgramReading("", tuple(reader.scripts), tuple(reader.reads))


class _AwkReader:
    """One pass over a program.

    Attributes:
        scripts: Shell texts that it runs.
        reads: Files that it reads by name.
    """

    def __init__(self, text: str, functions: frozenset[str]) -> None:
        self._functions = _FUNCTIONS | functions
        self.scripts: list[str] = []
        self.reads: list[str] = []
        self._text = text
        self._position = 0
        self._state: _State = "start"
        # What is open: `{`, `[`, `(`, and `if(` or `for(` for the parentheses after a keyword.
        self._stack: list[str] = []
        self._previous = ""  # the last token
        self._before = ""  # the one before it
        self._print_level = -1  # the open parentheses and brackets at the `print` that has begun, else -1
        self._defined = {match[1] for match in _FUNCTION.finditer(text)}

    def read(self) -> None:
        """Read the whole program.

        Raises:
            NotPlain: It is not of the grammar, or does more than a reading can say.
        """
        text = self._text
        while self._position < len(text):
            if text[self._position] == "/" and self._state in _EXPRESSION:
                self._skip_regex()
                continue
            match = _TOKEN.match(text, self._position)
            if match is None:
                raise NotPlain(f"{text[self._position : self._position + 10]!r}, which is not plain awk")
            self._position = match.end()
            token = _AwkToken(match.lastgroup or "", match[0])
            if token.kind == "blank":
                continue
            self._take(token)
            if len(self._stack) > _MAX_DEPTH:
                raise NotPlain("something that is nested too deeply")
        self._end_statement()
        if self._stack:
            raise NotPlain("something that is opened and never closed")

    def _take(self, token: _AwkToken) -> None:
        before = self._before
        self._before, self._previous = self._previous, token.text
        match token.kind:
            case "newline":
                self._previous, self._before = self._before, before
                self._take_newline()
            case "string" | "number":
                self._take_operand()
            case "name":
                self._take_name(token.text)
            case _:
                self._take_operator(token.text)

    # ---- operands

    def _take_operand(self) -> None:
        if self._state in {"block", "end"}:
            raise NotPlain(f"{self._previous!r} where a statement must end")
        self._state = "operator"

    def _skip_regex(self) -> None:
        if self._previous in _NO_PATTERN_AFTER:
            raise NotPlain("what may be a division or begin a pattern")
        match = _REGEX.match(self._text, self._position)
        if match is None:
            raise NotPlain("a pattern that is not plain")
        self._position = match.end()
        self._before, self._previous = self._previous, "/"
        self._state = "operator"

    def _take_name(self, name: str) -> None:
        if name in _MEAN_MORE:
            raise NotPlain(f"{name}, which means more than a variable")
        if name == "in" and self._state == "operator":
            self._state = "operand"
        elif name == "getline":
            self._take_getline()
        elif name in _KEYWORDS:
            self._take_keyword(name)
        elif name in self._functions:
            self._take_operand()
            if opening := _OPENS_CALL.match(self._text, self._position):
                self._open_call(opening.end())
            elif name != "length":
                raise NotPlain(f"{name} without its arguments")
        elif self._text.startswith("(", self._position):
            if name not in self._defined:
                raise NotPlain(f"{name}(), which is unknown")
            self._take_operand()
            self._open_call(self._position + 1)
        else:
            self._take_operand()

    def _open_call(self, position: int) -> None:
        self._stack.append("(")
        self._position = position
        self._previous = "("
        self._state = "optional"

    def _take_getline(self) -> None:
        call = _GETLINE.match(self._text, self._position)
        if call is None or self._state not in _EXPRESSION or self._print_level >= 0:
            raise NotPlain("getline, which may read or run anything")
        if call[2] is not None:
            if call[2].startswith("/inet") or not call[2]:
                raise NotPlain("getline from another machine")
            self.reads.append(call[2])
        self._position = call.end()
        self._previous = "getline"
        self._state = "end" if not self._stack or self._stack[-1] == "{" else "operator"

    # ---- statements

    def _take_keyword(self, name: str) -> None:
        if self._state != "start":
            raise NotPlain(f"{name} in the middle of a statement")
        match name:
            case "BEGIN" | "END":
                if self._stack:
                    raise NotPlain(f"{name} in braces")
                self._state = "block"
            case "function":
                definition = _FUNCTION.match(self._text, self._position - len(name))
                if definition is None or self._stack:
                    raise NotPlain("a function that is not plain")
                self._position = definition.end()
                self._stack.append("{")
                self._previous = "{"
            case "if" | "while" | "for":
                opening = _OPENS_CALL.match(self._text, self._position)
                if opening is None or not self._stack:
                    raise NotPlain(f"{name} without a condition")
                self._position = opening.end()
                self._stack.append("for(" if name == "for" else "if(")
                self._previous = "("
                self._state = "optional" if name == "for" else "operand"
            case "print" | "printf":
                self._print_level = self._level()
                self._state = "optional"
            case "return" | "exit":
                self._state = "optional"
            case "delete":
                self._state = "operand"
            case "next" | "nextfile" | "break" | "continue":
                self._state = "end"
            case "do" | "else":
                self._state = "start"
            case _:
                raise NotPlain(f"{name} in the wrong place")

    def _level(self) -> int:
        return sum(opened != "{" for opened in self._stack)

    def _take_newline(self) -> None:
        if self._previous in _BREAKABLE and self._state in {"operand", "start"}:
            return
        if self._stack and self._stack[-1] != "{":
            raise NotPlain("a line that ends in parentheses")
        self._end_statement()

    def _end_statement(self) -> None:
        if self._state in {"operand", "block"}:
            raise NotPlain("a statement that ends too early")
        self._state = "start"
        self._print_level = -1

    # ---- operators

    def _take_operator(self, operator: str) -> None:
        match operator:
            case "{":
                self._open_block()
            case "}":
                if not self._stack or self._stack[-1] != "{":
                    raise NotPlain("a brace that closes nothing")
                self._end_statement()
                self._stack.pop()
            case ";":
                self._take_semicolon()
            case "(" | "$" if self._state not in {"block", "end"}:
                if operator == "(":
                    self._stack.append("(")
                self._state = "operand"
            case ")":
                self._close_parenthesis()
            case "[":
                if self._state != "operator" or not (self._before[:1].isalpha() or self._before[:1] == "_"):
                    raise NotPlain("a bracket after something that is not a name")
                self._stack.append("[")
                self._state = "operand"
            case "]":
                if self._state != "operator" or not self._stack or self._stack.pop() != "[":
                    raise NotPlain("a bracket that closes nothing")
            case ",":
                self._take_comma()
            case "++" | "--":
                if self._state in _EXPRESSION:
                    self._state = "operand"
                elif self._state != "operator" or self._before in {"++", "--"}:
                    raise NotPlain(f"{operator} in the wrong place")
            case ">" | ">>" | "|" | "|&":
                self._take_output(operator)
            # A pattern has two slashes in one line; with one, it can only be a division.
            case "/" | "/=" if self._before in _NO_DIVISION_AFTER and "/" in self._rest_of_line():
                raise NotPlain("what may be a division or begin a pattern")
            case _ if operator in _BINARY and self._state == "operator":
                self._state = "operand"
            case _ if operator in _UNARY and self._state in _EXPRESSION:
                self._state = "operand"
            case _:
                raise NotPlain(f"{operator} in the wrong place")

    def _rest_of_line(self) -> str:
        return self._text[self._position :].partition("\n")[0]

    def _open_block(self) -> None:
        ends_pattern = self._state == "operator" and not self._stack
        if not ends_pattern and self._state not in {"start", "block"}:
            raise NotPlain("a brace in the middle of a statement")
        self._stack.append("{")
        self._state = "start"

    def _take_semicolon(self) -> None:
        if self._stack and self._stack[-1] == "for(":
            if self._state not in {"operator", "optional"}:
                raise NotPlain("a loop that is not plain")
            self._state = "optional"
        elif self._stack and self._stack[-1] != "{":
            raise NotPlain("a statement that ends in parentheses")
        else:
            self._end_statement()

    def _close_parenthesis(self) -> None:
        opened = self._stack.pop() if self._stack else ""
        is_empty = self._state == "optional" and (opened == "for(" or self._before == "(")
        if opened not in {"(", "if(", "for("} or not (self._state == "operator" or is_empty):
            raise NotPlain("a parenthesis that closes nothing")
        self._state = "operator" if opened == "(" else "start"

    def _take_comma(self) -> None:
        in_list = bool(self._stack) and self._stack[-1] in {"(", "["}
        in_print = self._print_level == self._level()
        if self._state != "operator" or not (in_list or in_print or not self._stack):
            raise NotPlain("a comma in the wrong place")
        self._state = "operand"

    def _take_output(self, operator: str) -> None:
        """Take a comparison, or the target of `print`."""
        prints = self._print_level >= 0
        # Brackets do not shield: for mawk only parentheses do.
        shielded = prints and self._stack[-1:] == ["("] and self._level() > self._print_level
        if self._state not in {"operator", "optional"} or (self._state == "optional" and not prints):
            raise NotPlain(f"{operator} in the wrong place")
        if operator == ">" and (shielded or not prints):
            if self._state == "optional":
                raise NotPlain("> in the wrong place")
            self._state = "operand"
            return
        literal = _LITERAL.match(self._text, self._position) if prints and not shielded else None
        if operator in {">", ">>"} and literal and literal[1] in _PRINTED_TO:
            self._position = literal.end()
        elif operator == "|" and literal:
            self.scripts.append(literal[1])
            self._position = literal.end()
        else:
            raise NotPlain(f"{operator}, which writes or runs something")
        self._state = "end"
