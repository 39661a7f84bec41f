"""The file tools as a model meets them: results, errors that can be acted on, bounds."""

from __future__ import annotations

import asyncio
import base64
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from aisotools.builtin import file_operations
from aisotools.builtin.edit import edit
from aisotools.builtin.files import file, sandbox_read, sandbox_write
from aisotools.builtin.patch import apply_patch
from aisotools.builtin.python import python
from aisotools.builtin.shell import sandbox_bash
from aisotools.core.exceptions import ArgumentError, ToolError
from aisotools.core.protocols import OutputCaps, Tool, ToolContext
from aisotools.core.truncation import CAP
from aisotools.core.types import Effect, Facts, ToolResult
from aisotools.tools.function import FunctionTool
from tests.sandbox.inside import user_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


class Caller:
    """Calls tools in one workspace as the gate does: validated, then executed."""

    def __init__(self, root: Path, caps: OutputCaps | None = None) -> None:
        self.context = ToolContext(workspace_path=root, output_caps=caps or OutputCaps())

    async def call(self, tool: FunctionTool[..., Any], **arguments: Any) -> ToolResult:
        return await tool.execute(tool.validate_arguments(arguments), self.context)

    def file(self, operation: str, **arguments: Any) -> ToolResult:
        return asyncio.run(self.call(file, operation=operation, **arguments))

    def read(self, path: str) -> ToolResult:
        return asyncio.run(self.call(sandbox_read, path=path))

    def write(self, path: str, content: str) -> ToolResult:
        return asyncio.run(self.call(sandbox_write, path=path, content=content))

    def error(self, operation: str, **arguments: Any) -> str:
        with pytest.raises(ToolError) as caught:
            self.file(operation, **arguments)
        assert caught.value.recoverable
        return str(caught.value)


@pytest.fixture
def caller(root: Path) -> Caller:
    return Caller(root)


# ---- what a call would do


@pytest.mark.parametrize("tool", [file, sandbox_read, sandbox_write], ids=lambda tool: tool.name)
def test_tools_are_tools(tool: FunctionTool[..., Any]) -> None:
    assert isinstance(tool, Tool)
    shipment = tool.shipment()
    assert shipment is not None
    assert shipment.import_path == f"aisotools.builtin.files:{tool.name}"
    properties = tool.parameters_schema()["properties"]
    assert "context" not in properties
    assert all(field["description"] for field in properties.values())
    assert len(tool.description) > 100
    assert "/workspace" not in tool.description + str(properties)
    assert tool.examples


def test_tools_for_files_start_no_program_and_others_may() -> None:
    """Of a call that starts none, nothing is noted that tells its programs from those of others."""
    expected: dict[FunctionTool[..., Any], str] = {
        file: "none",
        sandbox_read: "none",
        sandbox_write: "none",
        edit: "none",
        apply_patch: "none",
    }
    expected[sandbox_bash] = "named"
    expected[python] = "any"
    for tool, programs in expected.items():
        shipment = tool.shipment()
        assert shipment is not None
        assert shipment.programs == programs, tool.name


@pytest.mark.parametrize("operation", ["read", "search", "list", "metadata"])
def test_reading_is_read_only(operation: str) -> None:
    arguments = {"operation": operation, "path": "d/f"}
    assert file.classify(arguments) is Effect.READ_ONLY
    assert file.extract_undo_path(arguments) is None
    assert file.gather_facts(arguments) == Facts(effect=Effect.READ_ONLY, reads=("d/f",), path_guarded=True)


def test_writing_changes_one_file() -> None:
    for tool in (file, sandbox_write):
        arguments = {"operation": "write", "path": "d/f", "content": "x"}
        assert tool.classify(arguments) is Effect.LOCAL_MUTATION
        assert tool.extract_undo_path(arguments) == Path("d/f")
        facts = Facts(effect=Effect.LOCAL_MUTATION, writes=("d/f",), path_guarded=True)
        assert tool.gather_facts(arguments) == facts
    reads = Facts(effect=Effect.READ_ONLY, reads=("f",), path_guarded=True)
    assert sandbox_read.gather_facts({"path": "f"}) == reads


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"operation": "remove", "path": "f"},
        {"operation": ["read"], "path": "f"},
        {"operation": "write"},
        {"operation": "write", "path": 5},
        {"operation": "write", "path": ["f"]},
        {"operation": "write", "path": ""},
        {"operation": "write", "path": "a\0b"},
        {"operation": None, "path": None},
    ],
)
def test_wrong_arguments_are_taken_for_a_change(arguments: dict[str, Any]) -> None:
    assert file.classify(arguments) is Effect.LOCAL_MUTATION
    assert file.extract_undo_path(arguments) is None
    assert file.gather_facts(arguments).effect is Effect.LOCAL_MUTATION
    assert sandbox_write.extract_undo_path(arguments) in {None, Path("f")}


def test_arguments_out_of_bounds(caller: Caller) -> None:
    for arguments in (
        {"operation": "remove"},
        {"operation": "read", "path": "f", "start_line": 0},
        {"operation": "search", "pattern": ""},
        {"operation": "search", "pattern": "x" * 2001},
        {"operation": "search", "pattern": "x", "context_lines": 21},
        {"operation": "read", "path": "f" * 4097},
        {"operation": "read", "file": "f"},
    ):
        with pytest.raises(ArgumentError):
            caller.file(**arguments)


# ---- write and read


def test_write_then_read(caller: Caller, root: Path) -> None:
    result = caller.file("write", path="new/dir/notes.txt", content="one\ntwo\n")
    assert result.value == {"success": True, "path": "new/dir/notes.txt", "size": 8, "created": True}
    assert result.content == "Created new/dir/notes.txt (8 bytes)."
    assert (root / "new/dir/notes.txt").read_bytes() == b"one\ntwo\n"
    assert caller.file("write", path="new/dir/notes.txt", content="three").content.startswith("Replaced")
    result = caller.file("read", path="new/../new/dir/notes.txt")
    assert result.content == "three"
    assert result.value["path"] == "new/dir/notes.txt"
    assert not result.is_error


LINES = "one\ntwo\r\nthree\n\nfive"


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (None, None, LINES),
        (1, 1, "one\n"),
        (2, 3, "two\r\nthree\n"),
        (None, 2, "one\ntwo\r\n"),
        (4, None, "\nfive"),
        (5, 5, "five"),
        (4, 4, "\n"),
    ],
)
def test_line_ranges(caller: Caller, start: int | None, end: int | None, text: str) -> None:
    caller.file("write", path="f", content=LINES)
    result = caller.file("read", path="f", start_line=start, end_line=end)
    assert result.content == text
    assert result.value == {
        "path": "f",
        "content": text,
        "start_line": start or 1,
        "end_line": end or 5,
        "total_lines": 5,
        "size": len(LINES),
    }


def test_line_ranges_past_the_end(caller: Caller) -> None:
    caller.file("write", path="f", content="one\ntwo\n")
    result = caller.file("read", path="f", start_line=2, end_line=9)
    assert result.content == "two\n[The file ends at line 2.]"
    assert result.value["content"] == "two\n"
    assert "has 2 lines; start_line 3 is past its end" in caller.error("read", path="f", start_line=3)
    assert "end_line 1 comes before start_line 2" in caller.error("read", path="f", start_line=2, end_line=1)


def test_empty_file(caller: Caller) -> None:
    caller.file("write", path="f", content="")
    result = caller.file("read", path="f")
    assert result.content == ""
    assert result.value["total_lines"] == 0
    assert caller.read("f").value == {"content": "", "size": 0, "path": "f"}


def test_content_and_value_share_one_long_text(caller: Caller) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 5001))
    caller.file("write", path="f", content=text)
    for result in (
        caller.file("read", path="f"),
        caller.file("read", path="f", start_line=500),
        caller.read("f"),
    ):
        assert result.content is result.value["content"]
        assert text.endswith(result.content)


@pytest.mark.parametrize(
    "content",
    [
        "plain",
        'it\'s "quoted" `back` \\slash\\',
        "$(rm -rf ~) ${HOME} $PATH %s {0} !!",
        "EOF\n<<EOF\nEOF\n'EOF'\n",
        "\r\n\r\n\r",
        "nul \0 and \x01\x1b[31m\x7f",
        "\ufeffbom",
        "no newline at the end",
        "ünï \U0001d49eode \u202e \u2028",
        "\n",
        "",
    ],
)
def test_content_is_kept_byte_for_byte(caller: Caller, root: Path, content: str) -> None:
    result = caller.write("d/f", content)
    assert result.value["success"] is True
    assert result.value["path"] == "d/f"
    assert result.value["size"] == len(content.encode())
    assert (root / "d" / "f").read_bytes() == content.encode()
    read = caller.read("d/f")
    assert read.value == {"content": content, "size": len(content.encode()), "path": "d/f"}
    assert read.content == content


@settings(max_examples=60, deadline=None)
@given(content=st.text())
def test_round_trip(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        caller = Caller(Path(folder))
        caller.write("f", content)
        assert caller.read("f").value["content"] == content
        if "\0" not in content:
            assert caller.file("read", path="f").value["content"] == content


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\xff", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a\xff", "image/gif"),
        (b"%PDF-1.7\n\xe2\xe3", "application/pdf"),
        (b"\xff\xfe", "application/octet-stream"),
    ],
)
def test_binary_files(caller: Caller, root: Path, data: bytes, mime: str) -> None:
    (root / "f").write_bytes(data)
    result = caller.read("f")
    assert result.kind == "binary"
    assert base64.b64decode(result.data[mime]) == data
    assert result.metadata == {"path": "f", "size": len(data)}
    message = caller.error("read", path="f")
    assert f"'f' is a binary file ({mime}, {len(data):,} bytes)" in message
    assert "sandbox_read" in message


def test_text_with_nul_is_binary_for_lines(caller: Caller) -> None:
    caller.write("f", "a\0b\n")
    assert "is a binary file" in caller.error("read", path="f")


def test_text_that_explodes_as_json_comes_as_binary(caller: Caller) -> None:
    """Three million control characters are eighteen million bytes of JSON."""
    caller.write("f", "\x01" * 3_000_000)
    result = caller.read("f")
    assert result.kind == "binary"
    assert result.metadata["size"] == 3_000_000


def test_too_large(caller: Caller, root: Path) -> None:
    bound = file_operations.MAX_FILE_BYTES
    with (root / "f").open("wb") as big:
        big.truncate(bound + 1)
    for read in (caller.read, lambda path: caller.file("read", path=path)):
        with pytest.raises(ToolError, match=f"has {bound + 1:,} bytes; at most {bound:,} .* sandbox_bash"):
            read("f")
    with pytest.raises(ToolError, match=f"content has {bound + 1:,} bytes; at most"):
        caller.write("g", "x" * (bound + 1))
    assert not (root / "g").exists()


# ---- list and metadata


def test_list(caller: Caller, root: Path) -> None:
    caller.file("write", path="d/b.txt", content="12345")
    (root / "d" / "sub").mkdir(mode=0o750)
    (root / "d" / "a").symlink_to("b.txt")
    (root / "d" / "b.txt").chmod(0o640)
    os.utime(root / "d" / "b.txt", (0, 1_700_000_000))
    entries = caller.file("list", path="d").value["entries"]
    assert [(e["name"], e["kind"]) for e in entries] == [
        ("a", "symlink"),
        ("b.txt", "file"),
        ("sub", "directory"),
    ]
    assert entries[1] == {
        "name": "b.txt",
        "kind": "file",
        "size": 5,
        "mode": "0640",
        "modified": "2023-11-14T22:13:20+00:00",
    }
    content = caller.file("list", path="d").content.splitlines()
    assert content[0].endswith(" a@")
    assert content[1] == "0640          5 2023-11-14T22:13:20+00:00 b.txt"
    assert content[2].endswith(" sub/")
    assert [e["name"] for e in caller.file("list").value["entries"]] == ["d"]
    assert [e["name"] for e in caller.file("list", path="d", glob="*.txt").value["entries"]] == ["b.txt"]


def test_list_of_nothing(caller: Caller) -> None:
    assert caller.file("list").content == "The folder . is empty."
    assert caller.file("list").value == {"entries": []}
    assert caller.file("list", glob="*.x").content == "Nothing in . matches '*.x'."


def test_long_lists_are_cut_and_say_so(root: Path) -> None:
    for number in range(file_operations.MAX_ENTRIES + 7):
        (root / f"f{number:05}").symlink_to("nowhere")
    result = Caller(root).file("list")
    assert len(result.value["entries"]) == file_operations.MAX_ENTRIES
    assert result.value["notes"] == ["7 of 5,007 entries are left out; choose some with glob."]
    assert result.content.endswith("[7 of 5,007 entries are left out; choose some with glob.]")
    assert result.metadata[CAP] == "list"


def test_metadata(caller: Caller, root: Path) -> None:
    caller.file("write", path="d/f", content="12345")
    (root / "d" / "f").chmod(0o4754)
    os.utime(root / "d" / "f", (0, 1_700_000_000))
    (root / "link").symlink_to("d/f")
    expected = {
        "path": "d/f",
        "kind": "file",
        "size": 5,
        "mode": "4754",
        "permissions": "rwsr-xr--",
        "modified": "2023-11-14T22:13:20+00:00",
    }
    assert caller.file("metadata", path="d/f").value == expected
    assert caller.file("metadata", path="link").value == expected
    (root / "d" / "f").chmod(0o644)
    value = caller.file("metadata", path="d/f").value
    assert (value["mode"], value["permissions"]) == ("0644", "rw-r--r--")
    assert caller.file("metadata", path=".").value["kind"] == "directory"
    now = datetime.fromisoformat(caller.file("metadata", path="d").value["modified"])
    assert abs((datetime.now(UTC) - now).total_seconds()) < 60


def test_a_file_from_a_far_year(caller: Caller, root: Path) -> None:
    (root / "f").touch()
    os.utime(root / "f", (0, 1 << 33))
    assert caller.file("metadata", path="f").value["modified"].startswith("22")
    assert file_operations._format_time(10**18).startswith("9999")


# ---- search


@pytest.fixture
def tree(caller: Caller, root: Path) -> Caller:
    for path, content in {
        "a.py": "import os\n\ndef main():\n    pass\n",
        "src/b.py": "def helper():\n    return main()\n# a.b a+b\n",
        "src/deep/c.txt": "nothing here\r\nmain thing\r\n",
        "src/deep/d.bin": "main\0",
        ".hidden/e.py": "main = 1\n",
    }.items():
        caller.file("write", path=path, content=content)
    (root / "link.py").symlink_to("a.py")
    return caller


def places(result: ToolResult) -> list[tuple[str, int]]:
    return [(match["path"], match["line"]) for match in result.value["matches"]]


def test_search_content(tree: Caller) -> None:
    result = tree.file("search", pattern=r"\bmain\b")
    assert places(result) == [("a.py", 3), (".hidden/e.py", 1), ("src/b.py", 2), ("src/deep/c.txt", 2)]
    assert result.value["matches"][0] == {"path": "a.py", "line": 3, "text": "def main():"}
    assert result.content.splitlines()[0] == "a.py:3: def main():"
    assert result.value["matches"][3]["text"] == "main thing"
    assert result.value["notes"] == ["Binary files skipped: 1."]


def test_search_is_narrowed(tree: Caller) -> None:
    assert places(tree.file("search", pattern="main", glob="*.py", path="src")) == [("src/b.py", 2)]
    assert places(tree.file("search", pattern="main", path="a.py")) == [("a.py", 3)]
    assert places(tree.file("search", pattern="main", glob="deep/*", path="src")) == [("src/deep/c.txt", 2)]
    assert places(tree.file("search", pattern="main", glob="*.txt", path="a.py")) == []
    assert places(tree.file("search", pattern="MAIN")) == []
    assert len(places(tree.file("search", pattern="(?i)MAIN"))) == 4


def test_search_literally(tree: Caller) -> None:
    assert places(tree.file("search", pattern="a+b", regex=False)) == [("src/b.py", 3)]
    assert places(tree.file("search", pattern="main(", regex=False)) == [("a.py", 3), ("src/b.py", 2)]
    assert places(tree.file("search", pattern="a+b")) == []


def test_search_names(tree: Caller) -> None:
    result = tree.file("search", glob="*.py")
    assert result.value == {"paths": ["a.py", "link.py", ".hidden/e.py", "src/b.py"]}
    assert result.content.splitlines() == result.value["paths"]
    assert tree.file("search", glob="*.py", path="src").value == {"paths": ["src/b.py"]}
    assert tree.file("search", glob="*.rs").content == "No file name matches '*.rs'."


def test_search_finds_nothing(tree: Caller) -> None:
    result = tree.file("search", pattern="zebra", glob="*.txt")
    assert result.value["matches"] == []
    assert result.content == "No line matches in the 1 files searched."
    assert not result.is_error


def test_context_lines(caller: Caller) -> None:
    caller.file("write", path="f", content="".join(f"{n}\n" for n in range(1, 21)))
    result = caller.file("search", pattern="^(3|5|12|20)$", context_lines=2)
    assert result.value["matches"][0] == {
        "path": "f",
        "line": 3,
        "text": "3",
        "before": ["1", "2"],
        "after": ["4", "5"],
    }
    assert result.value["matches"][3]["after"] == []
    assert result.content.splitlines() == [
        *("f-1- 1", "f-2- 2", "f:3: 3", "f-4- 4", "f:5: 5", "f-6- 6", "f-7- 7", "--"),
        *("f-10- 10", "f-11- 11", "f:12: 12", "f-13- 13", "f-14- 14", "--"),
        *("f-18- 18", "f-19- 19", "f:20: 20"),
    ]


def test_lines_at_the_edges(caller: Caller) -> None:
    caller.file("write", path="f", content="\nx\n\n")
    assert places(caller.file("search", pattern="^$")) == [("f", 1), ("f", 3)]
    assert places(caller.file("search", pattern="x*")) == [("f", 1), ("f", 2), ("f", 3)]
    caller.file("write", path="f", content="x")
    assert places(caller.file("search", pattern="$")) == [("f", 1)]
    caller.file("write", path="f", content="")
    assert places(caller.file("search", pattern="^")) == []
    caller.file("write", path="f", content="end\r\nnext\r\n")
    assert places(caller.file("search", pattern="end$")) == [("f", 1)]


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(alphabet="ab\n\r .", max_size=60),
    pattern=st.sampled_from(["a", "^a", "b$", "^$", "a.b", "[ab]+", "a*", r"\bb", "(?!a)b", " "]),
)
def test_search_agrees_with_going_line_by_line(text: str, pattern: str) -> None:
    import re

    with tempfile.TemporaryDirectory() as folder:
        caller = Caller(Path(folder))
        caller.file("write", path="f", content=text)
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
        expected = [n for n, line in enumerate(lines, 1) if re.search(pattern, line)]
        assert [line for _, line in places(caller.file("search", pattern=pattern))] == expected


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("a(b", "missing ), unterminated subpattern at position 1"),
        ("[z-a]", "bad character range z-a at position 1"),
        ("*", "nothing to repeat at position 0"),
        ("a{99999999999999999999}", "repetition number is too large"),
        ("(" * 1500, ""),
    ],
)
def test_patterns_that_are_none(caller: Caller, pattern: str, fault: str) -> None:
    message = caller.error("search", pattern=pattern)
    assert "is not a regular expression" in message
    assert fault in message.lower()
    assert "set regex to false" in message


def test_search_for_nothing_in_particular(caller: Caller) -> None:
    assert "needs a pattern (for lines), a glob" in caller.error("search")


def test_long_lines_are_cut_around_the_match(caller: Caller) -> None:
    caller.file("write", path="f", content="x" * 10_000 + "needle" + "y" * 10_000)
    text = caller.file("search", pattern="needle").value["matches"][0]["text"]
    assert len(text) < 600
    assert "needle" in text
    assert text.startswith("…")
    assert text.endswith("…")


def test_many_matches_are_cut_and_say_so(caller: Caller) -> None:
    caller.file("write", path="f", content="needle\n" * 5000)
    caller.file("write", path="g", content="needle\n")
    result = caller.file("search", pattern="needle")
    assert len(result.value["matches"]) == 1000
    assert "Stopped after 1,000 matches; narrow the search by path, glob or pattern." in result.value["notes"]
    assert "Stopped after 1,000 matches" in result.content
    assert result.metadata[CAP] == "search"


def test_search_meets_what_it_cannot_read(caller: Caller, root: Path) -> None:
    os.mkfifo(root / "fifo")
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("root needle\n")
    (root / "out").symlink_to(outside)
    (root / "latin").write_bytes("caf\xe9 needle".encode("latin-1"))
    with (root / "big").open("wb") as big:
        big.truncate(file_operations.MAX_FILE_BYTES + 1)
    result = caller.file("search", pattern="needle|root")
    assert places(result) == [("latin", 1)]
    assert result.value["notes"] == ["Files larger than 10,485,760 bytes skipped: 1."]


def test_names_that_would_deceive(caller: Caller, root: Path) -> None:
    for name in (b"two\nlines", b"caf\xe9", b"\x1b[2J"):
        with open(os.fsencode(root) + b"/" + name, "wb") as made:  # noqa: PTH123 - a name that is not UTF-8
            made.write(b"needle")
    for result in (caller.file("list"), caller.file("search", pattern="needle")):
        assert len(result.content.splitlines()) == 3
        for shown in (r"two\nlines", r"caf\xe9", r"\x1b[2J"):
            assert shown in result.content
    assert caller.file("search", glob="*").value["paths"] == ["\x1b[2J", r"caf\xe9", "two\nlines"]


# ---- what goes wrong


def test_missing_files_name_their_neighbours(caller: Caller, root: Path) -> None:
    assert caller.error("read", path="f") == "There is no 'f' in the workspace. It is empty."
    caller.file("write", path="docs/report.txt", content="")
    caller.file("write", path="docs/README.md", content="")
    message = caller.error("read", path="docs/reprot.txt")
    assert (
        message == "There is no 'reprot.txt' in the folder 'docs'. The nearest names there are: report.txt."
    )
    assert "README.md" in caller.error("read", path="docs/readme.md")
    assert "It holds: README.md, report.txt." in caller.error("metadata", path="docs/zzz")
    assert "There is no 'dosc' in the workspace" in caller.error("list", path="dosc/report.txt")
    assert "There is no 'x' in the folder 'docs'" in caller.error("search", path="docs/x", pattern="y")
    for number in range(20):
        (root / "docs" / f"{number}").touch()
    assert "and 17 more" in caller.error("read", path="docs/zzz")


@pytest.mark.parametrize("operation", ["read", "write", "metadata", "list", "search"])
@pytest.mark.parametrize(
    "path",
    ["../x", "{outside}/passwd", "out/passwd", "d/../../x", "/workspace/../x", "out/new"],
)
def test_outside(caller: Caller, root: Path, operation: str, path: str) -> None:
    (root / "d").mkdir()
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("somebody")
    path = path.format(outside=outside)
    (root / "out").symlink_to(outside)
    message = caller.error(operation, path=path, content="x", pattern="x")
    assert f"The path {path!r} leads outside the workspace" in message
    assert "Use a path inside it" in message
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("passwd", "somebody")]
    assert {path.name for path in root.parent.iterdir()} == {"ws", "outside"}


def test_wrong_kinds(caller: Caller, root: Path) -> None:
    (root / "d").mkdir()
    (root / "f").write_bytes(b"")
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to("loop")
    assert "'d' is a folder, not a file" in caller.error("read", path="d")
    assert "'d' is a folder, not a file" in caller.error("write", path="d", content="")
    assert "'.' is a folder, not a file" in caller.error("write", content="")
    assert "'f' is a file, not a folder" in caller.error("list", path="f")
    assert "'f' is a file, not a folder" in caller.error("read", path="f/x/y")
    assert "'f' is a file, not a folder" in caller.error("write", path="f/x", content="")
    assert "'f' is a file, not a folder" in caller.error("read", path="f/")
    assert "names a folder" in caller.error("write", path="new/", content="")
    assert "'fifo' is a FIFO, not a file" in caller.error("read", path="fifo")
    assert "'fifo' is a FIFO, not a file" in caller.error("search", path="fifo", pattern="x")
    assert "'loop': Too many levels of symbolic links" in caller.error("read", path="loop")
    assert "The path is empty" in caller.error("read", path="")
    assert "NUL" in caller.error("read", path="a\0b")
    assert "File name too long" in caller.error("read", path="n" * 300)
    assert "needs content" in caller.error("write", path="x")
    assert not (root / "new").exists()
    assert not (root / "x").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file that only another user may read")
def test_not_permitted(root: Path) -> None:
    import subprocess
    import sys

    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        top.chmod(0o777)
        (top / "secret").write_bytes(b"")
        (top / "secret").chmod(0o600)
        (top / "dark").mkdir(mode=0o711)
        script = f"""
import asyncio
from pathlib import Path
from aisotools.builtin.files import file
from aisotools.core.protocols import ToolContext
from aisotools.core.exceptions import ToolError
for arguments in (
    {{"operation": "read", "path": "secret"}},
    {{"operation": "write", "path": "secret", "content": ""}},
    {{"operation": "list", "path": "dark"}},
    {{"operation": "read", "path": "dark/x"}},
):
    try:
        asyncio.run(file.execute(arguments, ToolContext(workspace_path=Path({folder!r}))))
    except ToolError as error:
        print(error)
print(asyncio.run(file.execute(
    {{"operation": "search", "pattern": "x"}}, ToolContext(workspace_path=Path({folder!r}))
)).content)
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            user=user_of("plain"),
            group=2001,
        )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("'secret': permission denied.")
    assert lines[1].startswith("'secret': permission denied.")
    assert lines[2].startswith("'dark': permission denied.")
    assert lines[3].startswith("There is no 'x' in the folder 'dark'. What else is there cannot be listed")
    assert lines[5] == "[Files or folders that could not be read: 2.]"
