"""Programs that talk to others, package managers and services."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.commands import network, packages, services
from tests.policy.shell.commands.verdicts import judged, verdict

COMMANDS = (*network.COMMANDS, *packages.COMMANDS, *services.COMMANDS)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("curl https://x.example", "remote_action"),
        ("curl", "remote_action?"),
        ("curl -o a https://x.example", "local_mutation"),
        ("curl -o - https://x.example", "remote_action"),
        ("curl -O https://x.example/a", "local_mutation"),
        ("curl --url https://x.example", "remote_action"),
        ("curl -K a https://x.example", "local_mutation?"),
        ("curl $x", "local_mutation?"),
        ("curl -T a https://x.example", "remote_action"),
        ("curl -x p.example https://x.example", "remote_action"),
        ("curl -z", "remote_action?"),
        ("wget https://x.example", "local_mutation"),
        ("wget", "local_mutation?"),
        ("wget -O a https://x.example", "local_mutation"),
        ("wget -qO- https://x.example", "remote_action"),
        ("wget --spider https://x.example", "remote_action"),
        ("wget -P d https://x.example", "local_mutation"),
        ("wget -i a", "local_mutation?"),
        ("scp a h:b", "remote_action"),
        ("scp h:a b", "local_mutation"),
        ("rsync a b", "local_mutation"),
        ("rsync --delete a b", "destructive"),
        ("rsync -e ssh a h:b", "local_mutation?"),
        ("rsync $x b", "local_mutation?"),
        ("ssh h ls", "remote_action"),
        ("ssh -p 22 me@h", "remote_action"),
        ("ssh", "remote_action?"),
        ("ssh -o X=y h", "local_mutation?"),
        ("ssh -L 1:a:2 h", "remote_action"),
        ("ssh $x", "local_mutation?"),
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
    ],
)
def test_effect_and_certainty(command: str, expected: str) -> None:
    assert judged(COMMANDS, command) == expected


@pytest.mark.parametrize(
    ("command", "reads", "writes", "hosts"),
    [
        ("curl https://x.example", (), (), ("x.example",)),
        ("curl -o a https://x.example", (), ("a",), ("x.example",)),
        ("curl -o - https://x.example", (), (), ("x.example",)),
        ("curl -O https://x.example/a", (), (), ("x.example",)),
        ("curl --url https://x.example", (), (), ("x.example",)),
        ("curl -K a https://x.example", (), (), ("x.example",)),
        ("curl $x", (), (), ("$x",)),
        ("curl -T a https://x.example", ("a",), (), ("x.example",)),
        ("curl -x p.example https://x.example", (), (), ("p.example", "x.example")),
        ("wget https://x.example", (), (".",), ("x.example",)),
        ("wget", (), (".",), ()),
        ("wget -O a https://x.example", (), ("a",), ("x.example",)),
        ("wget -qO- https://x.example", (), (), ("x.example",)),
        ("wget --spider https://x.example", (), (), ("x.example",)),
        ("wget -P d https://x.example", (), ("d", "d"), ("x.example",)),
        ("wget -i a", (), (".",), ()),
        ("scp a h:b", ("a",), (), ("h",)),
        ("scp h:a b", (), ("b",), ("h",)),
        ("rsync a b", ("a",), ("b",), ()),
        ("rsync --delete a b", ("a",), ("b",), ()),
        ("rsync -e ssh a h:b", ("a",), (), ("h",)),
        ("rsync $x b", ("$x",), ("b",), ()),
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
    ],
)
def test_paths_and_hosts(
    command: str, reads: tuple[str, ...], writes: tuple[str, ...], hosts: tuple[str, ...]
) -> None:
    found = verdict(COMMANDS, command)
    assert (found.reads, found.writes, found.hosts) == (reads, writes, hosts)
