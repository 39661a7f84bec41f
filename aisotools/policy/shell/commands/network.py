"""Programs that talk to other machines."""

from __future__ import annotations

import re
from urllib.parse import unquote

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal, without_beginning
from aisotools.policy.shell.options import (
    NO_EFFECT,
    CommandSpec,
    CommandVerdict,
    Words,
    contacts,
    has_effect,
    host_of,
    merge,
    option_verdict,
    parse_options,
    reads,
    role_verdict,
    uncertain,
    writes,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands

_CURL = (
    "-sSLfkiIvgGNjJOnqZ#01234aBlMR -o:W -X: -H: -d: -F: -T:r -u: -A: -e: -b: -c:W -D:W -x:h -m: -w: -r: -C: "
    "-K:u -E: -Q: -U: -y: -Y: -z: -J!c -O!c -a!n --silent --show-error --location --fail --fail-with-body "
    "--insecure --include --head --verbose --get --compressed --globoff --http1.1 --http2 --ipv4 --ipv6 "
    "--parallel --progress-bar --output:W --remote-name!c --remote-name-all!c --remote-header-name!c "
    "--output-dir:w --create-dirs --request: --header: --data: --data-raw: --data-binary: --data-ascii: "
    "--data-urlencode: --json: --form: --form-string: --upload-file:r --user: --user-agent: --referer: "
    "--cookie: --cookie-jar:W --dump-header:W --proxy:h --max-time: --connect-timeout: --retry: "
    "--retry-delay: --write-out: --url: --config:u --trace:W --trace-ascii:W --stderr:W --libcurl:W "
    "--etag-save:w --etag-compare:r --hsts:w --alt-svc:w --no-progress-meter --max-filesize: --limit-rate: "
    "--resolve: --connect-to: --cacert:r --capath:r --crlfile:r --cert: --key:r --proxy-cacert:r "
    "--proxy-cert: --proxy-key:r --proxy-header: --netrc-file:r --time-cond: --pubkey:r --url-query: "
    "--oauth2-bearer: --max-redirs: --range: --continue-at:"
)
_CURL_AFTER_AT = frozenset(
    (
        *("-d", "--data", "--data-ascii", "--data-binary", "--json", "-w", "--write-out"),
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
_FILE_URL = re.compile(r"file:(?://(?:localhost|127\.0\.0\.1)?(?=/))?", re.IGNORECASE)
_URL_PATTERN = frozenset("{}[]")
_WGET = (
    "-qvcNSbdrmpkKEHLxnd -O:W -o:W -a:W -P:w -i:u -U: -T: -t: -w: -Q: -l: -A: -R: -D: -e:u --quiet "
    "--no-verbose --output-document:W --output-file:W --directory-prefix:w --spider --no-check-certificate "
    "--timeout: --tries: --header: --user-agent: --post-data: --post-file:r --method: --body-data: "
    "--recursive --mirror --continue --use-askpass:x --execute:u --config:u --input-file:u "
    "--content-disposition --no-clobber --server-response"
)


_RSYNC = (
    "-346AaBbCcDdEeFghHIJKkLlmNnOopPqRrSTtuvWXxyz -i:r -P: -o:u -e:x -S:x -f: --archive --verbose "
    "--compress --recursive --delete!d --delete-after!d --delete-before!d --delete-excluded!d "
    "--delete-during!d --remove-source-files!d --rsh:x --rsync-path:x --exclude: --include: "
    "--exclude-from:r --include-from:r --password-file:r --files-from:L --progress --partial --dry-run "
    "--list-only --stats --update "
    "--inplace --checksum --human-readable --bwlimit: --max-size: --min-size: --chmod: --chown: "
    "--log-file:w --backup --backup-dir:w --perms --times"
)
_SCP = "-346ABCOpqRrsTv -c: -D:u -F:u -i:r -J:h -l: -o:u -P: -S:x -X:"
_SSH = (
    "-1246AaCfGgKkMNnqsTtVvXxYy -p: -i:r -l: -o:u -F:u -E:w -D:n -L:n -R:n -J:h -W:h -b: -B: -c: -e: "
    "-I:x -m: -O: -Q: -S: -w:n"
)


def _network_verdict(hosts: Words, program: str) -> CommandVerdict:
    """Return the verdict that `program` acts on another machine; uncertain if no host is named."""
    return CommandVerdict(
        effect=Effect.REMOTE_ACTION,
        certain=bool(hosts),
        reasons=(f"{program} talks to another machine",),
    )


def _classify_curl(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _CURL)
    urls = [option.value for option in parsed.options if option.name == "--url" and option.value is not None]
    urls += parsed.operands
    verdicts = [_network_verdict(urls, "curl"), option_verdict(parsed), *map(_curl_url, urls)]
    verdicts += [_curl_file(option.name, option.value) for option in parsed.options if option.value]
    return merge(verdicts)


def _curl_url(word: Word) -> CommandVerdict:
    """Return the verdict on a URL of curl; that of a file is the path itself, with `%` and `{a,b}` in it."""
    if word.prefix.startswith("@"):
        return NO_EFFECT  # a list of URLs; `_curl_file` has read it
    found = _FILE_URL.match(word.display)
    if found is None:
        return role_verdict("h", word, "")
    path = unquote(word.display[found.end() :]).partition("#")[0].partition("?")[0]
    if not _URL_PATTERN.isdisjoint(path):
        return reads(Word(path, None, "", is_located=False))
    text = None if word.text is None else path
    # Case: `?` and `#` may be part of the name.
    return merge(
        [
            reads(Word(path, text, text or "", word.may_split, word.is_located)),
            reads(without_beginning(word, found.end())),
        ]
    )


def _curl_file(name: str, value: Word) -> CommandVerdict:
    """Return the verdict on a file that stands in the value of an option of curl."""
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
        path = value.display.partition(":")[0] if value.text is not None else value.display
        whole = Word(path, None if value.text is None else path, path, value.may_split, value.is_located)
        return merge([reads(whole), reads(value)])
    if (name in _CURL_COOKIES and "=" not in value.prefix) or name in _CURL_DATES:
        return reads(value) if value.text != "" else NO_EFFECT
    return NO_EFFECT


def _reads_after(value: Word, mark: str) -> CommandVerdict:
    """Return the verdict on a value that is text, or the path of a file behind a mark."""
    if value.prefix.startswith(mark):
        return reads(without_beginning(value, len(mark)))
    # What is only known at run time may begin with the mark.
    return reads(value) if value.text is None and not value.prefix and not value.is_located else NO_EFFECT


def _curl_form(value: Word) -> CommandVerdict:
    """Return the verdict on `name=@file;type=x`, `name=<file` and `name=@a,b`."""
    found = _FORM_FILE.match(value.display)
    if found is None or found[0][-1] not in "@<":
        is_known = value.text is not None or (found is not None and len(value.prefix) > found.end())
        return NO_EFFECT if is_known else reads(value)
    rest = value.display[found.end() :]
    paths = {rest, rest.partition(";")[0]}
    paths |= {path.partition(";")[0] for path in rest.split(",")}
    paths |= {path.strip().strip('"').replace("\\", "") for path in (*paths,)}
    is_fixed = value.text is not None
    return merge(
        reads(Word(path, path if is_fixed else None, path if is_fixed else "", is_located=value.is_located))
        for path in sorted(paths)
        if path and path != "-"
    )


def _classify_wget(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _WGET)
    verdicts = [_network_verdict(parsed.operands, "wget"), option_verdict(parsed)]
    verdicts += [role_verdict("h", operand, "") for operand in parsed.operands]
    if parsed.value("-O", "--output-document") is None and not parsed.has("--spider"):
        folder = parsed.value("-P", "--directory-prefix") or literal(".")
        verdicts.append(writes(folder, "it saves what it downloads"))
    return merge(verdicts)


def _classify_rsync(words: Words) -> CommandVerdict:
    """Return the verdict on scp and rsync: paths with a colon are remote, and the last path is written."""
    parsed = parse_options(words, _SCP if words[0].display.endswith("scp") else _RSYNC)
    verdicts = [
        has_effect(Effect.REMOTE_ACTION, f"{words[0].display} copies files"),
        option_verdict(parsed),
    ]
    for path in parsed.operands:
        if host := host_of(path.display):
            verdicts.append(contacts(host, f"it contacts {host}"))
        elif path is parsed.operands[-1]:
            verdicts.append(writes(path))
        else:
            verdicts.append(reads(path))
    return merge(verdicts)


def _classify_ssh(words: Words) -> CommandVerdict:
    """Return the verdict on ssh: the first operand is the host, the rest is a command that runs there."""
    parsed = parse_options(words, _SSH, posix=True)
    host = parsed.operands[:1]
    verdicts = [_network_verdict(host, words[0].display), option_verdict(parsed)]
    return merge([*verdicts, *(role_verdict("h", operand, "") for operand in host)])


def _classify_lookup(words: Words) -> CommandVerdict:
    """Return the verdict on ping, dig and similar: the first two operands are hosts or name servers."""
    operands = [word for word in words[1:] if not word.prefix.startswith(("-", "+"))]
    hosts = [
        contacts(word.display.lstrip("@") if word.text else "", "it asks the network")
        for word in operands[:2]
    ]
    return merge([_network_verdict(operands, words[0].display), *hosts])


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


def _classify_netcat(words: Words) -> CommandVerdict:
    """Return the verdict on netcat and similar, which connect or listen, and can run a program on that."""
    operands = [word for word in words[1:] if word.text and not word.prefix.startswith("-")]
    verdicts = [_network_verdict(operands, "it")]
    if operands:
        verdicts.append(contacts(operands[0].display, f"it talks to {operands[0].display}"))
    if any(word.prefix.startswith(("-e", "-c", "--exec", "--sh-exec")) for word in words[1:]):
        verdicts.append(uncertain("it runs a program"))
    return merge(verdicts)


_ACTS_ELSEWHERE = "acts on other machines or services"

COMMANDS = (
    CommandSpec(names="curl", classify=_classify_curl),
    CommandSpec(names="wget wget2", classify=_classify_wget),
    CommandSpec(names="scp rsync", classify=_classify_rsync),
    CommandSpec(
        names="ssh slogin autossh mosh", classify=_classify_ssh, info_arguments="-V --version --help"
    ),
    CommandSpec(
        names="ping ping6 dig host nslookup traceroute tracepath mtr whois arping finger",
        classify=_classify_lookup,
    ),
    CommandSpec(names="nmap", classify=_classify_nmap),
    CommandSpec(names="nc ncat netcat telnet ftp tftp", classify=_classify_netcat),
    CommandSpec(
        names="sftp socat lftp ftpd rclone s3cmd gsutil az gh glab hub heroku flyctl vercel "
        "netlify nerdctl buildah skopeo ansible ansible-playbook "
        "vagrant packer psql pg_dump mysql mysqldump mariadb mongo mongosh redis-cli sqlcmd bq snowsql "
        "influx mail mailx sendmail mutt gpg-agent wandb dvc twine http "
        "https xh httpie aria2c axel lynx w3m links elinks youtube-dl yt-dlp smbclient ldapsearch snmpwalk "
        "tailscale cloudflared ngrok prefetch fasterq-dump fastq-dump sam-dump efetch esearch elink "
        "einfo datasets "
        "kaggle tldr speedtest-cli mlflow",
        options="*",
        operands=".",
        effect=Effect.REMOTE_ACTION,
        reason=_ACTS_ELSEWHERE,
        certain=False,
        info_arguments="--version --help version",
    ),
    CommandSpec(
        names="terraform tofu",  # even for its version it asks for newer ones
        options="*",
        operands=".",
        effect=Effect.REMOTE_ACTION,
        reason=_ACTS_ELSEWHERE,
        certain=False,
        info_arguments="",
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
            reason=_ACTS_ELSEWHERE,
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
            reason=_ACTS_ELSEWHERE,
            effect=Effect.REMOTE_ACTION,
            helps="--help -h",
        ),
        info_arguments="--version --help -h version help env",
    ),
    CommandSpec(
        names="aws gcloud",
        classify=subcommands(
            Subcommand(
                names="configure list, configure list-profiles, configure get, config list, config "
                "get-value, "
                "config configurations list, info, help, version",
                options="--profile: --format: --all",
            ),
            reason=_ACTS_ELSEWHERE,
            effect=Effect.REMOTE_ACTION,
        ),
        info_arguments="--version --help help version",
    ),
)
