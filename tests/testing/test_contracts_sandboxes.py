"""Fake and real sandboxes pass the same suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aisotools.core.sandboxes import Sandbox
from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec, detection
from aisotools.testing.contracts import RecordingListener, SandboxContract
from aisotools.testing.fakes import FakeSandbox


def wanted(workspace: Path, level: str) -> WorkerSpec:
    return WorkerSpec(level=level, workspace=str(workspace), limits=Limits())


class TestFake(SandboxContract):
    @pytest.fixture(autouse=True)
    def _workspace(self, tmp_path: Path) -> None:
        self.workspace = tmp_path

    def make(self, listener: RecordingListener) -> Sandbox:
        return FakeSandbox(wanted(self.workspace, "confined"), listener)


STAGES = [
    *(pytest.param(level, None, id=level) for level in ("isolated", "confined", "limited")),
    pytest.param("guarded", 1, id="guarded-1"),
    *(pytest.param("guarded", abi, id=f"guarded-{abi}", marks=pytest.mark.slow) for abi in (2, 4, 5)),
]


@pytest.mark.parametrize(("level", "abi"), STAGES)
class TestReal(SandboxContract):
    @pytest.fixture(autouse=True)
    def _workspace(self, tmp_path: Path, level: str, abi: int | None) -> None:
        if level not in {probe.name for probe in detection().probes if probe.ok} or landlock.abi() < (
            abi or 0
        ):
            pytest.skip(f"this machine does not hold level {level}, Landlock ABI {abi}")
        self.wanted = replace(wanted(tmp_path, level), landlock_abi=abi)

    def make(self, listener: RecordingListener) -> Sandbox:
        return LocalSandbox(self.wanted, listener)
