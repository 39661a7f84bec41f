"""The command that tries mutants finds changes that matter, and says which ones no test notices."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import landlock
from tests import mutation

SOURCE = textwrap.dedent(
    '''
    """Docstrings are left alone: 1 < 2."""
    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        assert 1 < 2

    def allowed(age: int = 18, strict: bool = True) -> "Literal[1]":
        """Return whether `age` will do."""
        if age >= 18 and not strict:
            log("old enough")
            return Decision.ALLOW
        raise ValueError(age + 1)
    '''
)


RULES = "def double(n):\n    return n + n\n\n\ndef unseen(n):\n    return n < 1\n"


DAMAGE = """
import os, shutil
from pathlib import Path

def test_damage(tmp_path):
    (tmp_path / "own").write_text("x")
    os.rename(tmp_path / "own", tmp_path / "moved")
    (tmp_path / "moved").unlink()
    for harm in (
        lambda path: path.write_text("x"), Path.unlink, lambda path: path.rename(tmp_path / "stolen"),
        lambda path: shutil.rmtree(path.parent), lambda path: path.with_name("new").touch(),
    ):
        try:
            harm(Path({decoy!r}))
        except OSError:
            continue
        raise SystemExit(3)
"""


@pytest.mark.skipif(landlock.abi() < 1, reason="the kernel offers no Landlock")
@pytest.mark.parametrize("is_confined", [True, False])
def test_mutants_change_only_their_own_folder(tmp_path: Path, is_confined: bool) -> None:
    """The control shows that unconfined it can."""
    decoy = tmp_path / "apart" / "decoy"
    decoy.parent.mkdir()
    decoy.write_text("as it was")
    writable = tmp_path / "w"
    writable.mkdir()
    code = tmp_path / "test_damage.py"
    code.write_text(DAMAGE.format(decoy=str(decoy)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, f"--basetemp={writable}/t", "-c", "/dev/null", str(code)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(writable), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
        preexec_fn=(lambda: mutation.confine(writable)) if is_confined else None,
    )
    assert (run.returncode == 0) is is_confined, run.stdout.decode()
    assert (decoy.exists() and decoy.read_text() == "as it was") is is_confined


def test_every_kind_of_decision_is_changed() -> None:
    found = {(mutant.before, mutant.after) for mutant in mutation.mutants(SOURCE)}
    assert found == {
        ("18", "19"),
        ("True", "False"),
        ("age >= 18", "age > 18"),
        ("age >= 18 and not strict", "(age >= 18 or not strict)"),
        ("not strict", "bool(strict)"),
        ('log("old enough")', "pass"),
        ("return Decision.ALLOW", "return None"),
        ("Decision.ALLOW", "Decision.DENY"),
        ("raise ValueError(age + 1)", "pass"),
        ("age + 1", "(age - 1)"),
        ("1", "2"),
    }


def test_each_mutant_differs_in_one_place_and_is_code() -> None:
    for mutant in mutation.mutants(SOURCE):
        ast.parse(mutant.source)
        assert mutant.source != SOURCE
        assert mutant.function == "allowed"
        assert mutant.before.split()[0] in SOURCE.splitlines()[mutant.line - 1]


def test_a_change_of_one_word_is_named_with_its_line() -> None:
    keys = {mutant.before: mutant.key for mutant in mutation.mutants(SOURCE)}
    assert keys["age + 1"] == "allowed: age + 1 -> (age - 1)"
    assert keys["1"] == "allowed: 1 -> 2 in raise ValueError(age + 1)"
    assert keys["Decision.ALLOW"] == "allowed: Decision.ALLOW -> Decision.DENY in return Decision.ALLOW"


def test_every_reason_is_about_a_mutant_that_there_is() -> None:
    for module, reasons in mutation.reasons().items():
        source = (mutation.PROJECT / "aisotools" / f"{module}.py").read_text("utf-8")
        assert reasons.keys() <= {mutant.key for mutant in mutation.mutants(source)}


def test_the_same_seed_gives_the_same_mutants() -> None:
    first, again = (mutation.chosen("policy/rules", SOURCE, 4, 1) for _ in range(2))
    assert first == again
    assert len(first) == 4
    assert mutation.chosen("policy/rules", SOURCE, 4, 2) != first


def test_a_mutant_is_killed_or_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small project: what a test looks at is killed, what none looks at survives."""
    for name, text in {
        "aisotools/__init__.py": "",
        "aisotools/policy/__init__.py": "",
        "aisotools/policy/rules.py": RULES,
        "tests/policy/test_rules.py": (
            "from aisotools.policy.rules import double\n\n\ndef test_it():\n    assert double(2) == 4\n"
        ),
        "pytest.ini": "[pytest]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutation, "PROJECT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starting pytest takes seconds else
    tried, survivors = mutation.judge("policy/rules", 40, 1)
    assert tried == 5
    assert {(mutant.function, mutant.after) for mutant in survivors} == {
        ("unseen", "return None"),
        ("unseen", "n <= 1"),
        ("unseen", "2"),
    }
    assert (tmp_path / "aisotools/policy/rules.py").read_text() == RULES


@pytest.mark.parametrize("module", mutation.MODULES)
def test_every_named_module_has_enough_to_change(module: str) -> None:
    source = (mutation.PROJECT / "aisotools" / f"{module}.py").read_text("utf-8")
    assert len(list(mutation.mutants(source))) >= 10
