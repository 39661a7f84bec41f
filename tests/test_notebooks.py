"""The tutorials as they lie there: short, complete, with pictures and the outputs that they still give."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.notebook.client import private_home
from tests.tutorials import (
    FOLDER,
    MOST_CELLS,
    SANITIZE,
    TUTORIALS,
    code_cells,
    copy_tutorials,
    differences,
    read,
    run,
    sanitized,
)
from tests.waiting import HANG_S

MOST_BYTES = 300_000
MOST_IMAGE_BYTES = 150_000
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_THIS_MACHINE = re.compile(r"/work/|/root/|/tmp/(?!aisotools-)|/opt/|site-packages")

each_tutorial = pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])


def links(path: Path) -> list[tuple[bool, str, str]]:
    """Links of the text: whether it is a picture, its words, where to."""
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    return [(bool(bang), words, where) for text in texts for bang, words, where in _LINK.findall(text)]


def test_the_course_is_numbered_without_a_gap() -> None:
    names = [path.name for path in TUTORIALS]
    assert [name[:2] for name in names] == [f"{number:02}" for number in range(1, len(names) + 1)]
    for name in names:
        assert re.fullmatch(r"\d\d(-[a-z0-9]+)+\.ipynb", name), name


@each_tutorial
def test_a_tutorial_is_short_and_was_run_from_top_to_bottom(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= MOST_CELLS
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "widgets" not in notebook.metadata, "GitHub shows no notebook with half a widget state"
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", cell.source
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {}), cell.source


@each_tutorial
def test_a_tutorial_says_nothing_of_the_machine_it_was_run_on(path: Path) -> None:
    for cell in code_cells(read(path)):
        found = _THIS_MACHINE.search(json.dumps(cell.outputs))
        assert found is None, (cell.source, found)


@each_tutorial
def test_a_tutorial_has_a_picture_and_is_light(path: Path) -> None:
    drawn = [o for cell in code_cells(read(path)) for o in cell.outputs if "image/png" in o.get("data", {})]
    shown = [where for is_picture, _, where in links(path) if is_picture]
    assert drawn or shown, "a picture worth looking at is missing"
    assert path.stat().st_size <= MOST_BYTES


@each_tutorial
def test_its_links_lead_somewhere(path: Path) -> None:
    for is_picture, words, where in links(path):
        assert words.strip(), f"{where} needs words for those who do not see it"
        if not where.startswith(("https://", "#")):
            assert (path.parent / where).is_file(), where
        assert not (is_picture and "://" in where), f"{where} would be fetched from elsewhere"


def test_pictures_are_small_and_each_is_used() -> None:
    readme = (FOLDER.parent / "README.md").read_text("utf-8")
    used = {where for path in TUTORIALS for is_picture, _, where in links(path) if is_picture}
    for image in sorted((FOLDER / "images").iterdir()):
        assert image.stat().st_size <= MOST_IMAGE_BYTES, image.name
        assert f"images/{image.name}" in used or image.name in readme, f"{image.name} is shown nowhere"


def test_all_data_has_a_source() -> None:
    sources = (FOLDER / "data" / "SOURCES.md").read_text("utf-8")
    for file in (FOLDER / "data").iterdir():
        assert file.name == "SOURCES.md" or f"`{file.name}`" in sources, file.name


def a_notebook(path: Path, code: str, printed: str) -> None:
    cell = new_code_cell(code, execution_count=1, outputs=[new_output("stream", name="stdout", text=printed)])
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=[cell], metadata={"kernelspec": spec}), path)


def nbval(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Compare as `.ci/run` does."""
    options = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(SANITIZE)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "-c",
        "pytest.ini",
    ]
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [*command, *options, *names],
        **private_home(folder),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_an_output_that_differs_fails(tmp_path: Path) -> None:
    a_notebook(tmp_path / "same.ipynb", "print('ran for 7 ms')", "ran for 12 ms\n")
    a_notebook(tmp_path / "other.ipynb", "print(2 + 2)", "5\n")
    compared = nbval(tmp_path, "same.ipynb", "other.ipynb")
    assert compared.returncode == 1, compared.stdout + compared.stderr
    assert "1 failed, 1 passed" in compared.stdout
    assert "other.ipynb" in compared.stdout.split("short test summary")[1]


def test_ci_compares_all_of_them() -> None:
    script = (FOLDER.parent / ".ci" / "run").read_text("utf-8")
    wanted = "--nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg notebooks"
    assert wanted in " ".join(script.replace("\\\n", " ").split())


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("exit code 0 · 12 ms", "exit code 0 · TIME"),
        ("Undid 1 call: python (8ba4af8377aa44d88f1efca5c847eda2).", "Undid 1 call: python (ID)."),
        ("cat: /tmp/aisotools-19826-6fad/home/user: Permission denied", "cat: SCRATCH/home/user: REFUSED"),
        ("Adelie 152, mean 3733.1", "Adelie 152, mean 3733.1"),
    ],
)
def test_only_what_differs_from_run_to_run_is_left_out(text: str, left: str) -> None:
    assert sanitized(text) == left


def test_a_changed_text_picture_or_error_is_a_difference() -> None:
    def one(**output: Any) -> nbformat.NotebookNode:
        notebook: nbformat.NotebookNode = new_notebook(
            cells=[new_code_cell("x", id="a", outputs=[new_output(**output)])]
        )
        return notebook

    shown = one(output_type="display_data", data={"text/plain": "<Figure>", "image/png": "AA=="})
    assert not list(differences(shown, shown))
    assert list(differences(shown, one(output_type="display_data", data={"text/plain": "<Figure>"})))
    assert list(differences(shown, one(output_type="stream", name="stdout", text="<Figure>")))


@pytest.mark.slow
@pytest.mark.timeout(180)
@each_tutorial
def test_a_tutorial_gives_the_same_twice_in_one_folder(path: Path, tmp_path: Path) -> None:
    """Live traces included, which nbval does not follow; and again over what the first run left."""
    folder = copy_tutorials(tmp_path / "notebooks")
    for attempt in ("first", "second"):
        found = list(differences(read(path), run(folder / path.name)))
        assert not found, f"{attempt} run: " + "\n\n".join(found)
