"""What the paths in the facts of a call lead to."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import shell_facts
from aisotools.workspace.path_facts import PathResolver
from aisotools.workspace.scripts import MISSING
from aisotools.workspace.stamps import is_known


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "secrets" / "deep").mkdir(parents=True)
    (folder / "secrets" / "key").write_text("")
    (folder / "notes.md").write_text("")
    (folder / ".hidden").write_text("")
    (folder / "link").symlink_to("secrets/key")
    (folder / "folder").symlink_to("secrets")
    (folder / "away").symlink_to(tmp_path / "elsewhere" / "file")
    (folder / "circle").symlink_to("circle")
    (folder / "$x").symlink_to("secrets/key")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "back").symlink_to("ws")
    return folder


def read(workspace: Path, *paths: str, unresolved: tuple[str, ...] = ()) -> Facts:
    facts = Facts(effect=Effect.READ_ONLY, reads=paths, unresolved=unresolved)
    return PathResolver(workspace).resolve(facts)


SPELLINGS = [
    "secrets/key",
    "./secrets//./key",
    "secrets/deep/../key",
    "missing/../secrets/key",
    "/workspace/secrets/key",
    "$WORKSPACE/secrets/key",
    "${WORKSPACE}/secrets/key",
    "$PWD/secrets/key",
    "{ws}/secrets/key",
    "{ws}/../ws/secrets/key",
    "{back}/secrets/key",
    "secr*/key",
    "*/k?y",
    "[s]ecrets/[!a]ey",
    "se[a-d]rets/key",
    "link",
    "folder/key",
    "folder/../secrets/key",
    "folder/deep/../key",
    "missing/../link",
    "missing/../folder/deep/../key",
    "missing/../../ws/secrets/key",
    "lin*",
    "$x",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_leads_to_the_same_file(workspace: Path, spelling: str) -> None:
    path = spelling.replace("{ws}", str(workspace)).replace("{back}", str(workspace.parent / "back"))
    facts = read(workspace, path)
    assert "secrets/key" in facts.reads
    assert not facts.unresolved


def test_links_are_listed_with_what_they_lead_to(workspace: Path) -> None:
    facts = read(workspace, "link", "folder/key", "notes.md")
    assert facts.reads == ("secrets/key", "link", "folder/key", "notes.md")
    assert facts.links == (("link", "secrets/key"), ("folder/key", "secrets/key"))


def test_patterns_match_what_bash_matches(workspace: Path) -> None:
    assert set(read(workspace, "*.md").reads) == {"notes.md"}
    assert ".hidden" not in read(workspace, "*").reads
    assert ".hidden" in read(workspace, ".h*").reads
    assert read(workspace, "*.none").reads == ("*.none",)
    (workspace / "*.md").write_text("")  # a name like a pattern, as it would be in quotes
    assert set(read(workspace, "*.md").reads) == {"notes.md", "*.md"}
    assert read(workspace, "[[:alpha:]]*").unresolved == ("[[:alpha:]]*",)


def test_folders_among_the_paths_are_named(workspace: Path) -> None:
    assert read(workspace, ".").folders == (".",)
    assert read(workspace, "folder", "secrets/key").folders == ("secrets",)


@pytest.mark.parametrize("path", ["/proc/self/cwd/secrets/key", "/proc/1/root/x", "$TMPDIR/../x", "~bob/x"])
def test_paths_that_depend_on_the_process_are_unresolved(workspace: Path, path: str) -> None:
    assert read(workspace, path, unresolved=(path,)).unresolved == (path,)


@pytest.mark.parametrize("target", ["/proc/self/cwd", "/proc/self", "/dev/fd", "/sys"])
def test_links_to_what_depends_on_the_process_are_unresolved(workspace: Path, target: str) -> None:
    (workspace / "own").symlink_to(target)
    for path in ("own", "own/secrets/key", f"{workspace.parent}/elsewhere/../ws/own/x"):
        written = PathResolver(workspace).resolve(Facts(writes=(path,)))
        assert (written.outside, written.certain, written.unresolved) == (True, False, (path,))


def test_unknown_variables_are_unresolved_where_they_are_variables(workspace: Path) -> None:
    assert read(workspace, "$y", unresolved=("$y",)).unresolved == ("$y",)
    assert read(workspace, "$y").reads == ()
    written = PathResolver(workspace).resolve(Facts(writes=("$y/z",)))
    assert (written.outside, written.certain, written.unresolved) == (True, False, ("$y/z",))


@pytest.mark.parametrize(
    ("path", "outside"),
    [
        ("new/file", False),
        ("folder/new", False),
        ("/workspace/new", False),
        ("{ws}/new", False),
        ("$TMPDIR/x", False),
        ("away", True),
        ("../x", True),
        ("folder/../../x", True),
        ("missing/../../x", True),
        ("a/b/../../../x", True),
        ("notes.md/../../x", True),
        ("missing/../away", True),
        ("missing/../../ws/new", False),
        ("/etc/x", True),
        ("~/x", True),
        ("$HOME/x", True),
    ],
)
def test_writing_outside(workspace: Path, path: str, outside: bool) -> None:
    facts = Facts(writes=(path.replace("{ws}", str(workspace)),))
    assert PathResolver(workspace).resolve(facts).outside is outside


def test_a_declaration_without_paths_stays(workspace: Path) -> None:
    resolve = PathResolver(workspace).resolve
    assert resolve(Facts(outside=True)).outside
    assert resolve(Facts(outside=True, writes=("a",), runs_in="host")).outside
    assert not resolve(Facts(outside=True, writes=("/workspace/a",))).outside


def test_a_link_that_leads_out_is_shown_with_its_target(workspace: Path) -> None:
    facts = read(workspace, "away")
    assert facts.links == (("away", str(workspace.parent / "elsewhere" / "file")),)


def test_circles_and_files_on_the_way_stay_as_they_are_named(workspace: Path) -> None:
    assert read(workspace, "circle", "notes.md/x").reads == ("circle", "notes.md/x")


def test_arguments_of_other_tools_mention_what_is_there(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")  # the temporary folder may lie in the person's own
    resolve = PathResolver(workspace).resolve
    arguments = {
        "a": "link",
        "b": ["/workspace/notes.md", {"c": f"{workspace}/secrets"}],
        "d": "no such thing",
        "e": 7,
        "f": "notes.md\n",
    }
    assert resolve(Facts(), arguments).mentions == ("secrets/key", "link", "notes.md", "secrets")
    assert resolve(Facts(reads=("notes.md",)), arguments).mentions == ()
    assert resolve(Facts(), {"many": ["notes.md"] * 10_000}).mentions == ("notes.md",)
    assert resolve(Facts(), {"x": "~/x", "y": "$HOME", "z": "/etc/passwd", "": ""}).mentions == ()
    monkeypatch.setenv("HOME", str(workspace))
    assert resolve(Facts(), {"x": "~/notes.md"}).mentions == ("notes.md",)


def test_pattern_that_takes_long_to_translate_is_not_looked_at(workspace: Path) -> None:
    began_s = time.thread_time()
    for unit in ("[a", "[!", "a[", "?[", "[a-"):
        pattern = unit * 20_000
        assert read(workspace, pattern).unresolved == (pattern,)
    assert time.thread_time() - began_s < 1  # 40 s each without the bound
    assert read(workspace, "[a" * 500).unresolved == ()


def test_many_names_are_not_looked_at(workspace: Path) -> None:
    for number in range(600):
        (workspace / f"n{number}").touch()
    assert read(workspace, "n*").unresolved == ("n*",)
    for number in range(5_000):
        os.mkfifo(workspace / f"m{number}")
    assert read(workspace, "x*").unresolved == ("x*",)
    assert read(workspace, *map(str, range(300))).unresolved == ("and 300 paths in all",)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/workspace/secrets/key", "l"),
        ("/workspace/link", "l"),
        ("/workspace", "l/secrets/key"),
        ("/workspace", "l/folder/deep/../key"),
        ("/workspace/folder/deep/../key", "l"),
        ("/workspace/../{ws}", "l/secrets/key"),
        ("/workspace", "l/secr*/k*"),
        ("/workspace/secrets", "l/*"),
        ("missing", "{ws}/../../../../../../../../workspace/folder/deep/../key"),
        ("missing", "/tmp/../workspace/folder/deep/../key"),
        ("missing", "/workspace/..{ws}/secrets/key"),
    ],
)
def test_a_sandbox_shows_the_workspace_at_the_alias_too(workspace: Path, target: str, path: str) -> None:
    (workspace / "l").symlink_to(target.replace("{ws}", str(workspace)))
    assert "secrets/key" in read(workspace, path.replace("{ws}", str(workspace))).reads


def test_above_the_alias_is_the_root(workspace: Path) -> None:
    assert "/etc/hosts" in read(workspace, "/workspace/../etc/hosts").reads
    (workspace / "l").symlink_to("/workspace/../etc")
    assert "/etc/hosts" in read(workspace, "l/hosts").reads


def test_a_file_on_the_way_does_not_hide_the_link_before_it(workspace: Path) -> None:
    # The command may replace the file by a folder before it uses the path.
    assert "secrets/key/x" in read(workspace, "folder/key/x").reads
    assert read(workspace, "circle/../../x").unresolved == ("circle/../../x",)


@pytest.mark.parametrize(
    "path", ["m/" * 20_000 + "x", "/m" * 20_000, "../" * 20_000 + "x", "*/" + "a/" * 9_000]
)
def test_long_paths_are_not_walked(workspace: Path, path: str) -> None:
    for number in range(20):
        (workspace / f"n{number}").mkdir()
    written = PathResolver(workspace).resolve(Facts(writes=(path,)))
    assert (written.certain, written.unresolved) == (False, (path,))


def test_long_paths_that_are_not_walked_may_lead_outside(workspace: Path) -> None:
    facts = Facts(writes=tuple(f"m{number}/" + "a/" * 1_000 for number in range(12)))
    assert PathResolver(workspace).resolve(facts).outside


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "a/" * 300, "*" * 5_000, "[", "a" * 100_000])
def test_odd_texts_are_no_errors(workspace: Path, path: str) -> None:
    facts = read(workspace, path)
    assert facts.reads or facts.unresolved


@pytest.mark.parametrize("name", ["-x", "@x", "|touch x"])
def test_a_name_that_begins_like_an_option_settles_no_pattern(workspace: Path, name: str) -> None:
    facts = Facts(certain=False, dash_folders=(".",), without_dashes=Facts(reads=("*.md",)))
    assert PathResolver(workspace).resolve(facts).certain
    (workspace / name).write_text("")
    assert not PathResolver(workspace).resolve(facts).certain


def test_patterns_are_names_where_no_name_begins_with_a_dash(workspace: Path) -> None:
    facts = Facts(
        effect=Effect.LOCAL_MUTATION,
        certain=False,
        dash_folders=("secrets",),
        without_dashes=Facts(effect=Effect.READ_ONLY, reads=("secrets/k*",)),
        level="guarded",
    )
    resolver = PathResolver(workspace)
    plain = resolver.resolve(facts)
    assert (plain.effect, plain.certain, plain.reads) == (Effect.READ_ONLY, True, ("secrets/key",))
    assert (plain.level, plain.without_dashes) == ("guarded", None)
    for folder in ("$x", "/etc", "~", "secr*", "circle"):
        assert not resolver.resolve(dataclasses.replace(facts, dash_folders=("secrets", folder))).certain
    assert resolver.resolve(
        dataclasses.replace(facts, dash_folders=("missing", "/workspace/secrets"))
    ).certain
    (workspace / "secrets" / "-o").touch()
    option = resolver.resolve(facts)
    assert (option.effect, option.certain) == (Effect.LOCAL_MUTATION, False)


def test_folders_with_too_many_names_are_not_looked_through(workspace: Path) -> None:
    for number in range(5_001):
        (workspace / "secrets" / str(number)).touch()
    facts = Facts(certain=False, dash_folders=("secrets",), without_dashes=Facts(effect=Effect.READ_ONLY))
    assert not PathResolver(workspace).resolve(facts).certain


def test_recorded_paths_are_named_as_git_does(workspace: Path) -> None:
    spelt = ("secrets/./key", "link", "/workspace/secrets/key", "s*/key", "../x", "$y/key", ".")
    facts = PathResolver(workspace).resolve(Facts(recorded=spelt))
    assert facts.recorded == ("secrets/key", "link", ".")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ('python -c "print(1)"', ()),
        ("python3 -c 'import os; os.getcwd()' a.csv", ("a.csv",)),
        ("perl -ne 'print if /x/' a.csv", ("a.csv",)),
        ("perl -pi -e 's/a/b/' a.csv", ("a.csv",)),
        ("ruby -e 'puts 1'", ()),
        ("node -e 'console.log(1)'", ()),
        ("R -e 'x <- 1'", ()),
        ("julia -e 'println(1)'", ()),
        ("php -r 'echo 1;'", ()),
        ("duckdb -c 'select * from x'", ()),
        ("pytest -k 'foo or bar' d/t.py", ("d/t.py",)),
        ("make CFLAGS=-O2 all", ()),
        ("cargo test my_test", ()),
        ("python train.py --lr 0.1 --name 'my run' a.csv", ("train.py", "a.csv")),
        ("python missing.py", ("missing.py",)),
        ("bash d/missing", ("d/missing",)),
        ("vim -c ':wq' a.csv", ("a.csv",)),
        ("hyperfine 'ls -l' 'wc x'", ()),
        ("java -cp a.jar:b.jar Main", ()),
        ("python x.py d", ("x.py", "d")),
        ("gcc -O2 *.c", ("*.c",)),
        ("python 'my file.py'", ("my file.py",)),
    ],
)
def test_reads_on_a_card_are_paths(tmp_path: Path, command: str, shown: tuple[str, ...]) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a.csv", "d/t.py", "train.py", "my file.py"):
        (tmp_path / name).touch()
    assert PathResolver(tmp_path).resolve(shell_facts(command)).reads == shown


def test_a_word_that_comes_to_name_a_file_is_read(tmp_path: Path) -> None:
    """What was not a path when it was shown is another fact once it is one, and is asked about again."""
    facts = shell_facts("make all")
    assert PathResolver(tmp_path).resolve(facts).reads == ()
    (tmp_path / "all").touch()
    assert PathResolver(tmp_path).resolve(facts).reads == ("all",)


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ("for f in *.csv; do rm $f; done", {"a.csv", "b.csv"}),
        ('for f in *.csv; do rm "$f"; done', {"a.csv", "b.csv"}),
        ("for f in a.csv b.csv; do rm $f; done", {"a.csv", "b.csv"}),
        ("for d in out; do rm -r $d; done", {"out"}),
        ("for f in *.csv; do : > $f; done", {"a.csv", "b.csv"}),
        ("for f in a b; do cp keep $f.csv; done", {"a.csv", "b.csv"}),
        ("ls *.csv | xargs rm", {"a.csv", "b.csv"}),
        ("xargs -a keep rm", {"keep"}),
        ("find out -exec rm {} +", {"out"}),
        ("find out -delete", {"out"}),
        ("rm out/*", {"out/y", "out/z"}),
    ],
)
def test_losses_of_a_command_are_named(tmp_path: Path, command: str, lost: set[str]) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a.csv", "b.csv", "keep", "out/y", "out/z"):
        (tmp_path / name).touch()
    facts = PathResolver(tmp_path).resolve(shell_facts(command))
    stamps = dict(facts.losses)
    assert {path for path in stamps if stamps[path] != "absent"} == lost


def compared(workspace: Path, command: str) -> dict[str, str]:
    """What a call runs and reads, as far as there is something, with digests."""
    resolver, declared = PathResolver(workspace), shell_facts(command)
    facts = resolver.with_sources(declared, resolver.resolve(declared))
    return {path: digest for path, digest in (*facts.scripts, *facts.sources) if digest != MISSING}


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("cp notes.md x", {"notes.md"}),
        ("cp link x", {"link", "secrets/key"}),
        ("cp missing x", set()),
        ("git apply *.md", {"notes.md"}),
        ("git apply n[[:alpha:]]*.md", {"notes.md"}),
        ("cd secrets && git apply k*", {"secrets/key"}),
        ("strange @notes.md", {"notes.md"}),
        ("strange --in=secrets/key", {"secrets/key"}),
        ("strange secrets", {"secrets"}),
        ("cd secrets && strange", set()),
        ("cd secrets && strange .", {"secrets"}),
        ("for f in *.md; do strange < $f; done", {"notes.md"}),
        ("F=notes; strange $F.md", {"notes.md"}),
        ("F=$(echo notes); strange $F.md", set()),
        ("strange secrets/$F", {"secrets/deep", "secrets/key"}),
        ("patch -d secrets -i key", {"secrets", "secrets/key"}),
        ("if true; then cd secrets; fi; cat key | strange", {"."}),
        ("echo notes.md | xargs strange", {"notes.md"}),
        ("strange /etc/passwd", set()),
    ],
)
def test_sources_are_what_a_call_reads_or_names(workspace: Path, command: str, paths: set[str]) -> None:
    assert set(compared(workspace, command)) == paths


def test_a_pattern_that_finds_too_much_is_noted(workspace: Path) -> None:
    for number in range(600):
        (workspace / "secrets" / f"{number}.txt").touch()
    digests = compared(workspace, "strange secrets/*.txt")
    assert not is_known(digests["secrets/*.txt"])


TILDES = """
cat ~+/secrets/key | cat ~+//secrets/key | cat ~+/other/../secrets/key | cat ~0/secrets/key
cat ~+0/secrets/key | cat ~-0/secrets/key | cd other; cat ~-/secrets/key | cat < ~+/secrets/key
cd ~+/secrets; cat key | pushd ~+/secrets; cat key | cp ~+/secrets/key z | head ~+/s*/k*
bash -c 'cat ~+/secrets/key' | cat {~+,x}/secrets/key | env -C ~+/secrets cat key | cat -- ~+/secrets/key
git -C ~+ show HEAD:secrets/key | find ~+ -name key | grep . ~ann/secrets/key
cd ~ann && cat secrets/key | cat < {s..s}ecrets/key | echo > {s..s}ecrets/key | echo 2> secrets/{k..k}ey
cat '$PWD/key' | cat "\\$PWD/key" | cat \\$PWD/key | cat '${PWD}/key' | cat '$WORKSPACE/key'
head < '$PWD/key' | cd '$PWD' && cat key | cp '$PWD/key' z | env -C '$PWD' cat key
cat '~+/key' | cd '~+' && cat key
cat '$TMPDIR/key' | cd other && cat '../$PWD/key' | git -C '$PWD' diff --no-index key x
"""
"""Other spellings of the folder, and links whose names look like them. All are reading, or copy."""


@pytest.mark.parametrize(
    "command", [one.strip() for line in TILDES.strip().split("\n") for one in line.split(" | ")]
)
def test_tildes_quoted_variables_and_braces_do_not_pass_by_a_rule(tmp_path: Path, command: str) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "secrets/key").write_text("k")
    for name in ("$PWD", "${PWD}", "$WORKSPACE", "$TMPDIR", "~+"):
        (tmp_path / name).symlink_to("secrets")
    rule = Rule(when={"paths": ["secrets/*"]}, decision=Decision.DENY)
    facts = PathResolver(tmp_path).resolve(shell_facts(command))
    call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
    assert Policy(mode="auto", rules=[rule]).check(call, facts).decision is not Decision.ALLOW
