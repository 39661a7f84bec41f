"""Settings of git: which are harmless, which are not, and that judging them takes a time that is linear."""

from __future__ import annotations

import pytest

from aisotools.workspace import git_config
from aisotools.workspace.git_config import (
    MAX_CONFIG_BYTES,
    MAX_CONFIG_LINES,
    is_harmless_config,
    is_harmless_sequencer_options,
    is_harmless_strategy,
    is_harmless_strategy_options,
    is_harmless_todo,
    is_plain_address,
)
from tests.work import lines_run

ORDINARY = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
# a comment with [brackets] and a \\ backslash
[user]
\tname = O'Neil "the one"; or not
\temail = me@example.org
[remote "origin"]
\turl = git@example.org:me/thing.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "feature/a.b"]
\tremote = origin
\tmerge = refs/heads/feature/a.b
[pull]
\trebase = true
"""
OWN = b"[alias]\n\tst = !mine\n[credential]\n\thelper = mine\n"

SENSITIVE = {
    "an alias": b"[alias]\n\tst = status\n",
    "an include": b"[include]\n\tpath = x\n",
    "an include on a condition": b'[includeIf "gitdir:."]\n\tpath = x\n',
    "a monitor": b"[core]\n\tfsmonitor = x\n",
    "in capital letters": b"[CORE]\n\tFSMONITOR = x\n",
    "hooks": b"[core]\n\thooksPath = x\n",
    "a worktree": b"[core]\n\tworktree = /srv\n",
    "attributes": b"[core]\n\tattributesFile = x\n",
    "protections off": b"[core]\n\tprotectNTFS = false\n",
    "a filter": b'[filter "x"]\n\tsmudge = x\n',
    "a merge driver": b'[merge "x"]\n\tdriver = x\n',
    "external differences": b"[diff]\n\texternal = x\n",
    "converted differences": b'[diff "x"]\n\ttextconv = x\n',
    "a pager of a command": b"[pager]\n\tlog = x\n",
    "a filter of differences": b"[interactive]\n\tdiffFilter = x\n",
    "a helper of credentials": b"[credential]\n\thelper = x\n",
    "a proxy": b"[http]\n\tproxy = x\n",
    "a rewritten address": b'[url "x"]\n\tinsteadOf = y\n',
    "a protocol": b'[protocol "ext"]\n\tallow = always\n',
    "a remote by program": b'[remote "o"]\n\turl = ext::x\n',
    "a remote by another program": b'[remote "o"]\n\tpushurl = foo::x\n',
    "a remote by an option": b'[remote "o"]\n\turl = --upload-pack=x\n',
    "a remote by an option of ssh": b'[remote "o"]\n\turl = ssh://-oProxyCommand=x/y\n',
    "a remote by an option behind a user": b'[remote "o"]\n\turl = ssh://a@-oProxyCommand=x/y\n',
    "a remote by an escaped option": b'[remote "o"]\n\turl = ssh://a@%2doProxyCommand=x/y\n',
    "a remote by vcs": b'[remote "o"]\n\tvcs = x\n',
    "a program of a remote": b'[remote "o"]\n\tuploadpack = x\n',
    "a branch by program": b'[branch "m"]\n\tremote = ext::x\n',
    "options of a merge": b'[branch "m"]\n\tmergeOptions = --strategy=x\n',
    "an update of a submodule": b'[submodule "m"]\n\tupdate = !x\n',
    "a submodule by program": b'[submodule "m"]\n\turl = ext::x\n',
    "a signing program": b"[gpg]\n\tprogram = x\n",
    "signing": b"[commit]\n\tgpgSign = true\n",
    "an editor": b"[core]\n\teditor = x\n",
    "a browser": b'[browser "x"]\n\tpath = x\n',
    "an archiver": b'[tar "x"]\n\tcommand = x\n',
    "a partial clone": b"[extensions]\n\tpartialClone = o\n",
    "a hook after maintenance": b"[gc]\n\trecentObjectsHook = x\n",
    "another comment sign": b"[core]\n\tcommentChar = x\n",
    "a setting of tomorrow": b"[core]\n\tfrobnicate = x\n",
    "a section of tomorrow": b"[frob]\n\tx = y\n",
    "in the line of the section": b"[core] bare = false\n",
    "a byte order mark": b"\xef\xbb\xbf[core]\n\tbare = false\n",
    "a section with a dot": b"[branch.m]\n\tmerge = x\n",
    "a setting without a section": b"bare = false\n",
    "a line that goes on": b"[core]\n\tbare = fal\\\nse\n",
    "an escape": b'[user]\n\tname = "a\\nb"\n',
    "a carriage return": b"[user]\n\tname = a\rb\n",
    "a zero": b"[user]\n\tname = a\0b\n",
    "a section in a value": b"[core]\n\tbare = false [alias]\n",
    "a quote in a section": b'[remote "a\\"]\n\turl = x\n',
}


def test_ordinary_settings_are_harmless() -> None:
    assert is_harmless_config(ORDINARY)
    assert is_harmless_config(ORDINARY.replace(b"\n", b"\r\n"))
    assert is_harmless_config(b"")


@pytest.mark.parametrize("text", SENSITIVE.values(), ids=SENSITIVE)
def test_unknown_settings_of_git_count_as_code(text: bytes) -> None:
    assert not is_harmless_config(text)
    assert not is_harmless_config(ORDINARY + text)
    assert not is_harmless_config(text + ORDINARY)


@pytest.mark.parametrize("text", SENSITIVE.values(), ids=SENSITIVE)
def test_a_persons_own_settings_excuse_no_others(text: bytes) -> None:
    assert not is_harmless_config(OWN + text, OWN)


def test_a_persons_own_settings_may_stay_as_they_are() -> None:
    assert is_harmless_config(OWN + ORDINARY, OWN)
    assert is_harmless_config(ORDINARY + OWN, OWN)
    assert not is_harmless_config(OWN)
    assert not is_harmless_config(OWN.replace(b"mine", b"other"), OWN)
    assert not is_harmless_config(OWN[: OWN.index(b"[cred")], OWN), "removing one may expose another"
    assert not is_harmless_config(b"[credential]\n\thelper = mine\n[alias]\n\tst = !mine\n", OWN)
    assert not is_harmless_config(b"\xef\xbb\xbf" + OWN, b"\xef\xbb\xbf" + OWN), "not understood"


def test_a_git_config_that_cannot_be_read_whole_counts_as_code() -> None:
    assert not is_harmless_config(None)
    assert is_harmless_config(b"#" * MAX_CONFIG_BYTES)
    assert not is_harmless_config(b"#" * (MAX_CONFIG_BYTES + 1))
    assert is_harmless_config(b"\n" * MAX_CONFIG_LINES)
    assert not is_harmless_config(b"\n" * (MAX_CONFIG_LINES + 1))


def test_addresses() -> None:
    plain = (
        b"https://example.org/a.git ssh://me@example.org:22/a me@host:a/b host:a ../a file:///srv/a origin ."
    )
    for address in (*plain.split(), b"/srv/a b"):
        assert is_plain_address(address), address
    others = b'ext::sh -x a::b "a ssh://-x/ http://-x ftp://x host:-x'
    for address in (*others.split(), b"", b"ext::sh -c x"):
        assert not is_plain_address(address), address


def test_harmless_todo_lists_of_a_rebase() -> None:
    assert is_harmless_todo(b"pick 1234 one\nfixup 12 two\n# exec is only named here\nbreak\n\nlabel onto\n")
    for line in (b"exec x", b"x x", b"\texec x", b"EXEC x", b"pick 12\nexec x", b"pick 12 \\\nx", b"frob x"):
        assert not is_harmless_todo(line), line
    assert not is_harmless_todo(None)


def test_only_strategies_of_git_itself_are_harmless() -> None:
    for name in (b"ort", b"recursive\n", b"octopus", b"ours"):
        assert is_harmless_strategy(name), name
    for other in (None, b"", b"x/evil", b"ort x/evil", b"ort\nx/evil", b"../ort", b"ORT"):
        assert not is_harmless_strategy(other), other
    assert is_harmless_strategy_options(b" '--ours' '--find-renames=50%'\n")
    for options in (None, b"--x=$(x)", b"../x", b"--x;x", b"--x\0", b"-" * (MAX_CONFIG_BYTES + 1)):
        assert not is_harmless_strategy_options(options)


def test_options_of_a_series_of_commits() -> None:
    plain = b"[options]\n\tsignoff = true\n\tstrategy = ort\n\tstrategy-option = find-renames=50%\n"
    assert is_harmless_sequencer_options(plain)
    for line in (b"strategy = x/evil", b"strategy", b"frob = 1", b"strategy-option = x/y", b"[alias]\nx = y"):
        assert not is_harmless_sequencer_options(plain + line + b"\n"), line
    assert not is_harmless_sequencer_options(None)


HOSTILE = {
    "new lines": b"\n" * MAX_CONFIG_BYTES,
    "blanks": b" " * MAX_CONFIG_BYTES,
    "blanks and new lines": b" \t\n" * (MAX_CONFIG_BYTES // 3),
    "sections": b"[a]\n" * (MAX_CONFIG_BYTES // 4),
    "brackets": b"[" * MAX_CONFIG_BYTES,
    "a long key": b"[a]\n" + b"a" * (MAX_CONFIG_BYTES - 4),
    "a key and blanks": b"[a]\na" + b" \t" * (MAX_CONFIG_BYTES // 2 - 3),
    "a long section": b'[a "' + b"a" * (MAX_CONFIG_BYTES - 4),
    "an address of colons": b'[remote "a"]\nurl=' + b"a:" * 32_000,
    "an address of dots": b'[remote "a"]\nurl=' + b"a.@" * 20_000,
    "settings": b"[a]\n" + b"a=b\n" * (MAX_CONFIG_BYTES // 4 - 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_work_grows_with_the_number_of_lines_alone(text: bytes) -> None:
    work = lines_run(
        lambda: (is_harmless_config(text, text), is_harmless_todo(text)), below=git_config.__file__
    )
    assert work <= 4 * text.count(b"\n") + 100


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_matches_of_a_line_end_on_lines_of_any_size(text: bytes) -> None:
    """Each is 64 times as long as it may be; in a time that grows with the square it would not end."""
    line = max(text.split(b"\n"), key=len) * 64
    for match in (git_config._SECTION.fullmatch, git_config._KEY.fullmatch, git_config._CONTROL.search):
        match(line)
    for value in (line, line.partition(b"=")[2]):
        git_config._WORD(value)
        git_config._REFS(value)
        git_config._NETWORK_ADDRESS(value)
        git_config._SSH_ADDRESS(value)
        git_config._FOLDER(value)
        is_plain_address(value)
