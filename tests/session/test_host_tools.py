"""Tools on the host are asked about in every mode unless somebody has said what they do.

No sandbox holds them, so "stays in the workspace" is never known of them, only declared.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
from langchain_core.tools import StructuredTool
from pydantic_ai import Tool as TheirTool

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Tool, ToolContext
from aisotools.core.types import (
    AbsentNames,
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Facts,
    Json,
    MadeName,
    ToolCall,
    ToolResult,
)
from aisotools.integrations.langchain import LangChainTool, session_tools as langchain_tools
from aisotools.integrations.openai_agents import session_tools as openai_tools
from aisotools.integrations.pydantic_ai import PydanticAITool, SessionToolset
from aisotools.policy.rules import Mode, Policy, Rule
from aisotools.testing.fakes import MockTool
from aisotools.tools.adapter import renamed_tool
from aisotools.tools.function import tool
from tests.conftest import OpenSession

MODES: tuple[Mode, ...] = ("plan", "safe", "auto")


class Recorder:
    """Approves what it is asked about, and keeps the questions."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        return Approval("deny", reason="Only looking.")


class Plain:
    """A class of one's own with no optional member at all."""

    name = "effects"
    description = "Do something."

    def __init__(self, **members: Any) -> None:
        self.runs: list[Mapping[str, Json]] = []
        vars(self).update(members)

    def parameters_schema(self) -> Mapping[str, Any]:
        return {"type": "object"}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        self.runs.append(arguments)
        return ToolResult.text("done")


def function_tool(**options: Any) -> Plain:
    """Return a tool made of a function; `runs` of it are recorded as those of a class are."""
    runs: list[Mapping[str, Json]] = []

    def effects(x: int = 0) -> str:
        """Do something."""
        runs.append({"x": x})
        return "done"

    made: Any = tool(runs_in="host", **options)(effects)
    made.runs = runs
    return cast("Plain", made)


def langchain_tool(metadata: Mapping[str, Any] | None = None, **options: Any) -> Plain:
    runs: list[Mapping[str, Json]] = []

    def effects(x: int = 0) -> str:
        """Do something."""
        runs.append({"x": x})
        return "done"

    theirs = StructuredTool.from_function(effects, metadata=None if metadata is None else dict(metadata))
    made: Any = LangChainTool(theirs, **options)
    made.runs = runs
    return cast("Plain", made)


def pydantic_ai_tool(metadata: Mapping[str, Any] | None = None, **options: Any) -> Plain:
    runs: list[Mapping[str, Json]] = []

    def effects(x: int = 0) -> str:
        """Do something."""
        runs.append({"x": x})
        return "done"

    theirs = {"requires_approval": options.pop("requires_approval", False)}
    made: Any = PydanticAITool(
        TheirTool(effects, metadata=None if metadata is None else dict(metadata), **theirs), **options
    )
    made.runs = runs
    return cast("Plain", made)


class Liar(str):
    """A text that is another one each time it is compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Shifting(Facts):
    """Facts that change when they are looked at again."""

    @property
    def certain(self) -> Any:
        return object()

    @certain.setter
    def certain(self, value: Any) -> None: ...


def facts(**wrong: Any) -> Callable[[Any], Any]:
    """Return a `gather_facts` of these facts, whatever their types."""
    return lambda _: Facts(**wrong)


def alternating(*answers: Any) -> Callable[[Any], Any]:
    turns: Iterator[Any] = iter(answers * 50)
    return lambda _: next(turns)


def endless(_: object) -> Iterator[str]:
    while True:
        yield "a"


NOTHING: dict[str, Callable[[], Plain]] = {
    "a class": Plain,
    "a class whose members are None": lambda: Plain(classify=None, gather_facts=None, effect=None),
    "a function": function_tool,
    "a mock": lambda: cast("Plain", MockTool("effects")),
    "LangChain": langchain_tool,
    "LangChain, other metadata": lambda: langchain_tool({"owner": "me"}),
    "pydantic-ai": pydantic_ai_tool,
    "pydantic-ai, other metadata": lambda: pydantic_ai_tool({"owner": "me"}),
}
"""Tools that say nothing of what they do."""

VALUES: dict[str, Any] = {
    "None": None,
    "a number": 5,
    "true": True,
    "a text": "read_only",
    "a wrong text": "harmless",
    "a list": [Effect.READ_ONLY],
    "the class": Effect,
    "a coroutine's name": "async",
}
WRONG_FACTS: dict[str, dict[str, Any]] = {
    "an effect as text": {"effect": "read_only"},
    "an unknown effect": {"effect": "bogus"},
    "no effect": {"effect": None},
    "certain as text": {"effect": Effect.READ_ONLY, "certain": "yes"},
    "certain as a number": {"effect": Effect.READ_ONLY, "certain": 1},
    "outside as text": {"outside": ""},
    "writes as one text": {"writes": "conftest.py"},
    "writes as bytes": {"writes": (b"a",)},
    "writes of numbers": {"writes": (1, 2)},
    "writes of None": {"writes": None},
    "writes of an empty path": {"writes": ("",)},
    "writes of a path with a NUL": {"writes": ("a\0b",)},
    "writes of a surrogate": {"writes": ("a\ud800",)},
    "writes of a very long path": {"writes": ("a/" * 3000,)},
    "very many writes": {"writes": tuple(f"f{n}" for n in range(100_000))},
    "writes that never end": {"writes": endless(None)},
    "writes of a text that lies": {"writes": (Liar("a"),)},
    "reads as a mapping": {"effect": Effect.READ_ONLY, "reads": {"a": 1}},
    "hosts as one text": {"effect": Effect.READ_ONLY, "hosts": "example.org"},
    "hosts of numbers": {"effect": Effect.READ_ONLY, "hosts": (1,)},
    "a host that is an address of a page": {"effect": Effect.READ_ONLY, "hosts": ("https://a.org/x",)},
    "a host with a blank": {"effect": Effect.READ_ONLY, "hosts": ("a b",)},
    "a host that is a pattern": {"effect": Effect.READ_ONLY, "hosts": ("*",)},
    "an empty host": {"effect": Effect.READ_ONLY, "hosts": ("",)},
    "a host of look-alikes": {"effect": Effect.READ_ONLY, "hosts": ("ex\u0430mple.org",)},
    "commands as one text": {"effect": Effect.READ_ONLY, "commands": "ls"},
    "an empty command": {"effect": Effect.READ_ONLY, "commands": ("",)},
    "background as text": {"effect": Effect.READ_ONLY, "background": "no"},
    "only reads, and writes": {"effect": Effect.READ_ONLY, "writes": ("a",)},
    "only reads, and writes outside": {"effect": Effect.READ_ONLY, "outside": True},
    **{
        f"{field.name} of {name}": {"effect": Effect.READ_ONLY, field.name: value}
        for field in dataclasses.fields(Facts)
        for name, value in {"an object": object(), "a mapping": {"a": 1}, "a number": 2}.items()
    },
}
CONTRADICTIONS: dict[str, dict[str, Any]] = {
    **{
        f"reads, and its effect is {effect}": {
            "gather_facts": facts(effect=Effect.READ_ONLY, reads=("a.txt",)),
            "effect": effect,
        }
        for effect in (Effect.LOCAL_MUTATION, Effect.REMOTE_ACTION, Effect.DESTRUCTIVE, "remote_action", 2)
    },
    **{
        f"reads, and classify says {effect}": {
            "gather_facts": facts(effect=Effect.READ_ONLY, reads=("a.txt",)),
            "classify": lambda _, effect=effect: effect,
        }
        for effect in (Effect.LOCAL_MUTATION, Effect.REMOTE_ACTION, Effect.DESTRUCTIVE, "no", 2.5)
    },
    **{
        f"classify says it reads, and its effect is {effect}": {
            "classify": lambda _: Effect.READ_ONLY,
            "effect": effect,
        }
        for effect in (Effect.LOCAL_MUTATION, Effect.REMOTE_ACTION, Effect.DESTRUCTIVE, "x")
    },
    **{
        f"writes here, and classify says {effect}": {
            "gather_facts": facts(effect=Effect.LOCAL_MUTATION, writes=("a.txt",)),
            "classify": lambda _, effect=effect: effect,
        }
        for effect in (Effect.REMOTE_ACTION, Effect.DESTRUCTIVE)
    },
    **{
        f"{effect} that names only what it reads": {"gather_facts": facts(effect=effect, reads=("a.txt",))}
        for effect in (Effect.LOCAL_MUTATION, Effect.REMOTE_ACTION, Effect.DESTRUCTIVE)
    },
    **{
        f"only reads, and {name}": {"gather_facts": facts(effect=Effect.READ_ONLY, reads=("a.txt",), **more)}
        for name, more in cast(
            "dict[str, dict[str, Any]]",
            {
                "writes it": {"writes": ("a.txt",)},
                "writes another": {"writes": ("b.txt",)},
                "reaches outside": {"outside": True},
                "goes on afterwards": {"background": True},
                "a folder that it does not read": {"folders": ("b",)},
                "writes to a URL": {"writes": ("https://example.org/x",)},
                "writes a blank": {"writes": (" ",)},
                "removes something": {"losses": (("a.txt", "x"),)},
                "removes another": {"losses": (("out/b.txt", ""),)},
                "runs a script": {"scripts": (("a.txt", ""),)},
                "makes a link": {"made": (MadeName("b", "a.txt", is_link=True),)},
                "may run code": {"code": "digest"},
                "is compared as a change": {"sources": (("a.txt", "digest"),)},
                "is certain of an unknown command": {"unknown": (("frobnicate", "a.txt"),)},
                "is certain in spite of a doubt": {"doubts": ("a program is unknown",)},
                "does more if there is a name": {"dash_folders": (".",)},
                "does more if there is a file": {"absent": (AbsentNames(".", ("conftest.py",)),)},
                "is something else otherwise": {"without_dashes": Facts(effect=Effect.DESTRUCTIVE)},
            },
        ).items()
    },
    **{
        f"writes here, and {name}": {"gather_facts": facts(writes=("a.txt",), **more)}
        for name, more in cast(
            "dict[str, dict[str, Any]]",
            {
                "a folder beside it": {"folders": ("b", "c")},
                "reads as a number": {"reads": 7},
                "an effect of a subclass": {"effect": True},
                "a host with a path": {"hosts": ("example.org/x",)},
                "certain by a list": {"certain": [True]},
            },
        ).items()
    },
}
"""Members of a tool that cannot both be so."""

NONSENSE: dict[str, Callable[[], Plain]] = {
    **{f"contradiction: {name}": lambda m=m: Plain(**m) for name, m in CONTRADICTIONS.items()},  # type: ignore[misc]  # a default of a lambda
    **{f"classify, class: {name}": lambda v=v: Plain(classify=lambda _: v) for name, v in VALUES.items()},  # type: ignore[misc]  # a default of a lambda
    **{
        f"classify, function: {name}": lambda v=v: function_tool(classify=lambda _: v)  # type: ignore[misc]  # a default of a lambda
        for name, v in VALUES.items()
    },
    **{f"facts: {name}": lambda v=v: Plain(gather_facts=lambda _: v) for name, v in VALUES.items()},  # type: ignore[misc]  # a default of a lambda
    **{f"effect: {name}": lambda v=v: Plain(effect=v) for name, v in VALUES.items() if v is not None},  # type: ignore[misc]  # a default of a lambda
    **{
        f"facts of {name}": lambda w=w: Plain(gather_facts=facts(**w))  # type: ignore[misc]  # a default of a lambda
        for name, w in WRONG_FACTS.items()
    },
    "facts that change when looked at": lambda: Plain(
        gather_facts=lambda _: Shifting(effect=Effect.READ_ONLY), classify=lambda _: Effect.READ_ONLY
    ),
    "differs from call to call": lambda: Plain(classify=alternating(Effect.READ_ONLY, Effect.DESTRUCTIVE)),
    "differs, the mild one last": lambda: Plain(classify=alternating(Effect.DESTRUCTIVE, Effect.READ_ONLY)),
    "facts differ from call to call": lambda: Plain(
        gather_facts=alternating(Facts(writes=("a",)), Facts(writes=("b",)))
    ),
    "a coroutine": lambda: Plain(classify=_async_classify),
    "LangChain, metadata as text": lambda: langchain_tool({"effect": "read_only"}),
    "LangChain, nonsense": lambda: langchain_tool({"effect": 5}),
    "pydantic-ai, metadata as text": lambda: pydantic_ai_tool({"effect": "read_only"}),
    "pydantic-ai, nonsense": lambda: pydantic_ai_tool({"effect": ["read_only"]}),
    "pydantic-ai, wants approval": lambda: pydantic_ai_tool(effect=Effect.READ_ONLY, requires_approval=True),
}


class _Async:
    """Something that is awaited, and warns of nothing when it is not."""

    def __await__(self) -> Iterator[Any]:
        yield None


def _async_classify(_: object) -> _Async:
    return _Async()


def runs_of(made: Any) -> int:
    return len(made.calls if isinstance(made, MockTool) else made.runs)


@pytest.mark.sample(30)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*NOTHING, *NONSENSE])
async def test_a_host_tool_without_a_usable_declaration_never_runs_unasked(
    open_session: OpenSession, mode: Mode, name: str
) -> None:
    made = {**NOTHING, **NONSENSE}[name]()
    approver = Recorder()
    session = open_session(made, policy=Policy(mode=mode), approver=approver)
    for origin in ("model", "program"):
        result = await session.call("effects", {}, origin=origin)
        assert result.error_kind == "denied"
    assert runs_of(made) == 0
    if mode == "plan":
        assert not approver.requests, "plan mode denies it without a question"
        return
    assert len(approver.requests) == 2
    request = approver.requests[0]
    assert request.level == "host"
    assert not request.facts.certain
    if name != "pydantic-ai, wants approval":
        assert request.facts.outside
        assert request.facts.outside


@pytest.mark.sample(10)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*NOTHING])
async def test_such_a_tool_does_run_once_it_is_trusted(
    open_session: OpenSession, mode: Mode, name: str
) -> None:
    """The control: nothing but the question was in its way; and the rule is how a person trusts a tool."""
    made = NOTHING[name]()
    rule = Rule(tool="effects", decision=Decision.ALLOW, reason="I wrote it")
    session = open_session(made, policy=Policy(mode=mode, rules=[rule]))
    result = await session.call("effects", {}, origin="model")
    assert (runs_of(made) == 1) is (mode != "plan"), result.content


@pytest.mark.parametrize(
    "when",
    [{"outside": False}, {"effect": "local_mutation"}, {"origin": "model"}, {"arguments": {"x": "*"}}],
    ids=str,
)
async def test_a_rule_with_conditions_trusts_no_tool_of_which_nothing_is_known(
    open_session: OpenSession, when: dict[str, Any]
) -> None:
    made = Plain()
    rule = Rule(tool="*", when=when, decision=Decision.ALLOW)
    session = open_session(made, policy=Policy(mode="auto", rules=[rule]))
    await session.call("effects", {"x": "a"}, origin="model")
    assert not made.runs


async def test_renaming_makes_no_tool_more_trusted(open_session: OpenSession) -> None:
    made = function_tool()
    session = open_session(renamed_tool(made, "other"), policy=Policy(mode="auto"))
    assert (await session.call("other", {}, origin="model")).error_kind == "denied"
    assert not made.runs


@pytest.mark.parametrize("form", ["class", "function"])
async def test_a_classify_that_raises_denies(open_session: OpenSession, form: str) -> None:
    def classify(_: object) -> Effect:
        raise SystemExit("bye")

    made = Plain(classify=classify) if form == "class" else function_tool(classify=classify)
    session = open_session(made, policy=Policy(mode="auto"), approver=Recorder())
    result = await session.call("effects", {}, origin="model")
    assert result.error_kind == "denied"
    assert "bye" in result.content
    assert not made.runs


async def test_a_classify_that_never_returns_is_not_waited_for(open_session: OpenSession) -> None:
    release, entered = threading.Event(), []

    def classify(_: object) -> Effect:
        entered.append(1)
        release.wait()
        return Effect.READ_ONLY

    made = Plain(classify=classify)
    session = open_session(made, policy=Policy(mode="auto"), approver=Recorder())
    try:
        first = await session.call("effects", {}, origin="model")
        for _ in range(20):
            again = await session.call("effects", {}, origin="model")
        assert (first.error_kind, again.error_kind) == ("denied", "denied")
        assert "did not answer" in first.content
        assert len(entered) == 1, "one thread waits, however often a model calls"
        assert not made.runs
    finally:
        release.set()


async def test_a_classify_that_changes_its_arguments_changes_nothing_else(open_session: OpenSession) -> None:
    def classify(arguments: dict[str, Any]) -> Effect:
        arguments["x"]["path"] = "elsewhere"
        arguments["y"] = 1
        return Effect.READ_ONLY

    made = Plain(classify=classify)
    session = open_session(made, policy=Policy(mode="auto"))
    assert not (await session.call("effects", {"x": {"path": "here"}}, origin="model")).is_error
    assert made.runs == [{"x": {"path": "here"}}]


# ---- what is declared

DESTROYS: dict[str, Any] = {"effect": Effect.DESTRUCTIVE, "writes": ("out/a.txt",)}
SENDS: dict[str, Any] = {"effect": Effect.REMOTE_ACTION, "writes": ("out/a.txt",)}


@pytest.mark.parametrize(
    ("made", "auto"),
    [
        (lambda: Plain(classify=lambda _: Effect.READ_ONLY), "allow"),
        (lambda: function_tool(effect=Effect.READ_ONLY), "allow"),
        (lambda: langchain_tool({"effect": Effect.READ_ONLY}), "allow"),
        (lambda: pydantic_ai_tool({"effect": Effect.READ_ONLY}), "allow"),
        (lambda: function_tool(gather_facts=facts(writes=("out/a.txt",))), "allow"),
        (lambda: function_tool(effect=Effect.LOCAL_MUTATION), "ask"),
        (lambda: Plain(classify=lambda _: Effect.LOCAL_MUTATION), "ask"),
        (lambda: langchain_tool(effect=Effect.LOCAL_MUTATION), "ask"),
        (lambda: function_tool(gather_facts=facts(writes=("/etc/passwd",))), "ask"),
        (lambda: function_tool(gather_facts=facts(writes=("a", "../b"))), "ask"),
        (lambda: function_tool(gather_facts=facts(writes=("a/../../b",))), "ask"),
        (lambda: function_tool(gather_facts=facts(writes=("~/b",))), "ask"),
        (lambda: function_tool(gather_facts=facts(commands=("make",))), "ask"),
        (lambda: function_tool(effect=DESTROYS["effect"], gather_facts=facts(**DESTROYS)), "ask"),
        (lambda: function_tool(effect=SENDS["effect"], gather_facts=facts(**SENDS)), "ask"),
        (lambda: function_tool(effect=Effect.REMOTE_ACTION), "ask"),
        (lambda: function_tool(effect=Effect.DESTRUCTIVE), "ask"),
        (lambda: langchain_tool({"effect": Effect.DESTRUCTIVE}), "ask"),
    ],
)
def test_declarations_of_host_tools_are_believed_for_reading_alone(
    open_session: OpenSession, made: Callable[[], Any], auto: str
) -> None:
    """Reading is believed in every mode; a change only in auto, and where it names files of the workspace."""
    one: Tool = made()
    reads = one.classify({}) is Effect.READ_ONLY if hasattr(one, "classify") else False
    wanted = {"plan": "allow" if reads else "deny", "safe": "allow" if reads else "ask", "auto": auto}
    found = {}
    for mode in MODES:
        session = open_session(one, policy=Policy(mode=mode))
        prepared = session.explain(ToolCall("c", "effects", {}, origin="model"))
        found[mode] = str(prepared.evaluation.decision)
        assert prepared.facts.basis == "declaration"
        if reads:
            assert any("nothing" in reason and "enforce" in reason for reason in prepared.evaluation.reasons)
    assert found == wanted


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "declared",
    [
        {"effect": Effect.READ_ONLY, "hosts": ("example.org",)},
        {"effect": Effect.READ_ONLY, "reads": ("https://example.org/x",)},
        {"effect": Effect.READ_ONLY, "reads": ("bob@host:/x",)},
        *(
            {"effect": Effect.READ_ONLY, "commands": (c,)}
            for c in ("curl example.org", "curl", "ssh host ls")
        ),
        *({"effect": Effect.READ_ONLY, "commands": (c,)} for c in ("rm out/a", "nobodyknows", "make", "git")),
        {"effect": Effect.READ_ONLY, "commands": ("ls",) * 1_000},
        {"writes": ("out/a",), "commands": ("curl example.org",)},
        {"writes": ("out/a",), "commands": ("curl",)},
        {"writes": ("out/a",), "commands": ("python3 x.py",)},
        {"writes": ("out/a",), "commands": ("rm -r out",)},
        {"writes": ("out/a",), "commands": ("cp x /etc/x",)},
        *(
            {"writes": ("out/a", path)}
            for path in ("https://example.org/x", "C:\\x", "bob@host:/x", " ", "%A%/x")
        ),
    ],
)
async def test_a_declaration_of_hosts_or_of_nonsense_is_asked_about(
    open_session: OpenSession, declared: dict[str, Any]
) -> None:
    for mode in MODES:
        made, recorder = Plain(gather_facts=facts(**declared)), Recorder()
        session = open_session(cast("Tool", made), policy=Policy(mode=mode), approver=recorder)
        for origin in ("model", "program"):
            await session.call("effects", {}, origin=origin)
        assert not made.runs
        assert len(recorder.requests) == (0 if mode == "plan" else 2)


@pytest.mark.parametrize(
    "declared",
    [
        {"effect": Effect.READ_ONLY},
        {"effect": Effect.READ_ONLY, "reads": ("data/a b.csv", "/usr/share/dict/words")},
        {"effect": Effect.READ_ONLY, "commands": ("git log --oneline", "ls -l data", "wc -l notes.md")},
        {"writes": ("out/a", "out/100%.txt", "-rf"), "commands": ("sort notes.md", "mkdir out")},
    ],
)
async def test_calls_that_stay_here_are_free_in_auto(
    open_session: OpenSession, declared: dict[str, Any]
) -> None:
    made = Plain(gather_facts=facts(**declared))
    session = open_session(cast("Tool", made), policy=Policy(mode="auto"), approver=Recorder())
    assert not (await session.call("effects", {}, origin="model")).is_error
    assert len(made.runs) == 1


async def test_typing_a_call_that_reads_from_a_host_is_consent(open_session: OpenSession) -> None:
    made = Plain(gather_facts=facts(effect=Effect.READ_ONLY, hosts=("example.org",)))
    session = open_session(cast("Tool", made), approver=Recorder())
    assert not (await session.call("effects", {}, origin="person")).is_error


def test_an_explicit_effect_is_one_or_is_refused() -> None:
    for make in (langchain_tool, pydantic_ai_tool):
        made: Any = make(effect="read_only")
        assert made.effect is Effect.READ_ONLY
        for wrong in ("harmless", 5, ["read_only"]):
            with pytest.raises(UsageError, match="not an effect"):
                make(effect=wrong)


def test_an_explicit_effect_stands_above_the_metadata(open_session: OpenSession) -> None:
    for made in (
        langchain_tool({"effect": Effect.READ_ONLY}, effect=Effect.DESTRUCTIVE),
        pydantic_ai_tool({"effect": Effect.READ_ONLY}, effect=Effect.DESTRUCTIVE),
    ):
        prepared = open_session(made).explain(ToolCall("c", "effects", {}, origin="model"))
        assert prepared.effect is Effect.DESTRUCTIVE


async def test_the_bridges_ask_about_such_tools_too(open_session: OpenSession) -> None:
    made = Plain()
    session = open_session(made, policy=Policy(mode="auto"), approver=Recorder())
    (theirs,) = langchain_tools(session)
    message = await theirs.ainvoke({"type": "tool_call", "id": "c1", "name": "effects", "args": {}})
    assert message.status == "error"
    (openai,) = openai_tools(session)
    assert "was not run" in str(await openai.on_invoke_tool(cast("Any", object()), "{}"))
    assert not made.runs
    (framework,) = openai_tools(session, asking="framework")
    assert callable(framework.needs_approval)
    assert await framework.needs_approval(cast("Any", None), {}, "c2")


def test_the_bridges_pass_declarations_on(open_session: OpenSession) -> None:
    session = open_session(function_tool(effect=Effect.READ_ONLY), MockTool("unsaid"))
    declared, unsaid = langchain_tools(session)
    assert declared.metadata == {"effect": Effect.READ_ONLY}
    assert not unsaid.metadata
    first, second = SessionToolset(session).definitions()
    assert first.metadata is not None
    assert second.metadata is not None
    assert (first.metadata["effect"], second.metadata["effect"]) == ("read_only", None)
    again = LangChainTool(declared)
    assert again.effect is Effect.READ_ONLY


# ---- paths in arguments


def _ways_to_name(workspace: str) -> dict[str, list[dict[str, Any]]]:
    """Return arguments that name `secrets/key`: those that a rule denies, and those it asks about."""
    key = "secrets/key"
    denied: list[dict[str, Any]] = [
        *(
            {"x": text}
            for text in (key, f" {key}", f"{key}\n", f"{key}\0", f'"{key}"', f"./secrets//./{key[8:]}")
        ),
        *(
            {"x": text}
            for text in (f"/{key}", f"/workspace/{key}", f"{workspace}/{key}", f"$WORKSPACE/{key}")
        ),
        *({"x": f"file://{place}/{key}"} for place in (workspace, "/workspace", "localhost/workspace", "")),
        *({"x": text} for text in ("secrets%2Fkey", "%73ecrets/key", "secrets%252Fkey", "secrets\\key")),
        *({"x": text} for text in (f"~/../..{workspace}/{key}", "secrets/*", "sec*/k?y", "{a,secrets}/key")),
        *(
            {"x": text}
            for text in (f"cat {key}", f"--file={key}", f"{key}:1", f"{key}#L1", f"@{key}", "pub/link")
        ),
        {"x": f'{{"path": "{key}"}}'},
        {"x": {key: 1}},
        {key: 1},
        {"x": [{"y": [[key]]}]},
        {"folder": "secrets", "name": "key"},
        {"folder": "/workspace/secrets/", "names": ["other", "key"]},
        {"x": {"root": workspace, "file": {"name": key}}},
        {"folder": str(workspace.rpartition("/")[0]), "name": f"{workspace.rpartition('/')[2]}/{key}"},
        {"x": "Please look at secrets/key. " * 30},
    ]
    asked: list[dict[str, Any]] = [
        *({"x": text} for text in ("secrets", "secrets/", ".", "./", "pub/..", "pub/folder", workspace, "/")),
        *({"x": text} for text in ("/workspace", "file:///workspace", "file:///workspace/secrets", "..")),
        *({"x": f"/proc/{which}"} for which in (f"self/cwd/{key}", f"self/root{workspace}/{key}")),
        {"x": [f"n{number}" for number in range(6_000)]},
    ]
    free: list[dict[str, Any]] = [
        *(
            {"x": text}
            for text in ("notes.md", "pub", "pub/p", "a question about secrets", "", "key", "%", "~")
        ),
        *(
            {"x": text}
            for text in ("https://example.com/secrets/key", "/proc/cpuinfo", "2 + 2", "[a-z]+(b|c)*")
        ),
        {"x": "Prose about the folder that is called secrets, and more words after it. " * 200},
        {"folder": "pub", "name": "key"},
        {"secrets": 1, "limit": 20, "rows": [[1, 2.5, None]] * 1_000},
    ]
    return {"denied": denied, "asked": asked, "free": free}


@pytest.mark.parametrize("kind", ["denied", "asked", "free"])
async def test_a_rule_about_a_path_sees_it_in_arguments_however_it_is_spelt(
    open_session: OpenSession, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/srv/home")
    recorder = Recorder()
    rules = [Rule(when={"paths": ["secrets/*"]}, decision=Decision.DENY, reason="No secrets.")]
    session = open_session(policy=Policy(mode="auto", rules=rules), approver=recorder)
    await session.start()
    workspace = session.workspace
    assert workspace is not None
    for folder in ("secrets", "pub"):
        (workspace / folder).mkdir()
    for name in ("secrets/key", "notes.md", "pub/p", "%"):
        (workspace / name).write_text("")
    (workspace / "pub/link").symlink_to("../secrets/key")
    (workspace / "pub/folder").symlink_to("../secrets")
    made = Plain(effect=Effect.READ_ONLY)
    session.registry.register(cast("Tool", made))
    for arguments in _ways_to_name(str(workspace))[kind]:
        made.runs.clear()
        recorder.requests.clear()
        result = await session.call("effects", arguments, origin="model")
        found = "free" if made.runs else "asked" if recorder.requests else "denied"
        assert (found, result.is_error) == (kind, kind != "free"), arguments


async def test_without_a_rule_such_arguments_are_free(open_session: OpenSession) -> None:
    recorder = Recorder()
    session = open_session(policy=Policy(mode="auto"), approver=recorder)
    made = Plain(effect=Effect.READ_ONLY)
    session.registry.register(cast("Tool", made))
    ways = _ways_to_name(str(session.workspace))
    for arguments in (one for group in ways.values() for one in group):
        assert not (await session.call("effects", arguments, origin="model")).is_error
    assert len(made.runs) == sum(map(len, ways.values()))
    assert not recorder.requests
