"""Which calls are tried without any right to change something, before anybody is asked about them. Pure.

A command is a candidate if there is only one reason to ask a person: the command starts programs whose
effects are unknown. Everything else about the command must be known to only read, in the sandbox; no rule may
concern the command, as far as can be told; and the programs must belong to the system. Scripts are not tried,
nor are programs that run files of the workspace, such as `make`: a person who starts one wants its effects,
and half of the effects is worse than none. The list of such programs holds the usual ones. It avoids needless
trials, but it protects nothing: a trial is safe because of the way in which it runs, whatever the program is;
see `session.trials`.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aisotools.core.path_texts import is_within
from aisotools.core.types import Decision, Effect, Facts
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy

_NAMES = (
    # interpreters and their kin
    "python python2 python3 pypy pypy3 ipython micropython sage xonsh ruby irb jruby perl raku lua luajit "
    "tclsh wish expect php node nodejs deno bun tsx ts-node R Rscript littler julia octave octave-cli scilab "
    "scilab-cli matlab maxima gnuplot guile racket scheme sbcl clisp ecl emacs emacsclient ocaml ghci runghc "
    "runhaskell stack cabal erl escript elixir iex mix rebar3 lein clojure clj bb scala scala-cli kotlin "
    "kotlinc groovy java jshell jbang dart flutter swift crystal nim zig gleam v vlang elm coqc coqtop lean "
    "lake agda isabelle spark-submit spark-shell pyspark sparkR bash sh dash ash ksh mksh zsh fish tcsh csh "
    "pwsh nu elvish busybox rbash bsh jsh jimsh pike newlisp janet fennel picolisp gst smalltalk swipl "
    "gprolog yap ciao gforth chicken csi gosh mit-scheme chez petite raco sml mlton poly smlnj ocamlrun js "
    "js78 d8 qjs gjs cjs seed mujs rhino esbuild gcc g++ cc c++ clang clang++ tcc gfortran ghc mono csharp "
    "ipython3 bpython ptpython pypy3 cython pyston jython vim nvim vi ed ex m4 bc dc gdb lldb gs ps2pdf"
    # builders, runners and tests
    " make gmake bmake ninja samu cmake ctest cpack meson scons waf bazel buck buck2 pants please just task "
    "go-task mage rake thor invoke inv fab doit dodo tox nox hatch pdm rye flit poetry pipenv uv uvx npm npx "
    "yarn pnpm pnpx corepack gulp grunt vite webpack rollup parcel turbo nx lerna tsc jest vitest mocha ava "
    "karma cypress playwright prove tappy bats shunit2 shellspec roundup phpunit rspec "
    "pytest py.test nose2 nosetests green coverage locust behave robot cargo rustc "
    "go dotnet msbuild mvn mvnw gradle gradlew ant sbt mill bundle bundler composer pre-commit act earthly "
    "docker podman dagger snakemake nextflow cwltool cwl-runner toil cromwell miniwdl luigi airflow prefect "
    "dagster kedro dvc dbt metaflow ploomber papermill jupyter nbconvert jupytext marimo streamlit gradio "
    "panel voila mlflow wandb accelerate torchrun deepspeed horovodrun mpirun mpiexec celery flask uvicorn "
    "gunicorn hypercorn django-admin scrapy mkdocs sphinx-build hugo jekyll bundle-exec ansible "
    "ansible-playbook terraform tofu pulumi vagrant packer helm helmfile skaffold tilt parallel entr "
    "watchexec nodemon hyperfine perf valgrind strace ltrace rr time timeout script unbuffer direnv "
    "asdf mise sensible-editor sensible-pager sensible-browser run-parts"
)
_RUN_WHAT_THEY_FIND = frozenset(_NAMES.split())
"""Programs that run code from their arguments or from files of a folder."""

_TARGET = re.compile(r"^[a-z0-9_]+-(?:[a-z0-9_]+-)?(?:linux|w64)-(?:gnu|musl|mingw)\w*-")
_VARIANT = re.compile(r"(?:-(?:dbg|debug|dev|nox|gtk|lucid|jit)|\.(?:basic|tiny|nox|gtk3?|athena|real|bin))$")
_find_parts = re.compile(r"[^\s|;&()<>`$\"'{},=]+").findall
_OF_A_VERSION = frozenset("0123456789abcdefghijklmnopqrstuvwxyz.+~_-")
_PLACES_OUTSIDE = ("/", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLookups:
    """What has to be looked up to decide whether a command is tried.

    Attributes:
        find_program: Returns the path of a program of the system, and nothing for one that is not installed,
            or lies where the sandbox can write.
        is_code: Returns whether a path names a file of the workspace that is code, or may be.
        workspace: How paths in the workspace begin when they are absolute.
    """

    find_program: Callable[[str], str]
    is_code: Callable[[str], bool]
    workspace: tuple[str, ...] = ("/workspace",)


def why_not_tried(prepared: PreparedCall, policy: Policy, lookups: TrialLookups) -> str:
    """Return why a call is not tried, as a clause; an empty text if it is tried.

    Args:
        prepared: The call, about which the policy asks.
        policy: The policy that was asked, with its bounds.
        lookups: What else has to be known.
    """
    facts = prepared.facts
    if prepared.evaluation.decision is not Decision.ASK or prepared.evaluation.protected:
        return "the policy does not ask about it"
    # What a stranger's tool says of itself does not count.
    if not prepared.own_path or not facts.unknown or facts.background:
        return "its doubts are not only about unknown programs"
    if facts.effect is not Effect.LOCAL_MUTATION or facts.writes or facts.hosts or facts.outside:
        return "it does more than read"
    for path in facts.reads:
        if _is_outside(path, lookups):
            return f"it reads {path}, outside the workspace"
    for command in facts.unknown:
        if flaw := _flaw_of(command, lookups):
            return flaw
    if not _would_be_allowed(prepared, policy, facts):
        return "a rule is about it, or may be"
    return ""


def _flaw_of(command: tuple[str, ...], lookups: TrialLookups) -> str:
    """Return why a command is not tried, by its words; empty if nothing speaks against it."""
    from aisotools.policy.shell.options import program_name  # loaded with the first command

    program = command[0]
    name = program_name(program)
    if not name:
        return f"{program} is not a program of the system"
    if _runs_what_it_finds(name):
        return f"{name} runs code that it finds"
    if not lookups.find_program(program):
        return f"{program} is not installed in the system's folders"
    for word in _paths_in(command[1:]):
        if _is_outside(word, lookups):
            return f"it names {word}, outside the workspace"
        if lookups.is_code(word):
            return f"{word} is a script"
        for part in _find_parts(word):
            if _runs_what_it_finds(part.rpartition("/")[2]) or lookups.is_code(part):
                return f"{word} may be a command, of which {part} runs code"
    return ""


def _runs_what_it_finds(name: str) -> bool:
    """Return whether a program is in the list, also by a name with a version or a target in it."""
    # Case: `tclsh8.6`, `x86_64-linux-gnu-gcc-12`, `python3.11-dbg`, `vim.tiny`, `guile-3.0`.
    plain = _VARIANT.sub("", _TARGET.sub("", name))
    return not _RUN_WHAT_THEY_FIND.isdisjoint((name, plain, _without_version(plain)))


def _without_version(name: str) -> str:
    """Return the name of a program without what follows it when several versions of it are installed."""
    begin = len(name)
    while begin and name[begin - 1] in _OF_A_VERSION:
        begin -= 1
    digit = next((at for at in range(begin, len(name)) if name[at].isdigit()), len(name))
    if digit == len(name):
        return name
    before = name[:digit].removesuffix("v")
    return before[:-1] if before[-1:] in {"-", "_", "."} else before


def _paths_in(words: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts among words that may be paths; of `--file=a.csv` the part after `=`."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if value:
            yield value


def _is_outside(path: str, lookups: TrialLookups) -> bool:
    normal = posixpath.normpath(path)
    if any(is_within(normal, root) for root in lookups.workspace):
        return False
    return normal.startswith(_PLACES_OUTSIDE) or normal.partition("/")[0] == ".."


def _would_be_allowed(prepared: PreparedCall, policy: Policy, facts: Facts) -> bool:
    """Return whether the policy would allow the call if it were known to only read, whatever it reads."""
    call = prepared.call
    # What an unknown program reads is unknown, so a rule about paths may be about it.
    reading = dataclasses.replace(
        facts, effect=Effect.READ_ONLY, certain=True, unresolved=(*facts.unresolved, *facts.unknown[0][:1])
    )
    if policy.is_restricted(call, facts) or policy.is_restricted(call, reading):
        return False
    return policy.check_rules(call, reading).decision is Decision.ALLOW
