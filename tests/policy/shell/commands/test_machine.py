"""The state of a machine: its network, disks, volumes and settings are shown, or changed."""

from __future__ import annotations

from aisotools.policy.shell.commands.machine import COMMANDS
from tests.policy.shell.commands.verdicts import wrong_effects

EFFECTS = [
    ("ip addr", "read_only"),
    ("ip -br a show", "read_only"),
    ("ip a s eth0", "read_only"),
    ("ip l s eth0 down", "local_mutation?"),
    ("ip addr add x", "local_mutation?"),
    ("ip link set x", "local_mutation?"),
    ("ip route get 192.0.2.1", "read_only"),
    ("ip neigh get 192.0.2.1 dev eth0", "read_only"),
    ("ip addr get x", "local_mutation?"),
    ("ip", "local_mutation?"),
    ("ip netns", "local_mutation?"),
    ("ip netns list", "read_only"),
    ("ip netns exec a b", "local_mutation?"),
    ("ip -b x", "local_mutation?"),
    ("ip -n a addr", "local_mutation?"),
    ("ip -a netns exec b", "local_mutation?"),
    ("ip route $x", "local_mutation?"),
    ("ip link show $x", "read_only"),
    ("bridge vlan", "read_only"),
    ("bridge vlan add vid 1 dev x", "local_mutation?"),
    ("tc qdisc", "read_only"),
    ("tc qdisc s", "local_mutation?"),
    ("iw dev wlan0 scan dump", "read_only"),
    ("iw dev wlan0 scan", "local_mutation?"),
    ("nft list ruleset", "read_only"),
    ("nft list ruleset ';' flush ruleset", "local_mutation?"),
    ("iptables -L -n", "read_only"),
    ("iptables -L", "local_mutation?"),
    ("iptables -L -n --modprobe=./x", "local_mutation?"),
    ("ufw status", "read_only"),
    ("ufw disable", "local_mutation?"),
    ("fdisk -l /dev/sda", "read_only"),
    ("fdisk /dev/sda", "destructive"),
    ("fdisk -l $x", "destructive?"),
    ("hdparm -I /dev/sda", "read_only"),
    ("hdparm -IY /dev/sda", "destructive"),
    ("zpool status", "read_only"),
    ("zpool status -c x", "local_mutation?"),
    ("zpool destroy x", "destructive?"),
    ("smartctl -l error /dev/sda", "read_only"),
    ("smartctl -l scterc,7,7 /dev/sda", "local_mutation?"),
    ("smartctl -l $x /dev/sda", "local_mutation?"),
    ("mdadm -Ds", "read_only"),
    ("mdadm -s", "local_mutation?"),
    ("cryptsetup status x", "read_only"),
    ("cryptsetup luksErase /dev/sda", "destructive"),
    ("modprobe -n -v x", "read_only"),
    ("modprobe x", "local_mutation?"),
    ("inxi -Fx", "read_only"),
    ("inxi -Fi", "local_mutation?"),
    ("gsettings get a b", "read_only"),
    ("gsettings set a b c", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}
