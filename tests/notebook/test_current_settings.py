from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config, Configurable

from aisotools.core.exceptions import UsageError
from aisotools.notebook.current import AisoTools, setting_traits, settings_for
from aisotools.policy.config import policy_from_toml
from aisotools.sandbox.limits import Limits
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.notebook.client import Notebook, private_home
from tests.notebook.conftest import usage_error


def shell(**config: Any) -> Configurable:
    """Something that carries a configuration, as IPython's shell does."""
    return Configurable(config=Config({"AisoTools": config}) if config else Config())


def write(environ: Mapping[str, str], text: str) -> Path:
    path = Path(environ["HOME"], ".jupyter", "aisotools.toml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_defaults_are_those_of_a_session() -> None:
    options = AisoTools().session_options({})
    parameters = inspect.signature(Session).parameters
    assert options.pop("limits") == Limits()
    assert list(options.pop("read_only")) == list(parameters["read_only"].default)
    assert options == {name: parameters[name].default for name in options}


def test_every_limit_is_a_setting() -> None:
    assert {field.name for field in dataclasses.fields(Limits)} <= {name for name, _ in setting_traits()}


def test_every_setting_explains_itself() -> None:
    for name, trait in setting_traits():
        assert re.match(r"[A-Z].*\.$", trait.help), name


def test_a_shell_s_configuration_beats_the_file(environ: Mapping[str, str]) -> None:
    write(environ, "mode = 'auto'\n[settings]\ncall_timeout_s = 30\nmin_level = 'confined'\n")
    settings = settings_for(shell(min_level="guarded"), environ)
    options = settings.session_options(environ)
    assert (options["min_level"], options["limits"].call_timeout_s) == ("guarded", 30.0)
    assert options["policy"] is None, "the policy of the file is the session's own business"


def test_a_mode_keeps_the_rules_of_the_file(environ: Mapping[str, str]) -> None:
    rule = '[[rule]]\ntool = "a"\ndecision = "deny"\nreason = "no"\n'
    write(environ, f"mode = 'auto'\n{rule}[settings]\nmode = 'plan'\n")
    policy = settings_for(shell(), environ).session_options(environ)["policy"]
    assert policy.mode == "plan"
    assert [one.reason for one in policy.rules] == ["no"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[settings]\nmod = 'plan'", r"\[settings\]: unknown: mod\. Known: mode, level"),
        ("[settings]\nmode = 'none'", r"\[settings\]: .*mode"),
        ("[settings]\nprocesses = 'many'", r"\[settings\]: .*processes"),
        ("settings = 3", "write settings as a table"),
        ("[settings", "cannot be read"),
        ("[settings]\nconfig = 1", "unknown: config"),
    ],
)
def test_broken_file_is_reported_and_relaxes_nothing(
    environ: Mapping[str, str], text: str, message: str
) -> None:
    path = write(environ, text)
    with pytest.raises(UsageError, match=message) as error:
        settings_for(shell(), environ)
    assert str(path) in str(error.value)


def test_a_limit_out_of_range_names_itself() -> None:
    with pytest.raises(UsageError, match="processes"):
        AisoTools(processes=0).session_options({})


def test_a_workspace_changes_no_settings() -> None:
    with pytest.raises(UsageError, match="unknown keys: settings"):
        policy_from_toml("[settings]\nmin_level = 'limited'", source="a workspace's")


@pytest.mark.parametrize("seconds", [0, -1, True, "5"])
def test_an_approval_timeout_is_a_time(open_session: OpenSession, seconds: Any) -> None:
    with pytest.raises(ValueError, match="approval_timeout_s"):
        open_session(approval_timeout_s=seconds)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A kernel whose user has both kinds of files."""
    home = tmp_path_factory.mktemp("settings")
    places = private_home(home)
    env = {**(places.get("env") or {}), "JUPYTER_CONFIG_DIR": str(home / "jupyter")}
    (home / "jupyter").mkdir()
    (home / "jupyter" / "aisotools.toml").write_text("[settings]\ntoolset = 'files'\nfile_bytes = 2048\n")
    notebook = Notebook(**{**places, "env": env})
    yield notebook
    notebook.close()


SHOWN = """
from aisotools import current_session
s = current_session()
print(s.policy.mode, s.limits.file_bytes, s.limits.call_timeout_s, "python" in s.registry)
"""


def test_settings_in_a_notebook(kernel: Notebook) -> None:
    assert not kernel.run("%load_ext aisotools").text
    assert "AisoTools.approval_timeout_s=<Float>" in kernel.run("%config AisoTools").text
    assert not kernel.run("%config AisoTools.call_timeout_s = 7").text
    assert kernel.run(SHOWN).text == "safe 2048 7.0 False\n"
    # The session is there now: a mode counts at once, the rest for the next session, which is said.
    assert not kernel.run("%config AisoTools.mode = 'plan'").text
    assert (
        "call_timeout_s applies to the next session"
        in kernel.run("%config AisoTools.call_timeout_s = 9").text
    )
    assert kernel.run(SHOWN).text == "plan 2048 7.0 False\n"
    kernel.run("await s.close()")
    assert kernel.run(SHOWN).text == "plan 2048 9.0 False\n"
    assert "mode" in kernel.run("%config AisoTools.mode = 'reckless'").text
    assert kernel.run(SHOWN).text == "plan 2048 9.0 False\n"
    assert not kernel.run("%config AisoTools.model = 'nobody'").text
    assert "-m nobody: there is no variable" in usage_error(kernel.run("%%agent\nhello"))


def test_a_broken_file_in_a_notebook(kernel: Notebook) -> None:
    kernel.run("%unload_ext aisotools")
    kernel.run("import os, pathlib; p = pathlib.Path(os.environ['JUPYTER_CONFIG_DIR'], 'aisotools.toml')")
    kernel.run("kept = p.read_text(); _ = p.write_text('[settings]\\nmod = 1')")
    assert "unknown: mod" in usage_error(kernel.run("%load_ext aisotools"))
    kernel.run("_ = p.write_text(kept)")
    assert usage_error(kernel.run("%load_ext aisotools")).startswith(
        "The configuration of IPython: The 'mode'"
    )
    kernel.run("%config AisoTools.mode = None")  # IPython keeps what it was told, good or not
    kernel.run("get_ipython().config.AisoTools.mode = None")
    assert not kernel.run("%load_ext aisotools").text
