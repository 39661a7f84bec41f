"""Package managers: which of their subcommands only show what there is."""

from __future__ import annotations

import re

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
    merge,
    reads,
    reads_or_contacts,
    uncertain,
)

_PIP_GLOBAL = (
    "-vq --verbose --quiet --no-input --isolated --disable-pip-version-check --no-color --debug "
    "--no-cache-dir "
    "--require-virtualenv --no-python-version-warning --log:u --cache-dir:r --python:x --proxy:h"
)
_PIP_LIST = (
    "-leif --format: --not-required --user --local --editable --exclude: --include-editable "
    "--exclude-editable "
    "--pre --files --path:r --all --outdated!n --uptodate!n -o!n -u!n -r:r --requirement:r"
)
# npm writes a log of its own, and works without where it may not write.
_NPM_GLOBAL = "-gs --global --silent --quiet --loglevel: --no-color --color? --prefix:r -C:r"
_NPM_LIST = (
    "-alp --depth: --all --json --long --parseable --omit: --include: --production --link --workspaces -w: "
    "--workspace: --prod --dev -L: --location:"
)
_CONDA_LIST = (
    "-n: -p:r -ecrfv --name: --prefix:r --export --canonical --explicit --json --md5 --show-channel-urls "
    "--full-name --revisions --no-pip --verbose --quiet --reverse --auth"
)
_APT = (
    "-aqit --installed --upgradable --all-versions --names-only --full --recurse --names -n --no-all-versions"
)
_RPM = (
    "-qailfpcdRv --query --all --info --list --file --package --changelog --provides --requires --last "
    "--whatprovides: --whatrequires: --configfiles --docfiles --scripts --qf: --queryformat: -V --verify"
)
_UV_GLOBAL = "-qvn --quiet --verbose --no-cache --offline --color: --no-progress --no-config"
_INSTALLS = "installs or removes packages, which run code of their own"
_CHANGES_INSTALLED = "changes what is installed"


def _classify_rpm(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _RPM)
    queries = parsed.has("-q", "--query") and not parsed.has("-V", "--verify")
    verdicts = [option_verdict(parsed)]
    if not queries:
        verdicts.append(uncertain("rpm changes what is installed, or runs what a package says"))
    for option in parsed.options:
        is_format = option.name in {"--qf", "--queryformat"} and option.value is not None
        # `%{TAG:expand}` runs the commands in a tag of the package.
        if is_format and option.value and (option.value.text is None or _RPM_RUNS.search(option.value.text)):
            verdicts.append(uncertain(f"the format {option.value.display} may run what a package says"))
    if parsed.has("-p", "--package", "-f", "--file"):
        verdicts += map(reads_or_contacts, parsed.operands)
    return merge(verdicts)


_RPM_RUNS = re.compile(r"expand|lua|%\(", re.IGNORECASE)


def _classify_pacman(words: Words) -> CommandVerdict:
    action = words[1].text if len(words) > 1 else None
    queries = action is not None and re.fullmatch(r"-Q[a-z]*", action) is not None
    if queries and all(re.fullmatch(r"[^-].*|-[a-z]+", word.text or "-") for word in words[2:]):
        return NO_EFFECT
    return uncertain("pacman changes what is installed")


def _classify_apk(words: Words) -> CommandVerdict:
    shows = len(words) > 1 and words[1].text in {"info", "list", "version", "stats"}
    if shows and all(re.fullmatch(r"[^-].*|-[aedwsLRrvI]+", word.text or "-") for word in words[2:]):
        return NO_EFFECT
    return uncertain("apk changes what is installed")


def _lists_scripts(words: Words) -> CommandVerdict:
    return NO_EFFECT if len(words) == 1 else uncertain("npm run runs a script")


def _shows_conda_settings(words: Words) -> CommandVerdict:
    arguments = [word.text or "" for word in words[1:]]
    shows = bool(arguments) and arguments[0] in {"--show", "--show-sources", "--get", "--describe"}
    if shows and not any(argument.startswith("-") for argument in arguments[1:] if argument != "--json"):
        return NO_EFFECT
    return uncertain("conda config changes settings")


def _classify_uv_tree(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words, f"{_UV_GLOBAL} -d: --depth: --frozen --invert --universal --outdated!n --package:"
    )
    doubt = NO_EFFECT if parsed.has("--frozen") else uncertain("uv tree may bring the lock file up to date")
    return merge([option_verdict(parsed), doubt])


def _shows_formulae(words: Words) -> CommandVerdict:
    """Return the verdict on a subcommand of brew that shows something. A formula in a file is Ruby code."""
    parsed = parse_options(
        words,
        "-1lrt --versions --formula --cask --pinned --full-name --installed --tree --formulae --casks",
    )
    doubts = [
        uncertain(f"brew may run {word.display}")
        for word in parsed.operands
        if word.text is None or "/" in word.text or word.text.endswith(".rb")
    ]
    return merge([option_verdict(parsed), *doubts])


def _shows_packages(words: Words) -> CommandVerdict:
    """Return the verdict on what apt says of packages, of which one with a slash in it may be a file."""
    parsed = parse_options(words, _APT, allow_dynamic=True)
    return merge([option_verdict(parsed), *(reads(word) for word in parsed.operands if "/" in word.display)])


_HELPS = "--help -h"

COMMANDS = (
    CommandSpec(
        names="dpkg dpkg-query",
        options="-lLSspW -I:r -c:r -f:r -V --list --listfiles --search --status --print-avail "
        "--print-architecture "
        "--get-selections? --show --showformat: --info:r --contents:r --audit --verify --no-pager "
        "--print-foreign-architectures --compare-versions",
        operands=".",
    ),
    CommandSpec(names="rpm", classify=_classify_rpm),
    CommandSpec(
        names="pip pip3",
        classify=subcommands(
            Subcommand(names="list, freeze, show, check, inspect", options=_PIP_LIST),
            Subcommand(names="cache list, cache dir, cache info", options="--format:"),
            Subcommand(names="config list, config get, config debug", options="--user --global --site"),
            Subcommand(names="hash", options="-a: --algorithm:", operands="r"),
            Subcommand(names="debug, help, completion", options="-a: --algorithm: --bash --zsh --fish"),
            options=_PIP_GLOBAL,
            reason=_INSTALLS,
            helps=_HELPS,
        ),
        info_arguments="--version -V --help -h help",
    ),
    CommandSpec(
        names="npm",
        classify=subcommands(
            Subcommand(
                names="ls, list, ll, la, root, prefix, bin, explain, why, query, fund", options=_NPM_LIST
            ),
            Subcommand(names="config list, config ls, config get, get, pkg get", options="-l --long --json"),
            Subcommand(names="cache ls, version --json"),
            Subcommand(names="run, run-script", classify=_lists_scripts),
            options=_NPM_GLOBAL,
            reason="installs packages or runs scripts",
            helps=_HELPS,
        ),
        info_arguments="--version -v --help -h",
    ),
    CommandSpec(
        names="conda mamba micromamba",
        classify=subcommands(
            Subcommand(names="list", options=_CONDA_LIST),
            Subcommand(
                names="info", options="-eas --envs --all --json --base --system --unsafe-channels --license"
            ),
            Subcommand(
                names="env list, env export",
                options="-n: -p:r --name: --prefix:r --json --from-history --no-builds",
            ),
            Subcommand(
                names="config",
                classify=_shows_conda_settings,
            ),
            Subcommand(names="compare", options=_CONDA_LIST, operands="r"),
            Subcommand(names="package --which, config list, config sources", options=_CONDA_LIST),
            reason=_INSTALLS,
            helps=_HELPS,
        ),
        info_arguments="--version -V --help -h",
    ),
    CommandSpec(
        names="apt apt-get apt-cache",
        classify=subcommands(
            Subcommand(
                names="list, search, policy, showpkg, showsrc, madison, pkgnames, stats, dump, unmet, "
                "help, moo",
                options=_APT,
            ),
            Subcommand(names="show, depends, rdepends", classify=_shows_packages),
            reason=_CHANGES_INSTALLED,
        ),
    ),
    CommandSpec(
        names="apt-config",
        classify=subcommands(
            Subcommand(names="dump", options="--empty --no-empty --format:"), reason="may do more than show"
        ),
        info_arguments="--version --help -v -h",
    ),
    CommandSpec(
        names="apt-mark",
        classify=subcommands(
            Subcommand(names="showauto, showmanual, showhold, showinstall"), reason=_CHANGES_INSTALLED
        ),
    ),
    CommandSpec(
        names="dnf yum",
        classify=subcommands(
            # Without -C they may look for newer lists of packages.
            Subcommand(
                names="list installed, list --installed, repoquery --installed, history list, history info",
                options="--all",
            ),
            Subcommand(names="history", operands="-"),  # others undo what was installed
            options="-qC --quiet --cacheonly",
            reason=_CHANGES_INSTALLED,
        ),
    ),
    CommandSpec(
        names="brew",
        classify=subcommands(
            Subcommand(
                names="list, ls, leaves, config, deps, uses, desc, --prefix, --cellar, --cache, "
                "--repository, doctor, services list, commands, help",
                classify=_shows_formulae,
            ),
            reason="installs packages",
        ),
        info_arguments="--version -v --help -h --prefix --cellar --cache --repository --env",
    ),
    CommandSpec(names="pacman", classify=_classify_pacman, info_arguments="--version -V --help -h"),
    CommandSpec(names="apk", classify=_classify_apk),
    CommandSpec(
        names="snap",
        classify=subcommands(
            Subcommand(names="list, version, services, connections, changes, interfaces", options="--all"),
            reason=_CHANGES_INSTALLED,
        ),
    ),
    CommandSpec(
        names="flatpak",
        classify=subcommands(
            Subcommand(
                names="list, info, history, permissions",
                options="--app --runtime --user --system -d --columns:",
            ),
            reason=_CHANGES_INSTALLED,
        ),
    ),
    CommandSpec(
        names="update-alternatives",
        options="--list: --display: --query: --get-selections",
        operands="s",
    ),
    CommandSpec(
        names="gem",
        classify=subcommands(
            Subcommand(
                names="list, env, environment, which, contents, specification, help, dependency",
                options="-lad --local --all --details --versions --no-versions --installed -i -q -r!n "
                "--remote!n -b!n --both!n",
            ),
            reason=_INSTALLS,
        ),
        info_arguments="--version -v --help -h",
    ),
    CommandSpec(
        names="uv",
        classify=subcommands(
            Subcommand(
                names="pip list, pip freeze, pip show, pip check",
                options="--format: --editable --exclude-editable --exclude: --system --strict --files "
                "--outdated!n",
            ),
            Subcommand(
                names="tool list, tool dir, cache dir, python dir, version, help",
                options="--short --show-paths",
            ),
            Subcommand(names="python list", options="--only-installed --all-versions"),
            Subcommand(
                names="pip tree", options="-d: --depth: --invert --show-version-specifiers --outdated!n"
            ),
            Subcommand(names="tree", classify=_classify_uv_tree),
            options=_UV_GLOBAL,
            reason=_INSTALLS,
            helps=_HELPS,
        ),
        info_arguments="--version -V --help -h version help",
        obeys=".venv .python-version",  # it runs the interpreter that it finds there
    ),
    CommandSpec(
        names="pipx",
        classify=subcommands(
            Subcommand(
                names="list, environment", options="--short --json --include-injected --global --value: -V:"
            ),
            reason=_INSTALLS,
            helps=_HELPS,
        ),
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="pyenv rbenv nodenv",
        classify=subcommands(
            Subcommand(
                names="versions, version, which, whence, root, prefix, commands, help, version-name",
                options="--bare",
            ),
            reason="changes which version is used",
        ),
    ),
    CommandSpec(
        names="nvm fnm",
        classify=subcommands(
            Subcommand(names="ls, list, current, which, version", options="--no-colors --no-alias"),
            reason="changes which version is used",
        ),
    ),
    CommandSpec(
        names="rustup",
        classify=subcommands(
            Subcommand(
                names="toolchain list, target list, component list, help",
                options="--installed -v --verbose --toolchain:",
            ),
            reason="installs toolchains",
        ),
        info_arguments="--version -V --help -h",
        obeys="rust-toolchain rust-toolchain.toml",  # it installs what these name
    ),
    CommandSpec(
        names="pkg-config pkgconf",
        options="--cflags --libs --modversion --list-all --exists --print-errors --static --variable: "
        "--version "
        "--cflags-only-I --cflags-only-other --libs-only-L --libs-only-l --libs-only-other --print-requires "
        "--print-provides --print-variables --atleast-version: --exact-version: --max-version: "
        "--short-errors "
        "--list-package-names --silence-errors --path --define-variable:",
        operands="r",  # a module, or the path of its file
        allow_dynamic=True,
    ),
    CommandSpec(
        names="apt-file",
        classify=subcommands(
            Subcommand(
                names="search, find, list, show", options="-ilxFDN --regexp --fixed-string --package-only"
            ),
            reason="fetches lists",
        ),
        info_arguments="--help -h",
    ),
    CommandSpec(
        names="patchelf",
        options="--print-interpreter --print-rpath --print-soname --print-needed --print-os-abi "
        "--print-execstack",
        operands="r",
        info_arguments="--version --help -h",
    ),
    CommandSpec(names="chrpath", options="-lv --list --version", operands="r", info_arguments="-v -h"),
)
