"""Programs that change files, processes or the machine."""

from __future__ import annotations

import dataclasses

from aisotools.core.types import Effect, MadeName
from aisotools.policy.shell.expansion import Word
from aisotools.policy.shell.folders import START, join
from aisotools.policy.shell.options import (
    CommandSpec,
    ParsedCommand,
    Words,
    copy_operands,
    copy_targets,
    option_verdict,
    parse_options,
    role_verdict,
)
from aisotools.policy.shell.verdicts import (
    CommandVerdict,
    has_effect,
    merge,
    reads,
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
_LINK = (
    "-bdFfiLnPrsTv -S: -t: --backup? --directory --force --interactive --logical --no-dereference "
    "--physical --relative --symbolic --suffix: --target-directory: --no-target-directory --verbose"
)
_MOVE = (
    "-finuvbTZ -t: -S: --force --interactive --no-clobber --update? --verbose --backup? --suffix: "
    "--target-directory: --no-target-directory --strip-trailing-slashes --exchange --no-copy --debug"
)


def _made_names(parsed: ParsedCommand, *, is_link: bool = False) -> tuple[MadeName, ...]:
    """Return the names that a copy, a move or a link makes.

    A destination that is a folder, as the text need not tell, gets a name in it.

    Args:
        parsed: The command.
        is_link: Whether the names become symbolic links, whose texts are meant from where they are.
    """
    sources, destination, is_folder = copy_operands(parsed)
    folder = destination.path.rstrip("/") or "/"
    made = []
    for source in sources:
        path = source.path.rstrip("/") or "/"
        inside = [path.rpartition("/")[2], *([path.lstrip("/")] if parsed.has("--parents") else [])]
        names = [f"{folder.rstrip('/')}/{name}" for name in inside]
        for name in names if is_folder else [folder, *names]:
            is_meant_from_link = is_link and not path.startswith(("/", "~", "$"))
            target = join(name.rpartition("/")[0] or START, path) if is_meant_from_link else path
            made.append(MadeName(name, target, is_link=is_link))
    return tuple(made)


def _classify_cp(words: Words) -> CommandVerdict:
    """Return the verdict on cp and install: copies of links are links, below a folder as well."""
    parsed = parse_options(words, _COPY)
    sources, targets = copy_targets(parsed)
    is_link = words[0].text == "cp" and parsed.has("-s", "--symbolic-link")
    made = CommandVerdict(made=_made_names(parsed, is_link=is_link))
    verdicts = [_writes_files(words), option_verdict(parsed), *map(reads, sources), *targets, made]
    if words[0].text == "cp" and parsed.has("-l", "--link"):
        verdicts += map(_shares_content, sources)
    if parsed.has("-L", "--dereference", "-H") and parsed.has("-r", "-R", "-a", "--recursive", "--archive"):
        # What links below a folder lead to is copied as well.
        verdicts += [CommandVerdict(unresolved=(source.display,)) for source in sources]
    return merge(verdicts)


def _shares_content(source: Word) -> CommandVerdict:
    """Return the verdict on a file that gets one more name: what is written by that name changes the file."""
    return writes(source, f"what is written by the new name of {source.display} changes it")


def _classify_ln(words: Words) -> CommandVerdict:
    """Return the verdict on ln: what a symbolic link leads to is meant from the folder of the link."""
    parsed = parse_options(words, _LINK)
    sources, targets = copy_targets(parsed)
    is_symbolic = parsed.has("-s", "--symbolic")
    # With --relative ln works out itself how the target lies to the link.
    is_link = is_symbolic and not parsed.has("-r", "--relative")
    made = _made_names(parsed, is_link=is_link)
    if is_symbolic and not is_link:
        made = tuple(dataclasses.replace(name, is_link=True) for name in made)
    leads_to = [CommandVerdict(reads=(name.source,)) for name in made] if is_link else map(reads, sources)
    unknown = [reads(source) for source in sources if not source.is_located]
    shared = [] if is_symbolic else map(_shares_content, sources)
    return merge(
        [
            _writes_files(words),
            option_verdict(parsed),
            *leads_to,
            *shared,
            *unknown,
            *targets,
            CommandVerdict(made=made),
        ]
    )


def _writes_files(words: Words) -> CommandVerdict:
    return has_effect(Effect.LOCAL_MUTATION, f"{words[0].display} writes files")


def _classify_mv(words: Words) -> CommandVerdict:
    # Replacing the destination is a local change, as it is for cp and >: undo covers it.
    parsed = parse_options(words, _MOVE)
    sources, targets = copy_targets(parsed)
    verdicts = [has_effect(Effect.LOCAL_MUTATION, "it moves files"), option_verdict(parsed)]
    verdicts += [role_verdict("m", source, "") for source in sources]
    verdicts += targets
    if any(operand.display == "/dev/null" for operand in parsed.operands[-1:]):
        verdicts.append(has_effect(Effect.DESTRUCTIVE, "a file moved to /dev/null is gone"))
    # How `rename` makes new names of old ones is a program of its own.
    made = (MadeName(START),) if words[0].text == "rename" else _made_names(parsed)
    if parsed.has("--exchange"):
        made += tuple(MadeName(name.source, name.name) for name in made)
    return merge([*verdicts, CommandVerdict(made=made)])


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
        names="mkfs parted mkswap lvremove vgremove debugfs e2fsck fsck mkdosfs mke2fs badblocks",
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
    CommandSpec(names="cp install", classify=_classify_cp),
    CommandSpec(names="ln", classify=_classify_ln),
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
    CommandSpec(names="crontab", classify=_classify_crontab),
)
