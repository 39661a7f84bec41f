"""Services, containers, job queues and keys: which of their commands only show what there is."""

from __future__ import annotations

import re
from itertools import pairwise

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.options import (
    CommandSpec,
    Words,
    option_verdict,
    parse_options,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    contacts,
    merge,
    reads,
    uncertain,
)

_SYSTEMCTL = (
    "-alqr -n: -o: -t: -p: --all --full --no-pager --plain --no-legend --lines: --output: --type: --state: "
    "--property: --value --quiet --user --system --failed --reverse --after --before --no-ask-password"
)
_DOCKER = (
    "-aqsltv -n: --all --no-trunc --quiet --size --latest --filter: --format: --last: --digests --follow "
    "--tail: --since: --until: --timestamps --details --type: --no-stream --verbose --services "
    "--no-log-prefix --no-color "
    "--tree --human -H --dry-run"
)
_DOCKER_FOLLOWS = f"{_DOCKER} -f"  # of `logs`; to the others it is a filter, or a format
_DOCKER_GLOBAL = "-D --debug --log-level: -l: -H:u --host:u -c:u --context:u --config:u --tls!u --tlsverify!u"
_COMPOSE_GLOBAL = (
    "-f:r -p: --file:r --project-name: --profile: --env-file:r --project-directory:r "
    "--compatibility --progress: --ansi:"
)
_MACHINE = (
    "--no-pager --no-ask-password -a -p: --property: --value --all --full --no-legend -o: "
    "--output: -l -n: --lines:"
)


_classify_compose = subcommands(
    Subcommand(
        names="ps, logs, images, top, ls, port, version, events, stats --no-stream, volumes",
        options=f"{_DOCKER_FOLLOWS} --orphans --status: --index: --protocol: --short --json",
    ),
    options=_COMPOSE_GLOBAL,
    reason="compose changes what runs",
    effect=Effect.REMOTE_ACTION,
    helps="--help -h",
)


# ---- keys and certificates

_OPENSSL_READS = {
    "dgst": "-r -c -d -debug -hex -binary -list -hmac: -md5 -sha1 -sha224 -sha256 -sha384 -sha512 "
    "-sha3-256 -sha3-512 "
    "-sha512-256 -blake2b512 -blake2s256 -ripemd160 -verify:r -signature:r -prverify:r -xoflen: "
    "-fips-fingerprint",
    "x509": "-in:r -inform: -noout -text -dates -startdate -enddate -subject -issuer -serial "
    "-fingerprint -pubkey -modulus "
    "-hash -subject_hash -issuer_hash -email -ext: -nameopt: -certopt: -checkend: -checkhost: -checkip: "
    "-purpose -ocsp_uri "
    "-sha256 -sha1 -md5 -alias -outform: -ocspid -checkemail:",
    "req": "-in:r -inform: -noout -text -subject -pubkey -modulus -verify -nameopt: -reqopt: -outform:",
    "rsa": "-in:r -inform: -noout -text -modulus -check -pubin -pubout -outform: -RSAPublicKey_in",
    "ec": "-in:r -inform: -noout -text -check -pubin -pubout -param_out -outform:",
    "pkey": "-in:r -inform: -noout -text -text_pub -pubin -pubout -check -pubcheck -outform:",
    "crl": "-in:r -inform: -noout -text -issuer -lastupdate -nextupdate -hash -fingerprint -nameopt: "
    "-outform: -crlnumber",
    "verify": "-CAfile:r -CApath:r -untrusted:r -trusted:r -show_chain -verbose -purpose: -partial_chain "
    "-x509_strict "
    "-verify_hostname: -crl_check -CRLfile:r -no-CAfile -no-CApath -no_check_time -check_ss_sig",
    "asn1parse": "-in:r -inform: -i -dump -offset: -length: -strparse: -item: -oid:r",
    "pkcs7": "-in:r -inform: -noout -text -print_certs -print -outform:",
    "rand": "-hex -base64",
    "version": "-a -v -b -o -f -p -d -e -r -m -c -s",
    "ciphers": "-v -V -s -tls1 -tls1_1 -tls1_2 -tls1_3 -stdname -psk -convert:",
    "list": "-1 -commands -digest-commands -digest-algorithms -cipher-commands -cipher-algorithms "
    "-public-key-algorithms "
    "-disabled -verbose -providers -kdf-algorithms -mac-algorithms -standard-commands -options:",
    "ecparam": "-in:r -inform: -noout -text -check -list_curves -name: -param_enc: -conv_form: -outform:",
    "pkcs12": "-in:r -info -noout -nokeys -nocerts -clcerts -cacerts -nodes -noenc -legacy -nomacver",
    "dhparam": "-in:r -inform: -noout -text -check -outform:",
    "prime": "-hex -generate -bits: -safe -checks:",
    "errstr": "",
    "base64": "-d -e -a -A -in:r -base64",
    "enc": "-d -e -a -A -in:r -base64 -list -ciphers",
    "passwd": "-1 -5 -6 -apr1 -aixmd5 -salt: -stdin -noverify -quiet -table -reverse -crypt",
    "help": "",
}
_OPENSSL_DIGESTS = name_set(
    "md4 md5 sha1 sha224 sha256 sha384 sha512 sha3-224 sha3-256 sha3-384 sha3-512 sha512-224 sha512-256 "
    "blake2b512 "
    "blake2s256 rmd160 ripemd160 sm3 shake128 shake256"
)


def _classify_openssl(words: Words) -> CommandVerdict:
    subcommand = words[1].text if len(words) > 1 else None
    if subcommand is None:
        return uncertain("openssl reads its commands from what is typed")
    if len(words) == 3 and words[2].text in {"-help", "--help"}:
        return NO_EFFECT
    options = _OPENSSL_READS.get("dgst" if subcommand in _OPENSSL_DIGESTS else subcommand)
    if options is None:
        effect = (
            Effect.REMOTE_ACTION
            if subcommand in {"s_client", "s_server", "s_time", "ocsp"}
            else Effect.LOCAL_MUTATION
        )
        hosts = [
            contacts(value.display.partition(":")[0], "openssl connects to it")
            for option, value in pairwise(words)
            if option.text == "-connect"
        ]
        return merge(
            [*hosts, uncertain(f"openssl {subcommand} may write files or talk to a machine", effect)]
        )
    parsed = parse_options(words[1:], options, one_dash=True)
    are_files = subcommand in {"dgst", "verify"} or subcommand in _OPENSSL_DIGESTS
    return merge([option_verdict(parsed), *(map(reads, parsed.operands) if are_files else ())])


def _classify_keygen(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-lvBLy -f:r -E: -F: -P: -N:c")
    shows = parsed.has("-l", "-B", "-L", "-F", "-y") and not parsed.has("-N")
    return merge(
        [option_verdict(parsed), NO_EFFECT if shows else uncertain("ssh-keygen makes or changes keys")]
    )


def _classify_gpg(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-kKvq --list-keys --list-secret-keys --list-public-keys --fingerprint --list-sigs --list-signatures "
        "--list-packets --with-colons --with-fingerprint --keyid-format: --verbose --quiet --no-tty --batch "
        "--list-config --show-keys --with-subkey-fingerprint --print-md: --with-keygrip "
        "--no-auto-check-trustdb",
    )
    shows = parsed.has(
        "-k",
        "-K",
        "--list-keys",
        "--list-secret-keys",
        "--list-public-keys",
        "--fingerprint",
        "--list-sigs",
        "--list-signatures",
        "--list-packets",
        "--list-config",
        "--show-keys",
        "--print-md",
    )
    takes_files = parsed.has("--list-packets", "--show-keys", "--print-md")
    return merge(
        [
            option_verdict(parsed),
            NO_EFFECT if shows else uncertain("gpg may change keys or write files"),
            *(map(reads, parsed.operands) if takes_files else ()),
        ]
    )


# ---- terminals and queues

_TMUX_SHOWS = (
    "ls, list-sessions, lsw, list-windows, lsp, list-panes, lsc, list-clients, lsk, list-keys, lsb, "
    "list-buffers, "
    "list-commands, lscm, show-options, show, show-window-options, showw, show-environment, showenv, "
    "show-messages, "
    "showmsgs, show-buffer, showb, has-session, has, info, server-info, capture-pane -p, display-message -p"
)


_TMUX = subcommands(
    Subcommand(
        names=_TMUX_SHOWS, options="-agspwNqvJeCP -t: -F: -f: -S: -E: -b: -O: -T: -c:", allow_dynamic=False
    ),
    options="-2CluUv -L: -S:r -f:u",
    reason="runs a command in its own way",
)


_TMUX_VALUE = re.compile(r"#\{[a-z_]+\}")
"""What stands for a plain value, which is not expanded again."""
_TMUX_TEXT = re.compile(r"(?!.*#[({]).*", re.DOTALL)


def _classify_tmux(words: Words) -> CommandVerdict:
    """Return the verdict on tmux, for which a semicolon begins another command, and `#()` runs one."""
    if any(
        word.text is None or ";" in word.text or not _TMUX_TEXT.fullmatch(_TMUX_VALUE.sub("", word.text))
        for word in words
    ):
        return merge([uncertain("tmux may run another command"), _TMUX(words)])
    return _TMUX(words)


def _classify_screen(words: Words) -> CommandVerdict:
    lists = len(words) in {2, 3} and words[1].text in {"-ls", "-list"}
    return NO_EFFECT if lists else uncertain("screen runs a command in its own way")


def _classify_module(words: Words) -> CommandVerdict:
    shows = name_set(
        "list avail av spider show display whatis keyword help is-avail is-loaded overview --version -t"
    )
    arguments = [word.text for word in words[1:]]
    if arguments[:1] == ["-t"]:
        arguments = arguments[1:]
    if arguments and arguments[0] in shows:
        return NO_EFFECT
    return uncertain("module changes what programs are found")


def _asks_queue(words: Words) -> CommandVerdict:
    """Return the verdict on a program that shows jobs, which asks the daemons of the queue for them.

    These run on another machine, which nothing here names. Even what needs no answer of theirs may get the
    settings from there.
    """
    return contacts("", f"{words[0].display} asks the daemons of the queue, on another machine")


def _lists_networks(words: Words) -> CommandVerdict:
    """Return the verdict on `nmcli device wifi list`, which looks for networks unless it is told not to."""
    parsed = parse_options(words, "--rescan:")
    value = parsed.value("--rescan")
    looks_for_none = value is not None and value.text == "no" and not parsed.operands
    return merge(
        [option_verdict(parsed), NO_EFFECT if looks_for_none else uncertain("nmcli may look for networks")]
    )


def _classify_service(words: Words) -> CommandVerdict:
    arguments = [word.text for word in words[1:]]
    shows = arguments == ["--status-all"] or (
        len(arguments) == 2 and arguments[1] == "status" and arguments[0]
    )
    return NO_EFFECT if shows else uncertain("service changes services")


def _shows_names(words: Words) -> CommandVerdict:
    """Return the verdict on `resolvectl dns` and `domain`, which set what follows the name of a link."""
    parsed = parse_options(words, _MACHINE)
    sets = len(parsed.operands) > 1 or any(word.may_split for word in parsed.operands)
    return merge([option_verdict(parsed), uncertain("it sets servers for names") if sets else NO_EFFECT])


COMMANDS = (
    CommandSpec(
        names="docker podman",
        classify=subcommands(
            Subcommand(
                names="ps, images, version, inspect, top, port, history, diff, info, stats "
                "--no-stream, events, "
                "container ls, container list, container ps, container inspect, "
                "container top, container port, "
                "container diff, image ls, image list, image inspect, image history, volume ls, volume "
                "list, volume inspect, "
                "network ls, network list, network inspect, system df, system info, context ls, context "
                "show, context inspect, "
                "buildx ls, buildx version, plugin ls, node ls, service ls, stack ls, secret ls, config "
                "ls, pod ps, pod ls, "
                "builder ls, manifest ls, container stats --no-stream",
                options=f"{_DOCKER} -f:",
            ),
            Subcommand(names="logs, container logs", options=_DOCKER_FOLLOWS),
            Subcommand(names="stats", options=_DOCKER),
            Subcommand(names="compose", classify=_classify_compose),
            options=_DOCKER_GLOBAL,
            reason="acts on other machines or services",
            effect=Effect.REMOTE_ACTION,
        ),
        info_arguments="--version --help -v help version info",
    ),
    CommandSpec(
        names="docker-compose", classify=_classify_compose, info_arguments="--version --help -h version"
    ),
    CommandSpec(
        names="systemctl",
        classify=subcommands(
            Subcommand(
                names="status, show, cat, is-active, is-enabled, is-failed, is-system-running, "
                "list-units, list-unit-files, "
                "list-timers, list-sockets, list-dependencies, list-jobs, list-machines, list-paths, "
                "list-automounts, "
                "get-default, help, show-environment",
            ),
            options=_SYSTEMCTL,
            reason="changes services",
            alone=True,
        ),
    ),
    CommandSpec(
        names="timedatectl hostnamectl localectl loginctl resolvectl networkctl",
        classify=subcommands(
            Subcommand(
                names="status, show, list-timezones, list-sessions, list-users, list-seats, "
                "session-status, user-status, "
                "show-session, show-user, list-locales, list-keymaps, timesync-status, list, "
                "statistics",
            ),
            Subcommand(names="dns, domain", classify=_shows_names),
            options=_MACHINE,
            reason="changes the machine",
            alone=True,
        ),
    ),
    CommandSpec(names="service", classify=_classify_service),
    CommandSpec(names="tmux", classify=_classify_tmux, info_arguments="-V"),
    CommandSpec(names="screen", classify=_classify_screen, info_arguments="--version --help -v -h -ls -list"),
    CommandSpec(
        names="squeue sinfo sacct sstat sprio sshare sreport sdiag seff smap reportseff strigger qhost "
        "qselect qacct qquota bjobs bqueues bhosts bhist bacct bpeek busers bparams bugroup bmgroup blimits "
        "bresources bslots lsid lsload lshosts lsinfo lsclusters condor_q condor_status condor_history "
        "condor_userprio condor_who condor_ping showq showbf showres showstart checkjob checknode mdiag "
        "pbsnodes",
        classify=_asks_queue,
        info_arguments="--help --version -h -V",
    ),
    CommandSpec(names="qstat", classify=_asks_queue, info_arguments="--help --version -help"),
    CommandSpec(
        names="scontrol",
        classify=subcommands(
            Subcommand(names="version, help"),
            Subcommand(
                names="show, ping, listpids, getaddrs, hostnames, hostlist, errnumstr", classify=_asks_queue
            ),
            options="-odavQ --oneliner --details --all --verbose --quiet -M: --json? --yaml?",
            reason="changes jobs or the queue",
            effect=Effect.REMOTE_ACTION,
        ),
        info_arguments="--help --version -V -h",
    ),
    CommandSpec(
        names="sacctmgr",
        classify=subcommands(
            Subcommand(names="show, list", classify=_asks_queue),
            options="-inpPQrsv --parsable2 --parsable --noheader --readonly",
            reason="changes accounts",
            effect=Effect.REMOTE_ACTION,
        ),
        info_arguments="--help --version",
    ),
    CommandSpec(
        names="sbatch srun salloc scancel qsub qdel qalter bsub bkill condor_submit condor_rm sattach",
        options="*",
        effect=Effect.REMOTE_ACTION,
        reason="changes the queue of jobs",
        certain=False,
        info_arguments="--help --version -V --usage",
    ),
    CommandSpec(names="module ml", classify=_classify_module, info_arguments="--version --help list avail"),
    CommandSpec(names="openssl", classify=_classify_openssl, info_arguments="version help --help --version"),
    CommandSpec(
        names="keytool",
        options="-list -v -rfc -printcert -file:r -keystore:r -alias: -storetype: -storepass: -cacerts",
        one_dash=True,
        operands="-",
        info_arguments="-help --help",
    ),
    CommandSpec(names="ssh-keygen", classify=_classify_keygen, info_arguments=""),
    CommandSpec(names="gpg gpg2", classify=_classify_gpg),
    CommandSpec(
        names="ollama",
        classify=subcommands(
            Subcommand(
                names="list, ls, ps, show, help",
                options="--modelfile --parameters --system --template --license -v --verbose",
            ),
            reason="runs or fetches models",
            effect=Effect.REMOTE_ACTION,
        ),
        info_arguments="--version --help -v -h",
    ),
    CommandSpec(
        names="huggingface-cli hf",
        classify=subcommands(
            Subcommand(
                names="scan-cache, cache scan, cache ls, env, version", options="-v --verbose --dir:r"
            ),
            reason="acts on other machines or services",
            effect=Effect.REMOTE_ACTION,
            helps="--help -h",
        ),
        info_arguments="--version --help -h version env",
    ),
    # ---- the state of the machine, as its services tell it
    CommandSpec(
        names="lfs",
        classify=subcommands(
            Subcommand(
                names="quota, df, getstripe, getdirstripe, getname, osts, mdts, check, pool_list, path2fid, "
                "hsm_state",
                options="-h -i -q -v -r -d -L -l -y -u: -g: -p: -t: -o: -c: -s: --lazy --pool: --all "
                "--verbose --quiet --recursive --maxdepth:",
                operands="r",
                one_dash=True,
            ),
            Subcommand(names="help, version"),
            reason="changes how files are stored",
            alone=True,
        ),
        info_arguments="--version --help help version",
    ),
    # They ask the other machines of the cluster.
    CommandSpec(names="mmlsquota mmlsfs mmlsfileset mmlscluster mmgetstate mmdf", classify=_asks_queue),
    CommandSpec(
        names="lquota pwdx systemd-cgls systemd-detect-virt systemd-path systemd-escape",
        options="*",  # none of them changes anything
        operands=".",
    ),
    CommandSpec(
        names="systemd-analyze",
        classify=subcommands(
            Subcommand(
                names="time, blame, critical-chain, dump, plot, dot, unit-paths, calendar, timestamp, "
                "timespan, exit-status, capability, syscall-filter, filesystems",
                options="--user --system --no-pager --order --require --fuzz: --from-pattern: --to-pattern: "
                "--iterations: --base-time: --quiet -q",
            ),
            options="--user --system --no-pager",
            reason="may change services",
            alone=True,
        ),
    ),
    CommandSpec(
        names="busctl coredumpctl bootctl machinectl udevadm",
        classify=subcommands(
            Subcommand(
                names="list, list-images, image-status, info",
                options="--no-pager --no-legend -a -p: --all --property: --name: --path: --query: -q: -n: "
                "--attribute-walk --export-db -e -x --acquired --activatable --unique -r --reverse --since: "
                "--until: -S: -U: -1",
            ),
            reason="may change services",
        ),
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="nmcli",
        classify=subcommands(
            Subcommand(
                names="device status, dev status, d status, general status",
                operands="-",
            ),
            Subcommand(
                names="device show, dev show, d show, connection show, con show, c show, c s",
                options="--active --order:",
                operands=".",
                allow_dynamic=False,
            ),
            # It looks for networks unless it is told not to.
            Subcommand(
                names="device wifi list, dev wifi list, d wifi list, d w list",
                options="--rescan:",
                classify=_lists_networks,
            ),
            Subcommand(
                names="general permissions, general logging, networking, radio, radio all", operands="-"
            ),
            Subcommand(names="device, dev, d, connection, con, c, general, g", operands="-"),
            options="-tpo -f: -g: -m: -c: -e: -w: --terse --pretty --overview --fields: --get-values: "
            "--mode: --colors: --escape: --wait:",
            reason="changes the network",
            alone=True,
        ),
        info_arguments="--version --help -v -h",
    ),
    CommandSpec(
        names="ethtool",
        options="-i -k -g -a -c -l -m -n -u -x -S -T -P --driver --show-features --show-offload --show-ring "
        "--show-pause --show-coalesce --show-channels --statistics --show-time-stamping --show-permaddr "
        "--show-eee --show-fec --show-priv-flags --show-rxfh --show-rxfh-indir --show-nfc --show-ntuple "
        "--module-info --show-tunnels",
        one_dash=True,
        operands=".",
    ),
    CommandSpec(names="arp", options="-anve -i:", operands="."),
    CommandSpec(names="upower", options="-ebd -i: --enumerate --dump --battery --show-info:", operands="-"),
    CommandSpec(names="getcap", options="-vrn", operands="r"),
    CommandSpec(
        names="lstopo lstopo-no-graphics hwloc-ls",
        options="-lpcvs --logical --physical --cpuset --verbose --silent --no-io --no-bridges --whole-io "
        "--whole-system --merge --no-caches --no-icaches --no-useless-caches --only: --of: --output-format: "
        "--disallowed --no-legend --restrict:",
        operands="-",
        info_arguments="--version --help -h",
    ),
)
