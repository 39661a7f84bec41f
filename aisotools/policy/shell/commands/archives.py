"""Archives and compressed files: listing, testing and printing them only reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from aisotools.policy.shell.expansion import Word, literal, name_set, without_beginning
from aisotools.policy.shell.options import (
    CommandSpec,
    Words,
    join_option_tables,
    option_verdict,
    parse_options,
    role_verdict,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    merge,
    reads,
    uncertain,
)

_COMPRESS = (
    "-123456789cdfklnNqrtvz -T: -S: -p: -b: --stdout --to-stdout --decompress --uncompress --force "
    "--keep --list "
    "--no-name --name --quiet --recursive --suffix: --test --verbose --fast --best --threads: --processes: "
    "--memlimit: --rsyncable --robot --format: --extreme -e -@: --bgzip"
)
_PIGZ = join_option_tables(_COMPRESS, "-Tm")  # with which it leaves out the time
_ZSTD = (
    "-123456789cdfklqrtvzC -T? -o:w -D:r -M? -b? -e? -i? --stdout --decompress --uncompress --force "
    "--keep --list --test "
    "--verbose --quiet --threads: --ultra --long? --no-check --check --no-progress --progress --memory: "
    "--rm!d "
    "--format: --fast? --adapt? --sparse --no-sparse --output-dir-flat:w --filelist:r"
)
_BGZIP = (
    "-cdfhikrt -b: -s: -@: -l: -I:w -g -o:w --stdout --decompress --force --help --index --keep "
    "--rebgzip --test "
    "--offset: --size: --threads: --compress-level: --index-name:w --output:w --reindex!c"
)
_TAR_FILE = "f"
_TAR_FLAGS = frozenset("tvfzjJapkhOPSmli")
_TAR_PRINT_FLAGS = _TAR_FLAGS | {"x"}
_TAR_LONG = name_set(
    "--list --verbose --gzip --gunzip --bzip2 --xz --zstd --lzma --auto-compress --file --directory "
    "--exclude --wildcards --no-wildcards --strip-components --full-time --numeric-owner --no-recursion "
    "--utc --totals --show-transformed-names --ignore-zeros --force-local --to-stdout --no-anchored "
    "--occurrence"
)
_SEVEN_ZIP_READS = frozenset(("l", "t", "i", "h"))


def _classify_compressor(words: Words) -> CommandVerdict:
    """Return the verdict on a compressor, which replaces each file unless it is to print, list or test."""
    # What sends the output to the terminal cannot be taken back by what follows.
    prints_always = any(
        word.text in {"-c", "-dc", "-cd", "-cdf", "--stdout", "--to-stdout"} for word in words
    )
    # In gzip, nothing takes back that it lists or tests.
    tests = words[0].text == "gzip" and any(map(_GZIP_SHOWS.fullmatch, (w.text or "" for w in words[1:])))
    options = _PIGZ if words[0].text in {"pigz", "unpigz"} else _COMPRESS
    parsed = parse_options(words, options, allow_dynamic=prints_always or tests)
    prints = parsed.has("-c", "-l", "-t", "--stdout", "--to-stdout", "--list", "--test")
    if prints or not parsed.operands:
        return merge([option_verdict(parsed), *map(reads, parsed.operands)])
    return merge([option_verdict(parsed), *(role_verdict("m", file, "") for file in parsed.operands)])


_GZIP_SHOWS = re.compile(r"-[vqN]*[lt][vqNlt]*|--list|--test")


def _classify_zstd(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _ZSTD)
    prints = parsed.has("-c", "-l", "-t", "-b", "--stdout", "--list", "--test")
    verdicts = [option_verdict(parsed), *map(reads, parsed.operands)]
    if not prints and parsed.operands:
        verdicts.append(uncertain(f"{words[0].display} writes files"))
    return merge(verdicts)


def _classify_lz4(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words, "-123456789cdfklmqrtvz -B? -D:r --stdout --decompress --list --test --rm!d --fast?"
    )
    prints = parsed.has("-c", "-t", "--stdout", "--test", "--list")
    # With one file and output to a pipe it prints; with a second one it writes that.
    verdict = NO_EFFECT if prints and len(parsed.operands) < 2 else uncertain("lz4 writes files")
    return merge([option_verdict(parsed), verdict, *map(reads, parsed.operands[:1])])


def _classify_bgzip(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _BGZIP)
    prints = parsed.has("-c", "--stdout", "-t", "--test", "-b", "--offset") and not parsed.has(
        "-i", "--index"
    )
    verdicts = [option_verdict(parsed), *map(reads, parsed.operands)]
    if not prints and (parsed.operands or parsed.has("-i", "--index", "-r")):
        verdicts.append(uncertain("bgzip replaces files"))
    return merge(verdicts)


def _classify_unzip(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-lvtzZpcqC12 -d:w -P: -x: -onufj", posix=True, separate_values=True)
    prints = parsed.has("-l", "-v", "-t", "-z", "-Z", "-p", "-c")
    unpacking = NO_EFFECT if prints else uncertain("unzip unpacks files")
    return merge([option_verdict(parsed), unpacking, *map(reads, parsed.operands[:1])])


_SEVEN_ZIP_OPTION = re.compile(
    r"-(?:slt|ba|bd|bb[0-3]?|bs[oep][0-2]|bt|p.*|r[-0]?|t[\w.]+|so|y|scs[\w-]+|scrc\w*|an|spd|sns?|ssc-?"
    r"|scc[\w-]+|mmt\w*|[ix]r?[-0]?![^@]*|v|c-|inul|id[\w,]*|cfg-|ep\d?|-)",
    re.DOTALL,
)


def _classify_7z(words: Words) -> CommandVerdict:
    doubts = [
        uncertain(f"{words[0].display} may write files with {word.display}")
        for word in words[1:]
        if word.may_be_option and (word.text is None or not _SEVEN_ZIP_OPTION.fullmatch(word.text))
    ]
    # A list of names; what is in it decides what else is read.
    doubts += [
        merge([uncertain(f"what {word.display} lists is unknown"), reads(without_beginning(word, 1))])
        for word in words[2:]
        if word.prefix.startswith("@")
    ]
    return merge([_classify_7z_command(words), *doubts])


def _classify_7z_command(words: Words) -> CommandVerdict:
    command = words[1].text if len(words) > 1 else ""
    prints = command in _SEVEN_ZIP_READS or (
        command in {"x", "e"} and any(word.text == "-so" for word in words)
    )
    archives = [word for word in words[2:] if not word.prefix.startswith("-")]
    if not prints and command:
        return merge([uncertain(f"{words[0].display} writes files"), *map(reads, archives)])
    return merge(map(reads, archives[:1]))


_TAR_PACKS = (
    "-cvzjJphSP -f: -C: --create --verbose --gzip --bzip2 --xz --dereference --exclude: --exclude-vcs "
    "--exclude-vcs-ignores --exclude-backups --exclude-caches --file: --directory: --totals --sort: --mtime: "
    "--owner: --group: --numeric-owner --no-recursion --one-file-system"
)
_TAR_LETTERS = re.compile(r"[cvzjJphSP]*c[cvzjJphSP]*f")


def _classify_tar_to_output(words: Words) -> CommandVerdict | None:
    """Return the verdict on a tar that packs files and prints the archive; None if it does anything else."""
    if len(words) > 1 and _TAR_LETTERS.fullmatch(words[1].text or ""):
        words = [words[0], literal(f"-{words[1].text}"), *words[2:]]
    parsed = parse_options(words, _TAR_PACKS)
    archive = parsed.value("-f", "--file")
    if (
        not parsed.has("-c", "--create")
        or parsed.doubts
        or len([option for option in parsed.options if option.name in {"-f", "--file"}]) != 1
        or (archive is not None and archive.text != "-")
    ):
        return None
    # Which operands stand behind which folder is not looked for: all that is below them may be read.
    folders = [o.value for o in parsed.options if o.name in {"-C", "--directory"} and o.value is not None]
    # bsdtar takes `@archive` for what is in an archive.
    archives = [without_beginning(word, 1) for word in parsed.operands if word.prefix.startswith("@")]
    return merge(map(reads, [*folders, *parsed.operands, *archives]))


def _classify_tar(words: Words) -> CommandVerdict:
    """Return the verdict on tar: listing and printing only read, and can still run programs or use a host."""
    if (packs := _classify_tar_to_output(words)) is not None:
        return packs
    letters_seen: set[str] = set()
    doubts = []
    for position, word in enumerate(words[1:]):
        text = word.text
        if ":" in word.display:
            doubts.append(f"{word.display} may be on another machine")
        if text is None:
            if word.may_be_option or position == 0:
                doubts.append(f"{word.display} may be an option")
        elif text.startswith("--"):
            name = text.partition("=")[0]
            letters_seen |= {"--list": {"t"}, "--to-stdout": {"O"}}.get(name, set())
            if name not in _TAR_LONG:
                doubts.append(f"tar {name} may do more than list")
        elif position == 0 or (text.startswith("-") and len(text) > 1):
            letters = text.lstrip("-").rstrip("CTX")  # these take the next word
            letters_seen |= set(letters)
            if not set(letters) <= _TAR_PRINT_FLAGS:
                doubts.append(f"tar {text} may do more than list")
    # With both it is refused.
    if ("t" in letters_seen) == ({"x", "O"} <= letters_seen) or (
        "x" in letters_seen and "O" not in letters_seen
    ):
        doubts.append("tar writes files")
    # What it unpacks is decided by the archive.
    unpacked = _archive_of_tar(words) if "x" in letters_seen and doubts else None
    if doubts:  # what another tar would do with these is not certain anyway, and there they are named
        return merge([*map(uncertain, doubts), *map(reads, filter(None, [unpacked]))])
    return merge(map(reads, _tar_files(words)))


def _archive_of_tar(words: Words) -> Word | None:
    """Return the archive that tar is given; None if it is not told by a word of its own."""
    for word, following in zip(words[1:], [*words[2:], None], strict=True):
        text = word.display
        if text.startswith("--file="):
            return literal(text.partition("=")[2])
        if text == "--file" or (text.startswith("-") and not text.startswith("--") and text.endswith("f")):
            return following
    first = words[1].display if len(words) > 2 else ""
    return words[2] if not first.startswith("-") and first.endswith("f") else None


def _tar_files(words: Words) -> Iterator[Word]:
    """Yield what may be a file among the arguments of a tar that lists: the archive, and lists of names."""
    for position, word in enumerate(words[1:]):
        if not word.prefix.startswith("-"):
            if position or word.text is None or _TAR_FILE not in word.text:
                yield word
        elif word.prefix.startswith("--"):
            name, equals, _ = word.prefix.partition("=")
            if equals:
                yield without_beginning(word, len(name) + 1)
        elif found := re.search(r"[fTXC](?=.)", word.prefix):
            yield without_beginning(word, found.end())


def _classify_ar(words: Words) -> CommandVerdict:
    action = (words[1].text or "").lstrip("-") if len(words) > 1 else ""
    if action and set(action) <= set("tpvPO"):
        return merge(map(reads, words[2:3]))
    return uncertain("ar changes an archive")


def _classify_jar(words: Words) -> CommandVerdict:
    """Return the verdict on jar, which lists with `tf` in front. Of the others, `-J` has options of Java."""
    letters = (words[1].text or "").removeprefix("-") if len(words) > 2 else ""
    lists = re.fullmatch(r"[tvf]{2,3}", letters) and {"t", "f"} <= set(letters)
    if lists and all(word.text and word.text[0] not in "-@" for word in words[2:]):
        return reads(words[2])
    return uncertain("jar writes files")


COMMANDS = (
    CommandSpec(names="jar", classify=_classify_jar, info_arguments="--version --help"),
    CommandSpec(
        names="gzip gunzip bzip2 bunzip2 xz unxz lzma unlzma pigz unpigz pbzip2 pbunzip2 lbzip2 lbunzip2 "
        "pixz lzip "
        "plzip compress uncompress brotli",
        classify=_classify_compressor,
        info_arguments="--help --version -h -V",
    ),
    CommandSpec(
        names="zstd unzstd zstdmt pzstd", classify=_classify_zstd, info_arguments="--help --version -h -V"
    ),
    CommandSpec(names="lz4 unlz4", classify=_classify_lz4, info_arguments="--help --version -h -V"),
    CommandSpec(names="bgzip", classify=_classify_bgzip, info_arguments="--help --version -h"),
    CommandSpec(
        names="zcat gzcat",  # they print whatever their options are
        options="-fqvskdc -T: --force --quiet --verbose",
        allow_dynamic=True,
    ),
    CommandSpec(
        names="bzcat xzcat lzcat zstdcat lz4cat lzma-cat brcat",
        options="-fqvskdc -T: --force --quiet --verbose --long? --memory:",
        allow_patterns=True,
    ),
    # They pass their options on to less, diff and the like.
    CommandSpec(
        names="zless zmore bzless bzmore xzless xzmore zstdless zdiff zcmp bzdiff bzcmp xzdiff xzcmp",
        options="-NSRXFEeiInqsurwbyBlcUC -#",
        allow_patterns=True,
    ),
    CommandSpec(names="unzip", classify=_classify_unzip, info_arguments="--help --version -v -h"),
    CommandSpec(names="7z 7za 7zr 7zz p7zip", classify=_classify_7z, info_arguments="--help -h i"),
    CommandSpec(names="unrar rar", classify=_classify_7z, info_arguments=""),
    CommandSpec(names="tar bsdtar gtar", classify=_classify_tar),
    CommandSpec(names="ar", classify=_classify_ar),
)
