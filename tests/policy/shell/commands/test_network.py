"""Programs that talk to others, package managers and services."""

from __future__ import annotations

import os
import shlex
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from aisotools.policy.shell.commands import network, packages, services
from tests.policy.shell.commands.verdicts import PathsAndHosts, verdict, wrong_effects, wrong_paths_and_hosts
from tests.waiting import HANG_S

COMMANDS = (*network.COMMANDS, *packages.COMMANDS, *services.COMMANDS)


EFFECTS = [
    ("curl https://x.example", "remote_action"),
    ("curl", "remote_action?"),
    ("curl -o a https://x.example", "local_mutation"),
    ("curl -o - https://x.example", "remote_action"),
    ("curl -O https://x.example/a", "local_mutation"),
    ("curl -OJ https://x.example/a", "local_mutation?"),
    ("curl --url https://x.example", "remote_action"),
    ("curl -K a https://x.example", "local_mutation?"),
    ("curl $x", "local_mutation?"),
    ("curl -T a https://x.example", "remote_action"),
    ("curl -x p.example https://x.example", "remote_action"),
    ("curl -w @a https://x.example", "local_mutation?"),
    ('curl -w "$x" https://x.example', "local_mutation?"),
    ("curl -w '%{url}' https://x.example", "remote_action"),
    ("curl --url @a", "local_mutation?"),
    ("curl --connect-to $x https://x.example", "local_mutation?"),
    ("curl -O 'https://x.example/[1-100000]'", "local_mutation?"),
    ("curl 'file:///[a'", "local_mutation?"),
    ("curl 'https://x.example/?a[]=1'", "remote_action"),
    ("curl -z", "remote_action?"),
    ("ssh h ls", "remote_action"),
    ("ssh -p 22 me@h", "remote_action"),
    ("ssh", "remote_action?"),
    ("ssh -o X=y h", "local_mutation?"),
    ("ssh -L 1:a:2 h", "remote_action"),
    ("ssh $x", "local_mutation?"),
    ("ssh -L /a:h:1 h", "local_mutation?"),
    ("ssh -R 1:/a h", "local_mutation?"),
    ("ssh -D 1080 h", "remote_action"),
    ("ssh -S none h", "remote_action"),
    ("ping h", "remote_action"),
    ("ping -c 1 h", "remote_action"),
    ("dig @s h", "remote_action"),
    ("ping", "remote_action?"),
    ("ping $x", "remote_action?"),
    ("dig a b c", "remote_action"),
    ("nc h 80", "remote_action"),
    ("nc -e sh h 80", "local_mutation?"),
    ("nc -l", "remote_action?"),
    ("nc --exec x h", "local_mutation?"),
    ("nc", "remote_action?"),
    ("kubectl get pods", "remote_action?"),
    ("docker ps", "read_only"),
    ("docker run x", "remote_action?"),
    ("docker --context x ps", "remote_action?"),
    ("docker", "remote_action?"),
    ("docker $x", "remote_action?"),
    ("docker logs --tail 5 x", "read_only"),
    ("docker ps --host=x", "local_mutation?"),
    ("dpkg -l", "read_only"),
    ("dpkg -i a", "local_mutation?"),
    ("rpm -q a", "read_only"),
    ("rpm -i a", "local_mutation?"),
    ("rpm --eval x -q", "local_mutation?"),
    ("pip list", "read_only"),
    ("pip list --outdated", "remote_action"),
    ("pip install a", "local_mutation?"),
    ("pip", "local_mutation?"),
    ("pip $x", "local_mutation?"),
    ("pip list --log=f", "local_mutation?"),
    ("npm ls", "read_only"),
    ("npm install", "local_mutation?"),
    ("apt list", "read_only"),
    ("apt -o x list", "local_mutation?"),
    ("systemctl", "read_only"),
    ("systemctl status a", "read_only"),
    ("systemctl -H h status", "local_mutation?"),
    ("systemctl stop a", "local_mutation?"),
    ("timedatectl", "read_only"),
    ("timedatectl set-time 1", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("curl https://x.example", (), (), ("x.example",)),
    ("curl -o a https://x.example", (), ("a",), ("x.example",)),
    ("curl -o - https://x.example", (), (), ("x.example",)),
    ("curl -O https://x.example/a", (), ("a",), ("x.example",)),
    ("curl -O https://x.example/a?b=/c", (), ("a",), ("x.example",)),
    ("curl -O https://x.example", (), ("curl_response",), ("x.example",)),
    ("curl -O 'https://x.example/[1-2].txt'", (), ("1.txt", "2.txt"), ("x.example",)),
    ("curl -gO 'https://x.example/[1-2].txt'", (), ("[1-2].txt",), ("x.example",)),
    ("curl -OJ https://x.example/a", (), (".",), ("x.example",)),
    ("curl --output-dir d -O https://x.example/a", (), ("d", "d/a"), ("x.example",)),
    ("curl --output-dir d -o a https://x.example", (), ("d", "d/a"), ("x.example",)),
    ("curl -o '#1/a' 'https://x.example/{b,c}'", (), ("b/a", "c/a"), ("x.example",)),
    ("curl -o '#2#1#3' 'https://x.example/{b}[08-09]'", (), ("08b#3", "09b#3"), ("x.example",)),
    ("curl -o '#1' https://x.example/a", (), ("#1",), ("x.example",)),
    ("curl -w '%{http_code}%%output{a}' https://x.example", (), (), ("x.example",)),
    ("curl -w 'a%output{b}c%output{>>d}' https://x.example", (), ("b", "d"), ("x.example",)),
    ("curl --connect-to ::y.example: https://x.example", (), (), ("y.example", "x.example")),
    ("curl --resolve x.example:443:1.2.3.4,5.6.7.8 x.example", (), (), ("1.2.3.4", "5.6.7.8", "x.example")),
    ("curl 'https://{x,y}.example'", (), (), ("x.example", "y.example")),
    ("curl 'http://[::1]:80/'", (), (), ("[::1]",)),
    ("curl -T '{a,b}' https://x.example", ("a", "b"), (), ("x.example",)),
    ("curl -gT '{a,b}' https://x.example", ("{a,b}",), (), ("x.example",)),
    ("curl -T a file:///b/", ("/b/", "a"), ("/b/", "/b/a"), ()),
    (r"curl 'file:///\{a\}'", ("/{a}",), (), ()),
    (r"curl 'file://{localhost}/\{a\}'", ("/{a}",), (), ()),
    (r"curl -E 'a\:b:c' https://x.example", ("a:b", r"a\:b:c"), (), ("x.example",)),
    ("curl -F 'a=b;headers=@c' https://x.example", ("c",), (), ("x.example",)),
    ("curl -F 'a=b;filename=c' https://x.example", (), (), ("x.example",)),
    ("curl --url https://x.example", (), (), ("x.example",)),
    ("curl -K a https://x.example", (), (), ("x.example",)),
    ("curl $x", (), (), ("$x",)),
    ("curl -T a https://x.example", ("a",), (), ("x.example",)),
    ("curl -x p.example https://x.example", (), (), ("p.example", "x.example")),
    ("ssh -S c h", (), ("c",), ("h",)),
    ("ssh h ls", (), (), ("h",)),
    ("ssh -p 22 me@h", (), (), ("h",)),
    ("ssh -o X=y h", (), (), ("h",)),
    ("ssh -L 1:a:2 h", (), (), ("h",)),
    ("ssh $x", (), (), ("$x",)),
    ("ping h", (), (), ("h",)),
    ("ping -c 1 h", (), (), ("1", "h")),
    ("dig @s h", (), (), ("s", "h")),
    ("ping $x", (), (), ("an unknown host",)),
    ("dig a b c", (), (), ("a", "b")),
    ("nc h 80", (), (), ("h",)),
    ("nc -e sh h 80", (), (), ("sh",)),
    ("nc --exec x h", (), (), ("x",)),
]
"""Each command with what it reads, writes and talks to."""


_URLS = r"""
{a,b} [a-c] [1-3] [01-03] [1-9:4] [a-e:2] x{1,}y {a,b}[1-2] \{a\} \[1\] %61 %7Ba%7D a?b a#b [3-1] [a-] [1]
{a a} {a{b}} {} {a,{b,c}} [c-a] [A-c] [a-C] {a,b}{1,2} a%2fb ./a d/../a d//a [1-3:0] [1-3:9] [:a-c] [a-c \a a\
{%61,b} [001-3] [9-11] {a,b a,b [-1-3] [+1-3] {a\,b} {\{a\}}
[a-b]{1,2} {[a-b],c} \{a a\} [0x1-3] [1-3]{ %5b1%5d {,a} {a\,b,c} {a\}
{a\\,b} {\,} {b,a\} {a,,b}
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("has_sets", [True, False])
def test_files_that_curl_reads_are_those_in_the_verdict(tmp_path: Path, has_sets: bool) -> None:
    """Each file has its own name as its content, so that what curl prints says what it has read."""
    (tmp_path / "d").mkdir()
    names = [*string.ascii_letters.replace("d", ""), *map(str, range(12))]
    names += ["01", "02", "03", "001", "002", "003", "x1y", "xy", "a1", "a2", "b1", "b2"]
    names += ["{a}", "[1]", "a?b", "a#b", "%61", "a,b", r"\a", "a\\", "[a-]", "a}"]
    for name in names:
        (tmp_path / name).write_text(f"{name}\n")
    for url in _URLS.split():
        words = ["curl", *([] if has_sets else ["-g"]), f"file://{tmp_path}/{url}"]
        run = subprocess.run(words, capture_output=True, check=False, timeout=HANG_S)
        printed = run.stdout.decode()
        found = verdict(COMMANDS, shlex.join(words))
        paths = {os.path.normpath(path) for path in found.reads}
        missing = [name for name in printed.splitlines() if f"{tmp_path}/{name}" not in paths]
        assert not missing or not found.certain, f"{url}: curl read {missing}"


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}
