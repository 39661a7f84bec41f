"""Files that code loads by name: modules that it imports, scripts that it sources, programs that it reads.

Threat
    A person allows `python -m pkg`, a cell with `import mod`, or a script that sources another one, to be run
    again without a question. Then `pkg/__main__.py`, `mod.py` or the other script is changed, or a `json.py`
    is put where `import json` finds it first.
Mechanism
    `loaded_names` finds the statements that load by name in code of any language, by patterns: it may name a
    file too many, which costs a look. For a module it names every file that the import would run.
    `may_run_any_file` finds signs that code runs files whose names it computes, reads or is given; such a
    call is bound to all files of the workspace. `may_run_elsewhere` finds those of folders beside it.
Race window
    None of its own. `workspace.scripts` compares the files, also those that are missing.
When it fails
    A name that code puts together is not seen, nor are files that a program finds by itself, such as the
    tests of a folder. `workspace.scripts` binds such a call to all files that may be code. A language's own
    way to read a program out of a table or a picture, without any of these signs, stays unseen.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator

MAX_NAMES = 400
"""Names that are yielded of one text."""

MAX_SIGN_CHARS = 1 << 13
"""Characters that are read for signs of what else code runs; some 12 ms at worst."""

# Characters that are read for names; some 8 ms at worst. An approval of longer code is not remembered.
_MAX_CHARS = 1 << 14
_NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
_find_imports = re.compile(
    rf"\bimport[ \t]+({_NAME}(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*{_NAME})*)"
).finditer
_find_from = re.compile(
    rf"\bfrom[ \t]+(\.*)({_NAME})?[ \t]+import[ \t]*\(?[ \t]*((?:\w+)(?:[ \t]*,[ \t]*\w+)*)"
).finditer
_find_modules = re.compile(
    rf"""(?:(?<!\S)-[A-Za-z]*m[ \t]*|\b(?:run_module|import_module|__import__)\([ \t]*['"])({_NAME})"""
).finditer
_find_files = re.compile(
    r"""(?:^|[;&|\n"'])[ \t]*(?:source|\.|%run(?:[ \t]+-\w+)*|\.read|\.import|include:?|-include)[ \t("']+"""
    r"""([\w./+@~-]+)|\b(?:require|require_relative|import|load|do)[ \t(]+["']([\w./+@-]+)["']"""
    r"""|\bfrom[ \t]+["'](\.[\w./+@-]+)["']"""
).finditer
_find_perl = re.compile(r"(?:(?<!\S)-M|\buse[ \t]+)([A-Z]\w*(?:::\w+)*)").finditer
_FILES_OF_PROGRAMS = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "rake": ("Rakefile", "rakefile"),
    "snakemake": ("Snakefile", "workflow/Snakefile"),
    "npm": ("package.json",),
    "npx": ("package.json",),
    "pnpm": ("package.json",),
    "yarn": ("package.json",),
    "tox": ("tox.ini", "pyproject.toml", "setup.cfg"),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py", "tests/conftest.py", "pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini"),
    "cmake": ("CMakeLists.txt",),
    "scons": ("SConstruct",),
    "dvc": ("dvc.yaml",),
    "pre-commit": (".pre-commit-config.yaml",),
    "nextflow": ("main.nf", "nextflow.config"),
}
"""What programs run without being told."""

# All repetitions are bounded: these run over hostile text.
_GAP = r"[ \t]{1,9}"
_PATH = r"[\w./+@~-]{1,300}"
_QUOTE = r"[\"']?"
_INTERPRETERS = (
    r"(?:[\w./~+-]{0,99}/)?(?:(?:ba|da|z|k|mk|c|tc|a|rba|fi|xon)?sh|python[\d.]{0,5}|ipython3?|pypy\d?|"
    r"perl[\d.]{0,5}|ruby[\d.]{0,5}|node|nodejs|deno|bun|tsx|ts-node|Rscript|R|lua[\d.]{0,5}|luajit|"
    r"php[\d.]{0,5}|julia|tclsh[\d.]{0,5}|guile|racket|octave|gnuplot|sqlite3|psql|duckdb|"
    r"source|\.|exec|ld\.so|java|dotnet)"
)
_RUNNERS = rf"(?:{_INTERPRETERS}|make|gmake|just|task)"
_START = r"(?:^|[\s;&|(`\"'@!])"
_OPTIONS = rf"(?:{_GAP}-[^\s\"'`]{{0,99}}(?:{_GAP}[\w:=,.][\w:=,.-]{{0,99}}(?={_GAP}\S))?){{0,9}}"
_PREFIXES = (
    r"(?:(?:do|then|else|exec|command|builtin|env|nohup|time|sudo|doas|nice|setsid|stdbuf|timeout|ionice|"
    rf"chroot|unshare|busybox|strace|if|while|until|!)(?:{_GAP}-\S{{1,99}}){{0,5}}(?:{_GAP}\d\S{{0,9}})?{_GAP}|"
    rf"[A-Za-z_]\w{{0,50}}=\S{{0,99}}{_GAP}){{0,9}}"
)
_BEGIN = r"(?:^|[;&|(){}`\n\"'@!]|\$\()[ \t]{0,9}"
_find_programs = re.compile(
    rf"(?:{_BEGIN}{_PREFIXES}|(?<!\S)-m[ \t]{{1,9}})({'|'.join(_FILES_OF_PROGRAMS)})(?=[\s;&|)`\"']|$)",
    re.MULTILINE,
).finditer
_COMPUTED = r"[^\s;|&<>\"']{0,300}[$`*?\[{]"
_find_run_files = re.compile(
    rf"{_START}{_INTERPRETERS}{_OPTIONS}{_GAP}{_QUOTE}({_PATH})"
    rf"|(?:^|\s)(?:-f|-S|-l|-x|-r|--file|--script|--load|--require|--import)[ \t=]{{0,9}}{_QUOTE}({_PATH})"
).finditer
_SIGNS_OF_ANY_FILE = tuple(
    re.compile(pattern, re.MULTILINE).search
    for pattern in (
        # An interpreter whose file is computed, and a program whose name is.
        rf"{_START}{_RUNNERS}{_OPTIONS}{_GAP}{_QUOTE}{_COMPUTED}",
        rf"{_BEGIN}{_PREFIXES}{_QUOTE}(?:\$[\w{{(@*]|`)",
        rf"{_BEGIN}{_PREFIXES}[\w./+-]{{1,99}}[*?]",
        # Programs whose words other programs give, and interpreters that read what others print.
        (
            r"\b(?:xargs|parallel|entr|mapfile|readarray|at|batch)\b|-(?:exec|execdir|ok|okdir)\b|(?<![.\w])eval\b"
            r"|\bfd\b.{0,99}-[xX]"
        ),
        (
            rf"\|&?[ \t]{{0,9}}{_PREFIXES}{_RUNNERS}{_OPTIONS}[ \t]{{0,9}}(?:-[ \t]{{0,9}})?"
            r"(?:$|[;&|)}\"'\d<>])"
        ),
        rf"{_START}{_RUNNERS}{_OPTIONS}[ \t]{{0,9}}\d?<[ \t]{{0,9}}{_QUOTE}[^\s\"']{{0,99}}[$`*?\[(]",
        rf"{_START}{_RUNNERS}{_GAP}(?:-\S{{1,99}}{_GAP}){{0,9}}-(?:s|i|-init-file|-rcfile)\b",
        # Files that get another name first.
        rf"(?:{_BEGIN}|[ \t]){_PREFIXES}(?:ln|cp|mv|install|rename)[ \t]",
        # An option that names a program, with a computed value.
        (
            rf"(?:^|\s)(?:-f|-l|-r|-S|-x|--file|--load|--require|--script)[ \t=]{{0,9}}{_QUOTE}"
            r"[^\s\"';|&]{0,300}[$`*?\[{(]"
        ),
        rf"(?:^|\s)(?:-e|-E|-c|--expression|--eval|--init-script)[ \t=]{{0,9}}{_QUOTE}(?:\$|`|<\()",
        # Code of other languages that runs or loads what it computes.
        r"(?<![.\w])(?:exec|eval|execfile|system|system2|popen|qx|shell)[ \t]{0,9}[({/'\"$]",
        r"\b(?:runpy|importlib|__import__|subprocess|pexpect|ctypes|CDLL|dlopen|child_process|Open3|codecs)\b",
        r"\b(?:os|posix)\.(?:system|popen|exec[lv]|spawn|posix_spawn)|\bIO\.popen|\bKernel\b",
        r"\b(?:SourceFileLoader|spec_from_file_location|get_ipython|run_cell|vm\.run|new Function)",
        r"\b(?:dofile|loadfile|loadstring|instance_eval|class_eval|module_eval|sys\.source|parse\(file)\b",
        (
            r"\b(?:require|require_relative|import|source|load|do|include)[ \t(]{1,9}[$`\w)\]}\"'./]{0,99}"
            r"[ \t]{0,9}(?:\+|\.\.|\.[ \t]{0,9}[$\"'])"
        ),
        r"\b(?:require|import|source|load)[ \t]{0,9}\([ \t]{0,9}(?![\"'\s)])",
        r"\b(?:require|do|load)[ \t]{1,9}(?:[$@\w]{0,99}\$|[\"'][^\"'\n]{0,99}[$#])",
        r"\$\([ \t]{0,9}(?:shell|eval|wildcard)\b|^[ \t]{0,9}-?include[ \t].{0,99}[$*]",
    )
)
_may_lie_elsewhere = re.compile(
    r"\b(?:TMPDIR|TMP|TEMP|HOME|XDG_\w+)\b|(?:^|[\s=:\"'(])~|(?<![\w.])/(?:tmp|var/tmp|dev/shm|run|home|root)\b"
    r"|\btempfile\b|\bmktemp\b|\bexpanduser\b|\bgettempdir\b",
    re.MULTILINE,
).search


def loaded_names(text: str) -> Iterator[str]:
    """Yield relative paths of files that code may load, as they are meant where it looks for them."""
    text = text[:_MAX_CHARS]
    yield from itertools.islice(dict.fromkeys(_names(text)), MAX_NAMES)


def may_run_any_file(text: str) -> bool:
    """Return whether code may run files whose names it does not contain: those it computes, reads or finds.

    Text longer than `MAX_SIGN_CHARS` may.
    """
    return len(text) > MAX_SIGN_CHARS or any(is_found(text) for is_found in _SIGNS_OF_ANY_FILE)


def may_run_elsewhere(text: str) -> bool:
    """Return whether code speaks of folders beside the workspace in which a sandbox may write."""
    return _may_lie_elsewhere(text[:_MAX_CHARS]) is not None


def _names(text: str) -> Iterator[str]:
    for found in _find_files(text):
        name = posixpath.normpath(found[1] or found[2] or found[3])
        yield name
        if found[1] is None and "." not in posixpath.basename(name):
            yield from (f"{name}{ending}" for ending in (".js", ".cjs", ".mjs", ".rb", ".lua", "/index.js"))
    for found in _find_programs(text):
        yield from _FILES_OF_PROGRAMS[found[1]]
    for found in _find_run_files(text):
        yield posixpath.normpath(found[1] or found[2])
    for found in _find_modules(text):
        yield from _module_files(found[1])
        yield f"{found[1].replace('.', '/')}/__main__.py"
    for found in _find_imports(text):
        for module in found[1].split(","):
            yield from _module_files(module.split()[0])
    for found in _find_from(text):
        if found[2]:
            yield from _module_files(found[2])
        base = f"{found[2].replace('.', '/')}/" if found[2] else ""
        if found[1] or base:  # what is imported may be a module as well
            for name in re.findall(r"\w+", found[3]):
                yield f"{base}{name}.py"
    for found in _find_perl(text):
        yield f"{found[1].replace('::', '/')}.pm"


def _module_files(module: str) -> Iterator[str]:
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        path = "/".join(parts[:length])
        yield f"{path}.py"
        yield f"{path}/__init__.py"
