"""Interpreters, compilers and tools for code: all run code, but for what these tables name."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal, get_args

from aisotools.core.types import AbsentNames, Effect
from aisotools.policy.shell.expansion import literal, name_set, without_beginning
from aisotools.policy.shell.folders import START
from aisotools.policy.shell.options import (
    CommandSpec,
    Words,
    by_program,
    classify_by_spec,
    matches_arguments,
    option_verdict,
    parse_options,
    program_name,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    merge,
    reads,
    uncertain,
)

_RUNS_CODE = "runs code that is not analysed"
# `version` alone is a file, a target or a script to most of them.
_INFO = "--version -V -v -version --help -h -dumpversion -dumpmachine"

# ---- python

_PYTHON_FLAGS = frozenset(("-I", "-s", "-S", "-E", "-B", "-u", "-b", "-P", "-q", "-O", "-OO"))
_PYTHON_JOINED = re.compile(r"-([IsSEBubPqO]+)m")
_PYTHON_MODULES = {
    "json.tool": CommandSpec(
        names="json.tool",
        options="--sort-keys --no-ensure-ascii --json-lines --indent: --tab --no-indent --compact -h",
        operands="rw",
    ),
    "tokenize": CommandSpec(names="tokenize", options="-eC --exact"),
    "ast": CommandSpec(
        names="ast", options="-aC -m: -i: --mode: --indent: --no-type-comments --include-attributes"
    ),
    "dis": CommandSpec(names="dis", options="-CO"),
    "calendar": CommandSpec(
        names="calendar",
        options="-w: -l: -s: -m: -t: -L: -e: -f: --width: --lines: --months: --type:",
        operands=".",
    ),
    "base64": CommandSpec(names="base64", options="-edut"),
    "quopri": CommandSpec(names="quopri", options="-td"),
    "tabnanny": CommandSpec(names="tabnanny", options="-vq"),
    "symtable": CommandSpec(names="symtable"),
    "pyclbr": CommandSpec(names="pyclbr"),
    "sysconfig": CommandSpec(names="sysconfig", operands="-"),
    "platform": CommandSpec(names="platform", options="--terse --nonaliased", operands="."),
    "site": CommandSpec(names="site", options="--user-base --user-site", operands="-"),
    "this": CommandSpec(names="this", operands="-"),
    "locale": CommandSpec(names="locale", operands="-"),
    "mimetypes": CommandSpec(names="mimetypes", options="-hle", operands="."),
    "difflib": CommandSpec(names="difflib"),
    "filecmp": CommandSpec(names="filecmp", options="-r"),
    "zipfile": CommandSpec(
        names="zipfile", options="-l:r -t:r -e!c -c!c --list:r --test:r --extract!c --create!c"
    ),
    "tarfile": CommandSpec(
        names="tarfile", options="-v -l:r -t:r -e!c -c!c --list:r --test:r --verbose --extract!c --create!c"
    ),
    "numpy.f2py": CommandSpec(names="numpy.f2py", options="-v", operands="-"),
    "IPython": CommandSpec(names="IPython", options="--version", operands="-"),
}
_PYTHON_MODULE_HELP = name_set(
    "gzip venv unittest timeit pdb cProfile profile trace http.server compileall py_compile zipapp ensurepip "
    "pydoc doctest "
    "json.tool zipfile tarfile ast tokenize dis calendar asyncio idlelib build"
)
_INSTALLED_MODULES = frozenset(("numpy.f2py", "IPython", "build"))
"""Of these, those that are not of Python's own library."""
_PYTHON_3 = re.compile(r"python(?:-?3[0-9.]*)?")
_RUNS_MODULES = {
    modules: CommandVerdict(absent=(AbsentNames(START, modules=modules),))
    for modules in get_args(Literal["standard", "any"])
}


def _classify_python(words: Words) -> CommandVerdict:
    """Return the verdict on python: it runs code, but for modules of its own that only print."""
    rest = list(words[1:])
    flags = set()
    while rest and rest[0].text in _PYTHON_FLAGS:
        flags.add(rest.pop(0).text)
    if rest and rest[0].text is not None and (joined := _PYTHON_JOINED.match(rest[0].text)):
        flags |= {f"-{letter}" for letter in joined[1]}
        rest[0] = literal(f"-m{rest[0].text[joined.end() :]}")
    uncertain_code = runs_code(words)
    if not rest or rest[0].text is None:
        return uncertain_code
    if rest[0].text == "-m" and len(rest) > 1:
        module, arguments = rest[1].text, rest[2:]
    elif rest[0].text.startswith("-m") and len(rest[0].text) > 2:
        module, arguments = rest[0].text[2:], rest[1:]
    else:
        return uncertain_code
    # Python looks for modules in the current folder first, but for these two options.
    is_library = module in _PYTHON_MODULES and module not in _INSTALLED_MODULES
    is_known = is_library or (module in _PYTHON_MODULE_HELP and module not in _INSTALLED_MODULES)
    modules = "standard" if is_known and _PYTHON_3.fullmatch(words[0].text or "") else "any"
    shadows = NO_EFFECT if flags & {"-I", "-P"} else _RUNS_MODULES[modules]
    if module in {"pip", "pipx", "uv", "conda"}:
        return merge([CommandVerdict(commands=((literal(module), *arguments),)), shadows])
    if module in _PYTHON_MODULE_HELP and [word.text for word in arguments] in (["--help"], ["-h"]):
        return shadows
    spec = _PYTHON_MODULES.get(module or "")
    if spec is None:
        return uncertain_code
    verdict = classify_by_spec(spec, [literal(module or ""), *arguments])
    return merge([verdict, shadows if verdict.effect is Effect.READ_ONLY else uncertain_code])


def runs_code(words: Words) -> CommandVerdict:
    """Return the verdict on a program that runs code, perhaps that in one of its operands: uncertain."""
    doubt = uncertain(f"{words[0].display} {_RUNS_CODE}")
    return merge([doubt, *map(reads, parse_options(words, "*").operands)])


# ---- tools for code


def _classify_node(words: Words) -> CommandVerdict:
    """Return the verdict on node: it runs code, but for `--check`, which parses one file."""
    if len(words) == 3 and words[1].text in {"--check", "-c"} and words[2].text is not None:
        is_plain = not words[2].text.startswith("-") and "*" not in words[2].text
        if is_plain:
            return reads(words[2])
    return runs_code(words)


_RUFF = (
    "-qvsen --no-cache --diff --select: --ignore: --extend-select: --output-format: --quiet --verbose "
    "--silent --exit-zero "
    "--statistics --show-files --show-settings --line-length: --target-version: --preview --no-preview "
    "--config:r "
    "--isolated --exclude: --extend-exclude: --respect-gitignore --show-fixes --per-file-ignores: "
    "--exit-non-zero-on-fix "
    "--no-fix --check --stdin-filename: --cache-dir:w -o:w --output-file:w --fix!c --fix-only!c "
    "--unsafe-fixes --add-noqa!c "
    "--watch!u --line-ranges: --range:"
)


def _classify_ruff_check(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _RUFF, allow_dynamic=False)
    verdicts = [option_verdict(parsed), *map(reads, parsed.operands)]
    if not parsed.has("--no-cache", "-n", "--show-files", "--show-settings"):
        verdicts.append(uncertain("ruff writes its cache into the folder"))
    if (words[0].text == "format") and not parsed.has("--check", "--diff"):
        verdicts.append(uncertain("ruff format changes files"))
    return merge(verdicts)


def _classify_formatter(words: Words) -> CommandVerdict:
    """Return the verdict on black and isort, which only print with `--check` or `--diff`."""
    parsed = parse_options(
        words,
        "-qvSCcI -t: -l: --check --diff --color --no-color --line-length: --target-version: --quiet "
        "--verbose --fast --safe "
        "--skip-string-normalization --include: --exclude: --extend-exclude: --config:r --profile: "
        "--check-only --df "
        "--skip: --force-exclude: --preview --unstable -W: --workers: --line-ranges: --stdin-filename: "
        "--show-files --gitignore",
    )
    prints = parsed.has("--check", "--diff", "--check-only", "--df")
    verdict = NO_EFFECT if prints else uncertain(f"{words[0].display} changes files")
    return merge([option_verdict(parsed), verdict, *map(reads, parsed.operands)])


_SHELLCHECK = (
    "-aV -x!L -C? -f: -e: -i: -s: -S: -o: -P: -W: --check-sourced --color? --include: --exclude: --format: "
    "--norc --rcfile:r "
    "--enable: --source-path: --shell: --severity: --version --wiki-link-count: --external-sources!L "
    "--list-optional"
)
_LDD = re.compile(r"/(?:usr/)?(?:s?bin|lib|lib64|local/bin|local/lib)/[\w./+-]*", re.ASCII)


def _classify_ldd(words: Words) -> CommandVerdict:
    """Return the verdict on ldd, which may start the file that it looks at: fine for files of the system."""
    parsed = parse_options(words, "-druv --verbose --unused --data-relocs --function-relocs")
    verdicts = [option_verdict(parsed)]
    for word in parsed.operands:
        is_of_system = word.text is not None and _LDD.fullmatch(word.text) and ".." not in word.text
        verdicts.append(reads(word) if is_of_system else uncertain(f"ldd may run {word.display}"))
    return merge(verdicts)


_PRINTS = {
    "perl": re.compile(r"-V(?::[a-z0-9_]+:?)?"),
    "java": re.compile(r"(?:-XshowSettings(?::\w+)? |-XX:\+PrintFlagsFinal )+--?version"),
    # Case: even with -N, which only shows the cache, cmake runs a PreLoad.cmake of the folder.
    "cmake": re.compile(r"--help-(?:command|module|policy|property|variable|manual)(?:-list| [\w<>():-]+)"),
    # Case: these it answers from the file that says what to build, before it writes its log.
    "mpicc": re.compile(r"-show|--showme(?::[a-z]+)?"),
    "mpicxx": re.compile(r"-show|--showme(?::[a-z]+)?"),
    "mpif90": re.compile(r"-show|--showme(?::[a-z]+)?"),
    "ninja": re.compile(r"-t (?:list|targets|rules|commands|compdb)(?: [\w./][\w./-]*)*"),
}
"""What some of those that run code only print for: their arguments, with blanks between."""


def _classify_printing(words: Words) -> CommandVerdict:
    """Return the verdict on a program that runs code, but for some arguments with which it prints."""
    name = program_name(words[0].text or "")
    if matches_arguments(words, _PRINTS[name]):
        return reads(literal("build.ninja")) if name == "ninja" else NO_EFFECT
    return runs_code(words)


_COUNTERS = {
    "cloc": "-qv --verbose? --by-file --by-file-by-lang --csv --csv-delimiter: --json --yaml --md --xml "
    "--xsl:w --quiet --exclude-dir: --include-lang: --exclude-lang: --include-ext: --exclude-ext: "
    "--exclude-content: --exclude-list-file:r --exclude_list_file:r --list-file:L --list_file:L "
    "--diff-list-file:L "
    "--read-lang-def:r --force-lang-def:r --config:u --vcs:u --git!u --files --hide-progress "
    "--progress-rate: --not-match-d: --not-match-f: --match-f: --match-d: --fullpath "
    "--no-recurse --skip-uniqueness --diff "
    "--count-and-diff --sum-reports --out:w --report-file:w --counted:w --found:w --ignored:w "
    "--categorized:w --by-percent: --unicode --3 --processes: --timeout: --diff-timeout: --max-file-size: "
    "--force-lang: --script-lang: --lang-no-ext: --no-autogen --follow-links!L --ignore-case "
    "--ignore-whitespace --read-binary-files --show-lang? --show-ext? --explain: --stdin-name: --sum-one",
    "tokei": "-flCvhV -c: -e: -i:r -o: -s: -r: -t: -n: --files --languages --compact --verbose --columns: "
    "--exclude: --input:r --output: --streaming: --sort: --rsort: --types: --num-format: --hidden "
    "--no-ignore --no-ignore-parent --no-ignore-dot --no-ignore-vcs",
    "scc": "-almcdptuvwbhz -f: -s: -o:w -i: -x: -n: -M: --by-file --ci --wide --no-complexity --no-cocomo "
    "--no-ignore --no-gitignore --no-duplicates --no-size --no-large --no-min-gen --min-gen --verbose "
    "--debug --languages --binary --uloc --dryness --percent --character --format: --format-multi:u --sort: "
    "--output:w --include-ext: --exclude-ext: --exclude-dir: --exclude-file: --not-match: --include-symlinks "
    "--size-unit: --cocomo-project-type: --count-as: --avg-wage: --eaf: --overhead:",
    "sloccount": "--cached --append --follow!L --notopfollow --datadir:w --duplicates --crossdups --autogen "
    "--multiproject --filecount --filecounts --wide --details --showother --addlangall",
}
_SEARCHER = (
    "-acfhHiLlnoQrRsSuUvw0 -m: -g: --count --files-with-matches "
    "--files-without-matches --ignore-case --invert-match --word-regexp --literal --smart-case --hidden "
    "--unrestricted --ignore: --ignore-dir: --no-ignore-dir: --python --js --cpp --cc --java --ruby --go "
    "--rust --html --css --json --yaml --type: --depth: --max-count: --color --nocolor --no-color --column "
    "--group --nogroup --heading --noheading --numbers --stats-only --no-numbers --no-filename "
    "--with-filename --only-matching --silent --stats --all-types --search-binary --file-search-regex: "
    "--print-long-lines --follow!L --list-file-types --help-types --perl --php --sh --sql --xml --md "
    "--markdown --case-sensitive --pager:x --env --noenv --nopager --passthru --sort-files --show-types "
    "--vimgrep --ackmate --width: --match: --output:x"
)
_SEARCHERS = {
    # The number of lines may be left out: then the next word is the pattern.
    "ag": f"{_SEARCHER} -DFtzV -A? -B? -C? -G: -W: -p:r --after? --before? --context? "
    "--path-to-ignore:r --fixed-strings",
    "ack": f"{_SEARCHER} -1kIPGt -A: -B: -C? -p? -T: -x!L --after-context: --before-context: --context? "
    "--proximate? --known-types",
}


def _classify_searcher(words: Words) -> CommandVerdict:
    """Return the verdict on ag and ack: a pattern, unless an option is one, and what is searched."""
    name = "ag" if words[0].text == "ag" else "ack"
    parsed = parse_options(words, _SEARCHERS[name])
    # With -f ack lists the files that it would search.
    is_given = parsed.has("-g", "--match") or (name == "ack" and parsed.has("-f"))
    files = parsed.operands if is_given else parsed.operands[1:]
    return merge([option_verdict(parsed, program=words[0].display), *map(reads, files or [literal(".")])])


def _classify_ctags(words: Words) -> CommandVerdict:
    """Return the verdict on ctags, which prints with `-x` and writes its table of names without."""
    parsed = parse_options(
        words,
        "-xRuN -n -I: -h: -o:w -f:w --sort: --fields: --extras: --kinds-all: --language-force: --languages: "
        "--c-kinds: --c++-kinds: --python-kinds: --java-kinds: --recurse? --exclude: --exclude-exception: "
        "--tag-relative: --output-format:u --options:u --options-maybe:u --_xformat: --verbose -V",
        posix=False,
    )
    prints = len(words) > 1 and words[1].text == "-x"
    verdict = NO_EFFECT if prints else uncertain("ctags writes a file of names")
    verdicts = []
    for name, _, value in parsed.options:  # lists of names may lie in files
        if name in {"-I", "--exclude"} and value is not None and value.prefix.startswith("@"):
            verdicts.append(reads(without_beginning(value, 1)))
        elif name == "-I" and value is not None and value.prefix.startswith(("/", ".")):
            verdicts.append(reads(value))
    return merge([option_verdict(parsed), verdict, *verdicts, *map(reads, parsed.operands)])


def _classify_terraform(words: Words) -> CommandVerdict:
    """Return the verdict on terraform, which only compares with `fmt -check` in front."""
    if [word.text for word in words[1:3]] == ["fmt", "-check"]:
        parsed = parse_options(words[2:], "-diff -recursive -no-color -list?", one_dash=True)
        operands = parsed.operands or [literal(".")]
        return merge([option_verdict(parsed), *map(reads, operands)])
    acts = CommandVerdict(effect=Effect.REMOTE_ACTION, certain=False)
    return dataclasses.replace(acts, reasons=(f"{words[0].display} acts on other machines or services",))


COMMANDS = (
    CommandSpec(
        names="python pypy",
        classify=_classify_python,
        info_arguments="--version -V -VV --help -h -? --help-env --help-xoptions --help-all",
    ),
    # The rest is as uncertain as an unknown program. It is specified because its operands are files that it
    # reads, which a rule on `reads` may concern, and because of the arguments that only print a version.
    CommandSpec(
        names="vi vim nvim view vimdiff nano emacs ed ex pico joe micro gedit code most pg info",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="can write files or run commands",
        certain=False,
        info_arguments="--version --help",
    ),
    CommandSpec(
        names="deno bun ruby lua luajit tclsh Rscript R ghci javac "
        "tsc ocaml guile make gmake meson mypy gnuplot dc octave matlab "
        "julia nvcc ghc erl elixir racket sage nasm as ld pdflatex xelatex lualatex "
        "bibtex biber dot neato "
        "sqlplus eslint prettier jest vitest bandit nbstripout jupytext papermill "
        "pydoc pydoc3 "
        "hyperfine protoc swig bison flex m4 ctest cpack autoconf automake bear gcov",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason=_RUNS_CODE,
        certain=False,
        info_arguments=_INFO,
    ),
    CommandSpec(
        names="perl java cmake ninja mpicc mpicxx mpif90", classify=_classify_printing, info_arguments=_INFO
    ),
    *(
        # They read their settings first, which name code: `init-hook`, `local-plugins`, a file of Perl. cargo
        # and rustc may be those of rustup, which runs the toolchain that its files name.
        CommandSpec(
            names=name,
            options="*",
            effect=Effect.LOCAL_MUTATION,
            reason=_RUNS_CODE,
            certain=False,
            info_arguments=questions,
            obeys=settings,
        )
        for name, questions, settings in (
            ("pylint", "--version --help -h", "pylintrc* .pylintrc* pyproject.toml setup.cfg tox.ini"),
            ("flake8", "--version --help -h", ".flake8 setup.cfg tox.ini"),
            ("latexmk", "--version -version -v --help -help -h", "latexmkrc .latexmkrc LatexMk"),
            ("cargo", "--version -V -vV --help -h", "rust-toolchain rust-toolchain.toml"),
            ("rustc", "--version -V -vV --help -h", "rust-toolchain rust-toolchain.toml"),
        )
    ),
    CommandSpec(
        # Even when asked for their version these run files of the folder, or install what they need.
        names="dotnet swift scala kotlin groovy jshell bazel just task rake ant mvn "
        "gradle pytest tox nox yarn pnpm poetry pipenv uvx ipython bundle composer nix guix sbt "
        "lein grunt gulp flask source .",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason=_RUNS_CODE,
        certain=False,
        info_arguments="",
    ),
    CommandSpec(
        names="npx snakemake nextflow streamlit uvicorn gunicorn torchrun accelerate mpirun "
        "mpiexec pre-commit "
        "celery dask airflow prefect",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason=_RUNS_CODE,
        certain=False,
        info_arguments="--version -version --help -h -v",
    ),
    CommandSpec(
        names="go",
        classify=subcommands(
            Subcommand(
                names="env, help, doc",
                options="-json -m -v -w!c -u!c -all -src -cmd -short -c -changed",
                one_dash=True,
                operands=".",
            ),
            Subcommand(names="version", options="-json -m -v", one_dash=True, operands="r"),
            reason=_RUNS_CODE,
        ),
        info_arguments="version env help",
        obeys="go.mod go.work",  # which name the toolchain that it fetches and runs instead
    ),
    CommandSpec(
        names="jupyter",
        classify=subcommands(
            Subcommand(
                names="kernelspec list, notebook list, server list, lab list, labextension list, "
                "serverextension list, nbextension list",
                options="--json --jsonlist --debug",
            ),
            Subcommand(names="troubleshoot"),
            options="--json --paths --config-dir --data-dir --runtime-dir",
            reason=_RUNS_CODE,
            helps="--help -h --version",
        ),
        info_arguments="--version --help -h --paths --config-dir --data-dir --runtime-dir",
        obeys="jupyter*config* jupyter*.json",
    ),
    CommandSpec(
        names="ruff",
        classify=subcommands(
            Subcommand(names="check, format", classify=_classify_ruff_check),
            Subcommand(names="version, rule, linter, config, help", options="--all --output-format:"),
            reason="changes files",
            helps="--help -h",
        ),
        info_arguments="--version --help -V -h version linter help",
    ),
    CommandSpec(names="black isort", classify=_classify_formatter, info_arguments="--version --help -h -V"),
    CommandSpec(
        names="shellcheck", options=_SHELLCHECK, info_arguments="--version -V --help --list-optional"
    ),
    CommandSpec(names="node", classify=_classify_node, info_arguments=_INFO),
    CommandSpec(names="pyflakes", options="--version -h --help", info_arguments="--version --help -h"),
    CommandSpec(
        names="pycodestyle",
        options="-vqr --verbose --quiet --first --exclude: --filename: --select: --ignore: --hang-closing "
        "--show-source --show-pep8 --statistics --count --max-line-length: --max-doc-length: "
        "--indent-size: --format: --config:r --benchmark",
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="vulture",
        options="-v --exclude: --ignore-decorators: --ignore-names: --make-whitelist --min-confidence: "
        "--sort-by-size --config:r --verbose",
        info_arguments="--version --help -h",
    ),
    CommandSpec(names="ldd", classify=_classify_ldd),
    # Scripts and programs that tell how something was built.
    CommandSpec(
        names="llvm-config pg_config mysql_config mariadb_config xml2-config xslt-config curl-config "
        "python-config python3-config nc-config nf-config gdal-config geos-config gsl-config krb5-config "
        "php-config pcre2-config libpng-config freetype-config",
        options="*",
        operands=".",
    ),
    CommandSpec(
        names="cloc tokei scc sloccount",
        classify=by_program(_COUNTERS, searches="*"),
    ),
    CommandSpec(names="ag ack ack-grep", classify=_classify_searcher, obeys=".ackrc"),
    CommandSpec(
        names="addr2line c++filt",
        options="-aCfipsn -e:r -j: -b: --exe:r --demangle? --functions --basenames --inlines "
        "--pretty-print --addresses",
        operands=".",
    ),
    CommandSpec(
        names="gprof",  # with -s it writes gmon.sum
        options="-abcDLvzTilyw --brief --version --flat-profile? --graph? -p? -q? -P? -Q? -s!w --sum!w",
        operands="r",
    ),
    CommandSpec(
        names="diffstat lsdiff",
        classify=by_program(
            {
                "diffstat": "-bcdhklmqstuvCEKRTV -D:r -S:r -e:w -o:w -f: -n: -N: -p: -r: -w:",
                "lsdiff": "-nNsEzHhv -p: -i: -x: -F: --line-number --number-files --hunks: --lines: "
                "--files: --strip-match: --strip: --addprefix: --status --empty-files-as-removed --include: "
                "--exclude: --decompress --with-filename --no-filename --verbose",
            }
        ),
    ),
    CommandSpec(
        names="msgcat msgcmp msgunfmt",
        options="-uniFsep -t: -w: -o:W --to-code: --width: --no-wrap --sort-output --sort-by-file "
        "--unique --more-than: --less-than: --use-first --output-file:W --properties-output",
    ),
    CommandSpec(
        names="wasm-objdump otool",
        classify=by_program(
            {
                "wasm-objdump": "-hxdsr -j: --headers --section: --full-contents --disassemble --debug "
                "--details --reloc --section-offsets",
                "otool": "-hxdsjrLltTvVDfaSc",  # behind `-s` there are the names of a segment and a section
            }
        ),
    ),
    CommandSpec(
        names="ctags",
        classify=_classify_ctags,
        # It takes options from them, such as the file that it writes to.
        obeys=".ctags .ctags.d ctags.d",
    ),
    # Even for its version it asks for newer ones.
    CommandSpec(names="terraform tofu", classify=_classify_terraform, info_arguments=""),
    CommandSpec(
        names="uconv",
        options="-f: -t: -x: -o:w -clLv --from-code: --to-code: --output:w --list --list-code: "
        "--list-transliterators --canon --add-signature --remove-signature --fallback --no-fallback "
        "--callback: --from-callback: --to-callback: --block-size:",
        separate_values=True,
    ),
    CommandSpec(
        names="radon",
        classify=subcommands(
            Subcommand(
                names="cc, mi, raw, hal",
                options="-sajbm -n: -x: -e: -i: --min: --max: --exclude: --ignore: --show-complexity "
                "--average --total-average --json --show --multi --summary --functions --no-assert "
                "--order: --output-file:w -O:w --xml --md --codeclimate",
                operands="r",
                allow_dynamic=False,
            ),
            reason="may do more than count",
        ),
        info_arguments="--version --help -h -v",
        obeys="radon.cfg setup.cfg pyproject.toml",  # which may name the file that it writes to
    ),
    CommandSpec(
        names="hadolint",
        options="-c:r --config:r -f: --format: --ignore: --no-color --no-fail -t: --failure-threshold: "
        "--trusted-registry: --strict-labels --require-label: --error: --warning: --info: --style: -V",
        info_arguments="--version --help -h -v",
    ),
)
