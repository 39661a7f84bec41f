from __future__ import annotations

import ast

import pytest
from hypothesis import given, strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from aisotools.notebook.magics.transform import rewrite

Ran = tuple[str, ...]


def rewritten(cell: str) -> str:
    return "".join(rewrite(cell.splitlines(keepends=True)))


def awaited(cell: str) -> list[Ran]:
    """The arguments of every `await run_magic(...)` in the rewritten cell, which must be Python."""
    code = TransformerManager().transform_cell(rewritten(cell))
    tree = compile(code, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    return [
        tuple(ast.literal_eval(argument) for argument in node.value.args)
        for node in ast.walk(tree)
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call)
    ]


def untouched(cell: str) -> bool:
    return rewritten(cell) == cell


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%call file path=a.txt\n", [("call", "file path=a.txt")]),
        ("%call\n", [("call", "")]),
        ("%call  \t name\n", [("call", "name")]),
        ("%sandbox restart\n", [("restart", "")]),
        ("%sandbox \t restart\n", [("restart", "")]),
        ("%sandbox restart now\n", [("restart", "now")]),
        ("x = %call t a=1\n", [("call", "t a=1")]),
        ("x=%call t a=1\n", [("call", "t a=1")]),
        ("a.b = %call t\n", [("call", "t")]),
        ("d['k'][\"l\"] = %call t\n", [("call", "t")]),
        ("größe = %call t\n", [("call", "t")]),
        ("%call t text='schön \N{PENGUIN}'\n", [("call", "t text='schön \N{PENGUIN}'")]),
        ("%call a\n%call b\n1\n%call c\n", [("call", "a"), ("call", "b"), ("call", "c")]),
        ("if True:\n    %call t\nelse:\n    x = %call u\n", [("call", "t"), ("call", "u")]),
        ("for i in range(3):\n\t%call t\n", [("call", "t")]),
        ("try:\n    %call t\nfinally:\n    pass\n", [("call", "t")]),
        ("def f():\n    return 1\n\n%call t\n", [("call", "t")]),
        ("def f(): pass\nif f:\n    %call t\n", [("call", "t")]),
        ("class A:\n    x = 1\n%call t\n", [("call", "t")]),
        ("f = lambda: 3\n%call t\n", [("call", "t")]),
        ("# a remark\n%call t\n", [("call", "t")]),
        ("%call t a=1 \\\n  b=2 \\\n  c=3\n", [("call", "t a=1   b=2   c=3")]),
        ('%call t a="it\'s ("\n%call u\n', [("call", 't a="it\'s ("'), ("call", "u")]),
        ("!echo it's '''\n%call u\n", [("call", "u")]),
        ("%cd f(\n%call u\n", [("call", "u")]),
        ("x = !ls (\ny = %call u\n", [("call", "u")]),
        ('%call t a=\'"""\'\nx = 1\n%call u\n', [("call", 't a=\'"""\''), ("call", "u")]),
        ("%call t what?\n", [("call", "t what?")]),
        ("%call t n={x} $y\n", [("call", "t n={x} $y")]),
    ],
)
def test_lines_that_are_awaited(cell: str, expected: list[Ran]) -> None:
    assert awaited(cell) == expected


@pytest.mark.parametrize(
    ("cell", "line", "body"),
    [
        ("%%sandbox\n1 + 1\n", "", "1 + 1\n"),
        ("\n  \n%%sandbox\n1\n", "", "1\n"),
        ("# plot it\n\n%%sandbox\n1\n", "", "1\n"),
        ("%%sandbox -i x\n1\n", "-i x", "1\n"),
        ("%%sandbox restart\n", "restart", ""),
        ("%%sandbox", "", ""),
        ("%%sandbox\n%call t\n%time 1\n'''", "", "%call t\n%time 1\n'''"),
        ("%%sandbox\n\ndef f():\n\treturn '\N{PENGUIN}\\n'\n", "", "\ndef f():\n\treturn '\N{PENGUIN}\\n'\n"),
    ],
)
def test_cells_that_run_in_the_sandbox(cell: str, line: str, body: str) -> None:
    assert awaited(cell) == [("cell", line, body)]


@pytest.mark.parametrize(
    "cell",
    [
        "1 % 2\n",
        "%callx t\n",
        "%call.x\n",
        "%call?\n",
        "%%call t\n1\n",
        "%%sandboxed\n1\n",
        "%sandbox\n",
        "%sandbox status\n",
        "%sandbox interrupt\n",
        "%sandbox restarted\n",
        "%tools\n%policy plan\n%timeit 1\n",
        "%time x = 1\n",
        "%%time\n%call t\n",
        "%%bash\n%call t\n",
        "%%writefile a.py\n%%sandbox\n1\n",
        "\n%%capture\n%call t\n",
        "1\n%%sandbox\n2\n",
        "text = '''\n%call t\n'''\n",
        "text = f'''\n{1}\n%call t\n'''\n",
        "x = (1\n%call\n)\n",
        "x = 7 \\\n%call\n",
        "call = 3; x = 4 %call\n",
        "x == 4 %call\n",
        "# %call t\n",
        "'%call t'\n",
        "x: int = %call t\n",
        "def f():\n    %call t\n",
        "def f():\n    x = %call t\n    return x\n",
        "async def f():\n    %call t\n",
        "class A:\n    x = %call t\n",
        "def f():\n    if True:\n        %call t\n",
        "def f(\n    a,\n):\n    %call t\n",
        "def f():\n    '''\nnot indented\n    '''\n    %call t\n",
        "@g\ndef f():\n    # remark\n\n    %sandbox restart\n",
        "if True:\n    def f():\n        pass\n        %call t\n",
        "if x:\n        a\n    %call t\n",  # a dedent to nowhere
    ],
)
def test_lines_that_are_not_transformed(cell: str) -> None:
    assert untouched(cell)


def test_line_numbers_stay_right() -> None:
    cell = "x = 1\n%call t a=1 \\\n  b=2 \\\n  c=3\n1 / 0\n"
    lines = rewritten(cell).splitlines()
    assert len(lines) == 5
    assert lines[4] == "1 / 0"
    assert "await" in lines[1]


def test_indentation_and_target_are_kept() -> None:
    assert rewritten("if 1:\n\tx.y = %call t\n").splitlines()[1].startswith("\tx.y = await ")


def test_under_another_magic_nothing_is_rewritten() -> None:
    def run_cell_magic(cell: str) -> str:
        return rewritten(cell)

    assert run_cell_magic("%call t\n") == "%call t\n"
    assert rewritten("%call t\n") != "%call t\n"


def test_a_remark_in_front_does_not_open_other_magics() -> None:
    assert untouched("# remark\n%%bash\n%call t\n")


PIECES = st.sampled_from(
    [
        "%",
        "%%",
        "%cal",
        "call",
        "%sandboxes",
        "sandbox",
        "restart",
        "x = ",
        "'",
        '"""',
        "(",
        "\\\n",
        "\n",
        "\t",
        "    ",
        "#",
        "def f():",
        "é",
        "!ls",
        "1",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_cells_without_our_magics_come_back_identical(cell: str) -> None:
    if "%call" not in cell and "%sandbox" not in cell.replace("%sandboxes", ""):
        assert untouched(cell)


@given(st.lists(st.one_of(PIECES, st.sampled_from(["%call t", "%%sandbox"])), max_size=20).map("".join))
def test_any_cell_keeps_its_lines(cell: str) -> None:
    before = cell.splitlines(keepends=True)
    after = rewrite(list(before))
    if len(after) == 1 and "'cell'" in after[0]:
        return
    assert len(after) == len(before)
    assert all(a == b or "await" in a or a == "\n" for a, b in zip(after, before, strict=True))
