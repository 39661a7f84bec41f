"""Programs that talk to other machines, package managers and services.

Package managers and services take a command of their own; the tables name those commands that only read.
"""

from __future__ import annotations

from collections.abc import Mapping

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import literal, name_set
from aisotools.policy.shell.options import (
    NO_EFFECT,
    Classifier,
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

_CURL = (
    "-sSLfkiIvgGNjJOnqZ#01234aBlMR -o:W -X: -H: -d: -F: -T:r -u: -A: -e: -b: -c:W -D:W -x:h -m: -w: -r: -C: "
    "-K:u -E: -Q: -U: -y: -Y: -z: -J!c -O!c -a!n --silent --show-error --location --fail --fail-with-body "
    "--insecure --include --head --verbose --get --compressed --globoff --http1.1 --http2 --ipv4 --ipv6 "
    "--parallel --progress-bar --output:W --remote-name!c --remote-name-all!c --remote-header-name!c "
    "--output-dir:w --create-dirs --request: --header: --data: --data-raw: --data-binary: --data-ascii: "
    "--data-urlencode: --json: --form: --form-string: --upload-file:r --user: --user-agent: --referer: "
    "--cookie: --cookie-jar:W --dump-header:W --proxy:h --max-time: --connect-timeout: --retry: "
    "--retry-delay: --write-out: --url:h --config:u --trace:W --trace-ascii:W --stderr:W --libcurl:W "
    "--etag-save:w --hsts:w --alt-svc:w --no-progress-meter --max-filesize: --limit-rate: --resolve: "
    "--connect-to: --cacert:r --cert: --key:r --oauth2-bearer: --max-redirs: --range: --continue-at:"
)
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
    "--exclude-from:r --files-from:r --progress --partial --dry-run --list-only --stats --update "
    "--inplace --checksum --human-readable --bwlimit: --max-size: --min-size: --chmod: --chown: "
    "--log-file:w --backup --backup-dir:w --perms --times"
)
_SSH = (
    "-1246AaCfGgKkMNnqsTtVvXxYy -p: -i:r -l: -o:u -F:u -E:w -D:n -L:n -R:n -J:h -W:h -b: -B: -c: -e: "
    "-I:x -m: -O: -Q: -S: -w:n"
)
_PIP = (
    "-vqleif --format: --not-required --user --local --editable --exclude: --include-editable "
    "--exclude-editable --pre --files --verbose --quiet --disable-pip-version-check --no-color --isolated "
    "--no-input --outdated!n --uptodate!n -o!n -u!n"
)
# npm writes a log of its own, and works without where it may not write.
_NPM = "-gal -p --global --depth: --all --json --long --parseable --omit: --include: --production --link"
_APT = "-aqit --installed --upgradable --all-versions --names-only --full --recurse --installed --names"
_SYSTEMCTL = (
    "-alqr -n: -o: -t: -p: --all --full --no-pager --plain --no-legend --lines: --output: --type: --state: "
    "--property: --value --quiet --user --system --failed --reverse --after --before"
)
_RPM = (
    "-qailfpcdRv --query --all --info --list --file --package --changelog --provides --requires --last "
    "--whatprovides: --whatrequires: --configfiles --docfiles --scripts"
)
_DOCKER = (
    "-aqslt -f: -n: --all --no-trunc --quiet --size --latest --filter: --format: --last: --digests --follow "
    "--tail: --since: --until: --timestamps --details --type: --no-stream"
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
    url = parsed.value("--url")
    hosts = [*parsed.operands, url] if url is not None else parsed.operands
    operands = [role_verdict("h", operand, "") for operand in parsed.operands]
    return merge([_network_verdict(hosts, "curl"), option_verdict(parsed), *operands])


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
    parsed = parse_options(words, _RSYNC)
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


def _classify_netcat(words: Words) -> CommandVerdict:
    """Return the verdict on netcat and similar, which connect or listen, and can run a program on that."""
    operands = [word for word in words[1:] if word.text and not word.prefix.startswith("-")]
    verdicts = [_network_verdict(operands, "it")]
    if operands:
        verdicts.append(contacts(operands[0].display, f"it talks to {operands[0].display}"))
    if any(word.prefix.startswith(("-e", "-c", "--exec", "--sh-exec")) for word in words[1:]):
        verdicts.append(uncertain("it runs a program"))
    return merge(verdicts)


def _subcommands(
    options_by_subcommand: Mapping[str, str], reason: str, effect: Effect = Effect.LOCAL_MUTATION
) -> Classifier:
    """Return a classifier for programs with subcommands.

    Args:
        options_by_subcommand: The subcommands that only read, each with its options; '' stands for none.
        reason: Why any other subcommand is uncertain.
        effect: The least effect of any other subcommand.
    """

    def classify(words: Words) -> CommandVerdict:
        subcommand = words[1].text if len(words) > 1 else ""
        options = None if subcommand is None else options_by_subcommand.get(subcommand)
        if options is None:
            return uncertain(f"{words[0].display} {reason}", effect)
        return option_verdict(parse_options(words[1:] if subcommand else words, options))

    return classify


def _classify_rpm(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _RPM)
    queries = parsed.has("-q", "--query")
    return merge(
        [option_verdict(parsed), NO_EFFECT if queries else uncertain("rpm changes what is installed")]
    )


_PIP_READS = dict.fromkeys(("list", "freeze", "show", "check", "inspect"), _PIP)
_NPM_READS = dict.fromkeys(("ls", "list", "ll", "root", "prefix"), _NPM)
_APT_READS = dict.fromkeys(
    name_set("list show search policy depends rdepends showpkg madison pkgnames"), _APT
)
_SYSTEMCTL_READS = dict.fromkeys(
    (
        *("", "status", "show", "cat", "is-active", "is-enabled", "is-failed", "list-units"),
        *("list-unit-files", "list-timers", "list-sockets", "list-dependencies", "list-jobs", "get-default"),
    ),
    _SYSTEMCTL,
)
_MACHINE_READS = dict.fromkeys(("", "status", "show", "list-timezones"), "--no-pager")
_DOCKER_READS = dict.fromkeys(name_set("ps images version logs inspect top port history diff"), _DOCKER)

COMMANDS = (
    CommandSpec(names="curl", classify=_classify_curl),
    CommandSpec(names="wget wget2", classify=_classify_wget),
    CommandSpec(names="scp rsync", classify=_classify_rsync),
    CommandSpec(names="ssh slogin autossh mosh", classify=_classify_ssh),
    CommandSpec(
        names="ping ping6 dig host nslookup traceroute tracepath mtr whois arping nmap finger",
        classify=_classify_lookup,
    ),
    CommandSpec(names="nc ncat netcat telnet ftp tftp", classify=_classify_netcat),
    CommandSpec(
        names="sftp socat lftp ftpd rclone s3cmd gsutil aws az gcloud gh glab hub heroku flyctl vercel "
        "netlify kubectl helm nerdctl buildah skopeo terraform tofu ansible ansible-playbook "
        "vagrant packer psql pg_dump mysql mysqldump mariadb mongo mongosh redis-cli sqlcmd bq snowsql "
        "influx mail mailx sendmail mutt openssl gpg-agent ollama huggingface-cli hf wandb dvc twine http "
        "https xh httpie aria2c axel lynx w3m links elinks youtube-dl yt-dlp smbclient ldapsearch snmpwalk "
        "tailscale cloudflared ngrok",
        options="*",
        operands=".",
        effect=Effect.REMOTE_ACTION,
        reason="acts on other machines or services",
        certain=False,
        info_arguments="--version",
    ),
    CommandSpec(
        names="docker podman",
        classify=_subcommands(_DOCKER_READS, "acts on other machines or services", Effect.REMOTE_ACTION),
        info_arguments="--version",
    ),
    CommandSpec(
        names="dpkg dpkg-query",
        options="-lLSspW -f: --list --listfiles --search --status --print-avail --print-architecture "
        "--get-selections? --show --showformat:",
        operands=".",
    ),
    CommandSpec(names="rpm", classify=_classify_rpm),
    CommandSpec(
        names="pip pip3",
        classify=_subcommands(_PIP_READS, "installs or removes packages, which run code of their own"),
        info_arguments="--version -V --help",
    ),
    CommandSpec(
        names="npm",
        classify=_subcommands(_NPM_READS, "installs packages or runs scripts"),
        info_arguments="--version -v",
    ),
    CommandSpec(names="apt apt-cache", classify=_subcommands(_APT_READS, "changes what is installed")),
    CommandSpec(names="systemctl", classify=_subcommands(_SYSTEMCTL_READS, "changes services")),
    CommandSpec(
        names="timedatectl hostnamectl localectl loginctl",
        classify=_subcommands(_MACHINE_READS, "changes the machine"),
    ),
)
