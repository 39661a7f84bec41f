"""Fake and real sandboxes pass the same suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.contracts import Sandbox
from aisotools.sandbox.kernel import Kernel
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.spawn import Spawn, detection
from aisotools.testing import FakeSandbox, Heard, SandboxContract


def wanted(workspace: Path, level: str) -> Spawn:
    return Spawn(level=level, workspace=str(workspace), limits=Limits())


class TestFake(SandboxContract):
    @pytest.fixture(autouse=True)
    def _workspace(self, tmp_path: Path) -> None:
        self.workspace = tmp_path

    def make(self, heard: Heard) -> Sandbox:
        return FakeSandbox(wanted(self.workspace, "confined"), heard)


class TestReal(SandboxContract):
    @pytest.fixture(autouse=True)
    def _workspace(self, tmp_path: Path) -> None:
        self.workspace = tmp_path

    def make(self, heard: Heard) -> Sandbox:
        return Kernel(wanted(self.workspace, detection().level or "limited"), heard)
