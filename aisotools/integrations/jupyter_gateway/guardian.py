"""A process beside this one that ends remote kernels when this one dies without having ended them.

Threat
    The host is killed or crashes. Its kernels at a gateway go on, with whatever they run, until somebody
    finds them: no server ends a kernel because nobody is connected to it.
Mechanism
    This file is also the program of a small process, which is told of each kernel and of each that has ended.
    When the host is gone, which its pipe and its number as a parent say, it asks the gateway to end the rest,
    again and again for most of a minute. It needs nothing of the host: a host whose event loop stands still
    keeps its kernels.
Race window
    A kernel of which the server has not yet told the host when that dies.
When it fails
    Kernels go on if the whole machine dies, if the guardian is killed as well, or if the gateway cannot be
    reached in that minute. The server's own settings for idle kernels are for these.
"""

from __future__ import annotations

import json
import os
import select
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

_POLL_S = 1.0
_GIVE_UP_S = 50.0
"""After the end of the host. A kernel has ended within a minute, or its gateway cannot be reached."""
_RETRY_S = 2.0
_REQUEST_S = 10.0
_END_S = 5.0


class KernelGuardian:
    """The host's end. Thread-safe; the process lives while there is a kernel to watch over."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._kernels: set[str] = set()
        # Fork: a child does not own the kernels, and must not let the guardian of its parent end.
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        return f"<KernelGuardian of {len(self._kernels)} kernels>"

    @property
    def pid(self) -> int:
        """The process; 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    def watch(self, url: str, headers: Mapping[str, str], ca_certs: str | None = None) -> None:
        """End a kernel when this process is gone.

        Args:
            url: The kernel at its gateway's API.
            headers: Headers of the request that ends it. They are kept in memory and seen in no list.
            ca_certs: File of additional certificates to trust.

        Raises:
            OSError: If the process cannot be started or told.
        """
        with self._lock:
            self._kernels.add(url)
            self._tell({"watch": url, "headers": dict(headers), "ca_certs": ca_certs})

    def release(self, url: str) -> None:
        """Watch no more over a kernel, which has ended. Unknown ones are ignored."""
        with self._lock:
            if url not in self._kernels:
                return
            self._kernels.discard(url)
            self._tell({"release": url})
            if not self._kernels:
                process, self._process = self._process, None
                assert process is not None
                _end(process)

    def _tell(self, order: Mapping[str, Any]) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                # Isolated: neither the current folder nor a variable says where it finds its modules.
                [sys.executable, "-I", "-S", __file__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Ctrl-C in a terminal ends the host's whole group.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _forget(self) -> None:
        # After fork: the lock may have been held by another thread.
        self._lock = threading.Lock()
        self._kernels.clear()
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            os.close(process.stdin.fileno())
            process.stdin = None
            process.returncode = 0  # it is not a child of this one: nothing is to be waited for


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a guardian that has nothing to watch over: without its pipe it ends by itself."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(_END_S)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()  # it has nothing left to do
        process.wait()


GUARDIAN = KernelGuardian()
"""The guardian of this process."""


# ---- the process


def main(host: int) -> None:
    """Watch over kernels until the process `host`, which has started this one, is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders: dict[str, dict[str, Any]] = {}
    rest = b""
    while True:
        # Race: another child of the host may hold the pipe open, which then has no end. Who the parent is
        # tells the same; but what the host has said before its end is read first.
        is_orphan = os.getppid() != host
        if not select.select([0], [], [], 0 if is_orphan else _POLL_S)[0]:
            if is_orphan:
                break
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for order in map(json.loads, lines):
            if "watch" in order:
                orders[order["watch"]] = order
            else:
                orders.pop(order["release"], None)
    deadline_s = time.monotonic() + _GIVE_UP_S
    while orders and time.monotonic() < deadline_s:
        orders = {url: order for url, order in orders.items() if not end_kernel(order)}
        if orders:
            time.sleep(_RETRY_S)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead the token elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """Return nothing."""


def end_kernel(order: Mapping[str, Any]) -> bool:
    """End a kernel. Return whether there is nothing left to do: it has ended, or the gateway refuses."""
    url: str = order["watch"]
    if not url.startswith(("http://", "https://")):
        return True
    request = urllib.request.Request(url, headers=order["headers"], method="DELETE")  # noqa: S310 - see above
    context = ssl.create_default_context()
    if order["ca_certs"]:
        context.load_verify_locations(order["ca_certs"])
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect
    )
    try:
        opener.open(request, timeout=_REQUEST_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]))
