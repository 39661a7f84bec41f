"""Programs that show the state of the machine: processes, devices, logs; some can change it, too."""

from __future__ import annotations

from aisotools.events import Effect
from aisotools.shell_options import Row, Words, parse, said_by
from aisotools.shell_verdict import NOTHING, Verdict, does, merged, unsure

_IP_FLAGS = frozenset(("-4", "-6", "-s", "-d", "-h", "-j", "-p", "-o", "-br", "-brief", "-c"))
_IP_OBJECTS = frozenset(
    ("a", "addr", "address", "l", "link", "r", "route", "n", "neigh", "neighbour", "rule")
)


def _top(words: Words) -> Verdict:
    parsed = parse(words, "-bciHS1 -n: -d: -p: -u: -U: -o: -w? -e: -E:")
    waits = NOTHING if parsed.has("-b") else unsure("top without -b takes commands")
    return merged([said_by(parsed), waits])


def _sysctl(words: Words) -> Verdict:
    parsed = parse(words, "-aAXbeNnq -r: --all --values --names --binary --ignore --pattern:")
    sets = any("=" in operand.shown or operand.text is None for operand in parsed.operands)
    return merged([said_by(parsed), unsure("sysctl sets it") if sets else NOTHING])


def _ip(words: Words) -> Verdict:
    plain = [word.text or "" for word in words[1:] if word.text not in _IP_FLAGS]
    shows = plain[:1] and plain[0] in _IP_OBJECTS and (len(plain) == 1 or plain[1] in {"show", "list", "ls"})
    return NOTHING if shows else unsure("ip may change the network")


def _getent(words: Words) -> Verdict:
    asked = words[1].text if len(words) > 1 else None
    local = asked in {"passwd", "group", "services", "protocols", "shells"}
    return NOTHING if local else unsure("getent may ask the network", Effect.REMOTE_ACTION)


def _kill(words: Words) -> Verdict:
    first = words[1].text if len(words) > 1 else None
    if first in {"-l", "-L", "--list", "--table", "-0"} or (
        first in {"-s", "-n"} and len(words) > 2 and words[2].text in {"0", "EXIT"}
    ):
        return NOTHING
    return does(Effect.DESTRUCTIVE, "it ends processes, which cannot be brought back")


ROWS = (
    Row(
        names="tput reset",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        why="may run what its terminal's description names",
        certain=False,
        about="cols lines colors",
        harmless=("tput cols",),
        harmful=("tput init", "TERM=x tput reset", "reset"),
    ),
    Row(
        names="top",
        judge=_top,
        harmless=("top -b -n 1", "top -bn1"),
        harmful=("top", "top -d 1"),
    ),
    Row(
        names="sysctl",
        judge=_sysctl,
        harmless=("sysctl -a", "sysctl kernel.x"),
        harmful=("sysctl -w a=1", "sysctl a=1", "sysctl -p"),
    ),
    Row(
        names="ip",
        judge=_ip,
        harmless=("ip addr", "ip -br a", "ip route show"),
        harmful=("ip link set eth0 down", "ip -b x", "ip netns exec a rm x"),
    ),
    Row(
        names="ifconfig",
        options="-asv",
        operands="-",
        harmless=("ifconfig -a",),
        harmful=("ifconfig eth0 down",),
    ),
    Row(
        names="ss",
        options="-tulpnarxwsoemi460HOZzb --tcp --udp --listening --processes --numeric --all --summary -f: "
        "-K!d -D:w -F:r",
        operands=".",
        harmless=("ss -tulpn",),
        harmful=("ss -K dst 1.2.3.4", "ss -D x"),
    ),
    Row(
        names="netstat",
        options="-atulpnrsiewcogW46xvlM --tcp --udp --listening --programs --numeric --all --route "
        "--statistics",
        operands=".",
        harmless=("netstat -tulpn", "netstat -an"),
        harmful=("netstat -z", "netstat -an > x"),
    ),
    Row(
        names="lsof",
        options="-nPtlabR -i? -p: -u: -c: -d: -D:s",
        operands="r",
        harmless=("lsof -i :80", "lsof -p 1"),
        harmful=("lsof -D b",),
    ),
    Row(
        names="lspci lsusb",
        options="-vnkmtD -s: -d:",
        operands="-",
        harmless=("lspci -nn",),
        harmful=("lspci -O x=y",),
    ),
    Row(
        names="dmesg",
        options="-THkwxtur -l: -f: -L? -P --human --follow --level: --facility: --ctime --color? --nopager "
        "--kernel --decode --since: --until: -c!d -C!d --clear!d --read-clear!d -D!s -E!s -n:s",
        operands="-",
        harmless=("dmesg -T", "dmesg --level=err"),
        harmful=("dmesg -C", "dmesg -c", "dmesg -n 1"),
    ),
    Row(
        names="mount",
        options="-l -t: --show-labels",
        operands="s",
        harmless=("mount", "mount -l"),
        harmful=("mount /dev/sda1 /mnt", "mount -o remount,rw /", "mount -a"),
    ),
    Row(
        names="getent",
        judge=_getent,
        harmless=("getent passwd root",),
        harmful=("getent hosts evil.example", "getent $x"),
    ),
    Row(
        names="kill",
        judge=_kill,
        harmless=("kill -l", "kill -0 1"),
        harmful=("kill 1", "kill -9 -1", "kill -s TERM 1"),
    ),
    Row(
        names="journalctl",
        options="-frxekaq -u: -n? -b? -p: -o: -S: -U: -t: -g: -F: -D:r --unit: --lines? --boot? --dmesg "
        "--priority: --output: --since: --until: --no-pager --user --system --grep: --list-boots "
        "--disk-usage --directory:r --file:r --fields --identifier: --follow --reverse --all --quiet "
        "--vacuum-size:D --vacuum-time:D --vacuum-files:D --rotate!s --flush!s --sync!s --cursor-file:w",
        operands=".",
        harmless=("journalctl -u ssh -n 50", "journalctl --since today --no-pager"),
        harmful=("journalctl --vacuum-size=1M", "journalctl --rotate", "journalctl --vac=1s"),
    ),
    Row(
        names="nvidia-smi",
        options="-Lq -i: --query-gpu: --format: --list-gpus",
        operands="-",
        harmless=("nvidia-smi",),
        harmful=("nvidia-smi -pm 1", "nvidia-smi -r"),
    ),
    Row(
        names="hostname",
        options="-sfiIdAya --short --fqdn --long --ip-address --all-ip-addresses --domain --all-fqdns "
        "--alias -F:s --file:s -b!s",
        operands="s",
        harmless=("hostname", "hostname -f"),
        harmful=("hostname evil", "hostname -F x", "hostname $x"),
    ),
)
