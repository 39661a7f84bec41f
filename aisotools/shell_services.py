"""Programs whose first operand is a command of their own: package managers, services."""

from __future__ import annotations

from collections.abc import Mapping

from aisotools.events import Effect
from aisotools.shell_options import Judge, Row, Words, parse, said_by
from aisotools.shell_text import names
from aisotools.shell_verdict import NOTHING, Verdict, merged, unsure


def _only(reads: Mapping[str, str], why: str, effect: Effect = Effect.LOCAL_MUTATION) -> Judge:
    """A judge that knows the commands that read, each with the options it may have; '' stands for none."""

    def judge(words: Words) -> Verdict:
        command = words[1].text if len(words) > 1 else ""
        if command is not None and command in reads:
            return said_by(parse(words[1:] if command else words, reads[command]))
        return unsure(f"{words[0].shown} {why}", effect)

    return judge


_PIP = (
    "-vqleif --format: --not-required --user --local --editable --exclude: --include-editable "
    "--exclude-editable --pre --files --verbose --quiet --disable-pip-version-check --no-color --isolated "
    "--no-input --outdated!n --uptodate!n -o!n -u!n"
)
# npm notes what it does in a log of its own, and does without where it may not
_NPM = "-gal -p --global --depth: --all --json --long --parseable --omit: --include: --production --link"
_APT = "-aqit --installed --upgradable --all-versions --names-only --full --recurse --installed --names"
_SYSTEMD = (
    "-alqr -n: -o: -t: -p: --all --full --no-pager --plain --no-legend --lines: --output: --type: --state: "
    "--property: --value --quiet --user --system --failed --reverse --after --before"
)
_PIP_READS = dict.fromkeys(("list", "freeze", "show", "check", "inspect"), _PIP)
_NPM_READS = dict.fromkeys(("ls", "list", "ll", "root", "prefix"), _NPM)
_APT_READS = dict.fromkeys(names("list show search policy depends rdepends showpkg madison pkgnames"), _APT)
_SYSTEMD_READS = {
    "": _SYSTEMD,
    **dict.fromkeys(
        names(
            "status show cat is-active is-enabled is-failed list-units list-unit-files list-timers "
            "list-sockets list-dependencies list-jobs get-default"
        ),
        _SYSTEMD,
    ),
}
_MACHINE_READS = dict.fromkeys(("", "status", "show", "list-timezones"), "--no-pager")


def _rpm(words: Words) -> Verdict:
    parsed = parse(
        words,
        "-qailfpcdRv --query --all --info --list --file --package --changelog --provides --requires --last "
        "--whatprovides: --whatrequires: --configfiles --docfiles --scripts",
    )
    asks = parsed.has("-q", "--query")
    return merged([said_by(parsed), NOTHING if asks else unsure("rpm changes what is installed")])


_DOCKER = (
    "-aqslt -f: -n: --all --no-trunc --quiet --size --latest --filter: --format: --last: --digests --follow "
    "--tail: --since: --until: --timestamps --details --type: --no-stream"
)
_DOCKER_READS = dict.fromkeys(names("ps images version logs inspect top port history diff"), _DOCKER)

ROWS = (
    Row(
        names="docker podman",
        judge=_only(_DOCKER_READS, "acts on other machines or services", Effect.REMOTE_ACTION),
        about="--version",
        harmless=("docker ps -a", "docker logs --tail 5 x", "docker images -q"),
        harmful=(
            "docker run x",
            "docker -H tcp://x ps",
            "docker --context x ps",
            "docker exec x rm y",
            "docker rm x",
            "docker ps --host=x",
            "docker compose up",
        ),
    ),
    Row(
        names="dpkg dpkg-query",
        options="-lLSspW -f: --list --listfiles --search --status --print-avail --print-architecture "
        "--get-selections? --show --showformat:",
        operands=".",
        harmless=("dpkg -l", "dpkg -S /bin/ls"),
        harmful=("dpkg -i x.deb", "dpkg --purge x", "dpkg -lr x", "dpkg --pre-invoke=x -l"),
    ),
    Row(
        names="rpm",
        judge=_rpm,
        harmless=("rpm -qa", "rpm -ql bash"),
        harmful=("rpm -i x.rpm", "rpm -e x", "rpm --eval '%(rm x)'"),
    ),
    Row(
        names="pip pip3",
        about="--version -V --help",
        judge=_only(_PIP_READS, "installs or removes packages, which run code of their own"),
        harmless=("pip list", "pip show -f numpy", "pip freeze", "pip3 --version"),
        harmful=(
            "pip install x",
            "pip uninstall x",
            "pip list --outdated",
            "pip --log f list",
            "pip list --log f",
            "pip download x",
        ),
    ),
    Row(
        names="npm",
        judge=_only(_NPM_READS, "installs packages or runs scripts"),
        about="--version -v",
        harmless=("npm ls --depth=0", "npm list -g", "npm -v"),
        harmful=(
            "npm install",
            "npm run x",
            "npm test",
            "npm exec x",
            "npm view x",
            "npm config set x y",
            "npm ls --script-shell=./x",
        ),
    ),
    Row(
        names="apt apt-cache",
        judge=_only(_APT_READS, "changes what is installed"),
        harmless=("apt list --installed", "apt-cache policy bash"),
        harmful=(
            "apt install x",
            "apt -o APT::Update::Pre-Invoke::=x list",
            "apt update",
            "apt list -o x=y",
            "apt edit-sources",
        ),
    ),
    Row(
        names="systemctl",
        judge=_only(_SYSTEMD_READS, "changes services"),
        harmless=("systemctl status ssh --no-pager", "systemctl list-units --type=service"),
        harmful=(
            "systemctl stop ssh",
            "systemctl -H host status",
            "systemctl edit ssh",
            "systemctl daemon-reload",
        ),
    ),
    Row(
        names="timedatectl hostnamectl localectl loginctl",
        judge=_only(_MACHINE_READS, "changes the machine"),
        harmless=("timedatectl status",),
        harmful=("timedatectl set-time 1", "hostnamectl set-hostname x"),
    ),
)
