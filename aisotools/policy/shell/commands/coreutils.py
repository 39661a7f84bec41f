"""Programs that read, compute and print; the table names the few options by which some of them do more.

Programs that show the state of the machine: processes, devices, logs; some can change it, too.
"""

from __future__ import annotations

from aisotools.core.types import Effect
from aisotools.policy.shell.options import (
    NOTHING,
    CommandVerdict,
    Row,
    Words,
    does,
    merged,
    parse,
    said_by,
    unsure,
)

_GREP = (
    "-EFGPiyvwxclLqsonHhbTZzUurRIa -e: -f:r -m: -A: -B: -C: -d: -D: -# --extended-regexp --fixed-strings "
    "--basic-regexp --perl-regexp --regexp: --file:r --ignore-case --no-ignore-case --word-regexp "
    "--line-regexp --null-data --no-messages --invert-match --max-count: --byte-offset --line-number "
    "--line-buffered --with-filename --no-filename --label: --only-matching --quiet --silent "
    "--binary-files: --text --directories: --devices: --recursive --dereference-recursive --include: "
    "--exclude: --exclude-from:r --exclude-dir: --files-without-match --files-with-matches --count "
    "--initial-tab --null --before-context: --after-context: --context: --group-separator: "
    "--no-group-separator --color? --colour?"
)


def _date(words: Words) -> CommandVerdict:
    parsed = parse(
        words,
        "-uR -I? -d: -r:r -f:r --date: --reference:r --file:r --iso-8601? --rfc-3339: --rfc-email --utc "
        "--universal --debug --resolution -s:s --set:s",
    )
    sets = [o for o in parsed.operands if not o.prefix.startswith("+") or o.many]
    clock = unsure("date sets the clock") if sets else NOTHING
    return merged([said_by(parsed), clock])


ROWS = (
    Row(
        names="cat tac nl wc head tail cut rev paste join comm cmp diff fold fmt column expand unexpand od "
        "hexdump hd strings md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum shasum "
        "ls dir vdir stat du df readlink realpath pr tsort look locate plocate readelf exa eza zipinfo "
        "getfacl lsattr findmnt namei bc",
        options="*",
        loose=True,
        harmless=(
            "cat a.txt",
            "head -n 5 data.csv",
            "wc -l *.py",
            "ls -la $DIR",
            "diff -u a b",
            "tail -f log",
            "cut -d, -f1,3 x.csv",
            "cat -- -n",
            "du -sh .",
        ),
        harmful=("cat a > b", "ls `rm x`", "head $(tee x)", "wc -l >| x", "PATH=. ls", "./cat x", "cat <>x"),
    ),
    Row(
        names="echo pwd seq factor numfmt expr basename dirname true false : sleep yes tr nproc arch uname "
        "whoami id groups users who w uptime free vmstat iostat mpstat lscpu lsblk lsmod locale getconf "
        "logname tty printenv ps pgrep pidof pstree which whereis type cal ncal clear last lslocks ipcs",
        options="*",
        operands=".",
        loose=True,
        harmless=(
            "echo rm -rf /",
            "ps aux",
            "seq 1 10",
            "uname -a",
            "tr a-z A-Z",
            "echo '> x'",
            "expr 1 + 2",
        ),
        harmful=("echo x > y", "echo $(rm x)", "ps aux >> y", "seq 3 | tee x", "uname -a &> x"),
    ),
    Row(
        names="grep egrep fgrep",
        options=_GREP,
        operands="pr",
        loose=True,
        harmless=(
            "grep -rn TODO src",
            "grep -E 'a|b' -- -x",
            'grep "$pattern" file',
            "grep -A3 --color=auto x y",
        ),
        harmful=("grep x y > z", "grep --filter=rm x y", "grep --save-config=x y"),
    ),
    Row(
        names="zgrep zegrep zfgrep",
        options=_GREP,
        operands="pr",
        harmless=("zgrep x a.gz",),
        harmful=("zgrep $x y",),
    ),
    Row(
        names="jq gojq",
        options="-rRncCMSseajhV -f:r -L:r --raw-output --raw-input --null-input --compact-output "
        "--color-output "
        "--monochrome-output --sort-keys --slurp --exit-status --ascii-output --join-output --raw-output0 "
        "--tab --indent: --arg --argjson --slurpfile --rawfile --args --jsonargs --stream --stream-errors "
        "--seq --from-file:r --unbuffered",
        operands="pr",
        loose=True,
        harmless=("jq -r '.[0].name' data.json", "jq --arg x \"$y\" '.[$x]' a.json", "jq ."),
        harmful=("jq -i .a a.json", "jq . a.json > b", "jq --in-place . a"),
    ),
    Row(
        names="rg",
        options="-nNHhIilLcovwxsSFPUuaVqp0. -z!x -A: -B: -C: -m: -g: -t: -T: -e: -f:r -d: -j: -M: -r: -E: "
        "--line-number --no-line-number --with-filename --no-filename --ignore-case --files-with-matches "
        "--files-without-match --count --count-matches --only-matching --invert-match --word-regexp "
        "--line-regexp --case-sensitive --smart-case --fixed-strings --pcre2 --multiline --multiline-dotall "
        "--hidden --no-ignore --no-ignore-vcs --follow --text --quiet --pretty --vimgrep --json --files "
        "--stats --column --no-heading --heading --trim --sort: --sortr: --type: --type-not: --type-list "
        "--glob: --iglob: --max-count: --max-depth: --max-columns: --max-filesize: --after-context: "
        "--before-context: --context: --regexp: --file:r --color: --colors: --replace: --passthru "
        "--threads: --encoding: --engine: --debug --trace --null --no-messages --no-config "
        "--one-file-system --pre:x --pre-glob: --hostname-bin:x --search-zip!x",
        operands="pr",
        harmless=("rg -n TODO src", "rg -g '*.py' -A 2 'def main'", "rg --files"),
        harmful=("rg --pre rm x", "rg --pre=./x .", "rg $x", "rg --hostname-bin ./x y", "rg --search-zip x"),
    ),
    Row(
        names="sort",
        options="-bdfgiMhnRrVcCmsuz -k: -t: -S: -T: -o:w --output:w --compress-program:x --files0-from:r "
        "--ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort "
        "--ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort "
        "--random-source:r --reverse --sort: --version-sort --batch-size: --check? --debug --key: --merge "
        "--stable --buffer-size: --field-separator: --temporary-directory: --parallel: --unique "
        "--zero-terminated",
        harmless=(
            "sort -k2,2n -t, a.csv",
            "sort -k -o x",
            "sort -- -o",
            "sort -u --reverse a b",
            "sort -t '|' -k1 ./*.csv",
        ),
        harmful=(
            "sort -o a b",
            "sort a -o b",
            "sort -oa b",
            "sort -uo b a",
            "sort --output=x y",
            "sort --ou x y",
            "sort --compress-program=./x y",
            "sort --comp ./x y",
            "sort ?o x",
            "sort $x",
            "sort *.csv",
        ),
    ),
    Row(
        names="uniq",
        options="-cdDiuz -f: -s: -w: --count --repeated --all-repeated? --group? --ignore-case --unique "
        "--skip-fields: --skip-chars: --check-chars: --zero-terminated",
        operands="rw",
        posix=True,  # not every uniq looks for options behind the first file
        harmless=("uniq -c a", "uniq -f 1 a", "uniq"),
        harmful=("uniq a b", "uniq -c a b", "uniq ./*", "uniq -- a b", "uniq a -c"),
    ),
    Row(
        names="shuf",
        options="-erz -i: -n: -o:w --output:w --echo --repeat --input-range: --head-count: --random-source:r "
        "--zero-terminated",
        harmless=("shuf -n 3 a", "shuf -i 1-9"),
        harmful=("shuf -o a b", "shuf a --output b"),
    ),
    Row(
        names="tree",
        options="-adlfxqNQpugshDFvtcUriASnCXJ -L: -P: -I: -H: -T: -o:w --ignore-case --matchdirs --prune "
        "--noreport --charset: --filelimit: --gitignore --si --du --timefmt: --inodes --device --dirsfirst "
        "--filesfirst --sort: --nolinks --fromfile --metafirst",
        apart=True,
        harmless=("tree -L 2 -a", "tree -I node_modules src"),
        harmful=("tree -o x", "tree -Lo 2 x", "tree -R -H . -L 1", "tree -ao x"),
    ),
    Row(
        names="file",
        options="-bikLhNnprsv0cdEZ -F: -f:r -e: -m:r -P: -C!s -z!x --brief --mime --mime-type "
        "--mime-encoding --extension --dereference --no-dereference --separator: --files-from:r --exclude: "
        "--magic-file:r --keep-going --raw --print0 --checking-printout --compile!s --uncompress!x "
        "--uncompress-noreport!x",
        harmless=("file -b a.bin", "file --mime-type ./*.png"),
        harmful=("file -C -m x", "file -bC -m x", "file --compile x", "file --comp x"),
    ),
    Row(
        names="date",
        judge=_date,
        harmless=("date", "date +%F", "date -d yesterday +%s", "date -u -Iseconds", "date '+%H:%M'"),
        harmful=(
            "date -s tomorrow",
            "date 010203042030",
            "date --set=x",
            "date --se x",
            "date $x",
            "date -us x",
        ),
    ),
    Row(
        names="xxd",
        options="-abCEeipuv -c: -g: -l: -s: -o: -n: -r!u",
        operands="rw",
        posix=True,
        apart=True,
        harmless=("xxd a", "xxd -p -l 16 a"),
        harmful=(
            "xxd a b",
            "xxd -r a b",
            "xxd -pl 5 a",
            "xxd -ps a b",
            "xxd -revert a",
            "xxd a -p",
            "xxd -i -c a . --",
        ),
    ),
    Row(
        names="base64 base32 basenc",
        options="-dDi -w: --decode --ignore-garbage --wrap: --base64 --base64url --base32 --base16 --z85",
        harmless=("base64 a", "base64 -d"),
        harmful=("base64 -d a > b", "base64 -o x y", "base64 --output=x"),
    ),
    Row(
        names="iconv",
        options="-f: -t: -csl --from-code: --to-code: --list --silent -o:w --output:w",
        harmless=("iconv -f latin1 -t utf8 a",),
        harmful=("iconv -f latin1 -t utf8 a -o b",),
    ),
    Row(
        names="yq",
        options="-rPenNCMcjy -o: -p: -I: --output-format: --input-format: --prettyPrint --exit-status "
        "--null-input --no-colors --colors --raw-output --unwrapScalar? -i!s --inplace!s --in-place!s",
        operands="pr",
        harmless=("yq -r .a x.yaml", "yq -o json . x.yaml"),
        harmful=("yq -i '.a=1' x", "yq '.a=1' --inplace x", "yq -s .a x"),
    ),
    Row(
        names="xmllint",
        options="--format --noout --xpath: --nonet --recover --html --xmlout --pretty: --encode: --c14n "
        "--output:w",
        harmless=("xmllint --format a.xml",),
        harmful=("xmllint a.xml --output b", "xmllint --shell a.xml"),
    ),
    Row(
        names="nm size objdump",
        options="-aACDdgnSuprhtTxsf --demangle? --defined-only --dynamic --disassemble --syms --plugin:x",
        harmless=("nm -D a.so", "objdump -d a.o"),
        harmful=("nm --plugin ./x.so a", "objdump --plug=./x.so a"),
    ),
    Row(
        names="fd fdfind",
        options="-HIusiFgapL0q1 -d: -t: -e: -E: -c: -j: -S: -o: -x:x -X:x -l!x --hidden --no-ignore "
        "--unrestricted --case-sensitive --ignore-case --glob --regex --fixed-strings --absolute-path "
        "--full-path --follow --max-depth: --min-depth: --exact-depth: --type: --extension: --exclude: "
        "--color: --threads: --size: --changed-within: --changed-before: --owner: --print0 --max-results: "
        "--quiet --base-directory:r --exec:x --exec-batch:x --list-details!x",
        operands="pr",
        harmless=("fd -e py", "fd -t f main src"),
        harmful=("fd -x rm", "fd . -X rm", "fd --exec rm", "fd -Hx rm"),
    ),
    Row(
        names="man less more most view pg info",
        effect=Effect.LOCAL_MUTATION,
        why="is a pager, which can run commands",
        certain=False,
        options="*",
        harmless=("man --version",),
        harmful=(
            "man --html=./x ls",
            "man -P ./x ls",
            "less +!rm x",
            "less -o x y",
            "more x",
            "man ls",
            "less x",
        ),
    ),
)


_IP_FLAGS = frozenset(("-4", "-6", "-s", "-d", "-h", "-j", "-p", "-o", "-br", "-brief", "-c"))
_IP_OBJECTS = frozenset(
    ("a", "addr", "address", "l", "link", "r", "route", "n", "neigh", "neighbour", "rule")
)


def _top(words: Words) -> CommandVerdict:
    parsed = parse(words, "-bciHS1 -n: -d: -p: -u: -U: -o: -w? -e: -E:")
    waits = NOTHING if parsed.has("-b") else unsure("top without -b takes commands")
    return merged([said_by(parsed), waits])


def _sysctl(words: Words) -> CommandVerdict:
    parsed = parse(words, "-aAXbeNnq -r: --all --values --names --binary --ignore --pattern:")
    sets = any("=" in operand.shown or operand.text is None for operand in parsed.operands)
    return merged([said_by(parsed), unsure("sysctl sets it") if sets else NOTHING])


def _ip(words: Words) -> CommandVerdict:
    plain = [word.text or "" for word in words[1:] if word.text not in _IP_FLAGS]
    shows = plain[:1] and plain[0] in _IP_OBJECTS and (len(plain) == 1 or plain[1] in {"show", "list", "ls"})
    return NOTHING if shows else unsure("ip may change the network")


def _getent(words: Words) -> CommandVerdict:
    asked = words[1].text if len(words) > 1 else None
    local = asked in {"passwd", "group", "services", "protocols", "shells"}
    return NOTHING if local else unsure("getent may ask the network", Effect.REMOTE_ACTION)


def _kill(words: Words) -> CommandVerdict:
    first = words[1].text if len(words) > 1 else None
    if first in {"-l", "-L", "--list", "--table", "-0"} or (
        first in {"-s", "-n"} and len(words) > 2 and words[2].text in {"0", "EXIT"}
    ):
        return NOTHING
    return does(Effect.DESTRUCTIVE, "it ends processes, which cannot be brought back")


SYSTEM_ROWS = (
    Row(
        names="tput reset",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        why="may run what its terminal's description names",
        certain=False,
        about="cols lines colors",
        harmless=("tput cols",),
        harmful=("tput init", "TERM=x tput reset", "reset"),
    ),
    Row(
        names="top",
        judge=_top,
        harmless=("top -b -n 1", "top -bn1"),
        harmful=("top", "top -d 1"),
    ),
    Row(
        names="sysctl",
        judge=_sysctl,
        harmless=("sysctl -a", "sysctl kernel.x"),
        harmful=("sysctl -w a=1", "sysctl a=1", "sysctl -p"),
    ),
    Row(
        names="ip",
        judge=_ip,
        harmless=("ip addr", "ip -br a", "ip route show"),
        harmful=("ip link set eth0 down", "ip -b x", "ip netns exec a rm x"),
    ),
    Row(
        names="ifconfig",
        options="-asv",
        operands="-",
        harmless=("ifconfig -a",),
        harmful=("ifconfig eth0 down",),
    ),
    Row(
        names="ss",
        options="-tulpnarxwsoemi460HOZzb --tcp --udp --listening --processes --numeric --all --summary -f: "
        "-K!d -D:w -F:r",
        operands=".",
        harmless=("ss -tulpn",),
        harmful=("ss -K dst 1.2.3.4", "ss -D x"),
    ),
    Row(
        names="netstat",
        options="-atulpnrsiewcogW46xvlM --tcp --udp --listening --programs --numeric --all --route "
        "--statistics",
        operands=".",
        harmless=("netstat -tulpn", "netstat -an"),
        harmful=("netstat -z", "netstat -an > x"),
    ),
    Row(
        names="lsof",
        options="-nPtlabR -i? -p: -u: -c: -d: -D:s",
        operands="r",
        harmless=("lsof -i :80", "lsof -p 1"),
        harmful=("lsof -D b",),
    ),
    Row(
        names="lspci lsusb",
        options="-vnkmtD -s: -d:",
        operands="-",
        harmless=("lspci -nn",),
        harmful=("lspci -O x=y",),
    ),
    Row(
        names="dmesg",
        options="-THkwxtur -l: -f: -L? -P --human --follow --level: --facility: --ctime --color? --nopager "
        "--kernel --decode --since: --until: -c!d -C!d --clear!d --read-clear!d -D!s -E!s -n:s",
        operands="-",
        harmless=("dmesg -T", "dmesg --level=err"),
        harmful=("dmesg -C", "dmesg -c", "dmesg -n 1"),
    ),
    Row(
        names="mount",
        options="-l -t: --show-labels",
        operands="s",
        harmless=("mount", "mount -l"),
        harmful=("mount /dev/sda1 /mnt", "mount -o remount,rw /", "mount -a"),
    ),
    Row(
        names="getent",
        judge=_getent,
        harmless=("getent passwd root",),
        harmful=("getent hosts evil.example", "getent $x"),
    ),
    Row(
        names="kill",
        judge=_kill,
        harmless=("kill -l", "kill -0 1"),
        harmful=("kill 1", "kill -9 -1", "kill -s TERM 1"),
    ),
    Row(
        names="journalctl",
        options="-frxekaq -u: -n? -b? -p: -o: -S: -U: -t: -g: -F: -D:r --unit: --lines? --boot? --dmesg "
        "--priority: --output: --since: --until: --no-pager --user --system --grep: --list-boots "
        "--disk-usage --directory:r --file:r --fields --identifier: --follow --reverse --all --quiet "
        "--vacuum-size:D --vacuum-time:D --vacuum-files:D --rotate!s --flush!s --sync!s --cursor-file:w",
        operands=".",
        harmless=("journalctl -u ssh -n 50", "journalctl --since today --no-pager"),
        harmful=("journalctl --vacuum-size=1M", "journalctl --rotate", "journalctl --vac=1s"),
    ),
    Row(
        names="nvidia-smi",
        options="-Lq -i: --query-gpu: --format: --list-gpus",
        operands="-",
        harmless=("nvidia-smi",),
        harmful=("nvidia-smi -pm 1", "nvidia-smi -r"),
    ),
    Row(
        names="hostname",
        options="-sfiIdAya --short --fqdn --long --ip-address --all-ip-addresses --domain --all-fqdns "
        "--alias -F:s --file:s -b!s",
        operands="s",
        harmless=("hostname", "hostname -f"),
        harmful=("hostname evil", "hostname -F x", "hostname $x"),
    ),
)
