"""The provisioner and the kernelspec: what the server passes on, and what installing writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from traitlets.config import LoggingConfigurable

from aisotools.cli.main import main
from aisotools.core.exceptions import UsageError
from aisotools.notebook.kernel.provisioner import SandboxProvisioner, install_kernelspec
from aisotools.workspace.lock import SERVER_ROOT
from tests.notebook.kernel.jupyter import SPEC


async def test_the_server_s_root_is_passed_on(tmp_path: Path) -> None:
    class Server(LoggingConfigurable):
        root_dir = str(tmp_path)

    connection = str(tmp_path / "connection.json")
    manager = KernelManager(parent=Server(), connection_file=connection)
    provisioner = SandboxProvisioner(parent=manager, kernel_id="x", kernel_spec=_spec())
    launch = await provisioner.pre_launch(env={SERVER_ROOT: "/forged", "HOME": "/x"})
    assert launch["env"][SERVER_ROOT] == str(tmp_path)
    alone = KernelManager(connection_file=connection)
    lonely = SandboxProvisioner(parent=alone, kernel_id="x", kernel_spec=_spec())
    assert SERVER_ROOT not in (await lonely.pre_launch(env={SERVER_ROOT: "/forged"}))["env"]


async def test_trust_is_a_person_s_setting(tmp_path: Path) -> None:
    for trusted in (True, False):
        manager = KernelManager(connection_file=str(tmp_path / "connection.json"))
        manager._kernel_spec = _spec()
        provisioner = SandboxProvisioner(
            parent=manager, kernel_id="x", kernel_spec=_spec(), trust_output=trusted
        )
        command = (await provisioner.pre_launch(env={}))["cmd"]
        assert ("--SandboxKernel.trust_output=True" in command) is trusted


def _spec() -> Any:
    return KernelSpec.from_resource_dir(str(SPEC))


# ---- the kernelspec


def test_the_provisioner_can_be_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernelspec", "install", "--prefix", str(tmp_path)]) == 0
    folder = tmp_path / "share" / "jupyter" / "kernels" / "aisotools"
    assert str(folder) in capsys.readouterr().out
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"][:4] == [sys.executable, "-P", "-m", "aisotools.notebook.kernel.kernel"]
    assert spec["interrupt_mode"] == "message"
    assert spec["metadata"]["kernel_provisioner"] == {"provisioner_name": "aisotools", "config": {}}
    assert {path.name for path in folder.iterdir()} == {
        *("kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"),
    }


def test_trust_can_be_installed(tmp_path: Path) -> None:
    assert main(["kernelspec", "install", "--prefix", str(tmp_path), "--trust-output"]) == 0
    spec = json.loads((tmp_path / "share/jupyter/kernels/aisotools/kernel.json").read_text())
    assert spec["metadata"]["kernel_provisioner"]["config"] == {"trust_output": True}
    assert "trusted" in spec["display_name"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["kernelspec", "install", "--prefix", str(tmp_path / "file")]) == 1
    assert "--user or --sys-prefix" in capsys.readouterr().err


def test_installing_returns_the_folder_or_says_what_to_do(tmp_path: Path) -> None:
    folder = install_kernelspec(prefix=str(tmp_path))
    assert json.loads((folder / "kernel.json").read_text())["argv"][0] == sys.executable
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--user or --sys-prefix"):
        install_kernelspec(prefix=str(tmp_path / "file"))
