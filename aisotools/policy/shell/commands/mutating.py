"""Programs that change files, processes or the machine, and those that run code nobody has looked into."""

from __future__ import annotations

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, names
from aisotools.policy.shell.options import (
    NOTHING,
    CommandVerdict,
    Row,
    Words,
    by_role,
    copied,
    does,
    merged,
    parse,
    reads,
    said_by,
    unsure,
    writes,
)

_REMOVES = "it removes files"


def _move(words: Words) -> CommandVerdict:
    """What moves may replace what is there, as `cp` and `>` do: a change, and undo covers it."""
    parsed = parse(
        words,
        "-finuvbTZ -t: -S: --force --interactive --no-clobber --update? --verbose --backup? --suffix: "
        "--target-directory: --no-target-directory --strip-trailing-slashes --exchange --no-copy --debug",
    )
    sources, written = copied(parsed)
    moved = [*(by_role("m", source, "") for source in sources), *written]
    lost = any(operand.shown == "/dev/null" for operand in parsed.operands[-1:])
    end = does(Effect.DESTRUCTIVE, "what is moved to /dev/null is gone") if lost else NOTHING
    return merged([does(Effect.LOCAL_MUTATION, "it moves files"), said_by(parsed), *moved, end])


def _dd(words: Words) -> CommandVerdict:
    verdicts = []
    for word in words[1:]:
        name, equals, value = word.prefix.partition("=")
        path = Word(word.shown.partition("=")[2], word.text and value, value, placed=word.placed)
        if not equals or word.may_be_option:
            verdicts.append(unsure(f"dd does not know {word.shown}"))
        elif name == "of":
            verdicts.append(writes(path, f"dd overwrites {path.shown}", Effect.DESTRUCTIVE))
        elif name == "if":
            verdicts.append(reads(path))
    return merged(verdicts)


def _compress(words: Words) -> CommandVerdict:
    """Compressors replace each file, unless asked for standard output, or to list or test."""
    parsed = parse(
        words,
        "-123456789cdfklnNqrtv -T: -S: --stdout --to-stdout --decompress --uncompress --force --keep --list "
        "--no-name --name --quiet --recursive --suffix: --test --verbose --fast --best --threads:",
    )
    shows = parsed.has("-c", "-l", "-t", "--stdout", "--to-stdout", "--list", "--test")
    if shows or not parsed.operands:
        return merged([said_by(parsed), *map(reads, parsed.operands)])
    return merged([said_by(parsed), *(by_role("m", operand, "") for operand in parsed.operands)])


def _unzip(words: Words) -> CommandVerdict:
    parsed = parse(words, "-lvtzZpcqC12 -d:w -P: -onufj", posix=True, apart=True)
    shows = parsed.has("-l", "-v", "-t", "-z", "-Z", "-p", "-c")
    unpacks = NOTHING if shows else unsure("unzip unpacks files")
    return merged([said_by(parsed), unpacks, *map(reads, parsed.operands[:1])])


_TAR_FLAGS = frozenset("tvfzjJapkhOPSmli")
_TAR_LONG = names(
    "--list --verbose --gzip --gunzip --bzip2 --xz --zstd --lzma --auto-compress --file --directory "
    "--exclude --wildcards --no-wildcards --strip-components --full-time --numeric-owner --no-recursion "
    "--utc --totals --show-transformed-names --ignore-zeros --force-local"
)


def _tar(words: Words) -> CommandVerdict:
    """Only listing reads; and a listing can be told to run programs, or to use another machine."""
    arguments = list(words[1:])
    lists = False
    doubts = []
    for at, word in enumerate(arguments):
        text = word.text
        if ":" in word.shown:
            doubts.append(f"{word.shown} may be on another machine")
        if text is None:
            if word.may_be_option or at == 0:
                doubts.append(f"{word.shown} may turn out to be an option")
        elif text.startswith("--"):
            lists |= text == "--list"
            if text.partition("=")[0] not in _TAR_LONG:
                doubts.append(f"tar {text.partition('=')[0]} may do more than list")
        elif at == 0 or (text.startswith("-") and len(text) > 1):
            letters = text.lstrip("-").rstrip("CTX")  # these take the next word
            lists |= "t" in letters
            if not set(letters) <= _TAR_FLAGS:
                doubts.append(f"tar {text} may do more than list")
    if not lists:
        doubts.append("tar writes files")
    return merged(map(unsure, doubts))


def _crontab(words: Words) -> CommandVerdict:
    parsed = parse(words, "-l -u: -e!u -r!d -i")
    lists = NOTHING if parsed.has("-l") else unsure("crontab changes what runs regularly")
    return merged([said_by(parsed), lists, *(by_role("m", operand, "") for operand in parsed.operands)])


_COPY = (
    "-abdfHiLlnPpRrsuvxZT -S: -t: --archive --attributes-only --backup? --copy-contents --force "
    "--interactive --dereference --link --no-clobber --no-dereference --preserve? --no-preserve: --parents "
    "--recursive --reflink? --remove-destination --sparse: --strip-trailing-slashes --symbolic-link "
    "--suffix: --target-directory: --no-target-directory --update? --verbose --one-file-system --directory "
    "--mode: --owner: --group: --relative --logical --physical --compare --strip -m: -o: -g: -D -C -c -F"
)
_LOCAL = Effect.LOCAL_MUTATION
_GONE = Effect.DESTRUCTIVE

ROWS = (
    Row(
        names="rm unlink",
        options="-frRidvIxW --force --recursive --interactive? --dir --verbose --one-file-system "
        "--no-preserve-root --preserve-root?",
        operands="d",
        effect=_GONE,
        why="removes files",
        loose=True,
        harmless=("rm --help",),
        harmful=("rm x", "rm -rf $x", "/bin/rm x", "rm -- -x", "rm *"),
    ),
    Row(
        names="shred truncate wipefs blkdiscard srm",
        options="*",
        operands="d",
        effect=_GONE,
        why="destroys what is there",
        harmless=("shred --version",),
        harmful=("shred -u x", "truncate -s 0 x", "wipefs -a /dev/sda"),
    ),
    Row(
        names="mkfs fdisk parted sfdisk gdisk mkswap cryptsetup lvremove vgremove zpool debugfs tune2fs "
        "e2fsck fsck mkdosfs mke2fs hdparm nvme badblocks",
        options="*",
        operands="d",
        effect=_GONE,
        why="changes disks",
        harmless=("mkfs --version",),
        harmful=("mkfs /dev/sda", "mkfs.ext4 /dev/sda1", "fdisk /dev/sda"),
    ),
    Row(
        names="pkill killall xkill skill",
        options="*",
        operands=".",
        effect=_GONE,
        why="ends processes",
        harmless=("pkill --version",),
        harmful=("pkill python", "killall -9 x"),
    ),
    Row(
        names="shutdown reboot halt poweroff init telinit killall5",
        options="*",
        operands=".",
        effect=_GONE,
        why="ends everything",
        about="",
        harmless=(),
        harmful=("reboot", "shutdown now", "init 0"),
    ),
    Row(
        names="cp install ln",
        options=_COPY,
        operands="c",
        effect=_LOCAL,
        why="writes files",
        harmless=("cp --version",),
        harmful=("cp a b", "cp -t d a", "ln -sf a b", "install -m 755 a b"),
    ),
    Row(
        names="mv rename",
        judge=_move,
        harmless=("mv --version",),
        harmful=("mv a b", "mv a /dev/null", "mv -n a b", "mv * d"),
    ),
    Row(
        names="mkdir touch mkfifo mknod rmdir",
        options="-pmvcahfZ -d: -r:r -t: --parents --mode: --verbose --date: --reference:r --time: "
        "--no-create --ignore-fail-on-non-empty --no-dereference",
        operands="w",
        effect=_LOCAL,
        why="makes, touches or removes entries of folders",
        loose=True,
        harmless=("mkdir --help",),
        harmful=("mkdir -p a/b", "touch x", "rmdir x", "touch $x"),
    ),
    Row(
        names="tee sponge",
        options="-aip --append --ignore-interrupts --output-error?",
        operands="w",
        loose=True,
        harmless=("ls | tee /dev/null", "tee"),
        harmful=("ls | tee x", "tee -a x", "ls | tee >(cat > x)"),
    ),
    Row(
        names="chmod chown chgrp setfacl chattr setfattr chcon",
        options="-RcfvhHLPmxbkd --recursive --changes --silent --quiet --verbose --no-dereference "
        "--dereference --reference:r --from: --preserve-root --no-preserve-root",
        operands="pm",
        effect=_LOCAL,
        why="changes permissions",
        loose=True,
        harmless=("chmod --help",),
        harmful=("chmod +x a", "chown -R u:g .", "chmod -x a"),
    ),
    Row(
        names="split csplit patch dos2unix unix2dos mktemp tempfile logger wall write uudecode zip ar cpio "
        "pax updatedb ldconfig mandb ctags etags swapon swapoff umount modprobe insmod rmmod hwclock "
        "adjtimex useradd userdel usermod groupadd groupdel passwd chpasswd visudo vipw chsh chfn iptables "
        "ip6tables nft ufw setenforce localedef ssh-keygen ssh-copy-id gpg gpg2 losetup pivot_root blockdev "
        "renice setcap dmsetup exportfs sync",
        options="*",
        operands=".",
        effect=_LOCAL,
        why="changes something here",
        certain=False,
        harmless=("split --version",),
        harmful=("split -b 1m a", "csplit a 5", "zip x.zip a", "umount /mnt", "patch -p1"),
    ),
    Row(
        names="dd",
        judge=_dd,
        harmless=("dd if=a bs=1 count=4",),
        harmful=("dd if=a of=b", "dd of=/dev/sda", "dd $x", "dd if=$x"),
    ),
    Row(
        names="gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma",
        judge=_compress,
        harmless=("gzip -l a.gz", "gunzip -c a.gz", "xz -dc a.xz", "gzip -t a.gz"),
        harmful=("gzip a", "gunzip a.gz", "gzip -k a", "gunzip $x"),
    ),
    Row(
        names="zcat bzcat xzcat lzcat",
        options="-fqvs --force --quiet --verbose",
        harmless=("zcat a.gz", "xzcat a.xz"),
        harmful=("zcat a.gz > b", "zcat --suffix x a"),
    ),
    Row(
        names="zstd unzstd zstdcat lz4",
        options="*",
        effect=_LOCAL,
        why="writes files",
        certain=False,
        harmless=("zstd --version",),
        harmful=("zstd a", "zstdcat -o x a"),
    ),
    Row(
        names="unzip",
        judge=_unzip,
        harmless=("unzip -l a.zip", "unzip -p a.zip b"),
        harmful=("unzip a.zip", "unzip -o a.zip -d x", "unzip -lT a.zip", "unzip a.zip -l"),
    ),
    Row(
        names="tar bsdtar gtar",
        judge=_tar,
        harmless=("tar -tf a.tar", "tar tzf a.tgz", "tar tvf a.tar", "tar --list --file=a.tar"),
        harmful=(
            "tar xf a",
            "tar -czf a b",
            "tar -tf a --checkpoint=1 --checkpoint-action=exec=./x",
            "tar tf a -I ./x",
            "tar -tf a --to-command=./x",
            "tar tf a --use-compress-program=./x",
            "tar tf host:a",
            "tar t -F ./x -f a",
            "tar -tf a --checkpoint-act=exec=x",
            "tar tf $x",
            "tar c a",
            "tar tIf ./x a",
        ),
    ),
    Row(
        names="crontab",
        judge=_crontab,
        harmless=("crontab -l", "crontab -u me -l"),
        harmful=("crontab -e", "crontab -r", "crontab x", "crontab", "crontab -lr"),
    ),
    Row(
        names="vi vim nvim vimdiff nano emacs ed ex pico joe micro gedit code",
        options="*",
        effect=_LOCAL,
        why="is an editor, which can write files and run commands",
        certain=False,
        harmless=("vim --version",),
        harmful=("vim x", "ed x", "vim -c '!rm x'", "emacs --batch --eval x"),
    ),
    Row(
        names="python pypy node deno bun ruby perl php lua luajit tclsh Rscript R ghci java javac gcc cc "
        "g++ c++ "
        "clang clang++ tsc go ocaml guile make gmake cmake ninja meson mypy ruff black uv pipx gem conda "
        "mamba",
        options="*",
        effect=_LOCAL,
        why="runs code that is not looked into",
        certain=False,
        about="--version -V -v -version version --help -h -dumpversion -dumpmachine",
        harmless=(
            "python --version",
            "python3.11 -V",
            "node -v",
            "java -version",
            "go version",
            "gcc --version",
        ),
        harmful=(
            "python -c 'print(1)'",
            "perl -e 1",
            "node -e 1",
            "make",
            "make -n",
            "python x.py",
            "python3 -m http.server",
            "go test -exec ./x",
            "javac -version -processorpath x",
            "gcc -x c - -o x",
            "python -V x",
        ),
    ),
    Row(
        # even asked for their version they do what files of the folder say, or set up what they need
        names="cargo rustc rustup dotnet swift julia scala kotlin groovy jshell bazel just task rake ant "
        "mvn gradle pytest tox nox npx yarn pnpm poetry pipenv uvx jupyter "
        "ipython bundle composer nix guix sbt lein grunt gulp",
        options="*",
        effect=_LOCAL,
        why="runs code that is not looked into",
        certain=False,
        about="",
        harmless=(),
        harmful=("npx x", "pytest", "yarn --version", "mvn -v", "cargo --version"),
    ),
    Row(
        names="apt-get aptitude yum dnf zypper pacman apk snap flatpak brew port emerge easy_install",
        options="*",
        operands=".",
        effect=_LOCAL,
        why="changes what is installed",
        certain=False,
        harmless=("brew --version",),
        harmful=("apt-get install x", "dnf remove x", "brew install x", "apk add x"),
    ),
)
