"""`aisotools kernelspec install`: makes the sandboxed kernel known to Jupyter."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

Echo = Callable[[str], object]
"""Takes a line to print."""


def add_parser(commands: Any) -> None:
    """Add `kernelspec` to the command line's subcommands."""
    told = "install the sandboxed kernel for Jupyter"
    parser = commands.add_parser("kernelspec", help=told, description=told.capitalize() + ".")
    parser.add_argument("action", choices=("install",))
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user only")
    where.add_argument("--sys-prefix", action="store_true", help="for this Python only (the default)")
    where.add_argument("--prefix", help="for the installation in this folder")
    parser.add_argument(
        "--trust-output",
        action="store_true",
        help="pass on all output as it is: only for notebooks that you trust, which may then act on the page",
    )


def run(options: argparse.Namespace, echo: Echo) -> int:
    """Carry out `aisotools kernelspec install`; 0 when it is installed.

    Raises:
        UsageError: If the folder cannot be written.
    """
    from aisotools.sandbox.provisioner import KERNEL_NAME, install_kernelspec

    prefix = None if options.user else options.prefix or sys.prefix
    made = install_kernelspec(user=options.user, prefix=prefix, trust_output=options.trust_output)
    echo(f"Installed the kernel {KERNEL_NAME} in {made}.")
    echo(f"Try: jupyter console --kernel {KERNEL_NAME}, or choose it in JupyterLab.")
    return 0
