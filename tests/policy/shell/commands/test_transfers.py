"""Programs that copy files from and to other machines: what they write and read here."""

from __future__ import annotations

import http.server
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.policy.shell.commands import transfers
from tests.policy.shell.commands.verdicts import PathsAndHosts, verdict, wrong_effects, wrong_paths_and_hosts
from tests.waiting import HANG_S

COMMANDS = transfers.COMMANDS

EFFECTS = [
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
    ("rsync -F a b", "local_mutation?"),
    ("rsync -avn a b", "read_only"),
    ("rsync --dry-run --delete -T c a b", "read_only"),
    ("rsync -n --log-file=c a b", "local_mutation"),
    ("rsync -n -e ./x a b", "local_mutation?"),
    ("rsync -n --rsync-path ./x a b", "local_mutation?"),
    ("rsync -n $x b", "local_mutation?"),
    ("rsync -f ': c' a b", "local_mutation?"),
    ("rsync -f $x a b", "local_mutation?"),
    ("rsync -f '+ c' a b", "local_mutation"),
    ("wget -i a -P d", "local_mutation?"),
    ("wget -r https://x.example", "local_mutation?"),
    ("wget -nd -nv https://x.example/a", "local_mutation"),
    ("wget -b https://x.example/a", "local_mutation?"),
    ("wget --content-disposition https://x.example/a", "local_mutation?"),
    ("wget https://x.example/$x", "local_mutation?"),
    ("wget 'ftp://x.example/*.gz'", "local_mutation?"),
    ("wget https://x.example/%2e%2e", "local_mutation?"),
    ("scp 'h:*.csv' .", "local_mutation?"),
    ("scp h: .", "local_mutation?"),
    ("scp h:.. .", "local_mutation?"),
    ("scp h:a h2:b", "remote_action"),
    ("scp", "remote_action"),
    ("sftp h", "remote_action?"),
    ("sftp h:a", "local_mutation?"),
    ("ftp -o '|sh' ftp://x.example/a", "local_mutation?"),
    ("aria2c https://x.example/a", "local_mutation?"),
    ("http x.example", "remote_action?"),
    ("rclone move a x:b", "destructive?"),
    ("rclone sync x:a b", "destructive?"),
    ("rclone lsd x:", "remote_action?"),
    ("gsutil rsync gs://x a", "destructive?"),
    ("aws s3 mv a s3://x/b", "destructive?"),
    ("aws s3 ls", "remote_action?"),
    ("aws configure list", "read_only"),
    ("gcloud storage cp gs://x/a .", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("wget -O a https://x.example", (), ("a",), ("x.example",)),
    ("wget -qO- https://x.example", (), (), ("x.example",)),
    ("wget --spider https://x.example", (), (), ("x.example",)),
    ("scp a h:b", ("a",), (), ("h",)),
    ("scp h:a b", (), ("b",), ("h",)),
    ("rsync a b", ("a",), ("b",), ()),
    ("rsync --delete a b", ("a",), ("b",), ()),
    ("rsync -e ssh a h:b", ("a",), (), ("h",)),
    ("rsync $x b", ("$x",), ("b",), ()),
    ("rsync -aP a b", ("a",), ("b",), ()),
    ("rsync -T c a b", ("a",), ("c", "b"), ()),
    ("rsync -n a b", ("a", "b"), (), ()),
    ("rsync -n -f '. c' a b", ("c", "a", "b"), (), ()),
    ("rsync -n a h:b", ("a",), (), ("h",)),
    ("rsync -f '. c' a b", ("c", "a"), ("b",), ()),
    ("rsync -f 'merge,-n c' a b", ("c", "a"), ("b",), ()),
    ("rsync -f '- *.o' a b", ("a",), ("b",), ()),
    ("wget https://x.example", (), ("index.html", "index.html.1"), ("x.example",)),
    ("wget https://x.example/d/a.txt", (), ("a.txt", "a.txt.1"), ("x.example",)),
    ("wget -c https://x.example/a", (), ("a",), ("x.example",)),
    ("wget -nc https://x.example/a", (), ("a",), ("x.example",)),
    ("wget -N x.example/a", (), ("a",), ("x.example",)),
    ("wget 'https://x.example/a?b=1#c'", (), ("a?b=1", "a?b=1.1"), ("x.example",)),
    ("wget -q -P d https://x.example/a", (), ("d/a", "d/a.1"), ("x.example",)),
    ("wget -P $x https://x.example/a", (), ("$x/a", "$x/a.1"), ("x.example",)),
    ("wget https://x.example/$x", (), (".",), ("x.example",)),
    ("wget -r -P d https://x.example", (), ("d",), ("x.example",)),
    ("wget --default-page=i https://x.example/d/", (), ("i", "i.1"), ("x.example",)),
    ("wget -b -O a https://x.example", (), ("a", "wget-log"), ("x.example",)),
    ("wget -i a -P d", ("a",), ("d",), ()),
    ("wget --save-cookies c -O a https://x.example", (), ("c", "a"), ("x.example",)),
    ("wget", (), (".",), ()),
    ("scp h:d/a .", (), ("./a",), ("h",)),
    ("scp -r h:d/a e/", (), ("e/a",), ("h",)),
    ("scp h:a h:b e", (), ("e/a", "e/b"), ("h", "h")),
    ("scp h:a b e", ("b",), ("e/a", "e/b"), ("h",)),
    ("scp scp://me@h:22/a .", (), ("./a",), ("h",)),
    ("scp 'h:*.csv' d/", (), ("d/",), ("h",)),
    ("scp a b", ("a",), ("b",), ()),
    ("sftp me@h:d/a", (), ("./a",), ("h",)),
    ("sftp h:a b", (), ("b",), ("h",)),
    ("sftp sftp://h/d/a e/", (), ("e/a",), ("h",)),
    ("sftp h:d/", (), (), ("h",)),
    ("sftp -b c h", ("c",), (), ("h",)),
    ("ftp -o a https://x.example/b", (), ("a",), ("x.example",)),
    ("ftp ftp://x.example/d/b", (), ("b",), ("x.example",)),
    ("ftp x.example", (), (), ("x.example",)),
    ("aria2c -x 5 -d d -o a https://x.example/b", (), ("d/a",), ("x.example",)),
    ("aria2c -d d https://x.example/b", (), ("d/b", "d"), ("x.example",)),
    ("axel -o a https://x.example/b", (), ("a",), ("x.example",)),
    ("axel https://x.example/b", (), ("b", "."), ("x.example",)),
    ("http -o a https://x.example", (), ("a",), ("x.example",)),
    ("http -d https://x.example/b", (), ("b", "."), ("x.example",)),
    (
        "http POST x.example f@a g=@b h:=@c i==@d J:@e @k x=y",
        ("a", "b", "c", "d", "e", "k"),
        (),
        ("x.example",),
    ),
    ("http :8000/a", (), (), ("localhost",)),
    ("rclone copy x:d/a e", (), ("e", "e/a"), ("x",)),
    ("rclone copyto x:a b", (), ("b",), ("x",)),
    ("rclone copy a x:d", ("a",), (), ("x",)),
    ("rclone moveto a x:b", ("a",), ("a",), ("x",)),
    ("rclone sync x:d e", (), ("e",), ("x",)),
    ("rclone copy a b", ("a",), ("b", "b/a"), ()),
    ("gsutil -m cp gs://x/d/a .", (), ("./a",), ("x",)),
    ("gsutil cp -r gs://x/d e", (), ("e",), ("x",)),
    ("gsutil cp 'gs://x/*' e/", (), ("e/",), ("x",)),
    ("aws s3 cp s3://x/d/a b", (), ("b",), ("x",)),
    ("aws s3 cp s3://x/d/a .", (), ("./a",), ("x",)),
    ("aws s3 cp a s3://x/b", ("a",), (), ("x",)),
    ("aws s3 cp s3://x/a -", (), (), ("x",)),
    ("aws s3 sync s3://x d", (), ("d",), ("x",)),
    ("gcloud storage cp gs://x/a d/", (), ("d/a",), ("x",)),
    ("s3cmd get s3://x/d/a", (), ("./a",), ("x",)),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a server that has a file of any name."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


_URLS = r"""
a a/ a/b.txt x?y=1&z=2 a%20b a%2Fb %2e%2e a/.. a/../b a#f a;b a+b a%41 a~b a'b a:b a*b a%C3%A4 a?b/c x? ?q
a//b a// %7Ea a%3Fb a%25b a\b a%0Ab . .hid -x a?x=%2F..%2Fb a?x=a%20b a|b a<b> a"b a!b(c)$d a[1]{b} ..%2fb
a%5Cb a%7Fb a%252Fb %2E/b .%2e a?.. a?../b a?%2e%2e%2fb a%3fb?c a#b?c a?b#c a;p=1?q a&b a%26b a,b=c@d %
a% a%4 a%zz %41%42 d/%2e%2e/e //a ///
"""
_OPTIONS = ("", "-q", "-P d", "-nc", "-nd -nv", "-c", "-N", "-x", "-E", "-nH", "--default-page=i")


@pytest.mark.sample(5)
@pytest.mark.skipif(shutil.which("wget") is None, reason="needs wget")
@pytest.mark.parametrize("options", _OPTIONS)
def test_files_that_wget_saves_are_those_in_the_verdict(tmp_path: Path, address: str, options: str) -> None:
    """Each URL twice: the second time there is such a file already."""
    named = 0
    urls = _URLS.split()
    for number, url in enumerate(urls if options in {"", "-P d"} else urls[:12]):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = f"wget {options} {shlex.quote(f'http://{address}/{url}')}"
        found = verdict(COMMANDS, command)
        for _ in range(2):
            subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                capture_output=True,
                check=False,
                timeout=HANG_S,
                env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            )
        saved = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert saved <= {*found.writes} or not found.certain, f"{command}: saved {saved}"
        named += found.certain
    assert named > 0 or options in {"-x", "-E"}
