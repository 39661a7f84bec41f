"""Find what the programs of a shell command load by themselves, beside the files that the command names.

Threat: a person's setting of git is `filter.x.clean = python3 -m json.tool`. Code in the sandbox writes
`argparse.py` in the workspace, which no setting names, and the person's next `git status` imports it, since
git starts the command at the top of the work tree and Python looks for modules there first. So do Perl with
`-I.`, Node, Lua and PHP; and a script that a setting names sources, runs or imports others in turn.

Mechanism: the command is read word by word. For an interpreter that is known to look in the folder in which
it starts, its files there are loaded, at any depth: `*.py` for Python unless it is kept from that (`-I`,
`-P`, `PYTHONSAFEPATH`), and so on. Of Python no folder counts that no import can name, such as `.venv`.
Scripts are read in turn, with what they name and load. What cannot be read fails closed: a program that is
not known and is given a path of the work tree, a compiled one in it, and what runs the tasks of a project may
load whatever is not known to be data (`code`); an interpreter whose program is computed, evaluated, or comes
through a pipe may load any file (`any`).
Race: texts do not change, and scripts are read at the moment at which their present state is accepted and
protected as it is, so that what was read is what stays.
Failure: what is named without need cannot be written by the sandbox, and the call that tries says which
setting is the reason. Not seen: what a program in another language than the shell's computes, unless it has
signs of running others, plugins that a known program finds by itself, and hooks of git (their folder is
protected, but not what they run elsewhere).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from aisotools.workspace.dirfd import open_regular
from aisotools.workspace.loaded_names import loaded_names, may_run_any_file
from aisotools.workspace.real_paths import resolve_links

ANY = "any"
"""In place of a language: any file may be loaded."""

CODE = "code"
"""In place of a language: what is not known to be data may be loaded."""

MAX_SCRIPT_BYTES = 64 << 10
"""Size of the largest script that is read; a larger one may load whatever is not known to be data."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENDINGS: Mapping[str, tuple[str, ...]] = {
    "python": (".py", ".pyc", ".pyo", ".pyw", ".so", ".pyd"),
    "perl": (".pm", ".pmc", ".pl", ".ph", ".al", ".so"),
    "ruby": (".rb", ".so"),
    "node": (".js", ".cjs", ".mjs", ".node", ".ts", ".cts", ".mts", ".jsx", ".tsx"),
    "lua": (".lua", ".luac", ".so"),
    "php": (".php", ".inc", ".phar"),
}
"""Endings, in lower case, of the files that an interpreter loads by itself."""

_DATA_ENDINGS = _words(
    ".csv .tsv .txt .md .rst .json .jsonl .ipynb .parquet .npy .npz .png .jpg .jpeg .gif .svg .pdf .html "
    ".htm .css .xml .log .gz .bz2 .xz .zst .zip .tar .xlsx .bam .bai .fastq .fasta .fa .vcf .bed .db "
    ".sqlite .h5 .nc .tex .bib .diff .patch .feather .arrow .pkl .tif .tiff .wav .mp3 .mp4"
)
_CODE_ENDINGS = (".sh", ".bash", *itertools.chain.from_iterable(_ENDINGS.values()))
_SHELLS = _words("sh bash dash ash ksh mksh zsh fish csh tcsh rbash busybox")
_INTERPRETERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("python", "py", "pypy", "pythonw", "ipython", "bpython", "ptpython", "micropython"), "python"
    ),
    "perl": "perl",
    "ruby": "ruby",
    **dict.fromkeys(("node", "nodejs", "deno", "bun", "tsx", "ts-node", "bunx"), "node"),
    **dict.fromkeys(("lua", "luajit", "texlua"), "lua"),
    "php": "php",
    **dict.fromkeys(("rscript", "julia", "tclsh", "wish", "expect", "guile", "racket", "octave"), CODE),
    **dict.fromkeys(
        ("java", "dotnet", "groovy", "scala", "elixir", "erl", "escript", "runghc", "emacsclient"), CODE
    ),
}
_RUNNERS = _words(
    "pytest coverage make gmake bmake ninja just task rake tox nox invoke doit snakemake scons cmake npm "
    "npx pnpm yarn pipenv poetry hatch pdm uv rye pixi cargo go bundle mix gradle gradlew mvn ant bazel "
    "buck pre-commit composer meson direnv asdf mise run-parts"
)
"""Programs that run what a project defines."""

_KNOWN = _words(
    ". : [ alias awk base64 basename bat black bzcat bzip2 cache cat cd chmod clang-format code colordiff "
    "column cp cut date delta diff diff-highlight diff-so-fancy difft dirname docx2txt echo egrep emacs "
    "exiftool exit expand export expr false fgrep file fmt fold gawk gh git git-credential-libsecret "
    "git-credential-manager git-crypt git-lfs git-nbdiffdriver git-nbdifftool git-nbmergedriver "
    "git-nbmergetool glab gofmt gpg gpg2 gpgsm grep gunzip gzip head hexdump iconv icdiff identify "
    "install jq kdiff3 less ls manager manager-core mawk meld mkdir mktemp more mv nano nbdime nbstripout "
    "nvim od odt2txt opendiff openssl osxkeychain p4merge pandoc pdfinfo pdftohtml pdftotext popd printf "
    "pushd pwd read readlink realpath return rm sed set shift sleep sort source sqlite3 ssh ssh-keygen "
    "stat store strings tac tail tar tee test touch tr trap true type umask uname unexpand unix2dos unset "
    "unzip vi vim vimdiff wait wc which wincred xmllint xxd xz xzcat zcat zdiff zless zstd zstdcat "
    "dos2unix done fi esac local readonly getopts"
)
"""Programs, and words of the shell, that load nothing from the folder in which they start.

Files that they are given by an option, as a program or a list, are named by the command and read.
"""

_PREFIXES = _words(
    "! builtin command do elif else env exec if nice nohup setsid stdbuf sudo then time timeout until "
    "while ionice chronic unbuffer eval not xargs parallel"
)
_OPTIONS: Mapping[str, tuple[str, str]] = {
    "python": ("cm", "WX"),
    "perl": ("eE", "IMm"),
    "ruby": ("e", "ICrE"),
    "node": ("epr", "C"),
    "lua": ("e", "l"),
    "php": ("r", "dcz"),
    CODE: ("er", ""),
}
"""By language, the letters of options with a program or a module, and of others with a value."""

_LONG_OPTIONS_WITH_CODE = _words("--eval --print --require --import --loader --run")
_LOADS_OF_PERL = re.compile(r"^-[IMm]|\b(?:use|require|do|lib|INC)\b")
_LOADS_OF_JQ = re.compile(r"^-L|\b(?:import|include)\b")
_FUNCTION = re.compile(r"(?:^|[\s;{}])([A-Za-z_][\w-]*)[ \t]*\(\)")
_TAKES_LANGUAGE = _words("-l -s -t --lang --language --syntax --type --lexer --parser")
_FOLDER_PRINTERS = re.compile(r"\s*(?:pwd(?: -[LP])?|git rev-parse (?:--show-toplevel|--show-cdup))\s*")
_OUTER_PRINTERS = re.compile(r"\s*(?:brew --prefix|git --exec-path|xcode-select|python3? -m site)\b.*")
_SCRIPT_FOLDER = re.compile(r".*\b(?:dirname|BASH_SOURCE|\$0|\$\{0%/\*\}).*", re.DOTALL)
_SUBSTITUTION = re.compile(r"[$<]\(((?:[^()`])*)\)|`([^`]*)`")
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-=+])([^{}]*)|[^{}]*)\}|\$([A-Za-z_]\w*)")
_ASSIGNMENT = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s;&|()`]*)")
_LOOP = re.compile(r"\bfor[ \t]+(\w+)[ \t]+in[ \t]+([^;\n]*)")
_PIECES = re.compile(r"(\|\|?&?|&&|[;&\n(){}])")
_NAMES = re.compile(r"[^\s'\"=;&|()<>$`:,!{}\[\]]+")
_VERSION = re.compile(r"-?\d[\d.]{0,15}[a-z]{0,5}(?:-[\w-]{1,40})?\Z")
_URL = re.compile(r"[A-Za-z][\w+.-]*://")
_UNKNOWN = "$?"  # in place of what a command prints, which nobody knows
_MAX_SUBSTITUTIONS = 50
_MAX_SCRIPTS = 30
_MAX_NAMES = 2_000
_MAX_DEPTH = 4


def may_load(name: str, languages: Collection[str], *, link: bool = False) -> bool:
    """Return whether an entry that is not a folder may be loaded by programs of these languages.

    Args:
        name: Its name, as `protected_names.fold_name` gave it.
        languages: The languages, or `CODE` or `ANY`.
        link: Whether it is a link, which may lead to a folder with modules.
    """
    if link and (name.isidentifier() or languages != {"python"}):
        return True
    if ANY in languages:
        return True
    ending = name[name.rfind(".") :] if "." in name[1:] else ""
    if CODE in languages and ending not in _DATA_ENDINGS:
        return True
    return any(ending in _ENDINGS.get(language, ()) for language in languages)


def languages_below(languages: frozenset[str], folder: str) -> frozenset[str]:
    """Return what may still be loaded from a subfolder with this name, as `fold_name` gave it."""
    if folder == ".git":  # git writes there all the time; what of it makes something run is protected by name
        return frozenset()
    return languages if folder.isidentifier() else languages - {"python"}


@dataclass(slots=True)
class Loads:
    """What one command loads.

    Attributes:
        files: Absolute paths of the files that scripts name; they need not exist.
        languages: By folder, an absolute path, the languages of which files are loaded from there.
    """

    files: set[str] = field(default_factory=set)
    languages: dict[str, set[str]] = field(default_factory=dict)

    def add(self, folder: str, language: str) -> None:
        """Let files of this language be loaded from a folder."""
        self.languages.setdefault(folder, set()).add(language)


def find_loads(
    command: str, worktree: str, *, root: str, environ: Mapping[str, str], named: Collection[str] = ()
) -> Loads:
    """Return what a command loads that git, or another program of the person, runs in `worktree`.

    Args:
        command: A command of a shell.
        worktree: The folder in which it starts, an absolute path.
        root: Real path of the workspace; scripts are read only there.
        environ: The variables that the command sees.
        named: Absolute paths of the files that the command names.
    """
    reader = _LoadReader(worktree, root, environ)
    reader.read_command(command.replace("\0", " "), worktree)
    plain = re.sub(r"['\"]|\\(?=.)", "", command)
    # What only a pattern has found is not a script of the command: one that is run by a pattern is computed.
    reader.read_scripts([path for path in named if os.path.splitext(os.path.basename(path))[0] in plain])
    return reader.loads


class _LoadReader:
    """Reads one command, and the scripts that it leads to."""

    def __init__(self, worktree: str, root: str, environ: Mapping[str, str]) -> None:
        self._worktree = worktree
        self._root = root
        self._environ = environ
        self.loads = Loads()
        self._read: set[str] = set()
        self._functions: set[str] = set()

    # ---- a command

    def read_command(self, text: str, base: str, *, is_script: bool = False) -> None:
        """Add what a text of a shell loads whose own files lie in the folder `base`."""
        texts, place = [re.sub(r"(?m)^[ \t]*#.*$", "", text)], 0
        self._functions |= set(_FUNCTION.findall(text))
        while place < len(texts) and place < _MAX_SUBSTITUTIONS:
            resolved, inner = self._resolve(texts[place], base)
            texts += inner
            place += 1
            self._read_pieces(resolved)
        if place < len(texts):
            self.loads.add(self._worktree, ANY)
        if is_script:
            return
        for match in re.finditer(r"PYTHONPATH=(\S*)", text):
            if {"", ".", "$PWD", "$(pwd)"} & set(match[1].strip("'\"").split(":")):
                self.loads.add(self._worktree, "python")

    def _resolve(self, text: str, base: str) -> tuple[str, list[str]]:
        """Return a text with its variables and substitutions replaced, and the commands substituted."""
        inner: list[str] = []

        def substitute(match: re.Match[str]) -> str:
            command = match[1] if match[1] is not None else match[2]
            inner.append(command)
            if _FOLDER_PRINTERS.fullmatch(command):
                return self._worktree
            if _SCRIPT_FOLDER.fullmatch(command):
                return base
            return "/usr" if _OUTER_PRINTERS.fullmatch(command) else _UNKNOWN

        for _ in range(_MAX_SUBSTITUTIONS):  # the innermost ones first
            text, count = _SUBSTITUTION.subn(substitute, text)
            if not count:
                break
        known = {**self._environ, "PWD": self._worktree, "GIT_WORK_TREE": self._worktree, "GIT_DIR": "/.git"}
        known |= dict(_LOOP.findall(text))
        known |= {name: value.strip("'\"") for name, value in _ASSIGNMENT.findall(text)}

        def expand(match: re.Match[str]) -> str:
            name = match[1] or match[4] or ""
            if match[2] and (name not in known or match[2].endswith("+")):
                return match[3]
            return known.get(name, match[0] if match[1] is None else f"${name}")

        for _ in range(3):  # a variable that holds others
            text = _VARIABLE.sub(expand, text)
        return text.replace("\\\n", " "), inner

    def _read_pieces(self, text: str) -> None:
        pieces = _PIECES.split(text)
        before = ""
        for place in range(0, len(pieces), 2):
            words = re.sub(r"['\"]|\\(?=\S)", "", pieces[place]).split()
            is_piped = place > 0 and pieces[place - 1] in {"|", "|&"}
            self._read_words(words, before=before if is_piped else None)
            before = pieces[place]

    def _read_words(self, words: list[str], *, before: str | None) -> None:
        """Add what a simple command loads.

        Args:
            words: Its words. In quotes there may be further commands, whose words are among them.
            before: The command that it reads from through a pipe; None without one.
        """
        if words[:1] == ["command"] and words[1:2] in (["-v"], ["-V"]):
            return
        program = _program_at(words)
        if program < len(words):
            self._read_program(words[program], words[program + 1 :])
        for place, word in enumerate(words):
            name = word.rpartition("/")[2].lower()
            above, rest = words[:place], words[place + 1 :]
            if place and above[-1] in _TAKES_LANGUAGE:
                continue
            is_run = place == program or _runs_words(above)
            runs_found = word.startswith(("-exec", "-ok")) and rest[:1] and _is_computed(rest[0])
            if runs_found or (name == "eval" and any("$" in one for one in rest)):
                self.loads.add(self._worktree, ANY)
            elif name in _SHELLS:
                self._read_shell(rest, before, is_run=is_run)
            elif language := _language_of_program(name):
                self._read_interpreter(language, above, rest, before, is_run=is_run)

    def _read_program(self, program: str, arguments: list[str]) -> None:
        name = program.rpartition("/")[2].lower()
        if _is_computed(program):
            self.loads.add(self._worktree, ANY)
        elif name in {".", "source"}:
            if any(map(_is_computed, arguments[:1])):
                self.loads.add(self._worktree, ANY)
        elif name in _RUNNERS or (name == "jq" and any(map(_LOADS_OF_JQ.search, arguments))):
            self.loads.add(self._worktree, CODE)
        elif "/" in program and not program.startswith(("/", "~")):
            return  # a file of the work tree, which is read
        elif name in self._functions or name in _KNOWN or name in _SHELLS or _language_of_program(name):
            return
        elif any(map(self._is_local, arguments)):
            self.loads.add(self._worktree, CODE)

    def _is_local(self, argument: str) -> bool:
        """Return whether an argument may be a path of the work tree, and not that of git's own file."""
        if argument.startswith("-"):
            argument = argument.partition("=")[2] or argument[2:]
        argument = argument.lstrip("<>@")
        if not argument or "$" in argument or "%" in argument or _URL.match(argument):
            return False
        if argument.startswith(("/", "~")):
            return argument.startswith(f"{self._root}/")
        return "/" in argument or os.path.lexists(f"{self._worktree}/{argument}")

    def _read_shell(self, arguments: list[str], before: str | None, *, is_run: bool) -> None:
        place, has_code = 0, False
        while place < len(arguments) and arguments[place].startswith(("-", "+")):
            option = arguments[place]
            place += 1
            if option in {"-o", "+o", "-O", "--rcfile", "--init-file"}:
                place += 1
            if not option.startswith("--") and "c" in option:
                has_code = True
            if not option.startswith("--") and "s" in option and not has_code:
                place = len(arguments)
        rest = arguments[place:]
        if has_code:
            inner = _program_at(rest)
            if inner < len(rest):
                self._read_program(rest[inner], rest[inner + 1 :])
        elif not rest or rest[0].startswith("<"):
            is_named = bool(rest) and not _is_computed("".join(rest[:2]))
            if is_run and not is_named and not _prints_named(before):
                self.loads.add(self._worktree, ANY)  # its program is whatever it is given
        elif _is_computed(rest[0]):
            self.loads.add(self._worktree, ANY)

    def _read_interpreter(
        self, language: str, above: list[str], arguments: list[str], before: str | None, *, is_run: bool
    ) -> None:
        has_code, script = _read_invocation(language, arguments)
        is_input = script.startswith("<")
        script = script.lstrip("<")
        if _is_computed(script):
            self.loads.add(self._worktree, ANY)
        elif not script and not has_code:
            # Its program is what it is given: by git, through a pipe, or by `xargs` and `find -exec`.
            if not is_run:
                return
            if not is_input and not _prints_named(before):
                self.loads.add(self._worktree, ANY)
        if language == "python":
            self._read_python(above, arguments, script)
            return
        path = os.path.normpath(os.path.join(self._worktree, script))
        is_perl = language == "perl"
        if is_perl and has_code and not any(map(_LOADS_OF_PERL.search, arguments)):
            return
        if not script or f"{path}/".startswith(f"{self._root}/"):
            self.loads.add(self._worktree, language)

    def _read_python(self, above: list[str], arguments: list[str], script: str) -> None:
        if any(word.startswith("PYTHONSAFEPATH=") and word[15:] for word in above):
            return
        options = iter(arguments)
        for option in options:
            if not option.startswith("-") or option == "-":
                break
            flags = re.match(r"-([bBdEhiIOPqsStuvVx?]*)(.?)", option)
            if flags and not {"I", "P"}.isdisjoint(flags[1]):
                return
            if flags and flags[2] in {"c", "m"}:
                break
            # The value of -W and -X may be the next word, which is not an option then.
            if (flags and flags[2] in {"W", "X"} and flags.end() == len(option)) or option.startswith("--c"):
                next(options, "")
        if script:
            path = os.path.normpath(os.path.join(self._worktree, script))
            if os.path.isabs(script) and not f"{path}/".startswith(f"{self._root}/"):
                return  # Python looks in the folder of the script, which is elsewhere
            # A script below the work tree looks beside itself; all of that folder is named already.
            self.loads.add(os.path.dirname(path) if os.path.lexists(path) else self._worktree, "python")
            return
        self.loads.add(self._worktree, "python")

    # ---- scripts

    def read_scripts(self, paths: Collection[str]) -> None:
        """Add what files load and name; paths are absolute, and those outside the workspace are left out."""
        waiting = [(path, 0) for path in sorted(paths) if "\0" not in path]
        while waiting:
            path, depth = waiting.pop(0)
            real = resolve_links(path)
            # What lies in a repository of git is protected by its name.
            if real in self._read or not real.startswith(f"{self._root}/") or "/.git/" in real:
                continue
            if len(self._read) >= _MAX_SCRIPTS or depth > _MAX_DEPTH:
                self.loads.add(self._worktree, CODE)
                return
            self._read.add(real)
            waiting += [(named, depth + 1) for named in self._read_script(real)]

    def _read_script(self, path: str) -> Iterator[str]:
        """Add what a file loads; yield the files that it names."""
        data = _read_regular(path)
        if data is None:
            return
        folder = os.path.dirname(path)
        if len(data) > MAX_SCRIPT_BYTES or b"\0" in data:
            if os.access(path, os.X_OK) or len(data) > MAX_SCRIPT_BYTES:
                self.loads.add(self._worktree, CODE)
            return
        text = data.decode("utf-8", "replace")  # without NUL, which no path may have
        language = _language_of(path, text)
        if language == "shell":
            self.read_command(text, folder, is_script=True)
        elif language:
            self.loads.add(folder, language)
            if language != "python":
                self.loads.add(self._worktree, language)
            if may_run_any_file(text):
                self.loads.add(self._worktree, CODE)
        bases = dict.fromkeys((self._worktree, folder))
        for name in loaded_names(text):
            for base in bases:
                place = os.path.normpath(os.path.join(base, name))
                self.loads.files.add(place)
                if os.path.isfile(place):
                    yield place
        resolved = self._resolve(text, folder)[0]
        unquoted = re.sub(r"['\"]", "", resolved)
        names = dict.fromkeys((*_NAMES.findall(resolved), *_NAMES.findall(unquoted)))
        if len(names) > _MAX_NAMES:
            self.loads.add(self._worktree, CODE)
        for name in list(names)[:_MAX_NAMES]:
            for base in bases:
                place = os.path.normpath(os.path.join(base, name))
                if os.path.isfile(place):
                    self.loads.files.add(place)
                    yield place
                # What is not there yet counts as well, if it is written as a path or named like code.
                elif "/" in name.strip("/") or name.lower().endswith(_CODE_ENDINGS):
                    self.loads.files.add(place)


def _program_at(words: list[str]) -> int:
    """Return where the program stands: behind assignments, and programs that run another one."""
    place = 0
    while place < len(words):
        word = words[place].lstrip("!")
        name = word.rpartition("/")[2]
        if not (re.match(r"[A-Za-z_]\w*=", word) or word == "" or name in _PREFIXES):
            words[place] = word
            return place
        place += 1
        if name in _PREFIXES:
            while place < len(words) and re.match(r"-|\d|[A-Za-z_]\w*=", words[place]):
                takes_value = words[place] in {"-a", "-n", "-u", "-I", "-L", "-P", "-C", "-S", "-d"}
                place += 2 if takes_value and words[place] != "-S" else 1
    return place


def _is_computed(word: str) -> bool:
    """Return whether a word is only known when the command runs."""
    return not {"$", "*", "?", "{"}.isdisjoint(word)


def _runs_words(above: list[str]) -> bool:
    """Return whether words may be followed by a program."""
    return any(
        word.startswith(("-exec", "-ok")) or word.rpartition("/")[2] in {"xargs", "parallel", *_SHELLS}
        for word in above
    )


def _language_of_program(name: str) -> str:
    return _INTERPRETERS.get(name) or _INTERPRETERS.get(_VERSION.sub("", name)) or ""


def _prints_named(command: str | None) -> bool:
    """Return whether a command prints only what it says itself, or the files that it names; None does not."""
    words = (command or "").split()
    return len(words) > 1 and words[0] in {"cat", "echo", "printf"} and not _is_computed(command or "")


def _read_invocation(language: str, arguments: list[str]) -> tuple[bool, str]:
    """Return whether an interpreter gets its program, or a module of it, as an argument; and its script.

    Args:
        language: Its language.
        arguments: What follows its name.
    """
    code, values = _OPTIONS[language]
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        place += 1
        if argument == "-" or not argument.startswith("-"):
            return False, "" if argument == "-" else argument
        if argument.startswith("--"):
            if argument.partition("=")[0] in _LONG_OPTIONS_WITH_CODE:
                return True, ""
            continue
        for position, letter in enumerate(argument[1:], 2):
            if letter in code:
                return True, ""
            if letter in values:
                place += position == len(argument)
                break
    return False, ""


def _language_of(path: str, text: str) -> str:
    """Return the language of a script, `shell` among them, by its first line or its ending."""
    first = text[:200].partition("\n")[0] if text.startswith("#!") else ""
    for word in reversed(first[2:].split()):
        name = word.rpartition("/")[2].lower()
        if name in _SHELLS:
            return "shell"
        if language := _language_of_program(name):
            return language
    ending = os.path.splitext(path)[1].lower()
    for language, endings in _ENDINGS.items():
        if ending in endings:
            return language
    return "" if ending in _DATA_ENDINGS or ending in {".awk", ".sed", ".jq", ".sql"} else "shell"


def _read_regular(path: str) -> bytes | None:
    """Return the content of a regular file, up to one byte too much; None if there is none."""
    with suppress(OSError), open_regular(path) as file:
        return os.read(file, MAX_SCRIPT_BYTES + 1)
    return None
