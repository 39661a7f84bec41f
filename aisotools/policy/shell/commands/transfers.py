"""Programs that copy files from and to other machines: which files they read and write here.

A file is named where the command line says its name: `wget URL` saves what is behind the last slash of the
path, `scp host:f d/` makes `d/f`. Where a server, a pattern or a list decides, the folder is named, and the
command is uncertain. Programs that obey settings of their own, which can run commands or name other
machines, stay uncertain; what their arguments name is listed all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    Words,
    option_verdict,
    parse_options,
    path_below,
    path_in,
    role_verdict,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    contacts,
    has_effect,
    host_from_operand,
    host_of,
    merge,
    reads,
    uncertain,
    writes,
)

ACTS_ELSEWHERE = "acts on other machines or services"
"""Why a program is uncertain that obeys settings and talks to services; follows its name."""


def network_verdict(hosts: Words, program: str) -> CommandVerdict:
    """Return the verdict that `program` acts on another machine; uncertain if no host is named."""
    return CommandVerdict(
        effect=Effect.REMOTE_ACTION,
        certain=bool(hosts),
        reasons=(f"{program} talks to another machine",),
    )


# ---- names of what is saved

_HERE = literal(".")
_SAVES = "it saves what it downloads"
_SERVER_CHOOSES = "the server chooses the names"
_URL_PARTS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*([^?#]*)(?:\?([^#]*))?")
_IS_FTP = re.compile(r"ftps?:", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9 _.,+=@~:;&!'()%-]{1,200}")
_KEPT_ENCODED = re.compile(r"%(2f|[01][0-9a-f]|7f)", re.IGNORECASE)


def _name_of_url(url: Word, *, default: str = "", as_wget: bool = False) -> str:
    """Return the name under which what a URL leads to is saved; empty if its text does not say that.

    Args:
        url: The URL.
        default: The name where there is none behind the last slash.
        as_wget: Whether `?` and what follows are part of the name, and `%20` is decoded.
    """
    if url.text is None or (found := _URL_PARTS.match(url.text)) is None:
        return ""
    name, query = found[1].rpartition("/")[2], found[2]
    if name in {".", ".."}:
        return ""  # of the folder above
    name = name or default
    if as_wget:
        if _IS_FTP.match(url.text) and (query is not None or ";" in name):
            return ""
        parts = [name] if query is None else [name, query]
        spelt = [_KEPT_ENCODED.sub(lambda found: f"%25{found[1].upper()}", part) for part in parts]
        name = "?".join(map(unquote, spelt))
    is_plain = name not in {"", ".", ".."} and all(map(_PLAIN_NAME.fullmatch, name.split("?", 1)))
    return name if is_plain else ""


def _saved(folder: Word | None, names: Sequence[str], why: str = _SERVER_CHOOSES) -> CommandVerdict:
    """Return the verdict on what is saved into a folder: names, an empty one where `why` says who decides."""
    verdicts = []
    for name in names:
        if name:
            word = literal(name)
            verdicts.append(writes(word if folder is None else path_in(folder, word), _SAVES))
    if not names or "" in names:
        verdicts += [writes(folder or _HERE, _SAVES), uncertain(f"{why} of what it saves")]
    return merge(verdicts)


# ---- wget

_WGET = (
    "-qvcNSbdrmpkKEHLxF -n: -O:W -o:W -a:W -P: -i:u -B: -U: -T: -t: -w: -Q: -l: -A: -R: -D: -I: -X: -e:u "
    "--quiet --verbose --no-verbose --output-document:W --output-file:W --append-output:W "
    "--directory-prefix: --spider --no-check-certificate --timeout: --tries: --header: --user-agent: "
    "--referer: --post-data: --post-file:r --body-file:r --method: --body-data: --recursive --mirror "
    "--continue --use-askpass:x --execute:u --config:u --input-file:u --content-disposition "
    "--trust-server-names --no-clobber --server-response --load-cookies:r --save-cookies:w --certificate:r "
    "--private-key:r --ca-certificate:r --crl-file:r --hsts-file:w --rejected-log:w --no-hsts "
    "--timestamping --force-directories --no-directories --no-host-directories --cut-dirs: "
    "--default-page: --adjust-extension --page-requisites --convert-links --background --no-cookies "
    "--no-cache --no-proxy --user: --password: --http-user: --http-password: --ftp-user: --ftp-password: "
    "--limit-rate: --wait: --random-wait --waitretry: --retry-connrefused --level: --no-parent --accept: "
    "--reject: --show-progress --progress: --max-redirect: --compression: --dns-timeout: "
    "--connect-timeout: --read-timeout: --https-only --inet4-only --inet6-only --no-netrc --no-iri "
    "--secure-protocol: --no-if-modified-since"
)
_WGET_CHOOSES = (
    *("-r", "-m", "-p", "-x", "-H", "-E", "-K", "-k", "-i", "--recursive", "--mirror", "--page-requisites"),
    *("--force-directories", "--adjust-extension", "--convert-links", "--content-disposition"),
    *("--trust-server-names", "--input-file"),
)
"""Options with which wget saves more than the URLs say, or under other names."""
_WGET_KEEPS_NAME = ("-c", "-N", "--continue", "--timestamping", "--no-clobber")
"""Options with which wget uses no further name if there is such a file."""
_WGET_LOG = "wget-log"


def _classify_wget(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _WGET)
    verdicts = [network_verdict(parsed.operands, "wget"), option_verdict(parsed)]
    verdicts += [role_verdict("h", operand, "") for operand in parsed.operands]
    if parsed.has("-b", "--background"):
        verdicts += [writes(literal(_WGET_LOG)), uncertain("wget goes on in the background")]
    if parsed.value("-O", "--output-document") is not None or parsed.has("--spider"):
        return merge(verdicts)
    folder = parsed.value("-P", "--directory-prefix")
    if (urls := parsed.value("-i", "--input-file")) is not None:
        verdicts.append(reads(urls))
    if parsed.has(*_WGET_CHOOSES):
        return merge([*verdicts, _saved(folder, (), "an option decides about the names")])
    page = parsed.value("--default-page")
    default = "index.html" if page is None else page.text or ""
    names = [_name_of_url(url, default=default, as_wget=True) for url in parsed.operands]
    is_kept = parsed.has(*_WGET_KEEPS_NAME) or any(
        option.name == "-n" and option.value is not None and "c" in option.value.display
        for option in parsed.options
    )
    # Case: where there is such a file, wget leaves it and saves another one beside it.
    numbered = [] if is_kept else [f"{name}.1" for name in names if name]
    return merge([*verdicts, _saved(folder, [*names, *numbered], "the URL does not say the name")])


# ---- scp, rsync and sftp

_RSYNC = (
    "-346AabCcDdEgHhIiJKkLlmNnOoPpqRrSstUuvWXxyz0 -F!u -B: -T:w -e:x -f: -M:x --archive --verbose "
    "--compress --recursive --delete!d --delete-after!d --delete-before!d --delete-excluded!d "
    "--delete-during!d --remove-source-files!d --rsh:x --rsync-path:x --exclude: --include: --filter: "
    "--exclude-from:r --include-from:r --password-file:r --early-input:r --files-from:L --progress "
    "--partial --partial-dir:w --temp-dir:w --dry-run --list-only --stats --update --itemize-changes "
    "--inplace --checksum --human-readable --bwlimit: --max-size: --min-size: --chmod: --chown: "
    "--log-file:w --backup --backup-dir:w --suffix: --perms --times --link-dest:m --compare-dest:r "
    "--copy-dest:r --out-format: --log-file-format: --info: --from0 --relative --links --copy-links "
    "--ignore-existing --size-only --no-owner --no-group --no-perms --timeout: --contimeout: --port:"
)
_RSYNC_FILTERS = frozenset(("-f", "--filter"))
_RSYNC_PLACES = frozenset(("-T", "--temp-dir", "--partial-dir", "--backup-dir", "--link-dest"))
"""Folders that rsync writes to where it copies."""
_MERGE_RULE = re.compile(r"(?:merge|\.)(?:,?[-+!/enCwsrpx]*)[ _](.+)", re.DOTALL)
_PLAIN_RULE = re.compile(
    r"(?:include|exclude|hide|show|protect|risk|clear|[-+!HSPR])(?:,?[!/Csrpx]*)(?:[ _].*)?", re.DOTALL
)
_SCP = "-346ABCOpqRrsTv -c: -D:u -F:u -i:r -J:h -l: -o:u -P: -S:x -X:"
_SFTP = "-46AaCfNpqrv -B: -b:r -c: -D:x -F:u -i:r -J:h -l: -o:u -P: -R: -S:x -s:u -X:"
_URL_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/]*)")
_PATH_OF_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*/?(.*)", re.DOTALL)
_RUN_TIME = frozenset("*?[]{}$`\\~\"' ")


def _remote_name(path: Word) -> str:
    """Return the last part of a path on another machine, `host:path` or a URL; empty if it is not known."""
    if path.text is None:
        return ""
    found = _PATH_OF_URL.fullmatch(path.text)
    name = (found[1] if found else path.text.partition(":")[2]).rstrip("/").rpartition("/")[2]
    # The shell of the other machine, or the program there, expands what has a meaning for it.
    return "" if name in {"", ".", ".."} or not _RUN_TIME.isdisjoint(name) else name


def _received(sources: Sequence[Word], destination: Word, *, is_folder: bool = False) -> CommandVerdict:
    """Return the verdict on the files that sources become, which lie on another machine or here.

    Args:
        sources: What is copied.
        destination: A path here.
        is_folder: Whether the destination is a folder, however it is written.
    """
    is_folder = is_folder or len(sources) > 1 or destination.display in {".", ".."}
    if not is_folder and not destination.display.endswith("/"):
        return writes(destination)  # a file, or a folder, which counts with what is below it
    verdicts = []
    for source in sources:
        if not host_of(source.display) and not _URL_HOST.match(source.display):
            verdicts.append(writes(path_in(destination, source)))
        elif name := _remote_name(source):
            verdicts.append(writes(path_in(destination, literal(name))))
        else:
            doubt = uncertain(f"the other machine decides which files {source.display} means")
            verdicts += [writes(destination), doubt]
    return merge(verdicts)


def _classify_scp(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _SCP)
    verdicts = [
        has_effect(Effect.REMOTE_ACTION, f"{words[0].display} copies files"),
        option_verdict(parsed),
        *(contacts(host, f"it contacts {host}") for host in _hosts_of(parsed.operands)),
    ]
    *sources, destination = parsed.operands or [_HERE]
    verdicts += [reads(source) for source in sources if not host_of(source.display)]
    if sources and not host_of(destination.display):
        verdicts.append(_received(sources, destination))
    return merge(verdicts)


def _hosts_of(paths: Words) -> Iterator[str]:
    return (host for path in paths if (host := host_of(path.display)))


def _classify_rsync(words: Words) -> CommandVerdict:
    """Return the verdict on rsync: paths with a colon are remote, and the last path is written."""
    parsed = parse_options(words, _RSYNC)
    rules = [
        _rsync_filter(o.value) for o in parsed.options if o.name in _RSYNC_FILTERS and o.value is not None
    ]
    if parsed.has("-n", "--dry-run", "--list-only") and all(map(_is_here, parsed.operands)):
        # It says what it would do. What it writes about that, such as `--log-file`, is written all the same.
        acts = [o for o in parsed.options if o.role != "d" and o.name not in _RSYNC_PLACES]
        return merge([option_verdict(parsed._replace(options=acts)), *rules, *map(reads, parsed.operands)])
    verdicts = [
        has_effect(Effect.REMOTE_ACTION, f"{words[0].display} copies files"),
        option_verdict(parsed),
        *rules,
    ]
    for path in parsed.operands:
        if host := host_of(path.display):
            verdicts.append(contacts(host, f"it contacts {host}"))
        elif path is parsed.operands[-1]:
            verdicts.append(writes(path))
        else:
            verdicts.append(reads(path))
    return merge(verdicts)


def _is_here(path: Word) -> bool:
    """Return whether a path certainly lies on this machine."""
    return path.text is not None and not path.may_be_option and not host_of(path.display)


def _rsync_filter(rule: Word) -> CommandVerdict:
    """Return the verdict on a rule of `--filter`, which may stand in a file, or be read in each folder."""
    if rule.text is None:
        return uncertain(f"{rule.display} may name files")
    if found := _MERGE_RULE.fullmatch(rule.text):
        return reads(literal(found[1]))
    return NO_EFFECT if _PLAIN_RULE.fullmatch(rule.text) else uncertain(f"the rule {rule.text} reads files")


def _classify_sftp(words: Words) -> CommandVerdict:
    """Return the verdict on sftp, which obeys its standard input unless its operand names a file."""
    parsed = parse_options(words, _SFTP)
    host, *targets = parsed.operands or [literal("")]
    verdicts = [option_verdict(parsed), uncertain("sftp obeys its standard input", Effect.REMOTE_ACTION)]
    verdicts.append(contacts(host_from_operand(host.display), f"it contacts {host.display}"))
    found = _PATH_OF_URL.fullmatch(host.display)
    path = found[1] if found else host.display.partition(":")[2]
    if path and not path.endswith("/"):  # of a folder nothing is copied
        verdicts.append(_received([host], targets[0] if targets else _HERE))
    return merge(verdicts)


# ---- other clients, which obey settings of their own

_FTP = "-46AadefginpRtVv -N:u -o: -P: -q: -r: -s: -T: -u:r"
_ARIA2C = (
    "-x: -s: -j: -k: -m: -t: -l:W -cqZUVDRn -d: -o: -i:r --dir: --out: --input-file:r --continue? --quiet? "
    "--split: --max-connection-per-server: --max-concurrent-downloads: --log:W --allow-overwrite? "
    "--auto-file-renaming? --checksum: --header: --user-agent: --load-cookies:r --save-cookies:w "
    "--certificate:r --private-key:r --ca-certificate:r --conf-path:u --no-conf"
)
_AXEL = "-46aCckNqvV -n: -o: -s: -S? -H: -U: -T: --output: --quiet --num-connections: --max-speed: --timeout:"
_HTTPIE = (
    "-jfdcbhvFSIq -o: -p: -s: -A: -a: -x? --json --form --multipart --download --continue --output: "
    "--body --headers --verbose --print: --pretty: --style: --stream --follow --max-redirects: --timeout: "
    "--check-status --verify: --cert:r --cert-key:r --auth: --auth-type: --session: --session-read-only: "
    "--proxy: --ignore-stdin --offline --raw: --boundary: --compress --quiet --default-scheme:"
)
_HTTPIE_FILE = re.compile(r"(?:\\.|[^=:@\\])*(?:==|:=|=|:)?@([^;]+)", re.DOTALL)
_METHOD = re.compile(r"[A-Za-z]+")
_LOCAL_SERVER = re.compile(r":(?=/|[0-9]|$)")


def _elsewhere(words: Words) -> CommandVerdict:
    return uncertain(f"{words[0].display} {ACTS_ELSEWHERE}", Effect.REMOTE_ACTION)


def _downloader(options: str, folders: Sequence[str], outputs: Sequence[str]) -> Classifier:
    """Return a classifier of a program that saves each URL by its name, or as the server says.

    Args:
        options: The options that it knows.
        folders: The options that name a folder.
        outputs: The options that name the file.
    """

    def classify(words: Words) -> CommandVerdict:
        parsed = parse_options(words, options)
        verdicts = [_elsewhere(words), option_verdict(parsed)]
        verdicts += [role_verdict("h", operand, "") for operand in parsed.operands]
        folder, output = parsed.value(*folders), parsed.value(*outputs)
        if output is not None:
            verdicts.append(NO_EFFECT if output.text == "-" else writes(_below(folder, output), _SAVES))
        elif parsed.operands:
            verdicts.append(_saved(folder, [*map(_name_of_url, parsed.operands), ""]))
        return merge(verdicts)

    return classify


def _below(folder: Word | None, path: Word) -> Word:
    """Return a path that a program takes from a folder, as it takes `-o a/b` from that of `-d`."""
    if folder is None or path.prefix.startswith("/"):
        return path
    return path_below(folder, path)


def _classify_ftp(words: Words) -> CommandVerdict:
    """Return the verdict on ftp, which fetches URLs, or obeys its standard input."""
    parsed = parse_options(words, _FTP)
    verdicts = [_elsewhere(words), option_verdict(parsed)]
    verdicts += [role_verdict("h", operand, "") for operand in parsed.operands[:1]]
    output = parsed.value("-o")
    urls = [url for url in parsed.operands if "/" in url.display or ":" in url.display]
    if output is not None and output.prefix.startswith("|"):
        verdicts.append(uncertain(f"ftp runs {output.display}"))
    elif output is not None:
        verdicts.append(NO_EFFECT if output.text == "-" else writes(output, _SAVES))
    elif urls:
        verdicts.append(_saved(None, list(map(_name_of_url, urls))))
    return merge(verdicts)


def _classify_httpie(words: Words) -> CommandVerdict:
    """Return the verdict on HTTPie: a method, a URL, and items that may be the content of files."""
    parsed = parse_options(words, _HTTPIE)
    verdicts = [_elsewhere(words), option_verdict(parsed)]
    operands = parsed.operands
    if len(operands) > 1 and _METHOD.fullmatch(operands[0].display):
        operands = operands[1:]
    for url in operands[:1]:
        is_here = _LOCAL_SERVER.match(url.display) is not None
        verdicts.append(role_verdict("h", literal("localhost") if is_here else url, ""))
    for item in operands[1:]:
        if found := _HTTPIE_FILE.match(item.display):
            path = literal(found[1])
            verdicts.append(reads(path if item.text else Word(found[1], None, "", is_located=False)))
    output = parsed.value("-o", "--output")
    if output is not None:
        verdicts.append(writes(output, _SAVES))
    elif operands and parsed.has("-d", "--download"):
        verdicts.append(_saved(None, [_name_of_url(operands[0]), ""]))
    return merge(verdicts)


# ---- stores of objects

_RCLONE_REMOTE = re.compile(r":?([\w.+@ -]+)(?:,[^:]*)?:")
_MOVES = frozenset(("mv", "move", "moveto"))
_MIRRORS = frozenset(("sync", "bisync", "rsync"))
_EXACT = frozenset(("copyto", "moveto"))
_INTO_FOLDER = frozenset(("copy", "move"))
"""Actions of which the destination is a folder, into which a file is copied, or what is in a folder."""
_RECURSIVE = frozenset(("-r", "-R", "--recursive"))


def _store_of(path: Word) -> str:
    """Return the bucket in the URL of one, such as `s3://bucket/key`; empty for a path here."""
    found = _URL_HOST.match(path.display)
    return found[1] if found else ""


def _remote_of_rclone(path: Word) -> str:
    found = _RCLONE_REMOTE.match(path.display)
    return found[1] if found else ""


def _store_verdict(
    action: str, operands: Words, store_of: Callable[[Word], str], *, is_tree: bool
) -> CommandVerdict:
    """Return the verdict on copying between a store of objects and files here.

    Args:
        action: Such as `cp` or `sync`.
        operands: Sources and a destination.
        store_of: Returns the store that an operand names; empty for a path here.
        is_tree: Whether folders are copied with what is below them.
    """
    verdicts = [contacts(store, f"it contacts {store}") for path in operands if (store := store_of(path))]
    sources, destination = operands[:-1], operands[-1]
    if not sources:
        sources, destination = operands, _HERE  # as `s3cmd get s3://bucket/key`
    for source in sources:
        if not store_of(source) and source.text != "-":
            verdicts.append(reads(source))
            if action in _MOVES:
                verdicts.append(writes(source, f"it removes {source.display}", Effect.DESTRUCTIVE))
    if store_of(destination) or destination.text == "-":
        return merge(verdicts)
    if action in _EXACT:
        return merge([*verdicts, writes(destination)])
    if is_tree or action in _MIRRORS:
        effect = Effect.DESTRUCTIVE if action in _MIRRORS else Effect.LOCAL_MUTATION
        return merge([*verdicts, writes(destination, effect=effect)])
    if action in _INTO_FOLDER:
        verdicts.append(writes(destination))  # of a folder, all that is in it is copied
        return merge([*verdicts, _received(sources, destination, is_folder=True)])
    return merge([*verdicts, _received(sources, destination)])


def _copier(actions: Sequence[str], store_of: Callable[[Word], str], *, words_before: int = 0) -> Classifier:
    """Return a classifier of a program with actions that copy files.

    Args:
        actions: Those that copy, move or mirror.
        store_of: See `_store_verdict`.
        words_before: How many words stand before the action, such as 1 in `aws s3 cp`.
    """
    known = frozenset(actions)

    def classify(words: Words) -> CommandVerdict:
        # Which options take a value is not known here: a word behind one may be that, or an operand.
        rest = parse_options(words, "*").operands[words_before:]
        rest += [word for word in words[-1:] if word.text == "-"]  # standard output
        if len(rest) < 2 or rest[0].text not in known:
            return _elsewhere(words)
        is_tree = any(word.text in _RECURSIVE for word in words)
        copies = _store_verdict(rest[0].text or "", rest[1:], store_of, is_tree=is_tree)
        return merge([_elsewhere(words), copies])

    return classify


_S3_ACTIONS = ("cp", "mv", "sync", "rsync")
_cloud_settings = subcommands(
    Subcommand(
        names="configure list, configure list-profiles, configure get, config list, config get-value, "
        "config configurations list, info, help, version",
        options="--profile: --format: --all",
    ),
    reason=ACTS_ELSEWHERE,
    effect=Effect.REMOTE_ACTION,
)
_cloud_copies = _copier(_S3_ACTIONS, _store_of, words_before=1)


def _classify_cloud(words: Words) -> CommandVerdict:
    """Return the verdict on aws and gcloud, of which `s3` and `storage` copy files."""
    areas = [word.text for word in words[1:] if not word.prefix.startswith("-")][:2]
    copies = NO_EFFECT if {"s3", "storage"}.isdisjoint(areas) else _cloud_copies(words)
    return merge([_cloud_settings(words), copies])


_ASKS = "--version --help version"

COMMANDS = (
    CommandSpec(names="wget wget2", classify=_classify_wget),
    CommandSpec(names="scp", classify=_classify_scp),
    CommandSpec(names="rsync", classify=_classify_rsync),
    CommandSpec(names="sftp", classify=_classify_sftp, info_arguments=_ASKS),
    CommandSpec(names="ftp tftp", classify=_classify_ftp),
    CommandSpec(
        names="aria2c",
        classify=_downloader(_ARIA2C, ("-d", "--dir"), ("-o", "--out")),
        info_arguments=_ASKS,
    ),
    CommandSpec(names="axel", classify=_downloader(_AXEL, (), ("-o", "--output")), info_arguments=_ASKS),
    CommandSpec(names="http https httpie xh xhs", classify=_classify_httpie, info_arguments=_ASKS),
    CommandSpec(
        names="rclone",
        classify=_copier(("copy", "copyto", "move", "moveto", "sync", "bisync"), _remote_of_rclone),
        info_arguments=_ASKS,
    ),
    CommandSpec(names="gsutil", classify=_copier(("cp", "mv", "rsync"), _store_of), info_arguments=_ASKS),
    CommandSpec(
        names="s3cmd s5cmd",
        classify=_copier(("cp", "mv", "sync", "get", "put"), _store_of),
        info_arguments=_ASKS,
    ),
    CommandSpec(names="aws gcloud", classify=_classify_cloud, info_arguments="--version --help help version"),
)
