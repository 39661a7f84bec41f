"""What the name of a variable says of its value: whether a program runs, loads or obeys what lies there.

The rules are of form, as no table has the variables of all programs. Words are compared as wholes, between
the underscores of a name; in one word with others only as compounds that are usual (`KUBECONFIG`, `P4MERGE`),
and not where an everyday word ends in the same way (`TRANSCRIPT`). Words and compounds that speak of code
count wherever they stand. Others do at the end, unless another word speaks of data (`TORCH_HOME`, not
`DATA_HOME`).

A name that says nothing is not known here (`BEETSDIR`, `PYMOL_PATH`), nor one that says the same as those of
data do (`MYTOOL_ROOT`, `MYTOOL_RESOURCES`): the folders of a person's own have such names.
`aisotools.workspace.host_files` has a table for those of well-known programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLACE_WORDS = _words(
    """
    PATH PATHS DIR DIRS DIRECTORY DIRECTORIES FOLDER FOLDERS FILE FILES FILENAME FILENAMES LIST LOCATION ROOT
    """
)
_CODE_WORDS = _words(
    """
    ADDON AGENT ASKPASS BACKEND BIN BINARY BROWSER CFG CMD CNF COMMAND COMPILER COMPLETION COMPONENT CONF
    CONFIG CONFIGURATION CONFIGURE CONNECTOR DLL DRIVER EDITOR ENGINE ENV ENVIRONMENT EPILOG EXE EXEC
    EXECUTABLE EXTENSION FILTER FUNCTION GENERATOR HELPER HOOK INCLUDE INI INIT INJECTION INSTALL INTERPRETER
    JAR LAUNCH LAUNCHER LAYER LIB LIBEXEC LIBRARY LINKER LOAD LOADABLE LOADER MACRO MODULE OPENER OVERRIDE
    PACKAGE PAGER PKG PLUGIN PRELOAD PROFILE PROG PROGRAM PROLOG PROVIDER RC RCFILE REGISTRY RSH
    RUNNER RUNTIME SCRIPT SDK SERVICE SETTING SHELL SSH STARTUP SYMBOLIZER TOOL TOOLCHAIN UNIT VENDOR VENV
    VIEWER VIRTUALENV WRAPPER
    """
)
"""What programs run, load or obey, wherever the word stands in a name; of some there are many (`JARS`)."""
_CODE_COMPOUND = re.compile(
    r"""\w+ (BIN | CONF | CNF | CFG | DIFF | EDIT | EDITOR | INIT | MERGE | PAGER | PKG | PROG | PROXY
    | SHELL)
    | \w+ (CONFIG | DRIVER | LIB(?<!CALIB) | LOADER | MODULE | PLUGIN | SCRIPT | TOOL) S?
    | \w* (BIN | CFG | CONF | CONFIG | EXEC | LIB | MODULE | PLUGIN | SCRIPT) (DIR | DIRS | PATH)
    | \w* (CONFIG | INIT | \w(?<!S)RC) (FILES?)? (?<!^CONFIG) | BINARIES | LIBRARIES | REGISTRIES
    | (DIFF | MERGE) (PROG | TOOL)
    | (BREW | CONTAINER | DOCKER | GEM | JUST | LOCUST | MAKE | PIP | PROC | RAKE | SNAKE | TASK
    | VAGRANT) FILES?
    """,
    re.VERBOSE,
)
"""The same in one word: `KUBECONFIG`, `GMXLIB`."""
_PLAIN_WORD = re.compile(
    r"""(BOBBIN | CABIN | DUSTBIN | H[AE]*MOGLOBIN | BILIRUBIN | ROBIN | ACCREDIT | CREDIT | CONSCRIPT
    | MANUSCRIPT | SUBSCRIPT | SUPERSCRIPT | TRANSCRIPT | EGGSHELL | SEASHELL | SCREWDRIVER | DOWNLOADER
    | UPLOADER | ARC | ORC | MARC | NARC | STOOL | TOADSTOOL) S? (DIRS? | FILES? | PATHS?)?""",
    re.VERBOSE,
)
"""Words that end like such a compound and are none."""
_LIBRARY_OR_TEX = re.compile(r"LIB(?!EL|ER|ID|R|YA)\w+ | TEX(?!T|AS|DATA|DIR|FILE|OUT|SRC)\w+", re.VERBOSE)
"""Where one library is (`LIBCLANG_PATH`), or what TeX looks up and starts, if no word speaks of data."""
_STARTED_PROGRAMS = _words(
    """
    BASH CHROME CHROMIUM CLANG CURL FFMPEG FIREFOX GCC GIT JAVA JULIA LUA MAKE NODEJS NVCC PANDOC PERL PHP
    PROTOC RUBY ZSH
    """
)
"""Programs that others start, where a name ends in one: `RSTUDIO_PANDOC`, `CHROME_PATH`."""
_CODE_ENDS = _words(
    """
    ARGS CACHE CC CUSTOM CXX FLAGS HOME LD OPT OPTIONS OPTS PORTABLE PREFIX PYTHON RUSTC SYSROOT TARGET
    """
)
_LAST_ENDS = _words("DIFF DIFFTOOL MERGE MERGETOOL PLUG PROXY")
"""What a program is, with nothing behind it that speaks of a place: `KUBECTL_EXTERNAL_DIFF`."""
_CODE_COMPOUND_END = re.compile(r"\w+(?<!FILE)(?<!DATA)(CACHE|FLAGS|HOME|INPUTS|OPTS?|PATHS?|PREFIX)")
"""Where a program is installed, what it keeps compiled code in or is told to load, at the end of a name."""
_DATA_WORDS = _words(
    """
    APP ARCHIVE ARTIFACT BACKUP BOOK BUILD CHECKOUT CHECKPOINT CORPUS DATA DATABASE DATASET DB DOC DOCUMENT
    DOWNLOAD FIGURE FILE IMAGE INPUT MAIL MEDIA MODEL NOTEBOOK OUT OUTPUT PRJ PROJECT REPO REPOSITORY SAVE
    SERVER SOURCE STATIC UPLOAD WORK WORKSPACE
    """
)
"""What is read and not run, in names whose end alone would speak of code (`DATA_HOME`, `MODEL_PATH`)."""
_WRITTEN_WORDS = _words(
    """
    CWD DUMP HIST HISTFILE HISTORY LOCK LOG LOGS OUT OUTPUT OUTPUTS PID PIDFILE PROMPT PWD REPORT REPORTS
    RESULT RESULTS SOCK SOCKET STDERR STDOUT SUMMARY TRACE WORKSPACE
    """
)
"""What is written, listened at or merely told of, at the end of a name."""
_OPTIONS_OF_PROGRAMS = ("PIP_", "UV_", "NPM_CONFIG_", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_", "CARGO_BUILD_")
"""Each option of these programs has a variable, also those that say what is loaded or installed."""
HARMLESS_NAMES = _words(
    """
    CDPATH DEVENV_ROOT DICPATH GCOV_PREFIX GREP_OPTIONS INFOPATH JUPYTERHUB_SERVICE_PREFIX LLVM_PROFILE_FILE
    MAILPATH MALLOC_CONF MANPATH MYPY_CACHE_DIR NLSPATH RES_OPTIONS RUFF_CACHE_DIR X509_USER_PROXY
    XCURSOR_PATH XDG_STATE_HOME npm_config_local_prefix npm_lifecycle_script npm_package_json
    """
)
"""Names whose form speaks of code, though nothing is run that lies there."""


def split_name(name: str) -> list[str]:
    """Return the words of a name in capitals, without numbers."""
    return [word for word in name.upper().split("_") if word and not word.isdigit()]


def may_search(name: str) -> bool:
    """Return whether a variable names code if it holds a list: data has one place, as in `VIDEO_PATH`."""
    words = name.upper().split("_")
    is_data = any(word.removesuffix("S") in _DATA_WORDS for word in words) or name in HARMLESS_NAMES
    return len(words) > 1 and words[-1] in {"PATH", "PATHS"} and not is_data


@lru_cache(maxsize=4_096)
def promises_code(name: str) -> bool:
    """Return whether a name says that a program runs, loads or obeys what lies there, whichever that is.

    One word alone says it only as a compound: `CONFIG` is a person's own, `KUBECONFIG` a program's.
    """
    every = split_name(name)
    words = every.copy()
    while len(words) > 1 and words[-1] in _PLACE_WORDS:
        words.pop()
    if name in HARMLESS_NAMES or not words or words[-1] in _WRITTEN_WORDS:
        return False
    if name.upper().startswith(_OPTIONS_OF_PROGRAMS) or any(map(_is_code_compound, words)):
        return True
    singular = {word.rstrip("0123456789").removesuffix("S") for word in words} | {*words}
    if len(every) > 1 and not _CODE_WORDS.isdisjoint(singular):
        return True
    if not _DATA_WORDS.isdisjoint(singular) or any(word.endswith("DATA") for word in words):
        return False
    return _ends_in_code(every, words)


def _is_code_compound(word: str) -> bool:
    return _CODE_COMPOUND.fullmatch(word) is not None and _PLAIN_WORD.fullmatch(word) is None


def _ends_in_code(every: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether the end of a name tells that it is of code.

    Args:
        every: The words of the name.
        words: Those before the ones that speak of a place alone.
    """
    last, is_long = every[-1], len(every) > 1
    return (
        (len(words) > 1 and words[-1] in _CODE_ENDS)
        or _CODE_COMPOUND_END.fullmatch(words[-1]) is not None
        or (is_long and last in _LAST_ENDS)
        or (is_long and words[-1] in _STARTED_PROGRAMS and last in {words[-1], "PATH"})
        # A program that has several versions of another beside each other: `RBENV_ROOT`.
        or (last == "ROOT" and any(word.endswith("ENV") and word != "ENV" for word in words))
        or (last not in {"FILE", "FILES"} and any(map(_LIBRARY_OR_TEX.fullmatch, words)))
        # What a person adds to what a program has: `BASH_COMPLETION_USER_FILE`.
        or (len(every) > 2 and every[-2] == "USER" and last in _PLACE_WORDS)
    )
