"""Names that a call makes: what they will lead to counts before anything is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aisotools.core.types import Facts, MadeName
from aisotools.policy.shell.classify import shell_facts
from aisotools.workspace.made_names import MadeNames, Unfollowed
from aisotools.workspace.path_facts import PathResolver

SECRET = "TOPSECRET-91"
KEY = "secrets/key"

READING = [
    "ln -s ../secrets/key pub/y; cat pub/y",
    "mkdir d; ln -s .. d/up; cat d/up/secrets/key",
    "ln -s ../secrets pub/z; cat pub/z/key",
    "ln -s . q; cat q/secrets/key",
    "ln -sf ../secrets/key pub/p; cat pub/p",
    "ln -sfn secrets data; cat data/key",
    "ln -sr secrets/key pub/y; cat pub/y",
    "ln --symb secrets t; cat t/key",
    "cd pub; ln -s ../secrets/key; cat key",
    "ln -s ../secrets/key ../secrets/other pub; cat pub/key",
    "ln -st pub ../secrets/key; cat pub/key",
    'ln -s "$PWD/secrets/key" pub/y; cat pub/y',
    "ln -s $PWD/secrets t; cat t/key",
    "mkdir w; ln -s ../secrets w/s; cd w/s; cat key",
    "mkdir w; ln -s ../secrets w; cd w/secrets && cat k*",
    "ln -s secrets t; cat t/*",
    "ln -s ../secrets/key empty/x; cat empty/*",
    "ln -s ../secrets/key empty/x; for f in empty/*; do cat $f; done",
    "ln -s secrets t; find t/ -type f -exec cat {} +",
    "ln -s pub g; cat g/l",
    "ln -s pub g; cat g/d/key",
    "ln -s pub/d g; cat g/key",
    "ln -s t2 t; ln -s secrets t2; cat t/key",
    "for i in 1 2; do cat t/key; ln -s secrets t; done",
    "(sleep 0.3; cat t/key) & ln -s secrets t; wait",
    "ln -s secrets t | cat; cat t/key",
    "f() { ln -s secrets t; }; f; cat t/key",
    "bash -c 'ln -s secrets t'; cat t/key",
    "ln pub/l empty/y; cat empty/y",
    "cp -P pub/l pub/y; cat pub/y",
    "cp -d pub/l pub/y; cat pub/y",
    "cp -s $PWD/secrets/key y; cat y",
    "cp -R pub y; cat y/l",
    "cp -R pub y; cat y/d/key",
    "cp -a pub/d empty/y; cat empty/y/key",
    "cp -a pub y; cp -a y z; cat z/l",
    "cp -P pub/* empty; cat empty/d/key",
    "cp --parents -P pub/d empty; ln -s ../secrets empty/secrets; cat empty/pub/d/key",
    "mkdir y; cp -P pub/l y/; cat y/l",
    "cp -rL pub y; cat y/l",
    "mv pub p2; cat p2/l",
    "mv pub/l pub/y; cat pub/y",
    "mv pub/d empty/e; cat empty/e/key",
    "mv -t empty pub/d; cat empty/d/key",
    "mkdir deep; mv pub deep/; ln -s ../../secrets/key deep/pub/kk; cat deep/pub/kk",
    "mv pub tmp; mv empty pub; mv tmp empty; cat empty/l",
    "rmdir empty; ln -s secrets empty; cat empty/key",
    "ln -s nowhere later; ln -s secrets nowhere; cat later/key",
    "ln -s $PWD/secrets $TMPDIR/t; cat $TMPDIR/t/key",
    "ln -s $PWD/secrets $TMPDIR/t; cd $TMPDIR; cat t/key",
    "ln -s $PWD/secrets $TMPDIR/t; ln -s $TMPDIR/t z; cat z/key",
    "git checkout -q evil; cat lnk",
    "git checkout -q evil -- lnk; cat lnk",
    "git switch -q evil; cat lnk",
    "git restore -s evil .; cat lnk",
    "git merge -q evil; cat lnk",
    "git read-tree -u --reset evil; cat lnk",
]
WRITING = [
    "ln -s ../secrets pub/z; echo over > pub/z/key",
    "ln -s ../secrets pub/z; mv pub/z/key pub/kk",
    "ln -s ../secrets pub/z; rm pub/z/key",
    "mkdir -p q; ln -s .. q/up; sed -i s/TOP/top/ q/up/secrets/key",
    "cp -a pub p; echo over > p/l",
    "mv pub p; truncate -s0 p/l",
    "cd pub; ln -s ../secrets k; cd k; rm key",
    "ln -s secrets t; tee t/key < notes",
    "ln -s secrets t; cp notes t/key",
    "ln -s secrets t; mv notes t/key",
    "ln -s secrets t; dd if=notes of=t/key",
    "ln -s secrets t; sort notes -o t/key",
    "for i in 1 2; do echo over > t/key; ln -s secrets t; done",
    "git checkout -q evil; echo over > lnk",
    "git switch -q evil; cp notes lnk",
]
PLAIN = [
    "cp notes b && cat b",
    "cp -r plain backup && cat backup/x",
    "mv notes c; wc -l c",
    "ln -s notes latest; cat latest",
    "mkdir -p out && mv plain out/ && cat out/plain/x",
    "cp plain/* empty && cat empty/x",
    "mv notes t && mv plain/x notes && mv t plain/x && cat notes",
    "mv plain t && mv empty plain && mv t empty && ls empty",
    "cp notes $TMPDIR/x && sort $TMPDIR/x",
    "cp notes $TMPDIR/x && cat /usr/share/dict/words",
    "git checkout -b new && cat notes",
    "git add notes && git commit -m x && cat notes",
]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a secret, two links to it, and a branch that has one more."""
    folder = tmp_path / "ws"
    for name in ("secrets", "pub", "empty", "plain"):
        (folder / name).mkdir(parents=True)
    (folder / KEY).write_text(f"{SECRET}\n")
    (folder / "notes").write_text("notes\n")
    (folder / "plain" / "x").write_text("x\n")
    (folder / "lnk").write_text("lnk\n")
    (folder / "pub" / "l").symlink_to("../secrets/key")
    (folder / "pub" / "d").symlink_to("../secrets")
    return folder


def run(workspace: Path, command: str) -> str:
    """Run a command without a sandbox, and return what it printed."""
    scratch = workspace.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    process = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=workspace,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(scratch), "HOME": str(scratch), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return process.stdout


def make_branch(workspace: Path) -> None:
    run(
        workspace,
        "git init -q -b main; git config user.name n; git config user.email n@x.example;"
        "git add lnk; git commit -qm one; git checkout -qb evil; ln -sf secrets/key lnk;"
        "git commit -qam two; git checkout -q main",
    )


def resolved(workspace: Path, command: str) -> Facts:
    return PathResolver(workspace).resolve(shell_facts(command))


@pytest.mark.parametrize("command", READING)
def test_a_file_read_by_a_name_that_the_call_makes_is_known_or_unresolved(
    workspace: Path, command: str
) -> None:
    if "git" in command:
        make_branch(workspace)
    facts = resolved(workspace, command)
    assert {KEY, "secrets"} & {*facts.reads} or facts.unresolved or not facts.certain
    assert facts.made == ()
    assert SECRET in run(workspace, command)  # the control: it does read it


@pytest.mark.parametrize("command", WRITING)
def test_a_file_written_by_a_name_that_the_call_makes_is_known_or_unresolved(
    workspace: Path, command: str
) -> None:
    if "git" in command:
        make_branch(workspace)
    facts = resolved(workspace, command)
    assert KEY in facts.writes or {*facts.writes} & {*facts.unresolved}
    run(workspace, command)
    key = workspace / KEY
    assert not key.exists() or key.read_text() != f"{SECRET}\n"


@pytest.mark.parametrize("command", PLAIN)
def test_names_that_lead_nowhere_leave_nothing_open(workspace: Path, command: str) -> None:
    facts = resolved(workspace, command)
    assert facts.unresolved == ()
    assert not [path for path in (*facts.reads, *facts.writes) if path.startswith("secrets")]


def test_a_link_of_an_earlier_call_is_found_where_it_is(workspace: Path) -> None:
    command = "cat pub/y"
    assert KEY not in resolved(workspace, command).reads
    run(workspace, "ln -s ../secrets/key pub/y")
    assert KEY in resolved(workspace, command).reads


def test_a_link_is_shown_with_what_it_will_lead_to(workspace: Path) -> None:
    facts = resolved(workspace, "ln -s ../secrets pub/z; cat pub/z/key")
    assert ("pub/z/key", KEY) in facts.links


@pytest.mark.parametrize(
    "command",
    [
        "; ".join(f"ln -s ../a a{n}; ln -s ../b a{n}" for n in range(60)) + "; cat a0/a0/a0/a1/a2",
        "; ".join(f"ln -s . x{n % 5}" for n in range(50))
        + "; cat "
        + "/".join(f"x{n % 5}" for n in range(200)),
        "; ".join(f"cp -r d{n} d{n + 1}" for n in range(200)) + "; cat d99/a/b/c/d",
        "; ".join(f"mv {'a/' * 90}{n} b" for n in range(100)),
    ],
    ids=["branches", "circles", "copies", "depth"],
)
def test_commands_made_to_take_long_are_given_up(workspace: Path, command: str) -> None:
    facts = shell_facts(command)
    assert facts.made
    assert PathResolver(workspace).resolve(facts).unresolved


def names(*made: MadeName) -> MadeNames:
    def absolute(text: str) -> str | None:
        return None if text.startswith(("/", "~", "$")) else f"/ws/{text}"

    names = MadeNames(("/ws", "/workspace"), absolute, lambda text: [text])
    names.add(made)
    return names


def test_a_path_that_meets_no_name_leads_nowhere_else() -> None:
    known = names(MadeName("a/l", "b", is_link=True))
    assert known.follow("/ws/c/d") == []
    assert known.follow("/ws/a/l/d") == ["/ws/b/d"]
    assert "/ws/b/d" in known.follow("/workspace/a/l/d")
    assert known.list_names("/ws/a") == ["l"]


def test_links_in_a_circle_end() -> None:
    known = names(MadeName("a", "b", is_link=True), MadeName("b", "a", is_link=True))
    assert {*known.follow("/ws/a/x")} <= {"/ws/a/x", "/ws/b/x"}


@pytest.mark.parametrize("path", ["/ws/x", "/workspace/x/y", "/ws/x/y/z"])
def test_below_what_is_not_known_nothing_is(path: str) -> None:
    known = names(MadeName("x"))
    with pytest.raises(Unfollowed):
        known.follow(path)
    assert known.follow("/ws/other") == []


@pytest.mark.parametrize("name", ["$x/a", "`x`", "{}"])
def test_a_name_that_is_not_known_may_be_any(name: str) -> None:
    known = names(MadeName(name, "b"))
    with pytest.raises(Unfollowed):
        known.follow("/ws/other")


def test_names_outside_that_are_spelt_otherwise_may_be_the_same() -> None:
    known = names(MadeName("$TMPDIR/t", "secrets", is_link=True))
    assert "/ws/secrets/key" in known.follow("${TMPDIR}/t/key")
    assert known.follow("/usr/share/x") == []
    with pytest.raises(Unfollowed):
        known.follow("/tmp/scratch/t/key")


def test_more_names_than_are_kept_are_any() -> None:
    known = names(*(MadeName(f"a{n}", "b") for n in range(501)))
    with pytest.raises(Unfollowed):
        known.follow("/ws/other")
