"""Programs that change files, processes or the machine, and those that run code or commands of their own."""

from __future__ import annotations

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, name_set
from aisotools.policy.shell.options import (
    NO_EFFECT,
    CommandSpec,
    CommandVerdict,
    Words,
    copy_targets,
    has_effect,
    merge,
    option_verdict,
    parse_options,
    reads,
    role_verdict,
    uncertain,
    writes,
)

_COPY = (
    "-abdfHiLlnPpRrsuvxZT -S: -t: --archive --attributes-only --backup? --copy-contents --force "
    "--interactive --dereference --link --no-clobber --no-dereference --preserve? --no-preserve: --parents "
    "--recursive --reflink? --remove-destination --sparse: --strip-trailing-slashes --symbolic-link "
    "--suffix: --target-directory: --no-target-directory --update? --verbose --one-file-system --directory "
    "--mode: --owner: --group: --relative --logical --physical --compare --strip -m: -o: -g: -D -C -c -F"
)
_MOVE = (
    "-finuvbTZ -t: -S: --force --interactive --no-clobber --update? --verbose --backup? --suffix: "
    "--target-directory: --no-target-directory --strip-trailing-slashes --exchange --no-copy --debug"
)
_COMPRESS = (
    "-123456789cdfklnNqrtv -T: -S: --stdout --to-stdout --decompress --uncompress --force --keep --list "
    "--no-name --name --quiet --recursive --suffix: --test --verbose --fast --best --threads:"
)
_TAR_FLAGS = frozenset("tvfzjJapkhOPSmli")
_TAR_LONG = name_set(
    "--list --verbose --gzip --gunzip --bzip2 --xz --zstd --lzma --auto-compress --file --directory "
    "--exclude --wildcards --no-wildcards --strip-components --full-time --numeric-owner --no-recursion "
    "--utc --totals --show-transformed-names --ignore-zeros --force-local"
)


def _classify_mv(words: Words) -> CommandVerdict:
    # Replacing the destination is a local change, as it is for cp and >: undo covers it.
    parsed = parse_options(words, _MOVE)
    sources, targets = copy_targets(parsed)
    verdicts = [has_effect(Effect.LOCAL_MUTATION, "it moves files"), option_verdict(parsed)]
    verdicts += [role_verdict("m", source, "") for source in sources]
    verdicts += targets
    if any(operand.display == "/dev/null" for operand in parsed.operands[-1:]):
        verdicts.append(has_effect(Effect.DESTRUCTIVE, "a file moved to /dev/null is gone"))
    return merge(verdicts)


def _classify_dd(words: Words) -> CommandVerdict:
    verdicts = []
    for word in words[1:]:
        name, equals, value = word.prefix.partition("=")
        path = Word(word.display.partition("=")[2], word.text and value, value, is_located=word.is_located)
        if not equals or word.may_be_option:
            verdicts.append(uncertain(f"the dd operand {word.display} is unknown"))
        elif name == "of":
            verdicts.append(writes(path, f"dd overwrites {path.display}", Effect.DESTRUCTIVE))
        elif name == "if":
            verdicts.append(reads(path))
    return merge(verdicts)


def _classify_compressor(words: Words) -> CommandVerdict:
    """Return the verdict on a compressor, which replaces each file unless it is to print, list or test."""
    parsed = parse_options(words, _COMPRESS)
    prints = parsed.has("-c", "-l", "-t", "--stdout", "--to-stdout", "--list", "--test")
    if prints or not parsed.operands:
        return merge([option_verdict(parsed), *map(reads, parsed.operands)])
    return merge([option_verdict(parsed), *(role_verdict("m", file, "") for file in parsed.operands)])


def _classify_unzip(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-lvtzZpcqC12 -d:w -P: -onufj", posix=True, separate_values=True)
    prints = parsed.has("-l", "-v", "-t", "-z", "-Z", "-p", "-c")
    unpacking = NO_EFFECT if prints else uncertain("unzip unpacks files")
    return merge([option_verdict(parsed), unpacking, *map(reads, parsed.operands[:1])])


def _classify_tar(words: Words) -> CommandVerdict:
    """Return the verdict on tar: only a listing just reads, and even that can run programs or use a host."""
    lists = False
    doubts = []
    for position, word in enumerate(words[1:]):
        text = word.text
        if ":" in word.display:
            doubts.append(f"{word.display} may be on another machine")
        if text is None:
            if word.may_be_option or position == 0:
                doubts.append(f"{word.display} may be an option")
        elif text.startswith("--"):
            lists |= text == "--list"
            if text.partition("=")[0] not in _TAR_LONG:
                doubts.append(f"tar {text.partition('=')[0]} may do more than list")
        elif position == 0 or (text.startswith("-") and len(text) > 1):
            letters = text.lstrip("-").rstrip("CTX")  # these take the next word
            lists |= "t" in letters
            if not set(letters) <= _TAR_FLAGS:
                doubts.append(f"tar {text} may do more than list")
    if not lists:
        doubts.append("tar writes files")
    return merge(map(uncertain, doubts))


def _classify_crontab(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-l -u: -e!u -r!d -i")
    verdicts = [option_verdict(parsed)]
    if not parsed.has("-l"):
        verdicts.append(uncertain("crontab changes what runs regularly"))
    verdicts += [role_verdict("m", operand, "") for operand in parsed.operands]
    return merge(verdicts)


COMMANDS = (
    CommandSpec(
        names="rm unlink",
        options="-frRidvIxW --force --recursive --interactive? --dir --verbose --one-file-system "
        "--no-preserve-root --preserve-root?",
        operands="d",
        effect=Effect.DESTRUCTIVE,
        reason="removes files",
        allow_dynamic=True,
    ),
    CommandSpec(
        names="shred truncate wipefs blkdiscard srm",
        options="*",
        operands="d",
        effect=Effect.DESTRUCTIVE,
        reason="destroys contents",
    ),
    CommandSpec(
        names="mkfs fdisk parted sfdisk gdisk mkswap cryptsetup lvremove vgremove zpool debugfs tune2fs "
        "e2fsck fsck mkdosfs mke2fs hdparm nvme badblocks",
        options="*",
        operands="d",
        effect=Effect.DESTRUCTIVE,
        reason="changes disks",
    ),
    CommandSpec(
        names="pkill killall xkill skill",
        options="*",
        operands=".",
        effect=Effect.DESTRUCTIVE,
        reason="ends processes",
    ),
    CommandSpec(
        names="shutdown reboot halt poweroff init telinit killall5",
        options="*",
        operands=".",
        effect=Effect.DESTRUCTIVE,
        reason="ends all processes",
        info_arguments="",
    ),
    CommandSpec(
        names="cp install ln",
        options=_COPY,
        operands="c",
        effect=Effect.LOCAL_MUTATION,
        reason="writes files",
    ),
    CommandSpec(names="mv rename", classify=_classify_mv),
    CommandSpec(
        names="mkdir touch mkfifo mknod rmdir",
        options="-pmvcahfZ -d: -r:r -t: --parents --mode: --verbose --date: --reference:r --time: "
        "--no-create --ignore-fail-on-non-empty --no-dereference",
        operands="w",
        effect=Effect.LOCAL_MUTATION,
        reason="creates, touches or removes directory entries",
        allow_dynamic=True,
    ),
    CommandSpec(
        names="tee sponge",
        options="-aip --append --ignore-interrupts --output-error?",
        operands="w",
        allow_dynamic=True,
    ),
    CommandSpec(
        names="chmod chown chgrp setfacl chattr setfattr chcon",
        options="-RcfvhHLPmxbkd --recursive --changes --silent --quiet --verbose --no-dereference "
        "--dereference --reference:r --from: --preserve-root --no-preserve-root",
        operands="pm",
        effect=Effect.LOCAL_MUTATION,
        reason="changes permissions",
        allow_dynamic=True,
    ),
    CommandSpec(names="dd", classify=_classify_dd),
    CommandSpec(names="gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma", classify=_classify_compressor),
    CommandSpec(names="zcat bzcat xzcat lzcat", options="-fqvs --force --quiet --verbose"),
    CommandSpec(names="unzip", classify=_classify_unzip),
    CommandSpec(names="tar bsdtar gtar", classify=_classify_tar),
    CommandSpec(names="crontab", classify=_classify_crontab),
    # The rest is as uncertain as an unknown program. It is specified because its operands are files that it
    # reads, which a rule on `reads` may concern, and because of the arguments that only print a version.
    CommandSpec(
        names="vi vim nvim vimdiff nano emacs ed ex pico joe micro gedit code man less more most view pg "
        "info zstd unzstd zstdcat lz4",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="can write files or run commands",
        certain=False,
    ),
    CommandSpec(
        names="python pypy node deno bun ruby perl php lua luajit tclsh Rscript R ghci java javac gcc cc g++ "
        "c++ clang clang++ tsc go ocaml guile make gmake cmake ninja meson mypy ruff black uv pipx gem conda "
        "mamba",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="runs code that is not analysed",
        certain=False,
        info_arguments="--version -V -v -version version --help -h -dumpversion -dumpmachine",
    ),
    CommandSpec(
        # Even when asked for their version these run files of the folder, or install what they need.
        names="cargo rustc rustup dotnet swift julia scala kotlin groovy jshell bazel just task rake ant mvn "
        "gradle pytest tox nox npx yarn pnpm poetry pipenv uvx jupyter ipython bundle composer nix guix sbt "
        "lein grunt gulp source .",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="runs code that is not analysed",
        certain=False,
        info_arguments="",
    ),
)
