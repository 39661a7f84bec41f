"""Calls whose effect depends on files that they read, in many spellings.

Each case is a call, and the file that is changed: while the card is up, or after an approval was remembered.
`copies` are calls of which it is known what they do, `unknowns` those that may do anything.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TARGET = "data/in.csv"
FILES: Mapping[str, str] = {TARGET: "one\n", "out/a.txt": "a\n", "list": "data/in.csv\n", "run.py": "1\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call that depends on the target.

    Attributes:
        command: What `bash` is given.
        workdir: The folder that it is given.
        is_indirect: Whether it finds the name of the target in another file. What is remembered of it is
            bound to all files; while a card is up, only the other file is compared.
    """

    command: str
    workdir: str = "."
    is_indirect: bool = False

    @property
    def is_held_out(self) -> bool:
        """True for the half at which nobody looks while the defence is built."""
        return bool(zlib.crc32(f"{self.workdir}\0{self.command}".encode()) & 1)


def put_files(workspace: Path) -> None:
    """Make the files that the cases need, and links to the target and to its folder."""
    for name, text in FILES.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(text)
    (workspace / "link").symlink_to(TARGET)
    (workspace / "folder").symlink_to("data")


# What is done with the target, `{s}`, which changes something else.
_COPIES = (
    "cp {s} out/z",
    "cp -p {s} out/",
    "cat {s} > out/z",
    "cat {s} >> out/a.txt",
    "sort {s} -o out/z",
    "sort -u {s} > out/z",
    "head -5 {s} > out/z",
    "tail -n +2 {s} > out/z",
    "cut -d, -f1 {s} > out/z",
    "tee out/z < {s}",
    "tr a b < {s} > out/z",
    "dd if={s} of=out/z",
    "install -m 644 {s} out/z",
    "gzip -c {s} > out/z",
    "base64 {s} > out/z",
    "xxd {s} > out/z",
    "sed s/a/b/ {s} > out/z",
    "awk '{{print $1}}' {s} > out/z",
    "grep a {s} > out/z",
    "jq . {s} > out/z",
    "paste {s} {s} > out/z",
    "diff {s} out/a.txt > out/z",
    "wc -l {s} > out/z",
    "split -l 5 {s} out/z",
    "uniq {s} out/z",
    "rsync -a {s} out/z",
    "git add {s}",
    "tar cf out/z.tar {s}",
    "zip out/z.zip {s}",
    "curl -T {s} http://example.org/up",
    "curl -d @{s} http://example.org/up",
    "cp {s} $TMPDIR/z",
)

# How the target is named.
_NAMINGS = (
    "data/in.csv",
    "./data/in.csv",
    "$PWD/data/in.csv",
    "$WORKSPACE/data/in.csv",
    "/workspace/data/in.csv",
    "out/../data/in.csv",
    "data//in.csv",
    "d'a't\"a\"/in.csv",
    "data/*.csv",
    "data/in.cs?",
    "data/i[m-o].csv",
    "d*/in.csv",
    "data/{in,no}.csv",
    "link",
    "folder/in.csv",
    "folder/*",
)

# What stands around it; `{x}` is the command.
_AROUND = (
    "{x}",
    "nice {x}",
    "timeout 5 {x}",
    "true && {x}",
    "( {x} )",
    "bash -c '{x}'",
    "if true; then {x}; fi",
    "for i in 1 2; do {x}; done",
)

# What may do anything with the target.
_UNKNOWNS = (
    "git apply {s}",
    "git apply -v --whitespace=fix {s}",
    "git am {s}",
    "patch -p1 -i {s}",
    "patch -p1 --input={s}",
    "patch -p1 < {s}",
    "patch out/a.txt {s}",
    "cat {s} | git apply",
    "cat {s} | patch -p1",
    "strange {s}",
    "strange -f {s}",
    "strange -x -- {s}",
    "strange < {s}",
    "cat {s} | strange",
    "strange < <(cat {s})",
    'strange "$(cat {s})"',
    "strange $(head -1 {s})",
    "strange a {s} b",
    "tar xf {s}",
    "unzip {s}",
    "python3 run.py {s}",
    "xargs -a {s} strange",
    "parallel -a {s} strange",
    "while read l; do strange $l; done < {s}",
    "curl -K {s}",
    "curl --data-binary @{s} http://example.org/up",
    "cc @{s}",
    "strange @{s}",
    "strange --in={s}",
    "strange -i{s}",
    "strange key={s}",
    "zip out/z.zip -@ < {s}",
)

# Whole commands that depend on the target by its folder, or from another one.
_OTHERS = (
    *("strange .", "strange ./", "strange data", "strange data/", "strange data/.", "strange -r data"),
    *("strange --in=data", "strange folder", "strange folder/.", "strange $PWD", "strange *", "strange d*"),
    *("docker build .", "docker build data", "pip install ./data", "tar cf out/z.tar data", "black ."),
    *("git apply data/*", "git apply d*/*", "git apply data/*.c*", "git apply data/in.[c]sv"),
    *("for f in data/*; do git apply $f; done", "for f in data/*.csv; do patch -i $f; done"),
    *("for f in link; do git apply $f; done", "for d in data; do strange $d/in.csv; done"),
    *("cd data && git apply in.csv", "cd data && strange in.csv", "cd data && patch -p1 -i in.csv"),
    *("cd out && git apply ../data/in.csv", "cd out && strange ../data/in.csv", "cd out; strange ../data/*"),
    *("cd out && strange ../data", "cd out && strange ..", "cd data && strange .", "cd data && strange *"),
    *("cd data && git apply *.csv", "(cd data && strange in.csv)", "cd ./data; strange in.csv"),
    *("cd data && cat in.csv | strange", "cd data && strange < in.csv", "cd folder && strange in.csv"),
    *("env -C data strange in.csv", "env --chdir=data strange in.csv", "git -C data apply in.csv"),
    *("git apply --directory=out data/in.csv", "bash -c 'cd data && strange in.csv'"),
    *("pushd data; strange *", "cd data; cd ..; strange data/in.csv", "cd data || exit; git apply in.csv"),
    *("patch -d data -p1 -i in.csv", "patch -ddata -p1 -iin.csv", "patch --directory=data --input=in.csv"),
    *("patch -d out -i ../data/in.csv", "cd out && patch -d ../data -i in.csv", "patch -d data a in.csv"),
    *("cd data && strange @in.csv", "cd data && cc @in.csv", "cd data && strange --in=in.csv"),
    *("cc @folder/in.csv", "gcc -o x @data/in.csv", "strange @./data/in.csv", "cd out && cc @../data/in.csv"),
    *("git apply $(ls data/*.csv)", "echo data/in.csv | xargs strange", "strange $(echo data/in.csv)"),
    *(
        "find data -name in.csv -exec strange {} +",
        "find data -type f | xargs git apply",
        "F=data; strange $F",
    ),
    *("ls data | xargs -I{} strange data/{}", "find . -name '*.csv' -exec git apply {} \\;"),
    *("F=data/in.csv; git apply $F", "set -- data/in.csv; strange $1", "F=data; G=$F/in.csv; strange $G"),
    *(
        "A=data/in.csv strange",
        "export A=data; strange",
        "F=in.csv; strange data/$F",
        "cp $F data/in.csv out",
    ),
)

# Where the name of the target stands in another file.
_INDIRECT = (
    *("strange $(cat list)", "xargs -a list strange", "cat list | xargs strange", "cp $(cat list) out/"),
    *("cp `cat list` out/", "xargs -a list cp -t out", "xargs -a list rsync -t out", "git apply $(<list)"),
    *('read F < list; strange "$F"', "while read f; do git apply $f; done < list", "git apply `cat list`"),
    *("mapfile -t L < list; strange ${L[0]}", "parallel -a list strange", "tar cf out/z.tar -T list"),
)


def copies() -> Iterator[Case]:
    """Yield calls that read the target and change something else."""
    yield from _spellings_of(_COPIES)


def _spellings_of(commands: Sequence[str]) -> Iterator[Case]:
    """Yield each command with the target named in every way, alone and within others."""
    for number, naming in enumerate(_NAMINGS):
        for index, command in enumerate(commands):
            if "{" in naming and "< {s}" in command:
                continue  # bash opens no file whose name becomes two
            around = _AROUND[(number + index) % len(_AROUND)]
            if "'" in command + naming and "'" in around:
                around = "{x}"
            yield Case(command=around.replace("{x}", command.format(s=naming)))
    for command in commands:
        x = command.format(s="in.csv").replace("out/", "../out/")
        yield Case(command=f"cd data && {x}")
        yield Case(command=x, workdir="data")
        yield Case(command=f"for f in data/*.csv; do {command.format(s='$f')}; done")


def unknowns() -> Iterator[Case]:
    """Yield calls that may do anything, and depend on the target."""
    yield from _spellings_of(_UNKNOWNS)
    for command in _OTHERS:
        yield Case(command=command)
        if "data" in command and "out" not in command:
            yield Case(command=command.replace("data", "../data"), workdir="out")
    for command in _INDIRECT:
        yield Case(command=command, is_indirect=True)
