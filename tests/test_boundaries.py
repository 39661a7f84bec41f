"""Each boundary says in its own documentation what it is for; the search for gaps is seen to fail."""

from __future__ import annotations

import pytest

from tests import shape
from tests.boundaries import (
    HEADINGS,
    MODULES,
    NO_BOUNDARY,
    incomplete,
    is_boundary,
    main,
    missing_headings,
)
from tests.sites import PACKAGE

WHOLE = """Something.

Threat: code does what it should not.
Mechanism: it cannot.
Race: none.
Failure: it is told.
"""


def test_every_boundary_says_threat_mechanism_race_and_failure() -> None:
    package = shape.read(PACKAGE)
    assert incomplete(package) == []
    assert {*NO_BOUNDARY, *MODULES} <= {*package}
    assert sum(map(is_boundary, package)) >= 60


def test_headings_that_are_missing_are_named() -> None:
    assert missing_headings(WHOLE) == []
    assert missing_headings("") == [*HEADINGS]
    for line, what in zip(WHOLE.splitlines()[2:], HEADINGS, strict=True):
        assert missing_headings(WHOLE.replace(line, "")) == [what]
        assert missing_headings(WHOLE.replace(line, f"It says: {line}")) == [what], "a line begins with it"


@pytest.mark.parametrize(
    "docstring",
    [
        WHOLE.replace("Threat:", "- Threat:").replace("Failure:", "- A failure:"),
        "Threat\n    x\nMechanism\n    x\nRace window\n    x\nWhen it fails\n    x",
        "Threat: x\n\nMechanism: x\n\nRace window: x\n\nWhen a look fails, the call does not start.",
    ],
)
def test_headings_in_each_form_are_found(docstring: str) -> None:
    assert missing_headings(docstring) == []


def test_new_modules_of_the_folders_are_boundaries_until_they_are_said_to_be_none() -> None:
    new = shape.parse({"aisotools/__init__.py": "", "aisotools/sandbox/host/new.py": '"""New."""'})
    (found,) = incomplete(new)
    assert found.message.endswith("threat, mechanism, race window, what happens when it fails")
    assert not incomplete(shape.parse({"aisotools/__init__.py": "", "aisotools/core/new.py": '"""New."""'}))


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("sandbox.confinement.landlock: Landlock") for line in lines)
    assert not any(line.startswith("sandbox.host.scheduler:") for line in lines)
