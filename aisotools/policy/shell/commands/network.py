"""Programs that talk to other machines."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from aisotools.core.types import Effect
from aisotools.policy.shell.commands.transfers import ACTS_ELSEWHERE, network_verdict
from aisotools.policy.shell.expansion import ABSOLUTE_PATH_VARIABLES, Word, literal, without_beginning
from aisotools.policy.shell.options import (
    CommandSpec,
    ParsedCommand,
    Words,
    option_verdict,
    parse_options,
    path_below,
    role_verdict,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    contacts,
    has_effect,
    merge,
    reads,
    uncertain,
    writes,
)

_CURL = (
    "-sSLfkiIvgGNjnqZ#01234BlMR -o: -X: -H: -d: -F: -T: -u: -A: -e: -b: -c:W -D:W -x:h -m: -w: -r: -C: "
    "-K:u -E: -Q: -U: -y: -Y: -z: -J!c -O!c -a!n --silent --show-error --location --fail --fail-with-body "
    "--insecure --include --head --verbose --get --compressed --globoff --http1.1 --http2 --ipv4 --ipv6 "
    "--parallel --progress-bar --output: --remote-name!c --remote-name-all!c --remote-header-name!c "
    "--output-dir:w --create-dirs --request: --header: --data: --data-raw: --data-binary: --data-ascii: "
    "--data-urlencode: --json: --form: --form-string: --upload-file: --user: --user-agent: --referer: "
    "--cookie: --cookie-jar:W --dump-header:W --proxy:h --max-time: --connect-timeout: --retry: "
    "--retry-delay: --write-out: --url: --config:u --trace:W --trace-ascii:W --stderr:W --libcurl:W "
    "--etag-save:w --etag-compare:r --hsts:w --alt-svc:w --no-progress-meter --max-filesize: --limit-rate: "
    "--resolve: --connect-to: --cacert:r --capath:r --crlfile:r --cert: --key:r --proxy-cacert:r "
    "--proxy-cert: --proxy-key:r --proxy-header: --netrc-file:r --time-cond: --pubkey:r --url-query: "
    "--oauth2-bearer: --max-redirs: --range: --continue-at:"
)
_CURL_AFTER_AT = frozenset(
    (
        *("-d", "--data", "--data-ascii", "--data-binary", "--json"),
        *("-H", "--header", "--proxy-header", "--url"),
    )
)
"""Options of curl for which `@file` is the content of a file."""
_CURL_AFTER_NAME = frozenset(("--data-urlencode", "--url-query"))
"""Options of curl for which `name@file` is, as well."""
_CURL_FORMS = frozenset(("-F", "--form"))
_CURL_CERTIFICATES = frozenset(("-E", "--cert", "--proxy-cert"))
_CURL_COOKIES = frozenset(("-b", "--cookie"))
_CURL_DATES = frozenset(("-z", "--time-cond"))
_FORM_FILE = re.compile(r"[^=]*=[@<(]")
_FORM_HEADERS = re.compile(r";\s*headers=[@<]?\"?[@<]?((?:[^\";\\]|\\.)*)", re.IGNORECASE)
_OUTPUT_IN_FORMAT = re.compile(r"%%|%output\{(?:>>)?([^}]*)\}", re.IGNORECASE)
_FILE_URL = re.compile(
    r"file:(?://(?:(?:localhost|127\.0\.0\.1)(?=[/$])|(?=[/$]))|(?=/*[^/]))", re.IGNORECASE
)
_URL_BEGINNING = re.compile(r"(?:[^/?#]*:)?/*[^/?#]*")
_SET_MARKS = frozenset("{[")
_URL_PATH = re.compile(r"[^?#]*")
_UNNAMED = "curl_response"  # where a URL has no name behind its last slash
_KNOWN_START = re.compile(
    rf"/*(?=\$(?P<brace>\{{)?(?:{'|'.join(sorted(ABSOLUTE_PATH_VARIABLES))})(?(brace)\}})(?:/|$))"
)
_RUN_TIME = frozenset("$`*?")
_URL_SET = re.compile(r"\\.|\{((?:[^{}\\]|\\.)*)\}|\[([^\[\]]*)\]|[^\\{}\[\]]+", re.DOTALL)
_SET_MEMBER = re.compile(r"(?:^|,)((?:[^,\\]|\\.)*)", re.DOTALL)
_URL_RANGE = re.compile(r"(?:(\d+)-(\d+)|([a-zA-Z])-([a-zA-Z]))(?::(\d+))?", re.ASCII)
_CERTIFICATE = re.compile(r"(?:[^:\\]|\\.|\\$)*", re.DOTALL)
_SET_NUMBER = re.compile(r"#(\d+)", re.ASCII)
_MAX_TARGETS = 200  # that one text may name; more are uncertain
_CURL_UPLOADS = frozenset(("-T", "--upload-file"))
_CURL_OUTPUTS = frozenset(("-o", "--output"))
_CURL_FORMATS = frozenset(("-w", "--write-out"))
_CURL_DETOURS = frozenset(("--resolve", "--connect-to"))
"""Options of curl by which a host of a URL stands for another."""
_SSH = (
    "-1246AaCfGgKkMNnqsTtVvXxYy -p: -i:r -l: -o:u -F:u -E:w -D: -L: -R: -J:h -W:h -b: -B: -c: -e: "
    "-I:x -m: -O: -Q: -S: -w:n"
)
_SSH_FORWARDS = frozenset(("-D", "-L", "-R"))


def _classify_curl(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _CURL)
    has_sets = not parsed.has("-g", "--globoff")
    given = [option.value for option in parsed.options if option.name == "--url" and option.value is not None]
    given += parsed.operands
    verdicts = [network_verdict(given, "curl"), option_verdict(parsed)]
    verdicts += [_curl_file(option.name, option.value) for option in parsed.options if option.value]
    urls: list[_Url] = []
    for url in given:
        if url.prefix.startswith("@"):
            verdicts.append(uncertain("curl reads its URLs from a file"))  # `_curl_file` names it
        elif (meant := _urls_of(url, has_sets=has_sets)) is None:
            verdicts.append(uncertain(f"{url.display} means too many URLs, or is malformed"))
        else:
            urls += meant
    verdicts += map(_curl_url, urls)
    verdicts += [_curl_output(parsed, urls), _curl_uploads(parsed, urls, has_sets=has_sets)]
    return merge(verdicts)


class _Url(NamedTuple):
    """A URL of curl, and whether `{a,b}` and `[1-3]` in it are still to be expanded."""

    word: Word
    has_sets: bool


def _urls_of(url: Word, *, has_sets: bool) -> list[_Url] | None:
    """Return the URLs that one with sets in its scheme or host stands for; None if they are too many."""
    found = _URL_BEGINNING.match(url.display)
    if found is None or _SET_MARKS.isdisjoint(found[0]):
        return [_Url(url, has_sets)]
    texts = _expand_sets(url.display, has_sets=has_sets)
    return None if texts is None else [_Url(_part(url, text), has_sets=False) for text in texts]


def _part(word: Word, text: str) -> Word:
    """Return a part of a word, which a program takes for a path, as a word of its own.

    What is fixed, or begins with a variable that holds an absolute path, says which path it is.
    """
    # Case: no file has the name `http:`, so a `?` in a URL is not expanded.
    if word.text is not None or (word.is_located and not _KNOWN_START.match(word.display)):
        return literal(text)
    if found := _KNOWN_START.match(text):
        # Case: `file:/$PWD` is `//...`, which is the same path.
        path = text[found.end() :]
        if _RUN_TIME.isdisjoint(path[1:]):
            return Word(path, None, "/")
    return Word(text, None, "", is_located=False)


def _file_of(word: Word) -> str | None:
    """Return what follows the scheme and the host of a URL of a file; None for any other URL."""
    found = _FILE_URL.match(word.display)
    return None if found is None else word.display[found.end() :]


def _curl_url(url: _Url) -> CommandVerdict:
    """Return the verdict on a URL of curl; that of a file is the path itself, with `%` and `{a,b}` in it."""
    if _file_of(url.word) is None:
        return role_verdict("h", url.word, "")
    return _for_each(reads, _file_paths(url), url.word)


def _file_paths(url: _Url) -> list[Word] | None:
    """Return the paths that the URL of a file may mean; None if they are too many."""
    texts = _expand_sets(_file_of(url.word) or "", has_sets=url.has_sets)
    if texts is None:
        return None
    # Case: `?` and `#` may be part of the name.
    cut = [text.partition("#")[0].partition("?")[0] for text in texts]
    decoded = [unquote(text, errors="surrogateescape") for text in (*cut, *texts)]
    return [_part(url.word, text) for text in dict.fromkeys((*decoded, *texts)) if text]


def _for_each(
    judge: Callable[[Word], CommandVerdict], paths: Sequence[Word] | None, word: Word
) -> CommandVerdict:
    """Return the verdict on all `paths` that a word names; uncertain if there are too many to say which."""
    if paths is None:
        path = Word(word.display, None, "", is_located=False)
        return merge([judge(path), uncertain(f"{word.display} names too many files, or is malformed")])
    return merge(map(judge, paths))


def _sets_of(text: str) -> list[tuple[bool, list[str]]] | None:
    """Return the parts of a text of curl: whether each is a set or a range, and what it becomes.

    None if there are more than can be listed, or what curl does not take.
    """
    parts: list[tuple[bool, list[str]]] = []
    position = 0
    for found in _URL_SET.finditer(text):
        values: list[str] | None = [found[0]]
        if found[1] is not None:
            members = _SET_MEMBER.findall(found[1])
            values = [re.sub(r"\\(.)", r"\1", member) for member in members]
        elif found[2] is not None:
            values = _range_of(found[2])
        elif found[0][0] == "\\" and found[0][1:] in {*"{}[]"}:
            values = [found[0][1:]]  # a backslash stands for itself in front of anything else
        if values is None or found.start() != position:
            return None
        is_set = found[1] is not None or (found[2] is not None and values != [found[0]])
        parts.append((is_set, values))
        position = found.end()
    is_small = math.prod(len(values) for _, values in parts) <= _MAX_TARGETS
    return parts if is_small and position == len(text) else None


def _range_of(body: str) -> list[str] | None:
    found = _URL_RANGE.fullmatch(body)
    if found is None:
        return [f"[{body}]"] if ":" in body else None  # an address of IPv6
    first, last, step = found[1] or found[3], found[2] or found[4], int(found[5] or 1)
    is_numeric = found[1] is not None
    low, high = (int(first), int(last)) if is_numeric else (ord(first), ord(last))
    values = range(low, high + 1, step) if step else range(0)
    if not 0 < len(values) <= _MAX_TARGETS:
        return None
    return [str(value).zfill(len(first)) if is_numeric else chr(value) for value in values]


def _expand_sets(text: str, *, has_sets: bool) -> list[str] | None:
    """Return what a text of curl becomes; None if that is more than can be listed, or malformed.

    Args:
        text: The text, in which `{a,b}` and `[1-3]` are sets.
        has_sets: Whether they are; with `--globoff` a text stays as it is.
    """
    if not has_sets:
        return [text]
    parts = _sets_of(text)
    if parts is None:
        return None
    return ["".join(choice) for choice in itertools.product(*(values for _, values in parts))]


def _chosen(choice: Sequence[str], found: re.Match[str]) -> str:
    number = found[1].lstrip("0")
    is_set = len(number) == 1 and 0 < int(number) <= len(choice)
    return choice[int(number) - 1] if is_set else found[0]


def _curl_uploads(parsed: ParsedCommand, urls: Sequence[_Url], *, has_sets: bool) -> CommandVerdict:
    """Return the verdict on what curl uploads, which the URL of a file writes."""
    values = [o.value for o in parsed.options if o.name in _CURL_UPLOADS and o.value is not None]
    verdicts, names = [], []
    for value in values:
        texts = _expand_sets(value.display, has_sets=has_sets)
        paths = None if texts is None else [_part(value, text) for text in texts]
        verdicts.append(reads(value) if value.text is None else _for_each(reads, paths, value))
        names += [text.rpartition("/")[2] for text in texts or ()]
    for url in urls if values else ():
        if _file_of(url.word) is None:
            continue
        paths = _file_paths(url)
        # Case: curl appends the name of the file to a URL that ends with a slash.
        folders = [path for path in paths or () if path.display.endswith("/")]
        if paths is not None:
            paths += [_part(url.word, path.display + name) for path in folders for name in names]
        verdicts.append(_for_each(writes, paths, url.word))
    return merge(verdicts)


def _curl_output(parsed: ParsedCommand, urls: Sequence[_Url]) -> CommandVerdict:
    """Return the verdict on the files into which curl writes what it gets."""
    folder = parsed.value("--output-dir")
    verdicts = []
    for option in parsed.options:
        if option.name in _CURL_OUTPUTS and option.value is not None and option.value.text != "-":
            names = _output_names(option.value, urls)
            paths = None if names is None else [_in_folder(folder, name) for name in names]
            verdicts.append(_for_each(writes, paths, option.value))
    if parsed.has("-J", "--remote-header-name"):
        # Case: the server chooses the name.
        verdicts.append(writes(folder or literal("."), "it saves what it downloads"))
        verdicts.append(uncertain("the server chooses the name of what curl saves"))
    elif parsed.has("-O", "--remote-name", "--remote-name-all"):
        for url in urls:
            names = _remote_names(url)
            paths = None if names is None else [_in_folder(folder, name) for name in names]
            verdicts.append(_for_each(writes, paths, url.word))
    return merge(verdicts)


def _in_folder(folder: Word | None, name: Word) -> Word:
    if folder is None or (name.text is None and name.display.startswith("$")):
        return name
    return path_below(folder, name)


def _output_names(value: Word, urls: Sequence[_Url]) -> list[Word] | None:
    """Return the names that `-o name#1` stands for, where `#1` is what the first set of a URL has become."""
    if value.text is None or not _SET_NUMBER.search(value.text):
        return [value]
    texts = []
    for url in urls:
        parts = _sets_of(url.word.display) if url.has_sets else []
        if parts is None or url.word.text is None:
            return None
        sets = [values for is_set, values in parts if is_set]
        fill = (functools.partial(_chosen, choice) for choice in itertools.product(*sets))
        texts += [_SET_NUMBER.sub(one, value.text) for one in fill]
    return [literal(text) for text in dict.fromkeys(texts)] if texts else [value]


def _remote_names(url: _Url) -> list[Word] | None:
    """Return the names under which curl saves a URL: what is behind its last slash."""
    found = _URL_BEGINNING.match(url.word.display)
    path = _URL_PATH.match(url.word.display, found.end() if found else 0)
    texts = _expand_sets(path[0].rpartition("/")[2] if path else "", has_sets=url.has_sets)
    return None if texts is None else [_part(url.word, text or _UNNAMED) for text in texts]


def _curl_file(name: str, value: Word) -> CommandVerdict:
    """Return the verdict on a file, or a host, that stands in the value of an option of curl."""
    if name in _CURL_FORMATS:
        return _curl_format(value)
    if name in _CURL_DETOURS:
        return _curl_detour(name, value)
    if name in _CURL_AFTER_AT:
        return _reads_after(value, "@")
    if name in _CURL_AFTER_NAME:
        before, at, _ = value.prefix.partition("@")
        if at and "=" not in before:
            return reads(without_beginning(value, len(before) + 1))
        return _reads_after(value, "@")
    if name in _CURL_FORMS:
        return _curl_form(value)
    if name in _CURL_CERTIFICATES:
        # `file:password`, with a backslash in front of a colon that is part of the name.
        path = re.sub(r"\\(.)", r"\1", found[0] if (found := _CERTIFICATE.match(value.display)) else "")
        return merge([reads(_part(value, path)), reads(value)])
    if (name in _CURL_COOKIES and "=" not in value.prefix) or name in _CURL_DATES:
        return reads(value) if value.text != "" else NO_EFFECT
    return NO_EFFECT


def _reads_after(value: Word, mark: str) -> CommandVerdict:
    """Return the verdict on a value that is text, or the path of a file behind a mark."""
    if value.prefix.startswith(mark):
        return reads(without_beginning(value, len(mark)))
    # What is only known at run time may begin with the mark.
    return reads(value) if value.text is None and not value.prefix and not value.is_located else NO_EFFECT


def _curl_format(value: Word) -> CommandVerdict:
    """Return the verdict on a format of curl, in which `%output{file}` writes a file."""
    if value.prefix.startswith("@"):
        doubt = uncertain(f"{value.display} may name files that curl writes")
        return merge([_reads_after(value, "@"), doubt])
    verdicts = [_reads_after(value, "@")]
    files = [found[1] for found in _OUTPUT_IN_FORMAT.finditer(value.display) if found[1]]
    verdicts += [writes(_part(value, file)) for file in files]
    if value.text is None:
        verdicts.append(uncertain(f"{value.display} may name files that curl writes"))
    return merge(verdicts)


def _curl_detour(name: str, value: Word) -> CommandVerdict:
    """Return the verdict on `--connect-to a:1:b:2` and `--resolve a:1:address,address`."""
    if value.text is None:
        return uncertain(f"{name} may lead to any host")
    fields = re.findall(r"(\[[^\]]*\]|[^:]*)(?::|$)", value.text)
    if name == "--connect-to":
        targets = fields[2:3]
    else:
        targets = value.text.partition(":")[2].partition(":")[2].split(",")
    found = [target.lstrip("+").strip("[]") for target in targets]
    return merge(contacts(target, f"it contacts {target}") for target in found if target)


def _curl_form(value: Word) -> CommandVerdict:
    """Return the verdict on `name=@file;type=x`, `name=<file`, `name=@a,b` and `name=x;headers=@file`."""
    verdicts = [reads(_part(value, _unquoted(found[1]))) for found in _FORM_HEADERS.finditer(value.display)]
    found = _FORM_FILE.match(value.display)
    if found is None or found[0][-1] not in "@<":
        # What is only known at run time may begin with the mark, or name a file behind a semicolon.
        return merge(verdicts if value.text is not None else [*verdicts, reads(value)])
    rest = value.display[found.end() :]
    paths = {rest, rest.partition(";")[0]}
    paths |= {path.partition(";")[0] for path in rest.split(",")}
    paths |= {_unquoted(path) for path in (*paths,)}
    verdicts += [reads(_part(value, path)) for path in sorted(paths) if path and path != "-"]
    return merge(verdicts)


def _unquoted(text: str) -> str:
    return text.strip().strip('"').replace("\\", "")


def _classify_ssh(words: Words) -> CommandVerdict:
    """Return the verdict on ssh: the first operand is the host, the rest is a command that runs there."""
    parsed = parse_options(words, _SSH, posix=True)
    host = parsed.operands[:1]
    verdicts = [network_verdict(host, words[0].display), option_verdict(parsed)]
    verdicts += [_ssh_socket(option.name, option.value) for option in parsed.options if option.value]
    return merge([*verdicts, *(role_verdict("h", operand, "") for operand in host)])


def _ssh_socket(name: str, value: Word) -> CommandVerdict:
    """Return the verdict on what ssh forwards: between ports, or sockets that are files."""
    if name == "-S" and value.text != "none":
        return writes(value, f"it uses the socket {value.display}")
    if name not in _SSH_FORWARDS:
        return NO_EFFECT
    forwards = has_effect(Effect.REMOTE_ACTION, f"{name} acts on another machine")
    if value.text is None or "/" in value.text:
        return merge([forwards, uncertain(f"{name} makes or uses sockets that are files ({value.display})")])
    return forwards


def _classify_lookup(words: Words) -> CommandVerdict:
    """Return the verdict on ping, dig and similar: the first two operands are hosts or name servers."""
    operands = [word for word in words[1:] if not word.prefix.startswith(("-", "+"))]
    hosts = [
        contacts(word.display.lstrip("@") if word.text else "", "it asks the network")
        for word in operands[:2]
    ]
    return merge([network_verdict(operands, words[0].display), *hosts])


_NMAP = (
    "-nRFrvd6 -s: -p: -T: -P: -e: -A!u -i:u -o:u --open --top-ports: --reason --version-light --version-all "
    "--max-retries: --host-timeout: --exclude: --min-rate: --max-rate: --packet-trace --script?u -O "
    "--traceroute "
    "--script-args?u --script-updatedb!u"
)


def _classify_nmap(words: Words) -> CommandVerdict:
    """Return the verdict on nmap, whose scripts are programs, and whose `-A` and `-sC` choose some."""
    parsed = parse_options(words, _NMAP)
    runs_scripts = [uncertain("nmap runs scripts") for word in words if word.prefix.startswith("-sC")]
    return merge([option_verdict(parsed), *runs_scripts, _classify_lookup([words[0], *parsed.operands])])


# The same letters mean other things to others of these programs: such a letter is left out, and asked about.
_NETCAT = (
    "-46nvzulkdhNrtC -w: -p: -i: -q: -s: -o:w -e!x -c!x --exec!x --sh-exec!x --output:w --hex-dump:w "
    "--append-output --ssl --ssl-verify --listen --keep-open --udp --send-only --recv-only --verbose --wait: "
    "--source: --source-port: --idle-timeout: --delay: --crlf --nodns --no-shutdown --help --version"
)


def _classify_netcat(words: Words) -> CommandVerdict:
    """Return the verdict on netcat and similar, which connect or listen, and can run a program on that."""
    operands = [word for word in words[1:] if word.text and not word.prefix.startswith("-")]
    verdicts = [network_verdict(operands, "it")]
    if operands:
        verdicts.append(contacts(operands[0].display, f"it talks to {operands[0].display}"))
    if any(word.prefix.startswith(("-e", "-c", "--exec", "--sh-exec")) for word in words[1:]):
        verdicts.append(uncertain("it runs a program"))
    if words[0].text != "telnet":
        verdicts.append(option_verdict(parse_options(words, _NETCAT)))
    return merge(verdicts)


COMMANDS = (
    CommandSpec(names="curl", classify=_classify_curl),
    CommandSpec(
        names="ssh slogin autossh mosh", classify=_classify_ssh, info_arguments="-V --version --help"
    ),
    CommandSpec(
        names="ping ping6 dig host nslookup traceroute tracepath mtr whois arping finger",
        classify=_classify_lookup,
    ),
    CommandSpec(names="nmap", classify=_classify_nmap),
    CommandSpec(names="nc ncat netcat telnet", classify=_classify_netcat),
    CommandSpec(
        names="socat lftp ftpd az gh glab hub heroku flyctl vercel "
        "netlify nerdctl buildah skopeo ansible ansible-playbook "
        "vagrant packer psql pg_dump mysql mysqldump mariadb mongo mongosh redis-cli sqlcmd bq snowsql "
        "influx mail mailx sendmail mutt gpg-agent wandb dvc twine "
        "lynx w3m links elinks youtube-dl yt-dlp smbclient ldapsearch snmpwalk "
        "tailscale cloudflared ngrok prefetch fasterq-dump fastq-dump sam-dump efetch esearch elink "
        "einfo datasets "
        "kaggle tldr speedtest-cli mlflow",
        options="*",
        operands=".",
        effect=Effect.REMOTE_ACTION,
        reason=ACTS_ELSEWHERE,
        certain=False,
        info_arguments="--version --help version",
    ),
    CommandSpec(
        names="kubectl oc",
        classify=subcommands(
            Subcommand(
                names="config view, config get-contexts, config current-context, config get-clusters, "
                "version --client, "
                "options, help",
                options="-o: --output: --minify --no-headers --short",
            ),
            reason=ACTS_ELSEWHERE,
            effect=Effect.REMOTE_ACTION,
            helps="--help -h",
        ),
        info_arguments="--version --help -h help options",
    ),
    CommandSpec(
        names="helm",
        classify=subcommands(
            Subcommand(
                names="version, env, help, repo list, plugin list", options="--short --client -o: --output:"
            ),
            reason=ACTS_ELSEWHERE,
            effect=Effect.REMOTE_ACTION,
            helps="--help -h",
        ),
        info_arguments="--version --help -h version help env",
    ),
)
