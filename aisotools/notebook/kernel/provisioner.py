"""Start sandboxed kernels from Jupyter, as local ones, with settings that only the server knows.

The kernelspec `aisotools` names this provisioner, by an entry point of `jupyter_client`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool

from aisotools.core.exceptions import UsageError
from aisotools.workspace.lock import SERVER_ROOT

KERNEL_NAME = "aisotools"
"""Name of the kernelspec."""

_SPEC = Path(__file__).resolve().parents[2] / "kernelspec"


class SandboxProvisioner(LocalProvisioner):
    """Starts the process of a sandboxed kernel."""

    trust_output = Bool(
        default_value=False,
        help="Pass on all output of the kernel as it is: widgets and scripts may act on the page. "
        "Set it only for notebooks that you trust.",
    ).tag(config=True)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Pass on the server's root folder, and whether output is trusted."""
        environ = dict(kwargs.get("env") or os.environ)
        environ.pop(SERVER_ROOT, None)
        if root := self._server_root():
            environ[SERVER_ROOT] = root
        kwargs["env"] = environ
        if self.trust_output:
            kwargs["extra_arguments"] = [
                *kwargs.get("extra_arguments", ()),
                "--SandboxKernel.trust_output=True",
            ]
        launch_options: dict[str, Any] = await super().pre_launch(**kwargs)
        return launch_options

    def _server_root(self) -> str:
        """Root folder of the server that this runs in; empty outside a server."""
        owner: Any = self.parent
        while owner is not None:
            # Jupyter's configurables form a chain of parents; only some of them have a `root_dir`.
            root = getattr(owner, "root_dir", "")
            if isinstance(root, str) and root:
                return str(Path(root).expanduser().absolute())
            owner = getattr(owner, "parent", None)
        return ""


def install_kernelspec(*, user: bool = False, prefix: str | None = None, trust_output: bool = False) -> Path:
    """Install the kernelspec for this Python.

    Args:
        user: Install for this user only.
        prefix: Install under this prefix; for the whole system if neither this nor `user` is given.
        trust_output: Whether its kernels pass on all output unfiltered.

    Returns:
        The folder of the kernelspec.

    Raises:
        UsageError: If the folder cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="aisotools-kernelspec-") as temporary:
        source = Path(temporary) / KERNEL_NAME
        shutil.copytree(_SPEC, source)
        path = source / "kernel.json"
        spec = json.loads(path.read_text("utf-8"))
        spec["argv"][0] = sys.executable
        if trust_output:
            spec["metadata"]["kernel_provisioner"]["config"] = {"trust_output": True}
            spec["display_name"] = "Python (aisotools sandbox, output trusted)"
        path.write_text(json.dumps(spec, indent=2) + "\n", "utf-8")
        try:
            folder = KernelSpecManager().install_kernel_spec(
                str(source), KERNEL_NAME, user=user, prefix=prefix
            )
        except OSError as error:
            raise UsageError(
                f"The kernelspec cannot be installed: {error}. Use --user or --sys-prefix."
            ) from None
    return Path(folder)
