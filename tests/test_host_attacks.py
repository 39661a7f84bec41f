"""The table of attacks on the host names tests that exist, each class with a control."""

from __future__ import annotations

from typing import get_args

from aisotools.sandbox.confinement.levels import LEVELS
from tests.host_attacks import CLASSES, GATE_CLASSES, ITSELF, AttackClass, find_all_variants
from tests.sandbox.inside import Who
from tests.test_security_claims import exists


def test_every_class_has_attacks_and_a_control_that_exist() -> None:
    assert len(CLASSES) >= 12
    assert len(GATE_CLASSES) >= 10
    everything = [*CLASSES, *GATE_CLASSES]
    assert not [one.what for one in everything if not one.attacks or not one.controls]
    assert not [test for one in everything for test in (*one.attacks, *one.controls) if not exists(test)]
    for one in everything:
        assert {*one.unconfined} <= {*one.attacks}
        assert not [test for test in one.unconfined.values() if test != ITSELF and not exists(test)]


def test_levels_and_users_are_those_that_there_are() -> None:
    assert {level for one in [*CLASSES, *GATE_CLASSES] for level in one.levels} <= {*LEVELS, "host"}
    assert {user for one in [*CLASSES, *GATE_CLASSES] for user in one.users} <= {*get_args(Who), "any"}


def test_variants_are_found() -> None:
    """A test with variants has one for each."""
    test = "workspace/test_quarantine.py::test_a_hard_link_does_not_lead_to_what_is_kept"
    varied = "workspace/test_import_roots.py::test_a_folder_with_the_name_of_a_module_is_refused"
    variants = find_all_variants()
    assert variants[test] == [""]
    assert len(variants[varied]) > 3
    assert "json-the standard library" in variants[varied]


def test_variants_have_a_control_if_the_same_is_made_without_the_defence() -> None:
    one = AttackClass(
        what="x",
        attacks=["a", "b", "c"],
        controls=[],
        levels=[],
        users=[],
        is_new=True,
        unconfined={"a": "d", "b": ITSELF},
    )
    variants = {
        "a": ["root-confined-by hand", "plain-isolated-by hand", "by nobody-confined"],
        "b": ["1", "2"],
        "c": [""],
        "d": ["by hand"],
    }
    assert [one.count_controlled(test, variants) for test in "abc"] == [2, 2, 0]


def test_at_least_sixty_new_attacks_have_a_control_and_each_new_class_has_one() -> None:
    variants = find_all_variants()
    counts = [
        sum(one.count_controlled(test, variants) for test in one.attacks) for one in CLASSES if one.is_new
    ]
    assert sum(counts) >= 60
    assert 0 not in counts
