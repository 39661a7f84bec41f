"""A classic BPF machine, for asking a filter what it would answer without loading it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

LOAD, AND, JUMP, EQUAL, ABOVE, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000


@dataclass(frozen=True, slots=True)
class Ran:
    """What a filter answered, and after how many instructions."""

    action: int
    steps: int


def run(program: bytes, number: int, *arguments: int, architecture: int) -> Ran:
    """Run `program` on one system call, as the kernel would."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *(a & (1 << 64) - 1 for a in padded))
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at, steps = 0, 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at, steps = at + 1, steps + 1
        if code == RETURN:
            return Ran(value, steps)
        if code == LOAD:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == AND:
            accumulator &= value
        elif code == JUMP:
            at += value
        else:
            tests = {
                EQUAL: accumulator == value,
                ABOVE: accumulator > value,
                AT_LEAST: accumulator >= value,
                ANY_BIT: bool(accumulator & value),
            }
            at += if_true if tests[code] else if_false


def endings(program: bytes) -> list[int]:
    """Where each instruction may go on; an index of the length would be the end without an answer."""
    found = []
    for at, (code, if_true, if_false, value) in enumerate(struct.iter_unpack("=HBBI", program)):
        if code == JUMP:
            found.append(at + 1 + value)
        elif code in {EQUAL, ABOVE, AT_LEAST, ANY_BIT}:
            found += [at + 1 + if_true, at + 1 + if_false]
        elif code != RETURN:
            found.append(at + 1)
    return found
