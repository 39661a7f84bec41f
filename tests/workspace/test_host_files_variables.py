"""Variables of the host by which its programs would run files of the workspace.

Where the program is installed, it first shows that it runs what is planted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from aisotools.core.exceptions import WorkspaceRefused
from aisotools.session.guards import ImportRootWatch
from aisotools.workspace.host_files import (
    HOST_VARIABLES,
    HostVariables,
    chooses_code,
    why_variables_refuse,
)
from aisotools.workspace.variable_names import HARMLESS_NAMES, may_search, promises_code
from tests.waiting import HANG_S
from tests.workspace.test_import_roots import folder, refusal

PLANTED = "this came from the workspace"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    place = folder(tmp_path / "place")
    monkeypatch.chdir(place)
    return place


def run(command: list[str], cwd: Path, environ: Mapping[str, str]) -> str:
    """What a program prints that is started from outside the workspace."""
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    return done.stdout + done.stderr


def program(path: str) -> Callable[[Path], None]:
    def plant(workspace: Path) -> None:
        file = folder((workspace / path).parent) / Path(path).name
        file.write_text(f"#!/bin/sh\necho {PLANTED}\n")
        file.chmod(0o755)

    return plant


def text(path: str, content: str) -> Callable[[Path], None]:
    def plant(workspace: Path) -> None:
        file = folder((workspace / path).parent) / Path(path).name
        file.write_text(content.format(planted=PLANTED, workspace=workspace))

    return plant


@dataclass(frozen=True)
class Case:
    """A variable with a value, what is planted for it, and the program that runs it."""

    value: str
    plant: Callable[[Path], None]
    command: list[str]


GIT = f"[alias]\n\tevil = !echo {PLANTED}\n"
CASES = {
    "PATH": Case("{workspace}/bin:/usr/bin:/bin", program("bin/ls"), ["sh", "-c", "ls"]),
    "BASH_ENV": Case("{workspace}/env", text("env", "echo {planted}\n"), ["bash", "-c", "true"]),
    "ENV": Case("{workspace}/env", text("env", "echo {planted}\n"), ["sh", "-i", "-c", "true"]),
    "NODE_PATH": Case(
        "{workspace}/m", text("m/evil.js", "console.log('{planted}')\n"), ["node", "-e", "require('evil')"]
    ),
    "NODE_OPTIONS": Case(
        "--require={workspace}/x.js", text("x.js", "console.log('{planted}')\n"), ["node", "-e", "1"]
    ),
    "PERL5LIB": Case(
        "{workspace}/m", text("m/Evil.pm", "print '{planted}'; 1;\n"), ["perl", "-e", "use Evil;"]
    ),
    "PERL5OPT": Case(
        "-I{workspace}/m -MEvil", text("m/Evil.pm", "print '{planted}'; 1;\n"), ["perl", "-e", "1"]
    ),
    "RUBYLIB": Case(
        "{workspace}/m", text("m/evil.rb", "puts '{planted}'\n"), ["ruby", "-e", "require 'evil'"]
    ),
    "ZDOTDIR": Case("{workspace}", text(".zshenv", "echo {planted}\n"), ["zsh", "-c", "true"]),
    "MAKEFILES": Case("{workspace}/m.mk", text("m.mk", "$(info {planted})\n"), ["make", "-n"]),
    "GIT_CONFIG_GLOBAL": Case("{workspace}/c", text("c", GIT), ["git", "evil"]),
    "GIT_CONFIG_SYSTEM": Case("{workspace}/c", text("c", GIT), ["git", "evil"]),
    "XDG_CONFIG_HOME": Case("{workspace}", text("git/config", GIT), ["git", "evil"]),
    "GIT_EXEC_PATH": Case("{workspace}/bin", program("bin/git-evil"), ["git", "evil"]),
    "GIT_PAGER": Case("{workspace}/pager", program("pager"), ["git", "-p", "version"]),
    "GIT_EDITOR": Case("{workspace}/editor x", program("editor"), ["git", "config", "--global", "-e"]),
    "GIT_CONFIG_VALUE_0": Case("!{workspace}/evil", program("evil"), ["git", "evil"]),
    "BASH_FUNC_ls%%": Case("() {{ . {workspace}/x; }}", program("x"), ["bash", "-c", "ls"]),
    "LESS": Case(
        "R --lesskey-src={workspace}/keys",
        text("keys", "#env\nLESSOPEN=|echo '{planted}' %s\n"),
        ["less", "/dev/null"],
    ),
    "LEX": Case(
        "{workspace}/lex", program("lex"), ["make", "-f", "/dev/null", "--eval", "all:; @$(LEX)", "all"]
    ),
}
CORPUS = tomllib.loads((Path(__file__).parents[1] / "data" / "host_variables.toml").read_text())
MORE = {"GIT_CONFIG_VALUE_0": {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "alias.evil"}}


@pytest.mark.parametrize("variable", CASES)
def test_a_variable_that_leads_a_program_there_is_refused(place: Path, variable: str) -> None:
    case = CASES[variable]
    workspace = folder(place / "work")
    environ = {variable: case.value.format(workspace=workspace), **MORE.get(variable, {})}
    if shutil.which(case.command[0]) is not None and variable != "GIT_PAGER":  # which needs a terminal
        case.plant(workspace)
        assert PLANTED in run(case.command, place, environ), "the control"
    message = refusal(workspace, environ)
    assert f"the variable {variable} leads into it" in message
    assert f"Take that out of {variable}" in message
    assert len(message.splitlines()) == 1
    elsewhere = {variable: case.value.format(workspace=folder(place / "other"))}
    assert refusal(workspace, elsewhere) == ""


SAMPLES = {
    "folders": "/usr/bin:{}",
    "files": "/usr/lib/x {}",
    "path": "{}",
    "settings": "{}",
    "words": "x {}",
}


def test_every_variable_of_the_table_is_looked_at(place: Path) -> None:
    names = [name for row in HOST_VARIABLES for name in row.names]
    assert len(names) == len(set(names))
    workspace = folder(place / "work")
    wrong = []
    for row in HOST_VARIABLES:
        inside, outside = (SAMPLES[row.form].format(place / where / "x") for where in ("work", "other"))
        wrong += [
            name
            for name in row.names
            if not chooses_code(name)
            or row.reason not in why_variables_refuse(str(workspace), {name: inside})
            or why_variables_refuse(str(workspace), {name: outside})
            or why_variables_refuse(str(workspace), {name: ""})
        ]
    assert wrong == []


@pytest.mark.parametrize("entry", ["work/bin", "./work/bin", "x/../work", "link", "~/work", "$HOME/work"])
def test_the_spelling_of_an_entry_does_not_matter(place: Path, entry: str) -> None:
    workspace = folder(place / "work")
    folder(place / "x")
    (place / "link").symlink_to(workspace / "bin")
    environ = {"PATH": f"/usr/bin:{entry}", "HOME": str(place)}
    assert "the variable PATH leads into it" in refusal(workspace, environ)


@pytest.mark.parametrize("value", [":/usr/bin", "/usr/bin:", "/usr/bin::/bin", ".", "/usr/bin:.", "bin"])
def test_an_empty_entry_is_the_current_folder(
    place: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many have one by accident (`LD_LIBRARY_PATH=/x:`): it is refused where it leads into the workspace."""
    workspace = folder(place / "work")
    for name in ("PATH", "LD_LIBRARY_PATH"):
        assert why_variables_refuse(str(workspace), {name: value}) == ""
    monkeypatch.chdir(folder(workspace / "deep"))
    for name in ("PATH", "LD_LIBRARY_PATH"):
        assert f"the variable {name} leads into it" in why_variables_refuse(str(workspace), {name: value})


def test_folders_of_settings_around_the_workspace_count(place: Path) -> None:
    """A workspace `git` in them has a file `config`, which git obeys; in a folder of `PATH` it has none."""
    workspace = folder(place / "settings" / "git")
    assert "XDG_CONFIG_HOME" in refusal(workspace, {"XDG_CONFIG_HOME": str(place / "settings")})
    assert refusal(workspace, {"PATH": str(place / "settings")}) == ""
    home = str(place / "settings")
    assert refusal(workspace, {"XDG_CONFIG_HOME": home, "HOME": home}) == "", "else no folder in it would do"


CACHES = ["NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "HF_HOME", "NLTK_DATA"]


@pytest.mark.parametrize("name", CACHES)
def test_folders_that_libraries_load_code_from_count_in_and_around_the_workspace(
    place: Path, name: str
) -> None:
    workspace = folder(place / "cache" / "work")
    for value in (workspace, workspace / "deep", place / "cache"):
        assert f"the variable {name} leads into it" in refusal(workspace, {name: str(value)})
    assert refusal(workspace, {name: str(place / "other")}) == ""


def test_a_temporary_folder_of_joblib_counts_in_the_workspace_and_not_around_it(place: Path) -> None:
    """Around it is `/tmp`, where a workspace may lie: joblib looks only into folders that it has made."""
    workspace = folder(place / "temporary" / "work")
    for value in (workspace, workspace / "deep"):
        assert "JOBLIB_TEMP_FOLDER leads into it" in refusal(workspace, {"JOBLIB_TEMP_FOLDER": str(value)})
    assert refusal(workspace, {"JOBLIB_TEMP_FOLDER": str(place / "temporary")}) == ""


def test_control_a_library_runs_what_such_a_folder_holds(place: Path) -> None:
    """As joblib, torch and NLTK do: what they find in the folder of the variable is unpickled."""
    workspace = folder(place / "work")
    code = f"import os; print({PLANTED!r})"
    (workspace / "tokens.pickle").write_bytes(b"cbuiltins\nexec\n(V" + code.encode() + b"\ntR.")
    load = "import os, pickle; pickle.load(open(os.environ['NLTK_DATA'] + '/tokens.pickle', 'rb'))"
    assert PLANTED in run(["python3", "-c", load], place, {"NLTK_DATA": str(workspace)})
    assert "NLTK_DATA" in refusal(workspace, {"NLTK_DATA": str(workspace)})


def test_variables_that_run_nothing_are_let_through(place: Path) -> None:
    workspace = str(folder(place / "work"))
    names = (
        "MANPATH",
        "INFOPATH",
        "PWD",
        "OLDPWD",
        "XDG_STATE_HOME",
        "GIT_WORK_TREE",
    )
    assert why_variables_refuse(workspace, dict.fromkeys(names, workspace)) == ""


@pytest.mark.parametrize("way", ["activated", "path alone", "conda"])
def test_an_activated_environment_is_refused_in_words_for_newcomers(place: Path, way: str) -> None:
    workspace = folder(place / "work")
    environment = folder(workspace / ".venv")
    (environment / "pyvenv.cfg").touch()
    environ = {"PATH": f"{environment}/bin:/usr/bin"}
    if way != "path alone":
        environ["VIRTUAL_ENV" if way == "activated" else "CONDA_PREFIX"] = str(environment)
    message = refusal(workspace, environ)
    assert f"the environment {environment}, which is activated, lies in it" in message
    assert "Make an environment elsewhere" in message
    assert refusal(folder(place / "notes"), environ) == ""


def test_odd_values_refuse_nothing(place: Path) -> None:
    workspace = folder(place / "work")
    for value in ("\0", "a\0b:/x", "/" * 10_000, "'", "~", "$", "${", "\udcff", "%", "/%ff%00", "file://"):
        for row in HOST_VARIABLES:
            assert why_variables_refuse(str(workspace), {row.names[0]: value}) == ""
        assert why_variables_refuse(str(workspace), {"ACME_CONFIG": value, "ACME_PATH": f"/x:{value}"}) == ""


def test_a_watch_looks_again_when_a_variable_changes(place: Path) -> None:
    workspace = folder(place / "work")
    environ = {"PATH": os.defpath}
    watch = ImportRootWatch(workspace, environ)
    watch.check()
    environ["PATH"] = f"{workspace}/bin:{os.defpath}"
    with pytest.raises(WorkspaceRefused, match="the variable PATH"):
        watch.check()
    environ["PATH"] = os.defpath
    watch.check()
    environ["GIT_CONFIG_VALUE_3"] = f"!{workspace}/evil"
    with pytest.raises(WorkspaceRefused, match="GIT_CONFIG_VALUE_3"):
        watch.check()


@pytest.mark.parametrize("row", HOST_VARIABLES, ids=lambda row: row.reason)
def test_every_variable_of_the_table_refuses_and_one_that_leads_elsewhere_does_not(
    place: Path, row: HostVariables
) -> None:
    workspace = folder(place / "work")
    elsewhere = folder(place / "elsewhere")
    for name in row.names:
        assert chooses_code(name)
        assert f"the variable {name} " in why_variables_refuse(str(workspace), {name: f"{workspace}/x"}), name
        assert why_variables_refuse(str(workspace), {name: f"{elsewhere}/x"}) == "", name


@pytest.mark.parametrize("name", ["NEWTOOL_PLUGIN_PATH", "ACME_DRIVERS_DIR", "ANSIBLE_CALLBACK_PLUGINS"])
def test_a_name_that_promises_plugins_counts_whichever_program_it_is_of(place: Path, name: str) -> None:
    workspace = folder(place / "work")
    assert chooses_code(name)
    assert name in why_variables_refuse(str(workspace), {name: f"/usr/lib/x:{workspace}/x"})
    assert why_variables_refuse(str(workspace), {name: "/usr/lib/x"}) == ""


@pytest.mark.parametrize("name", ["GOPATH", "NVM_DIR", "SPARK_HOME", "UV_PROJECT_ENVIRONMENT"])
def test_a_workspace_inside_of_an_installation_is_fine(place: Path, name: str) -> None:
    """As the sources of a program in Go lie in the folder that `GOPATH` names."""
    workspace = folder(place / "go" / "src" / "work")
    assert why_variables_refuse(str(workspace), {name: str(place / "go")}) == ""


@pytest.mark.parametrize("name", ["DATA_DIR", "PLUGIN", "OUTPUT_PATH", "PWD", "OLDPWD"])
def test_variables_of_a_persons_own_may_lead_into_the_workspace(place: Path, name: str) -> None:
    workspace = folder(place / "work")
    assert not chooses_code(name)
    assert why_variables_refuse(str(workspace), {name: f"{workspace}/x"}) == ""


@pytest.mark.parametrize("software", CORPUS["runs"])
def test_a_variable_by_which_common_software_runs_a_file_is_refused(place: Path, software: str) -> None:
    workspace = folder(place / "work")
    for name in CORPUS["runs"][software].split():
        assert chooses_code(name), name
        assert name in refusal(workspace, {name: f"{workspace}/x"}), name
        assert refusal(workspace, {name: f"{place}/other/x"}) == "", name


def test_a_variable_by_which_nothing_is_run_may_lead_into_the_workspace(place: Path) -> None:
    workspace = folder(place / "work")
    refused = {
        name: why
        for name, why in CORPUS["reads"].items()
        if any(refusal(workspace, {name: value}) for value in (f"{workspace}/x", str(workspace)))
    }
    assert refused == {}


def test_every_name_that_is_let_through_by_itself_would_be_refused_by_its_form() -> None:
    for name in HARMLESS_NAMES:
        assert name in CORPUS["reads"]
        assert promises_code(f"X{name}") or may_search(f"X{name}"), name


@pytest.mark.parametrize("name", ["CFLAGS", "NODE_OPTIONS"])
def test_a_long_list_of_options_is_no_path(place: Path, name: str) -> None:
    workspace = folder(place / "work")
    options = "-I/usr/include/x " * 3_000
    assert why_variables_refuse(str(workspace), {name: options}) == ""
    assert name in why_variables_refuse(str(workspace), {name: f"{options} -I{workspace}/x"})


@pytest.mark.parametrize("name", ["ACME_PATH", "ACME_WIDGETS_PATH", "ACME_PATHS"])
def test_a_list_of_places_is_searched_and_one_place_holds_data(place: Path, name: str) -> None:
    workspace = folder(place / "work")
    assert chooses_code(name), "else a later change of its value would not be noticed"
    assert why_variables_refuse(str(workspace), {name: f"{workspace}/x"}) == ""
    assert name in why_variables_refuse(str(workspace), {name: f"/usr/lib/x:{workspace}/x"})
    assert name in why_variables_refuse(str(workspace), {name: f"~/x;{workspace}/x"})
    assert why_variables_refuse(str(workspace), {f"DATA_{name}": f"/usr/lib/x:{workspace}/x"}) == ""


OPTIONS = [
    "{}/x",
    "-I{}/x",
    "-I {}/x",
    "Rk{}/x",
    "${{X:-{}/x}}",
    "-isystem{}/x",
    "-L{}",
    "-Wl,-rpath,{}/x",
    "-javaagent:{}/x.jar=verbose",
    "-Xbootclasspath/a:{}/x.jar",
    "-Djava.library.path={}",
    "--require={}/x.js",
    "--require {}/x.js",
    "--require '{}/x.js'",
    "--plugin=x,{}/x",
    "@{}/args",
    "!{}/x",
    "|{}/x %s",
    "x:{}/x",
    "/usr/lib/x:{}/x",
    "/usr/lib/x;{}/x",
    "/usr/lib/x {}/x",
    "x={}/x",
    "file://{}/x",
    "file://localhost{}/x",
    "file:{}/x",
    '["{}/x"]',
    '{{"path": "{}/x"}}',
    "[{}/x]",
]


@pytest.mark.parametrize(
    "name", ["ACME_OPTIONS", "ACME_CONFIG", "NODE_OPTIONS", "CFLAGS", "GIT_CONFIG_VALUE_0"]
)
@pytest.mark.parametrize("workspace", ["work", "my work"])
def test_a_path_inside_of_a_value_is_found(place: Path, name: str, workspace: str) -> None:
    inside, outside = folder(place / workspace), place / f"{workspace}er"
    wrong = []
    for value in OPTIONS:
        variants = {value.format(inside)}
        if " " in workspace:
            variants |= {value.format(str(inside).replace(" ", mark)) for mark in ("%20", "\\ ")}
        wrong += [
            variant
            for variant in variants
            if f"the variable {name} " not in why_variables_refuse(str(inside), {name: variant})
        ]
        if why_variables_refuse(str(inside), {name: value.format(outside)}):
            wrong.append(value.format(outside))
    assert wrong == []


FUNCTIONS = [
    "() {{ . {}/x; }}",
    "() {{  source '{}/x'\n}}",
    '() {{  {}/x "$@"\n}}',
    "() {{ {}/x&\n}}",
    '() {{  eval "$(<{}/x)"\n}}',
    "() {{  eval `{}/x bash $*`\n}}",
    "() {{  PATH={}/bin:$PATH command ls\n}}",
    "() {{  PATH+=:{}/bin\n command ls\n}}",
    "() {{  cd {} && ./x\n}}",
    '() {{  . "${{X:-{}/x}}"\n}}',
    "() {{  [[ -r /etc/x ]] || {{ exec < {}/x; }}\n}}",
    "() {{  python3 -c 'exec(open(\"{}/x\").read())'\n}}",
    "() {{  . $HOME/work/x\n}}",
    "() {{  . ${{HOME}}/work/x\n}}",
    "() {{  . ~/work/x\n}}",
    '() {{  . "${{X:-~/work/x}}"\n}}',
]
NAMES_OF_FUNCTIONS = ["BASH_FUNC_ls%%", "BASH_FUNC_my-config.x%%", "BASH_FUNC_ls()", "__BASH_FUNC<ls>()"]


@pytest.mark.parametrize("name", NAMES_OF_FUNCTIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_bash_inherits_is_refused_if_a_path_in_its_text_leads_there(
    place: Path, name: str, function: str
) -> None:
    workspace = folder(place / "work")
    assert chooses_code(name), "else a later change of its text would not be noticed"
    environ = {"HOME": str(place), name: function.format(workspace)}
    message = refusal(workspace, environ)
    assert f"the variable {name} leads into it" in message
    assert "`unset -f`" in message
    assert len(message.splitlines()) == 1
    assert refusal(folder(place / "other"), environ) == ""


BUS = "DBUS_SESSION_BUS_ADDRESS"


@pytest.mark.parametrize(
    "name", [BUS, "DBUS_SYSTEM_BUS_ADDRESS", "DBUS_STARTER_ADDRESS", "AT_SPI_BUS_ADDRESS"]
)
@pytest.mark.parametrize(
    "value",
    [
        "unixexec:path={}/x",
        "unixexec:path=/bin/sh,argv1={}/x",
        "unixexec:argv0=x,path={}%2Fx",
        "unix:path=/run/bus;unixexec:path={}/x",
    ],
)
def test_an_address_of_a_bus_that_starts_a_program_is_refused(place: Path, name: str, value: str) -> None:
    workspace = folder(place / "work")
    assert chooses_code(name), "else a later change of its value would not be noticed"
    assert f"the variable {name} leads into it" in refusal(workspace, {name: value.format(workspace)})
    assert refusal(workspace, {name: value.format(place / "other")}) == ""
    for harmless in (
        f"unix:path={workspace}/bus",
        f"unix:dir={workspace}",
        "unix:path=/run/bus;unixexec:path=/x",
    ):
        assert refusal(workspace, {name: harmless}) == "", harmless


@pytest.mark.skipif(shutil.which("dbus-send") is None, reason="asks a bus")
def test_control_a_bus_starts_the_program_in_its_address(place: Path) -> None:
    workspace = folder(place / "work")
    text("x", "#!/bin/sh\necho {planted} > {workspace}/started\n")(workspace)
    (workspace / "x").chmod(0o755)
    command = ["dbus-send", "--session", "--print-reply", "--dest=a.b", "/a", "a.b.c"]
    run(command, place, {BUS: f"unixexec:path={workspace}/x"})
    assert PLANTED in (workspace / "started").read_text()


def test_a_dot_that_is_a_command_in_a_function_is_no_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = folder(place / "work")
    monkeypatch.chdir(folder(workspace / "deep"))
    for name in NAMES_OF_FUNCTIONS:
        for harmless in (". /etc/profile", "cd ..", "eval `/usr/bin/x $*`", "sed s/x/y/", "cd .; ls /"):
            assert why_variables_refuse(str(workspace), {name: f"() {{  {harmless}\n}}"}) == "", harmless
        assert name in why_variables_refuse(str(workspace), {name: "() {  . ./x\n}"})
        assert name in why_variables_refuse(str(workspace), {name: "() {  ../x\n}"})


@pytest.mark.parametrize("name", ["ls", "BASH_FUNC_ls", "BASH_FUNC", "MY_BASH_FUNC_ls%%"])
def test_a_name_that_bash_takes_no_function_from_refuses_nothing(place: Path, name: str) -> None:
    workspace = folder(place / "work")
    function = f"() {{ . {workspace}/x; }}"
    if shutil.which("bash") is not None:
        program("x")(workspace)
        assert PLANTED not in run(["bash", "-c", "ls"], place, {name: function})
    assert why_variables_refuse(str(workspace), {name: function}) == ""


def test_a_watch_looks_again_when_a_function_of_bash_changes(place: Path) -> None:
    workspace = folder(place / "work")
    environ = {"PATH": os.defpath, "BASH_FUNC_ls%%": "() {  command ls\n}"}
    watch = ImportRootWatch(workspace, environ)
    watch.check()
    environ["BASH_FUNC_ls%%"] = f"() {{  . {workspace}/x\n}}"
    with pytest.raises(WorkspaceRefused, match="the variable BASH_FUNC_ls%%"):
        watch.check()


def test_a_name_without_a_slash_is_a_path_if_something_is_there(place: Path) -> None:
    workspace = folder(place / "work")
    for value in ("work", "work/x", "-I work/x", "x:work"):
        assert "ACME_CONFIG" in why_variables_refuse(str(workspace), {"ACME_CONFIG": value}), value
    assert why_variables_refuse(str(workspace), {"ACME_CONFIG": "production"}) == ""
    assert why_variables_refuse(str(workspace), {"EDITOR": "work"}) == "", "it is looked up in PATH"


def test_the_current_folder_inside_the_workspace_makes_no_choice_a_path(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = folder(place / "work")
    monkeypatch.chdir(workspace)
    for value in ("production", "1", "debug,verbose", "", ":", "linux/amd64", "npm/10.2 node/v20 x/y"):
        assert why_variables_refuse(str(workspace), {"ACME_CONFIG": value}) == ""
    assert "ACME_CONFIG" in why_variables_refuse(str(workspace), {"ACME_CONFIG": "./production"})


def test_a_refusal_by_the_form_of_a_name_says_what_leads_where_and_what_to_do(place: Path) -> None:
    workspace = folder(place / "work")
    message = refusal(workspace, {"ACME_MODULE_DIR": f"{workspace}/mods"})
    assert f"the variable ACME_MODULE_DIR leads into it ({workspace}/mods)" in message
    assert "by the form of its name a program runs, loads or obeys what lies there" in message
    assert "Take that out of ACME_MODULE_DIR and start this program again, or use another folder" in message


def test_a_watch_looks_again_when_a_variable_changes_that_only_its_form_tells_of(place: Path) -> None:
    workspace = folder(place / "work")
    environ = {"PATH": os.defpath, "ACME_PATH": f"{workspace}/x"}
    watch = ImportRootWatch(workspace, environ)
    watch.check()
    environ["ACME_PATH"] = f"{workspace}/x:/usr/lib"
    with pytest.raises(WorkspaceRefused, match="the variable ACME_PATH"):
        watch.check()
    environ["ACME_PATH"] = "/usr/lib"
    watch.check()
    environ["ACME_LIBDIR"] = f"{workspace}/x"
    with pytest.raises(WorkspaceRefused, match="the variable ACME_LIBDIR"):
        watch.check()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles a library")
def test_a_library_for_glib_in_the_workspace_is_loaded_by_programs_outside(place: Path) -> None:
    workspace = folder(place / "work")
    source = place / "x.c"
    source.write_text(
        f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ puts("{PLANTED}"); }}\n'
        "void g_io_module_load(void *p) {}\nvoid g_io_module_unload(void *p) {}\n"
    )
    run(["gcc", "-shared", "-fPIC", "-o", str(folder(workspace / "m") / "libx.so"), str(source)], place, {})
    load = (
        "import ctypes; g = ctypes.CDLL('libgio-2.0.so.0'); "
        "g.g_vfs_get_default.restype = ctypes.c_void_p; g.g_vfs_get_default()"
    )
    environ = {"GIO_MODULE_DIR": f"{workspace}/m"}
    output = run(["python3", "-c", load], place, environ)
    if "libgio-2.0.so.0: cannot open" not in output:
        assert PLANTED in output, "the control"
    assert "the variable GIO_MODULE_DIR leads into it" in refusal(workspace, environ)
