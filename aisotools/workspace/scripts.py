"""What files of a workspace are that a command may run or reads: digests, and whether they are code.

Threat
    A person allows `bash run.sh`, or `./run.sh`, to be run again without a question, and the script is then
    another one. Or a card asks about `cp a b`, and while a person thinks, `a` is replaced. Or a command is
    tried because nobody knows its program, and the program is a script of the workspace, or runs one.
Mechanism
    `digests_of` compares by content; what is large, by a stamp that changes with every write (inode, size and
    time of the last change, which nobody can set). What is missing, or a folder, is noted as that. What code
    among them loads by name is followed (`workspace.loaded_names`), within bounds. `is_code` goes by what a
    file says of itself: its rights, its first two bytes, its name. Reading is bounded, follows no link out of
    the workspace, and opens regular files alone.
    `source_digests` compares what a call reads: files likewise, folders by the stamps of all that is below.
    What code loads without naming it (by a search path, a variable, a list, what another script computes)
    nobody can tell beforehand. `digest_of_code` therefore binds such a call to the stamps of all files that
    may be code: whatever is not known to be data. If there is a sign that it runs files of any name, it binds
    all files.
    Programs obey settings in the home folder of the sandbox, and many settings name a program to start.
    `digest_of_settings` binds a call to the stamps of all of them, and to the code that they may run.
Race window
    A file may change after the look. For a call that is asked about, the gate looks once more before it runs:
    at the files that are named. Modules that are installed are not looked at.
When it fails
    A source that cannot be compared, or only in part, has a digest that begins with `stamps.UNKNOWN`: what
    could be looked at is compared before the call, and nothing is remembered.
    What cannot be read, or lies where the sandbox may write beside the workspace, has no digest, and no
    grant is given for it; nor where there are more files than are looked at.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.loaded_names import (
    MAX_SIGN_CHARS,
    loaded_names,
    may_run_any_file,
    may_run_elsewhere,
)
from aisotools.workspace.real_paths import resolve_links
from aisotools.workspace.stamps import UNKNOWN, StampReader
from aisotools.workspace.workspace import Workspace

MAX_HASHED_BYTES = 1 << 20
"""Longer files are compared by their stamp, and so are further ones when four times as much was read."""

MISSING = "missing"
"""In place of the digest of what is not there."""

FOLDER = "folder"
"""In place of the digest of a folder."""

UNREADABLE = ""
"""In place of the digest of what cannot be compared."""

MAX_SOURCES = 200
"""What a call reads of which digests are taken; with more, it is not remembered."""

MAX_WORK = 40_000
"""What may be done to find all code, in units of an entry of a folder: some 15 ms."""

# Opening a folder, and so many names on the way to it; looking at a file in it, and where a link leads.
_FOLDER_WORK = 20
_PARTS_FOR_ONE = 8
_STAMP_WORK = 6
_LINK_WORK = 40

MAX_STAMPED = 4_000
"""Files of which the stamps are bound: some 15 ms. With more, a call that may run any is not remembered."""

_MAX_FILES = 50
_MAX_LOADED = 3_000  # names, nearly all of which are missing in the workspace
_MAX_PLACES = 9
_PATTERN = re.compile(r"[*?\[]")
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib", "/etc/", "/opt/", "/dev/", "/proc/", "/sys/")
_CODE_SUFFIXES = frozenset(
    (
        *(".sh", ".bash", ".zsh", ".ksh", ".fish", ".nu", ".ps1", ".bat", ".cmd", ".py", ".pyw", ".pyz"),
        *(".r", ".rmd", ".qmd", ".jl", ".pl", ".pm", ".rb", ".php", ".js", ".mjs", ".cjs", ".ts", ".lua"),
        *(".tcl", ".awk", ".sed", ".m", ".scm", ".rkt", ".lisp", ".ex", ".exs", ".erl", ".nim", ".groovy"),
        *(".gradle", ".mk", ".cmake", ".smk", ".nf", ".wdl", ".cwl", ".do", ".jar", ".vim", ".el", ".gp"),
    )
)
_CODE_NAMES = frozenset(
    (
        *("makefile", "gnumakefile", "snakefile", "rakefile", "gemfile", "justfile", "dockerfile"),
        *("vagrantfile", "jenkinsfile", "sconstruct", "wscript", ".justfile", "cmakelists.txt"),
    )
)
_NAMES_OF_SETTINGS = frozenset(
    ("package.json", "tox.ini", "pytest.ini", "taskfile.yml", "taskfile.yaml", "dvc.yaml")
)
"""Files in which commands stand, but that are no code as a whole."""

_DATA_SUFFIXES = frozenset(
    (
        *(
            ".txt",
            ".md",
            ".rst",
            ".log",
            ".out",
            ".err",
            ".csv",
            ".tsv",
            ".psv",
            ".json",
            ".jsonl",
            ".ndjson",
        ),
        *(".geojson", ".xml", ".html", ".htm", ".svg", ".pdf", ".ps", ".eps", ".tex", ".aux", ".bbl", ".toc"),
        *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ico", ".heic", ".dcm", ".nii"),
        *(".mp3", ".mp4", ".wav", ".flac", ".ogg", ".avi", ".mov", ".mkv", ".webm", ".srt", ".ttf", ".woff"),
        *(".npy", ".npz", ".parquet", ".pq", ".feather", ".arrow", ".orc", ".avro", ".h5", ".hdf5", ".hdf"),
        *(
            ".h5ad",
            ".loom",
            ".zarr",
            ".nc",
            ".cdf",
            ".grib",
            ".mat",
            ".sav",
            ".dta",
            ".rds",
            ".rda",
            ".rdata",
        ),
        *(".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".onnx", ".safetensors", ".pb", ".tflite"),
        *(".gguf", ".bin", ".dat", ".raw", ".db", ".sqlite", ".sqlite3", ".db-wal", ".db-shm", ".duckdb"),
        *(".xls", ".xlsx", ".ods", ".doc", ".docx", ".ppt", ".pptx", ".odt", ".epub", ".bib", ".ris", ".eml"),
        *(".gz", ".bgz", ".bz2", ".xz", ".zst", ".lz4", ".tar", ".tgz", ".zip", ".7z", ".rar", ".lock"),
        *(".fa", ".fasta", ".fna", ".faa", ".fq", ".fastq", ".fai", ".dict", ".sam", ".bam", ".bai", ".cram"),
        *(".crai", ".vcf", ".bcf", ".tbi", ".csi", ".bed", ".bedgraph", ".bw", ".bigwig", ".gtf", ".gff"),
        *(".gff3", ".wig", ".maf", ".gb", ".gbk", ".pdb", ".cif", ".mol", ".sdf", ".mzml", ".nwk", ".phy"),
        *(".aln", ".sto", ".hmm", ".shp", ".shx", ".dbf", ".prj", ".gpkg", ".las", ".laz", ".kml", ".gpx"),
        *(".pid", ".tmp", ".bak", ".swp", ".orig", ".rej", ".patch", ".diff", ".sum", ".md5", ".sha256"),
        *(".prof", ".trace", ".tfevents", ".pem", ".crt", ".pub", ".asc", ".sig", ".po", ".pot", ".map"),
    )
)
_CODE_AMONG_DATA = re.compile(
    r"(?:cmakelists|requirements.*|constraints.*)\.txt|(?:package|composer|deno|tsconfig.*|jsconfig|nx|"
    r"turbo|lerna|angular|nodemon|project|cdk|bower|importmap|tasks|launch|\.[\w.]+)\.json"
)
_DATA_NAMES = frozenset(
    (".coverage", ".rhistory", ".rdata", ".python_history", ".bash_history", ".ds_store", ".gitignore")
)
HOME_SETTINGS = "~/.*"
"""Stands for all settings in the home folder of the sandbox, among the files that a call may run."""

_HOME_SETTINGS_BYTES = 1 << 18
_MAX_WORDS_OF_SETTINGS = 3_000
_WORD_OF_SETTINGS = re.compile(r"[\w./+@%-]{1,200}")
_CACHE_FOLDER = ".cache"
_RECORD = re.compile(
    r"\..*hi?st(?:ory)?|history\.sqlite.*|.*_history|\.viminfo|\.wget-hsts|.*\.(?:log|tmp|pid)"
)
"""Files in a home folder in which programs note what they did: nothing in them is obeyed."""

_CHANGED_BY_SANDBOX = ("/dev/", "/proc/", "/sys/")
_GIT_FOLDER = ".git"
_GIT_CODE = frozenset(("config", "config.worktree", "hooks", "info"))


def digests_of(
    workspace: Path, paths: Iterable[str], loaded: Iterable[str] = (), folders: Iterable[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Return paths, and what code among them loads by name, each with a digest of its content.

    Args:
        workspace: The folder.
        paths: Relative to it, or absolute. What belongs to the system is left out: no sandbox changes it.
        loaded: What the call itself loads by name, relative to the workspace.
        folders: Folders in which that, and what it loads in turn, may be found as well. Where there are
            too many of them the result is not complete, and says so.
    """
    wanted = [path for path in dict.fromkeys(paths) if not path.startswith(_SYSTEM_FOLDERS)]
    loaded = tuple(loaded)
    if not wanted and not loaded:
        return ()
    places = ["", *(folder for folder in dict.fromkeys(folders) if folder != ".")]
    is_complete = len(wanted) <= _MAX_FILES and len(places) <= _MAX_PLACES
    del places[_MAX_PLACES:]
    look = _DigestReader(Workspace(workspace), places)
    found = {path: look.digest(path) for path in wanted[:_MAX_FILES]}
    waiting = deque(posixpath.join(place, name) for name in loaded for place in places)
    files, names = 0, 0
    while waiting or look.loaded:
        waiting += look.loaded
        look.loaded.clear()
        path = posixpath.normpath(waiting.popleft()) if waiting else ""
        if not path or path in found or path.startswith(("/", "../")):
            continue
        digest = look.digest(path)
        files += digest != MISSING or not is_named_as_code(path)
        names += 1
        if files > _MAX_FILES or names > _MAX_LOADED:
            is_complete = False
            break
        found[path] = digest
    if not is_complete:
        found["..."] = UNREADABLE
    return tuple(sorted(found.items()))


def source_digests(workspace: Path, paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return paths that a call reads, each with a digest of what is there.

    Args:
        workspace: The folder.
        paths: Relative to it, or absolute, with links followed. What belongs to the system is left out.

    Returns:
        Pairs of a path and a digest: of the content of a file, of the stamps of all files below a folder but
        for what git keeps of itself, or `MISSING`. One that is not of everything there is begins with
        `stamps.UNKNOWN`; with the path "...", there are further paths.
    """
    wanted = [path for path in dict.fromkeys(paths) if not path.startswith(_SYSTEM_FOLDERS)]
    if not wanted:
        return ()
    look = _DigestReader(Workspace(workspace))
    stamps = StampReader(skips=(_GIT_FOLDER,), follows_links=True)
    found: dict[str, str] = {}
    for path in wanted:
        if len(found) >= MAX_SOURCES:
            found["..."] = UNKNOWN
            break
        digest = look.digest(path)
        if digest == FOLDER:
            digest = stamps.stamp(f"{look.root}/{path}")
        elif digest == UNREADABLE:
            # Of a file beside the workspace, one that this user may not read, or no regular file.
            place = posixpath.join(look.root, path)
            digest = UNKNOWN if Path(place).is_dir() else f"{UNKNOWN} {stamps.stamp(place)}"
        found[path] = digest
    return tuple(sorted(found.items()))


class _DigestReader:
    """One look at files, which counts what it has read."""

    def __init__(self, workspace: Workspace, places: Sequence[str] | None = None) -> None:
        """Note what code loads, in `places` as well as beside it; with None, nothing is noted."""
        self._workspace = workspace
        self.root = os.fspath(workspace.root)
        self._places = places
        self._bytes_left = 4 * MAX_HASHED_BYTES
        self.loaded: list[str] = []  # what the code among them loads

    def digest(self, path: str) -> str:
        """Return a digest of the content of a file, or what takes its place."""
        if path.startswith(("~", "$", "/")) or path.partition("/")[0] == "..":
            return UNREADABLE
        if "\0" not in path and not os.path.lexists(f"{self.root}/{path}"):
            return MISSING  # most modules are none of the workspace's, and this is cheap
        try:
            with self._workspace.open(path) as file:
                status = os.fstat(file)
                if status.st_size > min(MAX_HASHED_BYTES, self._bytes_left):
                    return f"stamp {status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"
            data = self._workspace.read_bytes(path, max_bytes=MAX_HASHED_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except IsADirectoryError:
            return FOLDER
        except (OSError, ValueError, WorkspaceError):
            return UNREADABLE
        self._bytes_left -= len(data)
        digest = hashlib.sha256(data).hexdigest()
        if self._places is None:
            return digest
        name = posixpath.basename(path).lower()
        if is_named_as_code(path) or name in _NAMES_OF_SETTINGS or data.startswith(b"#!"):
            folder = posixpath.dirname(path)
            for name in loaded_names(data.decode("utf-8", "replace")):
                # Beside the file, and where the call starts, or the program in it.
                self.loaded += dict.fromkeys(posixpath.join(place, name) for place in (folder, *self._places))
        return digest


def digest_of_code(
    workspace: Path, texts: Iterable[str], scripts: Iterable[str], *, is_any: bool = False
) -> str:
    """Return a digest of all files in a workspace that a call may run without naming them.

    Args:
        workspace: The folder.
        texts: What the call is given to run: a command, or code.
        scripts: Files of which `digests_of` has compared the content. They are left out here, so that the
            same content again is the same code.
        is_any: Whether the call may read files of any name. Otherwise what it is given to run decides.

    Returns:
        The digest, of names and stamps; `UNREADABLE` if not all files can be looked at, the call may run
        some that lie beside the workspace, or it is given more than `MAX_SIGN_CHARS` characters to run.
    """
    own = list(texts)
    # Longer texts are not read for signs: it would hold up the event loop.
    if sum(map(len, own)) > MAX_SIGN_CHARS or any(map(may_run_elsewhere, own)):
        return UNREADABLE
    is_any = is_any or any(map(may_run_any_file, own))
    look = Workspace(workspace)
    bytes_left = MAX_SIGN_CHARS
    known = list(scripts)
    for path in known:
        if path.startswith(("/", "~", "$")) or not os.path.lexists(look.root / path):
            continue  # what is read of the system; what is only compared by its absence
        try:
            if (look.root / path).stat().st_size > bytes_left:
                is_any = True  # longer texts are not read for signs
                continue
            data = look.read_bytes(path, max_bytes=bytes_left)
        except IsADirectoryError:
            continue
        except (OSError, ValueError, WorkspaceError):
            return UNREADABLE  # nobody can tell what it runs
        bytes_left -= len(data)
        text = data.decode("utf-8", "replace")
        if may_run_any_file(text):
            is_any = True
            if may_run_elsewhere(text):
                return UNREADABLE
    stamps = _stamps_of_code(os.fspath(look.root), frozenset(known), is_any=is_any)
    if stamps is None:
        return UNREADABLE
    digest = hashlib.sha256(b"any" if is_any else b"code")
    for stamp in sorted(stamps):
        digest.update(repr(stamp).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def digest_of_settings(workspace: Path, home: str) -> str | None:
    """Return a digest of the settings in a home folder, and of the code of a workspace that they may run.

    Args:
        workspace: The folder.
        home: The home folder of the sandbox, as the host sees it. All that is in it may be hostile.

    Returns:
        The digest, of names and stamps of all files below `home` whose path begins with a dot: settings, and
        packages of the user. None if there are none. It begins with `stamps.UNKNOWN` if they may run what
        lies beside the workspace. `UNREADABLE` if they cannot all be looked at, or
        a link leads to where nobody looks.
    """
    try:
        has_settings = any(entry.name.startswith(".") for entry in Path(home).iterdir())
    except FileNotFoundError:
        return None
    except OSError:
        return UNREADABLE
    if not has_settings:
        return None
    # The folder itself is the host's, and no link; what is below it is opened without following any.
    root = os.path.realpath(home)
    found = _stamps_of_code(root, frozenset(), is_any=True, is_home=True)
    if found is None or any(not _is_looked_at(root, stamp) for stamp in found):
        return UNREADABLE
    if not found:
        return None
    look = Workspace(Path(root))
    bytes_left = _HOME_SETTINGS_BYTES
    texts: list[str] = []
    for path, _, _, size, *_ in sorted(found, key=repr):
        if int(str(size)) > bytes_left:
            bytes_left = -1
            break
        try:
            data = look.read_bytes(str(path), max_bytes=bytes_left)
        except (OSError, ValueError, WorkspaceError):
            return UNREADABLE  # a FIFO or a link out, say: nobody can tell what it names
        bytes_left -= len(data)
        texts.append(data.decode("utf-8", "replace"))
    # Of settings too long to be read for signs, any file of the workspace may be run.
    is_any = bytes_left < 0 or sum(map(len, texts)) > MAX_SIGN_CHARS
    spellings = ("/workspace/", f"{workspace}/")
    for spelling in spellings:
        texts = [text.replace(spelling, "") for text in texts]
    code = digest_of_code(workspace, () if is_any else texts, (), is_any=is_any)
    is_complete = bool(code)
    # Case: a setting names a file beside the workspace as well. What lies in it is compared all the same.
    code = code or digest_of_code(workspace, (), (), is_any=True)
    # Settings are of many languages, and in some of them a file of any name is run.
    words = {posixpath.normpath(word) for text in texts for word in _WORD_OF_SETTINGS.findall(text)}
    if len(words) > _MAX_WORDS_OF_SETTINGS:
        return UNREADABLE
    named = digests_of(workspace, [word for word in sorted(words) if (workspace / word).is_file()])
    if not code:
        return UNREADABLE
    is_complete = is_complete and UNREADABLE not in dict(named).values()
    known = repr((sorted(found, key=repr), code, named))
    digest = hashlib.sha256(known.encode("utf-8", "backslashreplace")).hexdigest()
    return digest if is_complete else f"{UNKNOWN} {digest}"


def _is_looked_at(home: str, stamp: tuple[object, ...]) -> bool:
    """Return whether a file of a home folder is not a link, or leads to what is compared or the system's."""
    path, mode, *_ = stamp
    if not stat.S_ISLNK(int(str(mode))):
        return True
    real = resolve_links(f"{home}/{path}")
    if real.startswith(_SYSTEM_FOLDERS):
        return real == os.devnull or not real.startswith(_CHANGED_BY_SANDBOX)
    return real.startswith(f"{home}/.")


def _stamps_of_code(
    root: str, known: frozenset[str], *, is_any: bool, is_home: bool = False
) -> list[tuple[object, ...]] | None:
    """Return the names and stamps of all files that may be code; None if there are too many to look at.

    Args:
        root: The real path of the workspace.
        known: Files that are left out.
        is_any: Whether any file counts.
        is_home: Whether it is a home folder instead: only what begins with a dot counts there, but for what
            programs note of themselves, and for data in their caches.
    """
    stamps: list[tuple[object, ...]] = []
    work = 0
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        work += _FOLDER_WORK + folder.count("/") // _PARTS_FOR_ONE
        is_git = posixpath.basename(folder.rstrip("/")) == _GIT_FOLDER
        try:
            with os.scandir(f"{root}/{folder}") as listing:
                for entry in listing:
                    work += 1
                    if work > MAX_WORK or len(stamps) > MAX_STAMPED:
                        return None
                    path = f"{folder}{entry.name}"
                    if is_home and not _may_be_setting(path, entry):
                        continue
                    if is_git and entry.name not in _GIT_CODE:
                        continue  # what git keeps: objects, and names of them
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
                    elif path not in known and (is_any or _may_be_code(entry)):
                        work += _LINK_WORK if entry.is_symlink() else _STAMP_WORK
                        stamp = _stamp(root, path)
                        if stamp is None:
                            return None
                        stamps.append(stamp)
        except OSError:
            return None  # a folder that cannot be listed may hold code
        if work > MAX_WORK:
            return None
    return stamps


def _may_be_setting(path: str, entry: os.DirEntry[str]) -> bool:
    """Return whether something in a home folder may be obeyed, or hold what may be."""
    if not path.startswith("."):
        return False
    if entry.is_dir(follow_symlinks=False):
        return True
    if path.startswith(f"{_CACHE_FOLDER}/") and not _may_be_code(entry):
        return False
    return entry.is_symlink() or not _RECORD.fullmatch(entry.name)


def _may_be_code(entry: os.DirEntry[str]) -> bool:
    """Return whether a file may be run or loaded without being named: unless it is known to be data."""
    name = entry.name.lower()
    suffix = posixpath.splitext(name)[1]
    if entry.is_symlink():
        return True
    if suffix in _DATA_SUFFIXES:
        return _CODE_AMONG_DATA.fullmatch(name) is not None or _is_executable(entry)
    if suffix:
        return True
    if name.startswith("."):
        return name not in _DATA_NAMES
    # Without a suffix it is found by its name alone, or as a program of a search path.
    return name in _CODE_NAMES or _is_executable(entry)


def _is_executable(entry: os.DirEntry[str]) -> bool:
    return bool(entry.stat(follow_symlinks=False).st_mode & 0o111)


def _stamp(root: str, path: str) -> tuple[object, ...] | None:
    """Return what tells one content of a file from another; None if a link leads to where nobody looks."""
    place = f"{root}/{path}"
    status = os.lstat(place)
    stamp = (path, status.st_mode, status.st_ino, status.st_size, status.st_ctime_ns)
    if not stat.S_ISLNK(status.st_mode):
        return stamp
    real = resolve_links(place)
    if real == root or real.startswith(f"{root}/") or real.startswith(_SYSTEM_FOLDERS):
        return (*stamp, real)  # what it leads to is looked at itself, or is the system's
    scratch = os.path.realpath(tempfile.gettempdir())
    if real.startswith((f"{scratch}/", "/workspace/")):
        return None
    try:
        target = os.lstat(real)
    except OSError:
        return None
    return (*stamp, real, target.st_ino, target.st_size, target.st_ctime_ns)


def is_code(workspace: Path, path: str) -> bool:
    """Return whether there is a file in the workspace that is code for an interpreter, or may be.

    Args:
        workspace: The folder.
        path: Relative to it, or absolute. With a pattern in it, its spelling alone decides.
    """
    if _PATTERN.search(path):
        return is_named_as_code(path)
    try:
        with Workspace(workspace).open(path) as file:
            is_executable = bool(os.fstat(file).st_mode & 0o111)
            return is_executable or os.read(file, 2) == b"#!" or is_named_as_code(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except (OSError, ValueError, WorkspaceError):
        return True  # nobody can tell


def is_named_as_code(path: str) -> bool:
    """Return whether the name of a file is that of code for an interpreter."""
    name = posixpath.basename(path).lower()
    return name in _CODE_NAMES or posixpath.splitext(name)[1] in _CODE_SUFFIXES


def find_program(name: str, search_path: str) -> str:
    """Return the real path of a program on a search path; empty if it is not there."""
    found = shutil.which(name, path=search_path)
    return os.path.realpath(found) if found else ""
