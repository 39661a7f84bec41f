"""The table of attacks on the host names tests that exist, each class with a control."""

from __future__ import annotations

from typing import get_args

from aisotools.sandbox.confinement.levels import LEVELS
from tests.host_attacks import CLASSES, GATE_CLASSES, count_variants
from tests.sandbox.inside import Who
from tests.test_security_claims import exists


def test_every_class_has_attacks_and_a_control_that_exist() -> None:
    assert len(CLASSES) >= 12
    assert len(GATE_CLASSES) >= 10
    everything = [*CLASSES, *GATE_CLASSES]
    assert not [one.what for one in everything if not one.attacks or not one.controls]
    assert not [test for one in everything for test in (*one.attacks, *one.controls) if not exists(test)]


def test_levels_and_users_are_those_that_there_are() -> None:
    assert {level for one in [*CLASSES, *GATE_CLASSES] for level in one.levels} <= {*LEVELS, "host"}
    assert {user for one in [*CLASSES, *GATE_CLASSES] for user in one.users} <= {*get_args(Who), "any"}


def test_variants_are_counted() -> None:
    """A test with variants counts once for each."""
    test = "workspace/test_quarantine.py::test_a_hard_link_does_not_lead_to_what_is_kept"
    varied = "workspace/test_import_roots.py::test_a_folder_with_the_name_of_a_module_is_refused"
    counts = count_variants([test, varied])
    assert counts[test] == 1
    assert counts[varied] > 3
