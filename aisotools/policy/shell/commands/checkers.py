"""Formatters, checkers and preprocessors of code, as far as they only print what they find.

What they take from settings in the folder is data, but for those named in `obeys`. Left out, and so asked
about, are those whose settings are code or load it (prettier, eslint, clang-tidy), and those that fetch.
"""

from __future__ import annotations

import re

from aisotools.policy.shell.commands.interpreters import runs_code
from aisotools.policy.shell.expansion import literal
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    Words,
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

_CLANG_FORMAT = (
    "-n --dry-run -Werror --Wno-error: --assume-filename: -cursor: --dump-config "
    "--fail-on-incomplete-format --fallback-style: --ferror-limit: -files:L -i!c -length: -lines: -offset: "
    "--output-replacements-xml --qualifier-alignment: --sort-includes -style: -verbose --list-ignored"
)


def _classify_clang_format(words: Words) -> CommandVerdict:
    """Return the verdict on clang-format, which prints unless it gets `-i`. A style may be a file."""
    parsed = parse_options(words, _CLANG_FORMAT, one_dash=True)
    verdicts = [option_verdict(parsed), *map(reads, parsed.operands)]
    styles = [o.value.display for o in parsed.options if o.name == "-style" and o.value is not None]
    verdicts += [reads(literal(style[5:])) for style in styles if style.startswith("file:")]
    if parsed.has("-i"):
        verdicts += [role_verdict("m", word, "") for word in parsed.operands]
    return merge(verdicts)


def _prints_with(
    options: str, shows: str, *, operands: str = "r", one_dash: bool = False, posix: bool = False
) -> Classifier:
    """Return a classifier for programs that only print with one of the options `shows`."""
    names = shows.split()

    def classify(words: Words) -> CommandVerdict:
        parsed = parse_options(words, options, one_dash=one_dash, posix=posix)
        doubt = NO_EFFECT if parsed.has(*names) else uncertain(f"{words[0].display} changes files")
        files = (role_verdict(operands, word, "") for word in parsed.operands)
        return merge([option_verdict(parsed), doubt, *files])

    return classify


_RUSTFMT = _prints_with(
    "-vql --check --edition: --style-edition: --color: --config: --config-path:r --verbose --quiet "
    "--files-with-diff --emit:c --backup!c --print-config:c --skip-children --unstable-features",
    "--check",
    operands="L",  # a module may name any file that it consists of
)


def _classify_rustfmt(words: Words) -> CommandVerdict:
    """Return the verdict on rustfmt, which may be that of another toolchain: `+name`."""
    other = [word for word in words[1:] if word.prefix.startswith("+")]
    return merge([_RUSTFMT(words), *(uncertain(f"rustup may fetch {word.display}") for word in other)])


# ---- compilers

_COMPILER_SHOWS = re.compile(
    r"-dump(?:version|machine|fullversion|specs)|--?print-[a-z-]+(?:=[\w.+/-]+)?|--help(?:=[\w,^-]+)?|--version|-v",
    re.ASCII,
)
_COMPILER_CHOICE = re.compile(
    r"-Q|-O[0-3sgz]?|-std=[\w+]+|-m(?:arch|tune|cpu|fpu|abi|float-abi)=[\w.+-]+|-m(?:32|64|avx[\w.]*|sse[\w.]*|fma)"
    r"|-ansi|-pthread|-fopenmp|-x(?:c|c\+\+)",
    re.ASCII,
)
_PREPROCESSES = frozenset(("-E", "-M", "-MM"))
_PREPROCESSOR = re.compile(
    r"-(?:E|M|MM|MG|MP|dM|dD|dI|dN|P|C|CC|H|v|w|W[\w=+-]*|pedantic|nostdinc|undef|trigraphs)"
)
_PREPROCESSOR_VALUE = re.compile(r"-([IDU]|isystem|iquote|idirafter|x)(.*)", re.DOTALL)
_LANGUAGES = frozenset(("c", "c++"))
_SOURCE = re.compile(r".*\.(?:c|cc|cpp|cxx|C|h|hh|hpp|hxx)", re.DOTALL)


def _classify_compiler(words: Words) -> CommandVerdict:
    """Return the verdict on a compiler: it only prints with options that show, or as a preprocessor.

    Anything else may write, or run what an option names: `-B`, `-wrapper`, `-fplugin`, `-specs`.
    """
    texts = [word.text or "" for word in words[1:]]
    if any(map(_COMPILER_SHOWS.fullmatch, texts)) and all(
        _COMPILER_SHOWS.fullmatch(text) or _COMPILER_CHOICE.fullmatch(text) for text in texts
    ):
        return NO_EFFECT
    if not _PREPROCESSES.isdisjoint(texts) and (found := _preprocesses(words)) is not None:
        return found
    return runs_code(words)


def _preprocesses(words: Words) -> CommandVerdict | None:
    """Return the verdict on a compiler that only preprocesses; None if some argument is not known to fit.

    Case: a compiler that does more than that takes a header that was compiled before, as it lies in memory,
    from beside the header itself.
    """
    verdicts = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        text = word.text
        if text is None:
            return None
        if _PREPROCESSOR.fullmatch(text) or _COMPILER_CHOICE.fullmatch(text):
            continue
        if found := _PREPROCESSOR_VALUE.fullmatch(text):
            value = literal(found[2]) if found[2] else rest.pop(0) if rest else None
            if (
                value is None
                or value.text is None
                or value.text.startswith("-")
                or (found[1] == "x" and value.text not in _LANGUAGES)
            ):
                return None
        elif text == "-" or _SOURCE.fullmatch(text):
            if text != "-" and text.startswith(("-", "@")):
                return None
            verdicts.append(NO_EFFECT if text == "-" else role_verdict("L", word, ""))
        else:
            return None
    return merge(verdicts)


def _classify_php(words: Words) -> CommandVerdict:
    """Return the verdict on php: it runs code, but for `-l`, which parses one file."""
    texts = [word.text for word in words[1:]]
    if len(texts) == 2 and texts[0] in {"-l", "--syntax-check"} and texts[1] and texts[1][0] != "-":
        return reads(words[2])
    return runs_code(words)


_INFO = "--version -V -v -version --help -h"

COMMANDS = (
    CommandSpec(
        names="gcc cc g++ c++ clang clang++ gfortran",
        classify=_classify_compiler,
        info_arguments="--version --help -v",
    ),
    CommandSpec(
        names="clang-format", classify=_classify_clang_format, info_arguments="--version --help -version"
    ),
    CommandSpec(
        names="gofmt",
        options="-d -e -l -s -r: -w!c -cpuprofile:w",
        one_dash=True,
        posix=True,
        info_arguments="-h -help --help",
    ),
    CommandSpec(
        names="shfmt",
        options="-l? -d -s -mn -ln: -p -i: -bn -ci -sr -kp -fn -f? -w!c -tojson -filename: "
        "--apply-ignore -list? -diff -simplify -minify --language-dialect: -posix -indent: "
        "--binary-next-line --case-indent --space-redirects --keep-padding --func-next-line -find? "
        "-write!c --to-json -version",
        one_dash=True,
        posix=True,
        info_arguments="--version -version --help -h",
    ),
    CommandSpec(
        names="rustfmt",
        classify=_classify_rustfmt,
        info_arguments="--version -V --help -h",
        obeys="rust-toolchain rust-toolchain.toml",  # which name the program that rustup runs instead
    ),
    CommandSpec(
        names="yapf",
        options="-dqrpm -i!c -l: -e: --diff --in-place!c --quiet --recursive --lines: --exclude: --style:r "
        "--style-help --no-local-style --parallel --print-modified -v --verbose",
        info_arguments="--version -v --help -h",
    ),
    CommandSpec(
        names="autopep8",
        # Without `--diff`, settings may say that it writes.
        classify=_prints_with(
            "-vdra -i!c -j: -p: --diff --in-place!c --global-config:r --ignore-local-config --recursive "
            "--jobs: --pep8-passes: --aggressive --experimental --exclude: --ignore: --select: "
            "--max-line-length: --indent-size: --hang-closing --exit-code --verbose",
            "-d --diff",
        ),
        info_arguments="--version --help -h --list-fixes",
    ),
    CommandSpec(
        names="stylua",
        classify=_prints_with(
            "-cgsv --check --color: --config-path:r --glob: --output-format: --verify --respect-ignores "
            "--search-parent-directories --verbose --syntax: --allow-hidden --column-width: --indent-type: "
            "--indent-width: --quote-style:",
            "-c --check",
        ),
        info_arguments="--version -V --help -h",
    ),
    CommandSpec(
        names="codespell",
        options="-w!c --write-changes!c -fHdcse -S: -L: -I:r -x:r -D:r -C: -A: -B: -q: --skip: "
        "--ignore-words-list: --ignore-words:r --exclude-file:r --dictionary:r --builtin: --check-filenames "
        "--check-hidden --count --quiet-level: --summary --ignore-regex: --uri-ignore-words-list: "
        "--disable-colors --enable-colors --hard-encoding-detection --context:",
        info_arguments="--version --help -h",
        obeys="setup.cfg .codespellrc pyproject.toml",  # which may say that it writes
    ),
    CommandSpec(
        names="typos",
        options="-qv -w!c --write-changes!c -c:r --config:r -j: --diff --files --format: --exclude: --hidden "
        "--no-ignore --threads: --sort --type-list --color: --force-exclude --isolated --locale: --quiet "
        "--verbose --identifiers --words --highlight-identifiers --highlight-words --dump-config:w",
        searches="*",
        info_arguments="--version -V --help -h",
    ),
    CommandSpec(
        names="cppcheck",
        options="-qvf -I:r -D: -U: -j: -i: -x: --enable: --disable: --std: --language: --platform:r "
        "--suppress: --suppressions-list:r --inline-suppr --force --quiet --verbose --error-exitcode: "
        "--template: --xml --xml-version: --max-configs: --include:r --file-list:L --check-level: "
        "--inconclusive --showtime: --cppcheck-build-dir:w --output-file:w --dump!c --addon:x --project:u "
        "--plist-output:w --library:r --rule-file:r",
        operands="L",
        info_arguments="--version --help -h --errorlist --doc",
    ),
    CommandSpec(
        names="cpplint",
        options="--output: --filter: --verbose: --counting: --quiet --root: --linelength: --recursive "
        "--extensions: --headers: --exclude: --repository: --includeorder:",
        info_arguments="--version --help",
    ),
    CommandSpec(names="php", classify=_classify_php, info_arguments=f"{_INFO} -m -i --ini"),
    CommandSpec(
        names="luac luac5.1 luac5.3 luac5.4",
        classify=_prints_with("-lpsv -o:w", "-p", posix=True),
        info_arguments="-v",
    ),
)
