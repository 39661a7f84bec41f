"""Keep the host from running files of a workspace by their places, or by variables that lead to them.

Files that are found as modules, by their names, are for `aisotools.workspace.import_roots`.

Threat: code in the sandbox plants compiled code where Python keeps that of the standard library
(`sys.pycache_prefix`), rewrites the running program, which `multiprocessing` runs again in each process that
it spawns, or writes a file that Python or a library obeys whenever it starts. Or a variable of this process,
which every program that it starts inherits, leads into the workspace, and code in the sandbox writes the file
that it names: a program `git` in a folder of `PATH`, a library, settings. It runs outside the sandbox.

Mechanism: a workspace is refused in which such a file could be written. `refuse_host_files` is part of
`aisotools.workspace.import_roots.refuse_import_root`, so it looks whenever that does. Compiled code below
`sys.pycache_prefix` has the path of its source there: a workspace that lies below counts if there is a folder
at that path. For variables there is a table, each with the form of its values and with the reason; and a rule
for all others, by the form of their names, which `aisotools.workspace.variable_names` tells; any other
`X_PATH` counts if it holds a list, as data has one place. A value is taken apart as the programs do, in any
way where only the name is known, and each path in it is followed through its links (`leads_into`). Of a
function that bash inherits (`BASH_FUNC_ls%%`), the paths in its text count, whatever it does with them, and
of the address of a bus those in one that starts a program (`unixexec:`). An entry that is relative or empty
counts from the current folder, as it does for this process. A folder of settings counts as well if the
workspace lies in it, since programs look below it by their names; not so the home folder.

What decides is whether a program runs what lies there. So not in the table: variables that choose what is
shown (`MANPATH`, `INFOPATH`: a page runs nothing when it is shown), where something is written
(`XDG_STATE_HOME`), or which files are read as data (`GIT_WORK_TREE`); but `TMPDIR`, where pip and compilers
run what they have just written. `tests/data/host_variables.toml` has hundreds of both kinds. Those by which
Python finds modules are in `aisotools.workspace.import_roots`, those of Jupyter in
`aisotools.workspace.lock`.

Race window: between two looks, a variable of the environment, the program or a module that is loaded by its
path may change; before each call that may change something the variables are compared. The folder of the
sources may be made. Files that the program opens and runs by itself, and settings of other programs, are not
known here. Nor is a variable that is not in the table and whose name says nothing. A person who starts a
program in the workspace, with an empty or relative entry in a variable, runs what lies there.

When a look fails, the call or the worker that needed it does not start. Files that are there stay.
"""

from __future__ import annotations

import importlib.machinery
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.workspace.real_paths import RealPaths, leads_into, lies_to
from aisotools.workspace.variable_names import may_search, promises_code, split_name

_ENDINGS = tuple(
    start + suffix for start in ("", "/__init__") for suffix in importlib.machinery.all_suffixes()
)
_PYCACHE = "__pycache__"

Form = Literal["folders", "files", "path", "settings", "words", "function", "any"]
"""Folders separated by colons; files separated by colons or blanks; one path; one folder of settings, or
several; words of a command or options; a function of bash; any of these, as for a variable that is known by
its name alone."""


def refuse_host_files(
    workspace: Path,
    environ: Mapping[str, str],
    *,
    loaded: Mapping[str, Mapping[str, Sequence[str]]],
    roots: Collection[str],
    paths: RealPaths | None = None,
    refusal: str = "",
) -> None:
    """Raise if this process or the next one of the person would run a file of `workspace` by itself.

    Args:
        workspace: An existing folder.
        environ: Where the variables are looked up that name such files.
        loaded: Modules of this process: by the absolute path of their folder and the name of their file.
        roots: Real paths of folders in which modules are looked up by name, and in which the workspace lies.
        paths: Has real paths that were found just now.
        refusal: How the message begins, if it does not name the workspace alone.

    Raises:
        WorkspaceRefused: Saying why, and what would do.
    """
    real = os.path.realpath(workspace)
    refusal = refusal or f"{str(workspace)!r} cannot be the workspace: "
    advice = "Use a folder made for this, such as ./workspace/mine."
    if _PYCACHE in real.split("/"):
        raise WorkspaceRefused(
            f"{refusal}it is or lies in a folder {_PYCACHE!r}, where Python takes compiled code from instead "
            f"of the source. {advice}"
        )
    if reason := why_variables_refuse(real, environ):
        raise WorkspaceRefused(f"{refusal}{reason}")
    for prefix, description in _pycache_prefixes(environ):
        relation = _lies_to_bytecode(real, prefix)
        if relation:
            raise WorkspaceRefused(
                f"{refusal}it {relation} {description} ({prefix}), where Python takes compiled code from "
                f"instead of the source. {_name_other_folder(prefix)}"
            )
    for file, description in _startup_files(environ):
        if leads_into(file, {real}):
            raise WorkspaceRefused(f"{refusal}it contains {description} ({file}). {advice}")
    for name, file, path in _modules_within(real, loaded, paths or RealPaths()):
        stems = [f"{root.rstrip('/')}/{name.replace('.', '/')}" for root in roots]
        if not any(path == stem + ending for stem in stems for ending in _ENDINGS):
            raise WorkspaceRefused(
                f"{refusal}it contains the module {name} ({file}), which this process has loaded by its "
                f"path. {advice}"
            )


def _modules_within(
    workspace: str, loaded: Mapping[str, Mapping[str, Sequence[str]]], paths: RealPaths
) -> Iterator[tuple[str, str, str]]:
    """Yield the name, path and real path of each module whose path or real path lies in the workspace.

    Args:
        workspace: Its real path.
        loaded: See `refuse_host_files`.
        paths: Finds real paths.
    """
    inside = f"{workspace}/"
    for folder, files in loaded.items():
        found: Iterable[str] = files
        # A module lies where its folder does, unless it is a link: hundreds share the folders of a few dozen.
        if not f"{folder}/".startswith(inside):
            real = paths.resolve(folder or "/")
            if not f"{real}/".startswith(inside):
                links = paths.list_links(real)
                if links is not None:
                    found = links & files.keys() if links else ()
        for file in found:
            written = f"{folder}/{file}"
            path = paths.resolve(written)
            if path.startswith(inside) or written.startswith(inside):
                yield from ((name, written, path) for name in files[file])


def _pycache_prefixes(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the real paths of folders that stand for all folders `__pycache__`, each with what names it."""
    candidates = (
        (environ.get("PYTHONPYCACHEPREFIX") or None, "the folder PYTHONPYCACHEPREFIX"),
        (sys.pycache_prefix, "the folder sys.pycache_prefix"),
    )
    for prefix, description in candidates:
        if prefix is not None:
            try:
                yield os.path.realpath(prefix), description
            except (OSError, ValueError):  # the current folder is gone, or the prefix is not a path
                continue


def _lies_to_bytecode(workspace: str, prefix: str) -> str:
    """Return how a workspace lies to a folder of compiled code if a file in it could be taken for such code.

    Empty if it could not.
    """
    relation = lies_to(workspace, prefix)
    if relation == "lies in":
        sources = workspace[len(prefix.rstrip("/")) :]
        if sources == workspace or not Path(sources).is_dir():
            return ""
    return relation


def _name_other_folder(prefix: str) -> str:
    """Return advice that names a folder where no compiled code is looked up."""
    for name in ("mine", "notes"):
        try:
            folder = os.path.realpath(f"workspace/{name}")
        except FileNotFoundError:  # the current folder is gone
            break
        if not _lies_to_bytecode(folder, prefix):
            return f"Use a folder made for this, such as {folder!r}."
    return "Use a folder elsewhere, which is made for this."


def _startup_files(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield files that are run or obeyed by themselves, each with what it is. They need not exist."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(program, str):
        yield program, "the running program"
    if sys.executable:
        yield sys.executable, "the interpreter that runs it"
    if startup := environ.get("PYTHONSTARTUP"):
        yield startup, "the file PYTHONSTARTUP, which Python runs when it starts"
    for variable in ("MPLCONFIGDIR", "MATPLOTLIBRC"):
        if value := environ.get(variable):
            # matplotlib starts the programs that its settings name, such as those that make films.
            yield f"{value}/matplotlibrc", f"the settings of matplotlib, by {variable}"
            yield value, f"the settings of matplotlib, by {variable}"


@dataclass(frozen=True, slots=True)
class HostVariables:
    """Variables that choose code in the same way.

    Attributes:
        form: What their values are.
        reason: What programs do with the files.
        names: The variables.
    """

    form: Form
    reason: str
    names: tuple[str, ...]


def _row(form: Form, reason: str, names: str) -> HostVariables:
    return HostVariables(form, reason, tuple(names.split()))


HOST_VARIABLES = (
    _row(
        "folders",
        "programs are looked up there by their names",
        """
        PATH GIT_EXEC_PATH LIBEXEC_PATH COMPILER_PATH GCC_EXEC_PREFIX GOBIN GOROOT GOTOOLDIR PNPM_HOME
        PIPX_BIN_DIR UV_TOOL_BIN_DIR XDG_BIN_HOME EMACSPATH
        """,
    ),
    # Programs and modules lie in folders below these. A workspace may lie there too, as in that of Go.
    _row(
        "folders",
        "programs and modules of an installation are run from there",
        """
        NVM_DIR PYENV_ROOT RBENV_ROOT NODENV_ROOT ASDF_DIR ASDF_DATA_DIR MISE_DATA_DIR VOLTA_HOME FNM_DIR
        SDKMAN_DIR GOPATH DOTNET_ROOT DOTNET_SHARED_STORE GRADLE_HOME M2_HOME MAVEN_HOME ANT_HOME
        GROOVY_HOME SCALA_HOME KOTLIN_HOME SPARK_HOME HADOOP_HOME FLINK_HOME HIVE_HOME OPAMROOT STACK_ROOT
        CABAL_DIR MIX_HOME MIX_ARCHIVES HEX_HOME DENO_DIR DENO_INSTALL BUN_INSTALL COREPACK_HOME
        NPM_CONFIG_PREFIX npm_config_prefix YARN_GLOBAL_FOLDER COMPOSER_HOME R_HOME MAMBA_ROOT_PREFIX
        CONDA_ENVS_PATH CONDA_PKGS_DIRS NUGET_PACKAGES UV_PROJECT_ENVIRONMENT UV_TOOL_DIR
        UV_PYTHON_INSTALL_DIR PIPX_HOME POETRY_HOME ORACLE_HOME CATALINA_HOME KREW_ROOT HELM_PLUGINS RDBASE
        ROOTSYS GISBASE FSLDIR VMDDIR JBANG_DIR JUPYTERLAB_DIR PERLBREW_ROOT SAGE_ROOT I_MPI_ROOT BOOST_ROOT
        VCPKG_ROOT ONEAPI_ROOT SPACK_ROOT VERILATOR_ROOT FPCDIR ASCEND_OPP_PATH DPKG_ROOT FLUTTER_ROOT
        CUPS_SERVERROOT SDKROOT CUDA_PATH ROCM_PATH HIP_PATH HIP_CLANG_PATH KDEDIRS TEXMFLOCAL
        HATCH_DATA_DIR HELM_DATA_HOME NMAPDIR SGE_ROOT PLUMED_ROOT CATALINA_BASE ZEPHYR_BASE
        """,
    ),
    _row(
        "folders",
        "programs load libraries and plugins from there",
        """
        LD_LIBRARY_PATH GCONV_PATH OPENSSL_MODULES OPENSSL_ENGINES SASL_PATH GIO_EXTRA_MODULES GTK_PATH
        QT_PLUGIN_PATH QML2_IMPORT_PATH GST_PLUGIN_PATH GST_PLUGIN_SYSTEM_PATH LIBGL_DRIVERS_PATH
        LTDL_LIBRARY_PATH LIBRARY_PATH LD_RUN_PATH CAML_LD_LIBRARY_PATH HDF5_PLUGIN_PATH GDAL_DRIVER_PATH
        LIBVA_DRIVERS_PATH VDPAU_DRIVER_PATH GBM_BACKENDS_PATH VK_LAYER_PATH VK_ADD_LAYER_PATH
        OCL_ICD_VENDORS OPENCL_VENDOR_PATH __EGL_VENDOR_LIBRARY_DIRS __EGL_EXTERNAL_PLATFORM_CONFIG_DIRS
        ALSA_PLUGIN_DIR SPA_PLUGIN_DIR PIPEWIRE_MODULE_DIR LADSPA_PATH LV2_PATH DSSI_PATH VST_PATH
        FREI0R_PATH GEGL_PATH BABL_PATH MAGICK_CODER_MODULE_PATH MAGICK_FILTER_MODULE_PATH
        MAGICK_CONFIGURE_PATH GDK_PIXBUF_MODULEDIR GTK_EXE_PREFIX GI_TYPELIB_PATH QML_IMPORT_PATH
        QT_QPA_PLATFORM_PLUGIN_PATH UCX_MODULE_DIR FI_PROVIDER_PATH LOCPATH NUGET_PLUGIN_PATHS
        CMAKE_PREFIX_PATH CMAKE_MODULE_PATH PKG_CONFIG_PATH PKG_CONFIG_LIBDIR ACLOCAL_PATH LD_ORIGIN_PATH
        ITK_AUTOLOAD_PATH UNO_PATH WEBKIT_INJECTED_BUNDLE_PATH ADA_OBJECTS_PATH CNI_PATH VST3_PATH CLAP_PATH
        NUKE_PATH HOUDINI_PATH MAYA_PLUG_IN_PATH TRITON_LIBCUDA_PATH GALLIUM_PIPE_SEARCH_DIR XLOCALEDIR
        MLT_REPOSITORY PLUMED_KERNEL
        """,
    ),
    _row(
        "files",
        "programs load these libraries, or what these files name",
        """
        LD_PRELOAD LD_AUDIT LD_PROFILE DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS CORECLR_PROFILER_PATH
        COR_PROFILER_PATH GDK_PIXBUF_MODULE_FILE GTK_IM_MODULE_FILE GTK_MODULES GTK3_MODULES
        VK_ICD_FILENAMES VK_DRIVER_FILES VK_ADD_DRIVER_FILES __EGL_VENDOR_LIBRARY_FILENAMES
        OCL_ICD_FILENAMES OPENCL_LAYERS XR_RUNTIME_JSON NCCL_NET_PLUGIN TPU_LIBRARY_PATH SSH_SK_PROVIDER
        CMAKE_TOOLCHAIN_FILE CMAKE_PROJECT_TOP_LEVEL_INCLUDES
        """,
    ),
    _row("words", "programs that use SDL load these libraries", "SDL_DYNAMIC_API SDL3_DYNAMIC_API"),
    _row(
        "folders",
        "interpreters load modules from there",
        """
        NODE_PATH PERL5LIB PERLLIB RUBYLIB GEM_PATH CLASSPATH TCLLIBPATH GUILE_LOAD_PATH JULIA_LOAD_PATH
        R_LIBS R_LIBS_USER R_LIBS_SITE EMACSLOADPATH PHP_INI_SCAN_DIR OCAMLPATH ERL_LIBS GHC_PACKAGE_PATH
        MYPYPATH ANSIBLE_LIBRARY ANSIBLE_COLLECTIONS_PATH ANSIBLE_ROLES_PATH M4PATH
        AIRFLOW__CORE__DAGS_FOLDER EMACSDATA GDB_DATA_DIRECTORY PANDOC_DATA_DIR PLTCOLLECTS PLTADDONDIR
        CHICKEN_REPOSITORY_PATH LEAN_PATH AGDA_DIR CRYSTAL_PATH HAXE_STD_PATH GPR_PROJECT_PATH OCTAVE_PATH
        PYMOL_PATH IDRIS2_PATH SWIPL_PACK_PATH SYSTEMTAP_TAPSET QUARTO_SHARE_PATH QMAKESPEC BEETSDIR
        GROFF_TMAC_PATH BUNDLE_PATH TCL8_6_TM_PATH EASYBUILD_ROBOT_PATHS MONO_PATH UVICORN_APP_DIR
        """,
    ),
    # The name of an object may stand behind the file: `app.py:create`.
    _row("files", "a server loads this application", "FLASK_APP QUART_APP"),
    _row("words", "Nix takes packages from there, and programs out of these", "NIX_PATH"),
    _row("words", "Lua loads modules from there", "LUA_PATH LUA_CPATH LUA_INIT"),
    _row(
        "path",
        "shells and interpreters run what it names when they start",
        """
        BASH_ENV ENV ZDOTDIR R_PROFILE R_PROFILE_USER R_ENVIRON R_ENVIRON_USER JULIA_PROJECT
        PERL_LOCAL_LIB_ROOT BUNDLE_GEMFILE COVERAGE_PROCESS_START COVERAGE_PROCESS_CONFIG COVERAGE_RCFILE
        PSQLRC GHC_ENVIRONMENT NODE_REPL_EXTERNAL_MODULE
        """,
    ),
    _row("files", "make obeys these files", "MAKEFILES"),
    _row(
        "path",
        "git obeys the settings there, and runs the hooks that they name",
        "GIT_DIR GIT_COMMON_DIR GIT_CONFIG GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_TEMPLATE_DIR",
    ),
    _row(
        "settings",
        "programs obey the settings that they find there",
        """
        XDG_CONFIG_HOME XDG_DATA_HOME XDG_CONFIG_DIRS XDG_DATA_DIRS CARGO_HOME RUSTUP_HOME GEM_HOME
        GNUPGHOME DOCKER_CONFIG JULIA_DEPOT_PATH VIM VIMRUNTIME JAVA_HOME GRADLE_USER_HOME SPARK_CONF_DIR
        HADOOP_CONF_DIR HIVE_CONF_DIR YARN_CONF_DIR ODBCSYSINI PGSYSCONFDIR MYSQL_HOME TNS_ADMIN CURL_HOME
        CLOUDSDK_CONFIG GH_CONFIG_DIR HELM_CONFIG_HOME MISE_CONFIG_DIR POETRY_CONFIG_DIR ANSIBLE_HOME
        TF_DATA_DIR TF_PLUGIN_CACHE_DIR DASK_CONFIG GSETTINGS_SCHEMA_DIR IPYTHONDIR MATLAB_PREFDIR
        MAXIMA_USERDIR
        """,
    ),
    _row(
        "settings",
        "libraries load compiled code, modules and pickles from there",
        """
        NUMBA_CACHE_DIR TRITON_CACHE_DIR TRITON_HOME TORCH_HOME TORCH_EXTENSIONS_DIR TORCHINDUCTOR_CACHE_DIR
        CUPY_CACHE_DIR CUDA_CACHE_PATH HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_MODULES_CACHE
        HF_DATASETS_CACHE TRANSFORMERS_CACHE SENTENCE_TRANSFORMERS_HOME KERAS_HOME TFHUB_CACHE_DIR NLTK_DATA
        SCIKIT_LEARN_DATA GENSIM_DATA_DIR JAX_COMPILATION_CACHE_DIR
        """,
    ),
    # Folders of their own are made in these, so a workspace that lies beside them is safe.
    _row("path", "joblib loads pickles from there", "JOBLIB_TEMP_FOLDER"),
    _row("path", "a server of tmux that is found there can have a terminal run a command", "TMUX_TMPDIR"),
    _row(
        "path",
        "compilers, pip and others run what they have written there just now",
        "TMPDIR TMP TEMP XDG_CACHE_HOME XDG_RUNTIME_DIR CCACHE_DIR SCCACHE_DIR",
    ),
    _row(
        "files",
        "programs obey these settings, which name programs, plugins or where packages come from",
        """
        INPUTRC NPM_CONFIG_USERCONFIG NPM_CONFIG_GLOBALCONFIG npm_config_userconfig npm_config_globalconfig
        PIP_CONFIG_FILE UV_CONFIG_FILE KUBECONFIG AWS_CONFIG_FILE HGRCPATH OPENSSL_CONF KRB5_CONFIG
        STARSHIP_CONFIG PHPRC ODBCINI ODBCINSTINI FREETDSCONF PGSERVICEFILE ANSIBLE_CONFIG CONDARC MAMBARC
        TF_CLI_CONFIG_FILE SCREENRC LESSKEY LESSKEYIN DIRENV_CONFIG WGETRC WGET2RC YARN_RC_FILENAME GOENV
        CABAL_CONFIG AWS_SHARED_CREDENTIALS_FILE RIPGREP_CONFIG_PATH BAT_CONFIG_PATH MISE_CONFIG_FILE
        PDM_CONFIG_FILE HATCH_CONFIG SOFTHSM2_CONF LATEXMKRCSYS R_MAKEVARS_USER XENVIRONMENT GOWORK
        COMPOSE_FILE
        """,
    ),
    _row(
        "words",
        "programs run it as a command",
        """
        VIEWER MERGE QUARTO_R WINESERVER
        SHELL EDITOR VISUAL PAGER BROWSER MANPAGER GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_SSH
        GIT_SSH_COMMAND GIT_ASKPASS GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND SSH_ASKPASS SUDO_ASKPASS LESSOPEN
        LESSCLOSE PROMPT_COMMAND VIMINIT EXINIT CC CXX LD AR AS NM RANLIB CPP FC F77 RUSTC RUSTC_WRAPPER
        RUSTC_WORKSPACE_WRAPPER RUSTDOC PYTHON PYTHONEXECUTABLE PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
        CLOUDSDK_PYTHON UV_PYTHON CONDA_EXE MAMBA_EXE SUDO_EDITOR SYSTEMD_EDITOR SYSTEMD_PAGER HGEDITOR
        SVN_EDITOR FCEDIT BAT_PAGER DELTA_PAGER GH_PAGER AWS_PAGER PSQL_PAGER PSQL_EDITOR
        FZF_DEFAULT_COMMAND CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER ANSIBLE_INVENTORY
        ANSIBLE_VAULT_PASSWORD_FILE GRAPHVIZ_DOT QTWEBENGINEPROCESS_PATH TRITON_PTXAS_PATH
        HOMEBREW_BREW_FILE LESSEDIT LIBTOOLIZE PYPANDOC_PANDOC CHROME_DEVEL_SANDBOX SE_MANAGER_PATH
        """,
    ),
    _row(
        "words",
        "make, or a script that configures a build, runs it as a command",
        """
        LEX YACC LINT CO GET PC M2C OBJC RM TROFF NROFF EQN LPR SPELL ISPELL SENDMAIL PROTOC TEX TEXI2DVI
        MAKEINFO WEAVE CWEAVE TANGLE CTANGLE AUTOMAKE AUTOM4TE ACLOCAL AUTOHEADER LIBTOOL AWK SED GREP EGREP
        FGREP M4 PERL FLEX BISON CXXCPP OBJCXX OBJCPP OBJCOPY OBJDUMP READELF STRIP DLLTOOL WINDRES CUDACXX
        CUDAHOSTCXX HIPCXX ISPC ASM RC
        """,
    ),
    _row("words", "shells run the commands in it when they show it", "PS0 PS1 PS2 PS4"),
    _row("path", "shells run the framework that lies there when they start", "ZSH OSH BASH_IT"),
    _row(
        "words",
        "programs take it as options, which may load code",
        """
        NODE_OPTIONS PERL5OPT PERL5DB RUBYOPT JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS MAKEFLAGS
        GNUMAKEFLAGS PYTEST_ADDOPTS GIT_CONFIG_PARAMETERS MAVEN_OPTS GRADLE_OPTS RUSTFLAGS PYTHONWARNINGS
        JAVA_OPTS SBT_OPTS GOFLAGS PYSPARK_SUBMIT_ARGS PERLDB_OPTS LDFLAGS LESS
        """,
    ),
)
"""All of them, by what programs do with what they name."""

_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_ENTRY = re.compile(r"(?:^|[:;])(?=[/~.$])")
_BETWEEN_ENTRIES = re.compile("[:;]")
_BETWEEN_QUOTES = re.compile(r"""['"`;|&()<>,=?!:\[\]{}]+\s*|(?<!\s)\s++(?=[-/~.@])""")
_BETWEEN_WORDS = re.compile(r"""[\s'"`;|&()<>,=?!:\[\]{}]+""")
_FILE_ADDRESS = re.compile(r"file://[^/\s]*/")
_MAX_PATH = 4096  # no program opens a longer one
_OPTION = re.compile(r"-+[A-Za-z]|[-@+*%^#]+")
_MAX_SHOWN_CHARS = 200
_VALUES_OF_GIT = "GIT_CONFIG_VALUE_"
_FUNCTION_OF_BASH = re.compile(r"BASH_FUNC_.*(?:%%|\(\))|__BASH_FUNC<.*>\(\)", re.DOTALL)
"""Bash takes a function from a variable of this name, in the form of its own or of a distribution."""
_ADDRESS_OF_BUS = re.compile(r"\w*(?:BUS|STARTER)_ADDRESS")
_STARTS_PROGRAM = re.compile(r"(?:^|;)\s*unixexec:")
"""Of a bus: the library starts the program that the address names (`unixexec:path=/x,argv1=y`)."""
_NAMES = frozenset((*_ENVIRONMENTS, *(name for row in HOST_VARIABLES for name in row.names)))


_LOOKED_AT_ELSEWHERE = frozenset(
    {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONPYCACHEPREFIX",
        "PYTHONSTARTUP",
        "PYTHONUSERBASE",
        "MPLCONFIGDIR",
        "MATPLOTLIBRC",
    }
)
"""These have messages of their own."""


@lru_cache(maxsize=4_096)  # asked before each call about every variable that there is
def chooses_code(name: str) -> bool:
    """Return whether a variable of this name may have a workspace refused."""
    return _is_known(name) or _has_such_name(name) or may_search(name)


def _is_known(name: str) -> bool:
    """Return whether a variable of this name is looked at whatever the form of its name promises."""
    is_listed = name in _NAMES or name in _LOOKED_AT_ELSEWHERE or name.startswith(_VALUES_OF_GIT)
    patterns = _FUNCTION_OF_BASH, _ADDRESS_OF_BUS
    return is_listed or any(pattern.fullmatch(name) is not None for pattern in patterns)


def _has_such_name(name: str) -> bool:
    """Return whether a variable names code by the form of its name, or as one of the table with a version."""
    return promises_code(name) or "_".join(split_name(name)) in _NAMES  # `LUA_PATH_5_4`


def why_variables_refuse(workspace: str, environ: Mapping[str, str]) -> str:
    """Return why a variable makes programs outside the sandbox run files of a workspace, and what would help.

    Args:
        workspace: Its real path.
        environ: The variables.

    Returns:
        A clause and a sentence; empty if none does.
    """
    for name in _ENVIRONMENTS:
        if (value := environ.get(name)) and leads_into(value, {workspace}):
            return _describe_environment(value)
    for row in (
        *HOST_VARIABLES,
        _numbered_of_git(environ),
        _functions_of_bash(environ),
        _addresses_of_programs(environ),
        _promising(environ),
    ):
        for name in row.names:
            value = environ.get(name)
            if value is None:
                continue
            for entry in _split(value, row.form, environ):
                if not _leads_there(entry, row.form, workspace, environ):
                    continue
                if name == "PATH" and Path(entry).parent.joinpath("pyvenv.cfg").is_file():
                    return _describe_environment(str(Path(entry).parent))
                line = " ".join(entry[:_MAX_SHOWN_CHARS].splitlines()).strip()
                shown = line or "by an empty entry, which is the current folder"
                return (
                    f"the variable {name} leads into it ({shown}), and {row.reason}. Take that out of {name} "
                    "and start this program again, or use another folder, such as ./workspace/mine."
                )
    return ""


def _describe_environment(folder: str) -> str:
    return (
        f"the environment {folder}, which is activated, lies in it: commands such as `python` and `pip` "
        "would run what sandboxed code writes there, outside the sandbox. Make an environment elsewhere "
        "(`python3 -m venv ~/venvs/mine`), activate that one and start this program again; or keep this one "
        "and use another folder as the workspace, such as ./workspace/mine."
    )


def _numbered_of_git(environ: Mapping[str, str]) -> HostVariables:
    names = tuple(sorted(name for name in environ if name.startswith(_VALUES_OF_GIT)))
    return HostVariables("words", "git takes it as a setting, which may name a program", names)


def _functions_of_bash(environ: Mapping[str, str]) -> HostVariables:
    names = tuple(sorted(name for name in environ if _FUNCTION_OF_BASH.fullmatch(name)))
    return HostVariables(
        "function",
        "each bash that starts runs it instead of a command of that name, until `unset -f` removes it",
        names,
    )


def _addresses_of_programs(environ: Mapping[str, str]) -> HostVariables:
    names = (name for name in sorted(environ) if _ADDRESS_OF_BUS.fullmatch(name))
    starting = tuple(name for name in names if _STARTS_PROGRAM.search(environ[name]))
    return HostVariables("words", "programs that use the bus start the program in its address", starting)


def _promising(environ: Mapping[str, str]) -> HostVariables:
    names = tuple(
        name
        for name in sorted(environ)
        if chooses_code(name)
        and not _is_known(name)
        and (_has_such_name(name) or len(_ENTRY.findall(environ[name])) > 1)
    )
    return HostVariables(
        "any", "by the form of its name a program runs, loads or obeys what lies there", names
    )


def _split(value: str, form: Form, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths that a value may name; an empty one is the current folder."""
    if form == "words":
        yield from _paths_in(_expand(value, environ), environ)
        return
    if form in {"any", "function"}:
        found = {*_paths_in(_expand(value, environ), environ)}
        if form == "any":
            found.update(_BETWEEN_ENTRIES.split(value))
        else:
            found -= {".", ".."}  # a command, and where a command goes
        # A relative one may be a choice (`production`, `linux/amd64`) or part of a program (`s/x/y/`): it is
        # a path if it begins with one.
        yield from (part for part in found if part[:1] == "/" or os.path.lexists(part.partition("/")[0]))
        return
    if form == "path":
        parts = [value] if value else []
    elif form == "files":
        parts = [part for part in re.split(r"[:\s]+", value) if part]
    elif form == "settings":
        parts = [part for part in value.split(os.pathsep) if part]
    else:
        # `;` separates as well for the loader of libraries. Without any entry nothing is searched.
        parts = re.split("[:;]", value) if value else []
    for part in parts:
        yield _expand(part, environ)


def _paths_in(text: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield all that may be a path in a command, in options, in a list or in an address of a file.

    A name without a slash is none: it is that of a program, which is looked up in `PATH`.
    """
    texts = {text, text.replace("\\", "")}
    texts |= {unquote(text) for text in texts if "%" in text}
    texts |= {_FILE_ADDRESS.sub("/", text) for text in texts}
    # What separates in one value is a part of a name in another, such as a blank: each is tried as both.
    for separator in (_BETWEEN_ENTRIES, _BETWEEN_QUOTES, _BETWEEN_WORDS):
        for word in {word for text in texts for word in separator.split(text)}:
            if len(word) > _MAX_PATH or ("/" not in word and word not in {".", "..", "~"}):
                continue
            yield _expand(word, environ)
            # Options have their paths behind the letter (`-I/lib`), a sign (`@/args`), several letters
            # (`Rk/keys`, as the dash may be left out in `LESS`), or by themselves.
            if (start := _OPTION.match(word)) is not None:
                yield _expand(word[start.end() :], environ)
            if "/" in word:
                yield word[word.index("/") :]


def _expand(text: str, environ: Mapping[str, str]) -> str:
    """Return a text as a shell expands it, which some programs do with some variables."""
    if text == "~" or text.startswith("~/"):
        text = f"{environ.get('HOME', '~')}{text[1:]}"
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda found: environ.get(found[1] or found[2], ""), text)


def _leads_there(entry: str, form: Form, workspace: str, environ: Mapping[str, str]) -> bool:
    if leads_into(entry, {workspace}):
        return True
    if form != "settings":
        return False
    try:
        real = os.path.realpath(entry)
        is_common = real in {"/", os.path.realpath(environ.get("HOME", "/"))}
    except (OSError, ValueError):  # the current folder is gone, or the entry is not a path
        return False
    return lies_to(workspace, real) == "lies in" and not is_common
