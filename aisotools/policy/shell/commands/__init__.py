"""Look up the specification of a program by its name or path."""

from __future__ import annotations

import re
from functools import cache

from aisotools.policy.shell.commands import builtins, coreutils, git, mutating, network, scripting, wrappers
from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.options import CommandSpec, Words

COMMANDS: tuple[CommandSpec, ...] = (
    *coreutils.COMMANDS,
    *mutating.COMMANDS,
    *network.COMMANDS,
    *git.COMMANDS,
    *scripting.COMMANDS,
    *wrappers.COMMANDS,
    *builtins.COMMANDS,
)
"""The specifications of all known programs. No program has two."""

UNSPECIFIED = name_set(
    "split csplit patch dos2unix unix2dos mktemp tempfile logger wall write uudecode zip ar cpio pax "
    "updatedb ldconfig mandb ctags etags swapon swapoff umount modprobe insmod rmmod hwclock adjtimex "
    "useradd userdel usermod groupadd groupdel passwd chpasswd visudo vipw chsh chfn iptables ip6tables "
    "nft ufw setenforce localedef ssh-keygen ssh-copy-id gpg gpg2 losetup pivot_root blockdev renice "
    "setcap dmsetup exportfs sync apt-get aptitude yum dnf zypper pacman apk snap flatpak brew port "
    "emerge easy_install"
)
"""Programs without a specification that are known to do nothing but print for `--help` and `--version`."""

_SYSTEM_FOLDERS = frozenset(
    ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"),
)
_VERSIONED = re.compile(
    r"(python|pypy|pip|ruby|perl|php|lua|node|gcc|g\+\+|clang|clang\+\+|java)-?[0-9][0-9.]*"
)
_MKFS = re.compile(r"mkfs\.\w+")


@cache
def _specs_by_name() -> dict[str, CommandSpec]:
    return {name: spec for spec in COMMANDS for name in spec.names.split()}


def program_name(program: str) -> str:
    """Return the name under which a program is specified; empty for a path outside the system's folders."""
    folder, slash, name = program.rpartition("/")
    if slash and folder not in _SYSTEM_FOLDERS:
        return ""
    if found := _VERSIONED.fullmatch(name):
        return found[1]
    return "mkfs" if _MKFS.fullmatch(name) else name


def find_spec(program: str) -> CommandSpec | None:
    """Return the specification of a program, given by name or path, or None if it has none."""
    return _specs_by_name().get(program_name(program))


def is_information_request(words: Words) -> bool:
    """Return whether a command only asks a known program for its help, version or the like.

    The argument must stand alone: with others beside it, many programs do their work regardless.
    """
    if len(words) != 2 or not words[0].text or not words[1].text:
        return False
    spec = find_spec(words[0].text)
    if spec is not None:
        return words[1].text in spec.info_arguments.split()
    return program_name(words[0].text) in UNSPECIFIED and words[1].text in {"--help", "--version"}
