"""The grammar of sed."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.languages.sed import read_sed


@pytest.mark.parametrize(
    "program",
    [
        "p",
        "1,5p;d",
        "s/a/b/g",
        "$!N;$!D",
        "/a/,/b/{p;q}",
        "s|/|:|g",
        "y/abc/def/",
        "1!G;h;$!d",
        ":a;N;$!ba;s/\\n/ /g",
        "2i\\header",
        "$a END",
        "r other",
        "s/[^,]*,//2",
        "\\%x%d",
        "0,/a/d",
        "/a/I,+2p",
        "# x\np",
        "a\\\ntext\np",
        "s/[[:space:]]*$//",
        "s/x/[/",
        "s/.*\\.\\([^./]*\\)$/\\1/p",
        "{p;p}",
        "s/a/b/ ; p",
    ],
)
def test_plain_programs_are_read_whole(program: str) -> None:
    assert read_sed(program).doubt == ""


@pytest.mark.parametrize(
    "program",
    [
        "w x",
        "s/a/b/w x",
        "s/a/b/e",
        "e",
        "1e x",
        "s/[/]/w b/",
        "s/[/w x/]/b/",
        "s/[/]/b/e",
        "s/a",
        "{p",
        "p}",
        "W x",
        "y/a/b/w x",
        "a text\\\nw x",
        "s;a;b;",
        "R",
        "b w x y",
        "v",
        "s/a\nb/c/",
        "\\aXa p",
        "M",
        "s/[\\]/b/",
    ],
)
def test_a_program_that_may_do_more_is_doubted(program: str) -> None:
    assert read_sed(program).doubt


def test_files_that_a_script_reads_are_named() -> None:
    assert read_sed("/a/r other").reads == ("other",)
