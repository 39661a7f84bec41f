"""The tutorials as on Binder: its files alone, an unprivileged user, a container's filter, 1 GB of memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tutorials import TUTORIALS, copy_tutorials

ROOT = Path(__file__).parents[2]
UID = 2003
MEMORY_BYTES = 1 << 30

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN = """
import os, sys, threading, time
import nbformat, psutil
from nbclient import NotebookClient

path, started, first, peak = sys.argv[1], time.monotonic(), [], 0
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.25):
        total = 0
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                pass
        peak = max(peak, total)

me = psutil.Process()
threading.Thread(target=watch, daemon=True).start()
notebook = nbformat.read(path, 4)
ended = lambda **_: first.append(time.monotonic() - started)
client = NotebookClient(notebook, timeout=240, on_cell_executed=ended)
manager = client.create_kernel_manager()
if manager.has_trait("transport_encryption"):
    manager.transport_encryption = "auto"
client.execute()
done.set()
print(f"{os.path.basename(path):32} first result {first[0]:5.1f} s, all {time.monotonic() - started:5.1f} s, "
      f"peak {peak >> 20} MiB")
assert peak < int(sys.argv[2]), f"more than {sys.argv[2]} bytes of memory"
"""


@pytest.fixture(scope="module")
def binder() -> Iterator[Path]:
    """An environment made of Binder's files alone, and the tutorials beside it, where any user can read."""
    folder = Path(tempfile.mkdtemp(prefix="aisotools-binder-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        copied = folder / "repository"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".*", "workspace", "dist", "build"))
        environment = os.environ.get("AISOTOOLS_BINDER_ENV")
        if environment is None:
            environment = str(folder / "env")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
            pip = ["python3", "-m", "pip", "--python", f"{environment}/bin/python", "install", "-q"]
            subprocess.run([*pip, "-r", "binder/requirements.txt"], cwd=copied, check=True)
            subprocess.run([*pip, "--no-deps", "."], cwd=copied, check=True)
        (folder / "python").symlink_to(f"{environment}/bin/python")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("landlock", [True, False], ids=["landlock", "none"])
def test_every_tutorial_runs(binder: Path, landlock: bool, capsys: pytest.CaptureFixture[str]) -> None:
    home = Path(tempfile.mkdtemp(prefix="home-", dir=binder))
    copy_tutorials(home / "notebooks")
    (home / "run.py").write_text(RUN)
    if os.getuid() == 0:
        for path in (home, *home.rglob("*")):
            os.chown(path, UID, UID)
    simulate = [sys.executable, str(ROOT / "tests" / "sandbox" / "simulate.py"), "--uid", str(UID)]
    if not landlock:
        simulate.append("--no-landlock")
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "IPYTHONDIR": str(home / "ipython")}
    start = str(binder / "repository" / "binder" / "start")
    failed = []
    for tutorial in TUTORIALS:
        python = str((binder / "python").readlink())
        command = [*simulate, "--", start, python, "-W", "ignore", str(home / "run.py"), tutorial.name]
        done = subprocess.run(
            [*command, str(MEMORY_BYTES)],
            cwd=home / "notebooks",
            env=env,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        with capsys.disabled():
            print(f"\n{'Landlock' if landlock else 'nothing'}: {done.stdout.strip() or 'failed'}", end="")
        if done.returncode:
            failed.append(f"{tutorial.name}\n{done.stderr[-3000:]}")
    assert not failed, "\n\n".join(failed)


def test_repo2docker_finds_the_files(tmp_path: Path) -> None:
    """What it would build: from our requirements, with our scripts, and not from pyproject.toml."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = ["python3", "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "-q"]
    subprocess.run([*pip, "jupyter-repo2docker==2026.4.0"], check=True)
    copied = tmp_path / "repository"
    shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".*", "workspace", "dist", "build"))
    command = [str(environment / "bin" / "jupyter-repo2docker"), "--no-build", "--debug", str(copied)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    dockerfile = done.stdout + done.stderr
    assert "binder/requirements.txt" in dockerfile
    assert "binder/postBuild" in dockerfile
    assert "binder/start" in dockerfile
    assert "3.11" in dockerfile
