"""Programs that show how a machine is set up: its network, disks, volumes, security, sound and settings.

Most of them can change it, too. Read only is what their tables, and the lists of their words, name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    Words,
    classify_by_spec,
    matches_arguments,
    option_verdict,
    parse_options,
    program_name,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    merge,
    reads,
    uncertain,
)

# ---- the network

_SHOWS = name_set("show list ls lst sh")
_IP_FLAGS = name_set(
    "-4 -6 -0 -s -d -h -j -p -o -br -brief -c -c=always -c=never -c=auto -color -color=always -color=never "
    "-color=auto -details -stats -statistics -human -json -pretty -oneline -iec -t -ts -N"
)
# In `ip link s`, the letter stands for `set`.
_IP = {
    **dict.fromkeys(name_set("a addr address"), _SHOWS | {"s"}),
    **dict.fromkeys(name_set("r ro route"), _SHOWS | {"s", "get", "g"}),
    **dict.fromkeys(name_set("n neigh neighbour neighbor nexthop"), _SHOWS | {"get"}),
    **dict.fromkeys(
        name_set(
            "l link rule ru maddr maddress mroute tunnel tuntap tcp_metrics token vrf netconf ntable "
            "addrlabel"
        ),
        _SHOWS,
    ),
    "netns": name_set("list ls list-id identify pids"),
}
_BRIDGE_FLAGS = name_set("-s -d -j -p -o -c -color -statistics -details -json -pretty -oneline -t")
_BRIDGE = dict.fromkeys(name_set("link fdb mdb vlan vni mst"), _SHOWS | {"get"})
_TC_FLAGS = name_set(
    "-s -d -r -p -i -j -o -c -color -statistics -details -raw -pretty -iec -json -oneline -g -graph"
)
_TC = dict.fromkeys(name_set("qdisc class filter chain"), name_set("show list ls lst"))


def _shows_objects(flags: frozenset[str], objects: Mapping[str, frozenset[str]]) -> Classifier:
    """Return a classifier for programs of iproute2: options, an object, and what to do with it.

    Args:
        flags: The options that only concern what is printed.
        objects: The objects, each with the words that show it; `show` is what is done if none is said.
    """

    def classify(words: Words) -> CommandVerdict:
        texts = [word.text for word in words[1:]]
        while texts and texts[0] in flags:
            texts.pop(0)
        shown = objects.get(texts[0]) if texts and texts[0] is not None else None
        if texts in (["help"], ["-V"]):
            return NO_EFFECT
        word = texts[1] if len(texts) > 1 else "show"
        if shown is not None and (word in shown or texts[1:] == ["help"]):
            return NO_EFFECT
        return uncertain(f"{words[0].display} may change the network")

    return classify


def _matches(pattern: str, reason: str, *, otherwise: CommandSpec | None = None) -> Classifier:
    """Return a classifier for programs that only print if their arguments match a pattern, blanks between.

    Args:
        pattern: What all arguments are, in one text.
        reason: What the program does with others, after its name.
        otherwise: What judges a command with others; by default it is uncertain.
    """
    shows = re.compile(pattern, re.ASCII)

    def classify(words: Words) -> CommandVerdict:
        if matches_arguments(words, shows):
            return NO_EFFECT
        if otherwise is not None:
            return classify_by_spec(otherwise, words)
        return uncertain(f"{words[0].display} {reason}")

    return classify


_CHANGES_NETWORK = "may change the network"
_NAME = r"[\w.:+@][\w.:+@-]*"


def _classify_iptables(words: Words) -> CommandVerdict:
    """Return the verdict on iptables, which lists with `-S`, or `-L -n`; without `-n` it asks for names."""
    parsed = parse_options(
        words,
        "-nvxwLS -t: --list --list-rules --numeric --verbose --exact --line-numbers --table: --wait -4 -6",
    )
    lists = parsed.has("-S", "--list-rules") or (parsed.has("-L", "--list") and parsed.has("-n", "--numeric"))
    return merge(
        [option_verdict(parsed), NO_EFFECT if lists else uncertain(f"{words[0].display} {_CHANGES_NETWORK}")]
    )


# ---- disks and volumes

_CHANGES_DISKS = CommandSpec(
    names="", options="*", operands="d", effect=Effect.DESTRUCTIVE, reason="changes disks"
)
_DISK_SHOWS = {
    "fdisk": re.compile(r"-l|-x|--list|--list-details|--bytes"),
    "sfdisk": re.compile(r"-l|-d|-J|-F|--list|--dump|--json|--list-free"),
    "gdisk": re.compile(r"-l"),
    "sgdisk": re.compile(r"-p|--print"),
    "hdparm": re.compile(r"-[IigC]"),
    "tune2fs": re.compile(r"-l"),
}


def _classify_disk(words: Words) -> CommandVerdict:
    """Return the verdict on a program that changes disks, but for the options with which it only shows."""
    shows = _DISK_SHOWS[program_name(words[0].text or "")]
    options = [word for word in words[1:] if word.may_be_option]
    disks = [word for word in words[1:] if not word.may_be_option]
    are_shown = bool(options) and all(
        word.text is not None and shows.fullmatch(word.text) for word in options
    )
    if are_shown:
        return merge(map(reads, disks))
    return classify_by_spec(_CHANGES_DISKS, words)


_ZPOOL = subcommands(
    Subcommand(
        names="status, list, get, history, version",
        options="-vxLPpHDgilstj -o: -T: --json",
        allow_dynamic=False,
    ),
    Subcommand(names="iostat", options="-vLPpHglqrwyn -T:", allow_dynamic=False),
    reason="changes disks",
    effect=Effect.DESTRUCTIVE,
)
_SMARTCTL = (
    "-aAHixch -l: -g: -n: -d: -T: -q: -j -f: --all --xall --info --health --capabilities --attributes --log: "
    "--get: --json? --scan --scan-open --device: --nocheck: --format: --quietmode: --tolerance:"
)
_SMARTCTL_LOGS = re.compile(
    r"x?error|x?selftest|selective|background|ssd|directory|devstat|scttemp(?:sts|hist)?"
)


def _classify_smartctl(words: Words) -> CommandVerdict:
    """Return the verdict on smartctl, some of whose logs are settings: `-l scterc,70,70`."""
    parsed = parse_options(words, _SMARTCTL)
    logs = [option.value for option in parsed.options if option.name in {"-l", "--log"}]
    doubts = [
        uncertain("smartctl may set how a disk works")
        for log in logs
        if log is None or not _SMARTCTL_LOGS.fullmatch(log.text or "")
    ]
    return merge([option_verdict(parsed), *doubts, *map(reads, parsed.operands)])


def _classify_mdadm(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words, "-DEQsvb --detail --examine --query --scan --verbose --brief --export --version"
    )
    first = words[1].text if len(words) > 1 else ""
    shows = re.fullmatch(r"-[DEQ][svb]*|--detail|--examine|--query", first or "")
    doubt = NO_EFFECT if shows else uncertain("mdadm changes disks")
    return merge([option_verdict(parsed), doubt, *map(reads, parsed.operands)])


_HELPS = "--help --version -h -V"

COMMANDS = (
    CommandSpec(names="ip", classify=_shows_objects(_IP_FLAGS, _IP), info_arguments="-V -Version"),
    CommandSpec(names="bridge", classify=_shows_objects(_BRIDGE_FLAGS, _BRIDGE), info_arguments="-V"),
    CommandSpec(names="tc", classify=_shows_objects(_TC_FLAGS, _TC), info_arguments="-V"),
    CommandSpec(
        names="iw",
        classify=_matches(
            rf"list|phy|dev|reg get|phy {_NAME} (?:info|channels)"
            rf"|dev {_NAME} (?:info|link|station dump|scan dump|survey dump|get power_save)",
            _CHANGES_NETWORK,
        ),
        info_arguments="--version help",
    ),
    CommandSpec(names="iwconfig", classify=_matches(rf"|{_NAME}", _CHANGES_NETWORK), info_arguments=_HELPS),
    CommandSpec(
        names="route",  # without -n it asks for the names of addresses
        classify=_matches(r"(?:-(?:4|6|ee?|v) )*-(?:n|ne|en|nee|een)(?: -(?:4|6|ee?))*", _CHANGES_NETWORK),
        info_arguments=_HELPS,
    ),
    CommandSpec(
        names="nft",  # its arguments are one text, in which a semicolon begins another command
        classify=_matches(r"(?:-[ansjy] |--(?:json|handle|numeric) )*list [\w./ -]+", _CHANGES_NETWORK),
        info_arguments=_HELPS,
    ),
    CommandSpec(names="iptables ip6tables", classify=_classify_iptables, info_arguments=_HELPS),
    CommandSpec(
        names="iptables-save ip6tables-save",
        options="-c -t: --counters --table:",
        operands="-",
        info_arguments=_HELPS,
    ),
    CommandSpec(
        names="ufw",
        classify=_matches(
            rf"status(?: verbose| numbered)?|show (?:listening|added)|app list|app info {_NAME}|version",
            _CHANGES_NETWORK,
        ),
    ),
    CommandSpec(
        names="firewall-cmd",
        options="--state --list-all --list-all-zones --list-ports --list-services --list-interfaces "
        "--list-sources --list-rich-rules --list-protocols --get-active-zones --get-default-zone --get-zones "
        "--get-services --get-icmptypes --zone: --permanent --info-zone: --info-service: --query-service: "
        "--query-port: --query-masquerade --query-panic -q --quiet",
        operands="-",
        info_arguments=_HELPS,
    ),
    CommandSpec(
        names="rfkill", classify=_matches(rf"|list(?: {_NAME})?", _CHANGES_NETWORK), info_arguments=_HELPS
    ),
    CommandSpec(
        names="bluetoothctl",
        classify=_matches(rf"(?:list|show|devices|info)(?: {_NAME})?", "may change devices"),
        info_arguments="--version --help",
    ),
    # ---- disks and volumes
    CommandSpec(
        names="fdisk sfdisk gdisk sgdisk hdparm tune2fs",
        classify=_classify_disk,
        info_arguments=_HELPS,
    ),
    CommandSpec(names="zpool", classify=_ZPOOL, info_arguments="--version -V"),
    CommandSpec(
        names="zfs",
        classify=subcommands(
            Subcommand(
                names="list, get, version, userspace, groupspace, holds",
                options="-rHpinj -d: -o: -t: -s: -S: --json",
                allow_dynamic=False,
            ),
            reason="changes disks",
        ),
        info_arguments="--version -V",
    ),
    CommandSpec(
        names="btrfs",
        classify=subcommands(
            Subcommand(
                names="filesystem df, filesystem show, filesystem usage, filesystem du, subvolume list, "
                "subvolume show, subvolume get-default, device stats, device usage, scrub status, "
                "balance status, property get, property list, fi df, fi show, fi usage, fi du, sub list",
                options="-hHkmgbtTsapcuqroRdi --raw --human-readable --iec --si --kbytes --mbytes --gbytes "
                "--tbytes --sort: --all-devices --mounted",
                operands="r",
                allow_dynamic=False,
            ),
            reason="changes disks",
        ),
        info_arguments=_HELPS,
    ),
    CommandSpec(
        names="nvme",
        classify=subcommands(
            Subcommand(
                names="list, list-subsys, smart-log, id-ctrl, id-ns, error-log, fw-log",
                options="-vH -o: -n: -e: --output-format: --human-readable --verbose --namespace-id:",
                operands="r",
                allow_dynamic=False,
            ),
            reason="changes disks",
            effect=Effect.DESTRUCTIVE,
        ),
        info_arguments="--version --help version help",
    ),
    CommandSpec(
        names="lvs vgs pvs lvdisplay vgdisplay pvdisplay",
        options="-avhHPcCmsq -o: -O: --all --verbose --units: --noheadings --options: --sort: --segments "
        "--reportformat: --nosuffix --separator: --unbuffered --aligned --nameprefixes --colon --columns "
        "--maps --short",
        operands=".",
        info_arguments=_HELPS,
    ),
    CommandSpec(names="mdadm", classify=_classify_mdadm, info_arguments=_HELPS),
    CommandSpec(names="smartctl", classify=_classify_smartctl, info_arguments=f"{_HELPS} --scan"),
    CommandSpec(names="dumpe2fs", options="-hfbgx", info_arguments="-V"),
    CommandSpec(names="xfs_info", info_arguments="-V"),
    CommandSpec(
        names="cryptsetup",
        classify=_matches(
            r"(?:status|luksDump|isLuks|luksUUID) [\w/.][\w/.-]*", "changes disks", otherwise=_CHANGES_DISKS
        ),
        info_arguments="--version --help -V -?",
    ),
    CommandSpec(
        names="losetup",
        classify=_matches(r"|-a|--all|-l|--list|-al|-la", "changes devices"),
        info_arguments=_HELPS,
    ),
    CommandSpec(
        names="dmsetup",
        classify=_matches(
            rf"(?:info|table|status|deps)(?: {_NAME})?|ls(?: --tree)?|targets|version", "changes devices"
        ),
        info_arguments="--version --help",
    ),
    CommandSpec(
        names="blockdev",
        classify=_matches(
            r"(?:--get[a-z0-9]+ )+/dev/[\w/.-]+|--report(?: /dev/[\w/.-]+)*", "changes devices"
        ),
        info_arguments=_HELPS,
    ),
    # ---- clocks, kernel and hardware
    CommandSpec(
        names="hwclock", classify=_matches(r"|-r|--show|--get", "sets clocks"), info_arguments=_HELPS
    ),
    CommandSpec(names="zdump", options="-vVi -c: -t:", operands=".", info_arguments="--version --help"),
    CommandSpec(
        names="modprobe",
        classify=_matches(
            rf"-c|--showconfig|(?:-D|--show-depends|-n -v|-nv|-vn|--dry-run --verbose|--dry-run) {_NAME}",
            "changes the kernel",
        ),
        info_arguments=_HELPS,
    ),
    CommandSpec(
        names="cpupower",
        classify=_matches(
            r"(?:-c [\w,-]+ )?(?:frequency-info|idle-info|info)(?: -[a-z]+)*", "changes the processor"
        ),
        info_arguments="--version --help -v -h",
    ),
    # Case: -i asks other machines for the address from which they see this one.
    CommandSpec(
        names="inxi",
        classify=_matches(r"|-[FxzbCMGANDSPIRB]+", "may ask the network"),
        info_arguments="--version",
    ),
    CommandSpec(
        names="systemd-resolve",
        classify=_matches(r"(?:--no-pager )?(?:--status|--statistics)", "asks the network"),
        info_arguments="--version --help -h",
    ),
    # ---- security
    CommandSpec(
        names="gpgconf",
        classify=_matches(r"--list-(?:dirs|components)(?: [a-z-]+)?", "changes settings"),
        info_arguments="--version --help",
    ),
    CommandSpec(
        names="getenforce sestatus getsebool aa-status apparmor_status",
        options="-avb --verbose --json --pretty-json --enabled --profiled --enforced --complaining",
        operands=".",
        info_arguments="--help",
    ),
    CommandSpec(names="auditctl", classify=_matches(r"-[lsv]", "changes what is recorded")),
    # ---- sound, pictures and the desktop
    CommandSpec(names="aplay arecord", classify=_matches(r"-[lL]|--list-(?:devices|pcms)", "writes files")),
    CommandSpec(
        names="amixer",
        classify=_matches(
            rf"(?:|scontrols|scontents|controls|contents|info|s?get {_NAME})", "sets the volume"
        ),
        info_arguments="--version --help -v -h",
    ),
    CommandSpec(
        names="pactl",
        classify=_matches(
            r"info|stat|list(?: short)?(?: [a-z-]+)?|get-[a-z-]+(?: [\w.@-]+)?", "changes sound"
        ),
        info_arguments="--version --help",
    ),
    CommandSpec(
        names="v4l2-ctl",
        options="-D -d: --device: --list-devices --list-formats --list-formats-ext --list-ctrls "
        "--list-ctrls-menus --list-inputs --info --all",
        operands="-",
        info_arguments="--help",
    ),
    CommandSpec(
        names="xrandr",
        options="-qv --query --listmonitors --listproviders --listactivemonitors --verbose --current --prop "
        "--properties",
        operands="-",
        info_arguments="--version --help -v",
    ),
    CommandSpec(
        names="gsettings",
        classify=_matches(
            r"(?:get|range|describe|writable|list-schemas|list-relocatable-schemas|list-keys|list-children"
            r"|list-recursively)(?: [\w.:/-]+)*",
            "changes settings",
        ),
        info_arguments="--version",
    ),
    CommandSpec(
        names="dconf",
        classify=_matches(r"(?:read|list|dump)(?: -d)? [\w./:-]+", "changes settings"),
        info_arguments="help",
    ),
)
