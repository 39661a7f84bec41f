"""Texts made of hostile parts: what is taken for reading is run, and must leave nothing behind."""

from __future__ import annotations

import random
import subprocess
from functools import partial
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell
from aisotools.sandbox.confinement import landlock
from tests.sandbox.alone import in_own_thread

HIDDEN = [
    'echo "touch C"',
    "echo 'touch C'",
    "echo a # touch C",
    "cat <<EOF\ntouch C\nEOF",
    "[[ touch && C ]]",
    "cat <<'EOF'\ntouch C\n$(touch C)\nEOF\nls",
    "[[ a =~ (touch|C) ]]",
    "echo ${x:-touch C}",
    "echo $'touch C'",
    "case touch in touch) ls;; C) ls;; esac",
    "for i in touch C; do echo $i; done",
    "echo $((1+2)) touch C",
    "a=(touch C); echo hi",
    "echo a\\;touch C",
    "echo {touch,C}",
    "echo `echo touch C`",
    'echo "$(echo "touch C")"',
    "if true; then echo touch C; fi",
    "cat <(echo touch C)",
    "x=1 echo touch C",
    'cat <<< "touch C"',
    "cat <<EOF | cat\ntouch C\nEOF",
    "((1)); echo touch C",
    "echo \\\n touch C",
    "echo 'a'\\''touch C'",
    "test a = b; echo touch C",
    "[ a = touch ] || echo C",
    "env echo touch C",
    'bash -c "echo touch C"',
    'eval "echo touch C"',
    "find . -name touch -o -name C",
    "awk 'BEGIN{print \"touch C\"}'",
    "echo '`touch C`'",
    "sed -n 's/touch/C/p' /dev/null",
    'echo "\\`touch C\\`"',
    "echo \\$(touch C\\)",
    "cat <<\\EOF\n$(touch C)\nEOF",
    "cat <<EOF\n\\$(touch C) \\`touch C\\`\nEOF",
    "echo $((2*(3+1))) # $(touch C)",
    "read x <<< touch; echo C",
    'x=$(cat <<EOF\ntouch C\nEOF\n); echo "$x"',
    "echo ${x%%'touch C'}",
    "diff <(echo touch) <(echo C)",
]
"""Texts that name a command without running it."""

PARTS = [
    " ",
    "\n",
    ";",
    "&",
    "|",
    "&&",
    "||",
    '"',
    "'",
    "`",
    "$(",
    ")",
    "(",
    "{ ",
    "}",
    "${",
    "$((",
    "))",
    "[[ ",
    " ]]",
    "[ ",
    " ]",
    "<<EOF\n",
    "\nEOF\n",
    "<<'EOF'\n",
    "EOF",
    "#",
    " #",
    "\\",
    "\\\n",
    "touch C",
    "$(touch C)",
    "`touch C`",
    ";touch C;",
    "\ntouch C\n",
    "(touch C)",
    "{ touch C; }",
    '"$(touch C)"',
    "x=",
    "a=(",
    "case x in ",
    ";;",
    "esac",
    "if ",
    "then ",
    "fi",
    "for i in ",
    "do ",
    "done",
    "<(",
    ">(",
    "$'",
    '$"',
    "\t",
    "!",
    "{a,b}",
    "=",
    "~",
    "*",
    "time ",
    "f() ",
    "function f ",
    '"a"',
    "in ",
    "$",
    "<",
    ">&2",
    "2>&1",
    "${x:-",
    "${x#",
    "${x/",
    "@(",
    "[a",
    "a]",
    "coproc ",
    "exec ",
    "eval ",
    "=~ ",
    "-eq ",
    "<<<",
    "<<-EOF\n",
    "\r",
    "1",
    "a",
]
"""What is put into them."""


def mutated(chance: random.Random) -> str:
    """One of the texts, changed in a few places."""
    text = chance.choice(HIDDEN)
    for _ in range(chance.choice([1, 1, 2, 2, 3, 4, 6])):
        kind, at = chance.random(), chance.randrange(len(text) + 1)
        if kind < 0.6:
            text = text[:at] + chance.choice(PARTS) + text[at:]
        elif kind < 0.8:
            text = text[:at] + text[at + chance.choice([1, 1, 2, 4]) :]
        else:
            text += chance.choice([";", "\n", " ", "&&", "|"]) + chance.choice(HIDDEN)
    return text


def left_behind(rounds: int, seed: int, place: Path) -> tuple[int, list[str]]:
    """How many texts were run, and those that left something in `place`."""

    def start(text: str) -> subprocess.Popen[bytes]:
        landlock.restrict(["/"], [str(place)])
        return subprocess.Popen(
            ["/bin/bash", "-c", text],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    chance = random.Random(seed)
    executed, caught = 0, []
    for _ in range(rounds):
        text = mutated(chance)
        if "touch" not in text or classify_shell(text).effect is not Effect.READ_ONLY:
            continue
        executed += 1
        process = in_own_thread(partial(start, text))
        try:
            process.wait(3)  # a loop may have become endless
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for path in place.iterdir():
            caught.append(text)
            path.unlink()
    return executed, caught


@pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such texts safely")
def test_commands_classified_read_only_run_nothing_hidden(tmp_path: Path) -> None:
    executed, caught = left_behind(300, 1, tmp_path)
    assert executed > 25
    assert caught == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such texts safely")
def test_much_of_what_is_taken_for_reading_runs_nothing_hidden(seed: int, tmp_path: Path) -> None:
    executed, caught = left_behind(5000, seed, tmp_path)
    assert executed > 500
    assert caught == []
