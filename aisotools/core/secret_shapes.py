r"""What secrets look like in text: shapes of tokens, private keys, addresses, and values that are no secrets.

Threat
    Whatever a model, a page or a tool says is looked at here, on the session's event loop: a text made to
    be slow must not hold it up.
Mechanism
    Every search goes forward through the text. A shape begins with literal characters at the beginning of a
    word, and takes in the whole word without giving back any of it, so each word is tried at most a few
    times. How far a pattern looks back or tries again is bounded, here, in `aisotools.core.secret_names` and
    in `aisotools.core.secret_commands`.
When it fails
    A secret without a known shape or name stays readable; an innocent text that looks like one is masked.
    `tests/data/secret_shapes.toml` has examples, and both rates are printed by their test.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

MARK_BEGINNING = "[redacted"
"""How every mark begins that stands for a secret."""


def mark(kind: str) -> str:
    """Return what stands for a secret of a kind, such as `[redacted: password]`."""
    return f"{MARK_BEGINNING}: {kind}]"


@dataclass(frozen=True, slots=True)
class Secret:
    """A place in a text where a secret stands.

    Attributes:
        start: Index of its first character.
        end: Index of the character after it.
        kind: What it is, in one word.
    """

    start: int
    end: int
    kind: str


# ---- shapes of tokens

_WORD = "[A-Za-z0-9_-]"
_ALNUM = "[A-Za-z0-9]"
_BASE58 = "[1-9A-HJ-NP-Za-km-z]"
_PEM_IN_BASE64 = (  # what follows `-----BEGIN`: PRIVATE KEY, or the same with RSA, EC, OPENSSH, ...
    "BQUklWQVRFIEtFWS0t|BSU0EgUFJJVkFURSBLRVkt|BFQyBQUklWQVRFIEtFWS0t|BEU0EgUFJJVkFURSBLRVkt"
    "|BPUEVOU1NIIFBSSVZBVEUgS0VZ|BFTkNSWVBURUQgUFJJVkFURSBLRVkt|BQR1AgUFJJVkFURSBLRVkg"
)

# Kind, what the word begins with (a pattern of fixed width), how it goes on.
_TOKENS: tuple[tuple[str, str, str], ...] = (
    # OpenAI, Anthropic and many after them. Words with hyphens, such as classes of CSS, are none.
    ("api-key", "sk-", rf"(?:proj|ant|svcacct|admin|or|live|test|lf)-{_WORD}{{12,}}+"),
    ("api-key", "sk-", rf"(?=[A-Za-z]{{0,40}}+[0-9]|[A-Za-z]{{20}}){_ALNUM}{{16,}}+"),
    ("api-key", "sk-", rf"(?=[a-z0-9_-]{{0,40}}+[A-Z])(?=[A-Za-z_-]{{0,40}}+[0-9]){_WORD}{{20,}}+"),
    ("api-key", "gsk_", f"{_ALNUM}{{32,}}+"),
    ("api-key", "nvapi-", f"{_WORD}{{32,}}+"),
    ("api-key", "xai-", f"{_ALNUM}{{32,}}+"),
    ("api-key", "pplx-", f"{_ALNUM}{{32,}}+"),
    ("api-key", "r8_", f"{_ALNUM}{{32,}}+"),
    ("api-key", "lin_api_", f"{_ALNUM}{{20,}}+"),
    ("api-key", "PMAK-", f"{_WORD}{{32,}}+"),
    ("api-key", "NRAK-", "[A-Z0-9]{20,}+"),
    ("api-key", "rubygems_", "[a-f0-9]{32,}+"),
    ("api-key", "figd_", f"{_WORD}{{20,}}+"),
    ("api-key", "ntn_", f"{_ALNUM}{{32,}}+"),
    ("api-key", "secret_", rf"{_ALNUM}{{43}}(?!{_WORD})"),  # Notion
    ("airtable-token", "pat", rf"{_ALNUM}{{14}}\.[0-9a-f]{{64}}"),
    ("facebook-token", "EAA", f"[A-Z]{_ALNUM}{{80,}}+"),
    ("api-key", "sntrys_", f"{_WORD}{{20,}}+"),
    ("api-key", "tskey-", f"{_WORD}{{16,}}+"),
    ("api-key", "sq0atp-", f"{_WORD}{{20,}}+"),
    ("api-key", "sq0csp-", f"{_WORD}{{20,}}+"),
    ("api-key", "ATATT3x", f"{_WORD}{{40,}}+"),
    ("api-key", "key-", rf"[0-9a-f]{{32}}(?!{_WORD})"),  # Mailgun
    ("age-key", "AGE-SECRET-KEY-1", "[A-Z0-9]{40,}+"),
    ("stripe-key", "sk_live_", f"{_ALNUM}{{10,}}+"),
    ("stripe-key", "sk_test_", f"{_ALNUM}{{10,}}+"),
    ("stripe-key", "rk_live_", f"{_ALNUM}{{10,}}+"),
    ("stripe-key", "rk_test_", f"{_ALNUM}{{10,}}+"),
    ("webhook-secret", "whsec_", "[A-Za-z0-9+/=]{16,}+"),
    ("github-token", "gh[oprsu]_", "[A-Za-z0-9_]{16,}+"),
    ("github-token", "github_pat_", "[A-Za-z0-9_]{16,}+"),
    ("gitlab-token", "glpat-", f"{_WORD}{{16,}}+"),
    ("gitlab-token", "gl[dr]t-", f"{_WORD}{{16,}}+"),
    ("gitlab-token", "gl(?:ptt|cbt|imt|soa)-", f"{_WORD}{{16,}}+"),
    ("slack-token", "xox[abceoprs]-", "[A-Za-z0-9-]{10,}+"),
    ("slack-token", "xapp-", "[0-9]-[A-Za-z0-9-]{10,}+"),
    ("telegram-token", r"api\.telegram\.org/bot", f"[0-9]{{6,12}}:{_WORD}{{30,}}+"),
    ("api-key", "tvly-", f"(?:dev-|prod-)?{_ALNUM}{{20,}}+"),
    ("api-key", "lsv2_[ps][tk]_", "[a-f0-9_]{32,}+"),
    ("webhook", r"hooks\.slack\.com/services/", "[A-Za-z0-9_/-]{20,}+"),
    ("webhook", "discord.com/api/webhooks/", f"[0-9]{{10,}}+/{_WORD}{{20,}}+"),
    ("aws-key", "AKIA", f"[A-Z0-9]{{16}}(?!{_WORD})"),
    ("aws-key", "ASIA", f"[A-Z0-9]{{16}}(?!{_WORD})"),
    ("google-key", "AIza", f"{_WORD}{{30,}}+"),
    ("google-token", r"ya29\.", "[A-Za-z0-9_.-]{20,}+"),
    ("google-token", "1//0", f"{_WORD}{{30,}}+"),
    ("google-secret", "GOCSPX-", f"{_WORD}{{20,}}+"),
    ("huggingface-token", "hf_", f"{_ALNUM}{{20,}}+"),
    ("npm-token", "npm_", f"{_ALNUM}{{20,}}+"),
    ("pypi-token", "pypi-AgE", f"{_WORD}{{16,}}+"),
    ("sendgrid-key", r"SG\.", rf"{_WORD}{{16,}}+\.{_WORD}{{16,}}+"),
    ("vault-token", r"hv[bsr]\.", f"{_WORD}{{20,}}+"),
    ("digitalocean-token", "dop_v1_", "[a-f0-9]{32,}+"),
    ("shopify-token", "shp(?:at|ca|pa|ss)_", "[a-fA-F0-9]{32,}+"),
    ("databricks-token", "dapi", rf"[a-f0-9]{{32}}(?!{_ALNUM})"),
    ("doppler-token", r"dp\.(?:pt|st|ct|sa)\.", rf"(?:[a-z0-9_-]{{1,40}}\.)?{_ALNUM}{{32,}}+"),
    ("twilio-key", "SK", rf"[0-9a-f]{{32}}(?!{_WORD})"),
    ("discord-token", "M[DTjz]", rf"{_WORD}{{21,28}}+\.{_WORD}{{6}}\.{_WORD}{{27,}}+"),
    ("discord-token", "N[DTjz]", rf"{_WORD}{{21,28}}+\.{_WORD}{{6}}\.{_WORD}{{27,}}+"),
    ("discord-token", "O[DT]", rf"{_WORD}{{21,28}}+\.{_WORD}{{6}}\.{_WORD}{{27,}}+"),
    ("wallet-key", "xprv", f"{_BASE58}{{100,}}+"),
    ("wallet-key", "yprv", f"{_BASE58}{{100,}}+"),
    ("wallet-key", "zprv", f"{_BASE58}{{100,}}+"),
    ("private-key", "LS0tLS1CRUdJTi", f"(?:{_PEM_IN_BASE64})[A-Za-z0-9+/=]{{16,}}+"),
    ("docker-token", "dckr_[po]at_", f"{_WORD}{{20,}}+"),
    ("grafana-token", "glsa_", "[A-Za-z0-9_]{32,}+"),
    ("password-hash", r"\$argon2", r"i?d?\$v=[0-9]{1,3}\$[A-Za-z0-9=,]{1,60}+\$[A-Za-z0-9+/$]{10,}+"),
    ("password-hash", r"\$2[aby]\$[0-9][0-9]\$", "[A-Za-z0-9./]{53}"),
    ("password-hash", r"\$[156y]\$", "[A-Za-z0-9./=,]{1,60}+\\$[A-Za-z0-9./$]{20,}+"),
    ("jwt", "eyJ", rf"{_WORD}{{8,}}+\.{_WORD}{{8,}}+\.[A-Za-z0-9_.-]*+"),
)


@functools.cache  # when a text has such a word: most sessions never need most of them
def _compile(beginning: str, rest: str) -> re.Pattern[str]:
    r"""Return a pattern of words that begin with `beginning`.

    A word begins after another character, after an escaped one as in JSON within JSON (`\n`, `\u0022`), or
    after one that is encoded for a URL (`%3D`). The pattern begins with literal characters, which a search
    finds fast, and looks back from behind them.
    """
    begins = "|".join(
        (
            rf"(?<!{_WORD}{beginning})",
            rf"(?<=\\[bfnrt]{beginning})",
            rf"(?<=%[0-9A-Fa-f][0-9A-Fa-f]{beginning})",
            rf"(?<=\\u00[0-9A-Fa-f][0-9A-Fa-f]{beginning})",
        )
    )
    return re.compile(rf"{beginning}(?:{begins}){rest}{_WORD}*+")


def _by_hint() -> Iterator[tuple[str, tuple[tuple[str, str, str], ...]]]:
    """Yield the literal beginnings of tokens, each with its kinds and the parts of their patterns."""
    shapes: dict[str, list[tuple[str, str, str]]] = {}
    for kind, beginning, rest in _TOKENS:
        hint = re.split(r"[\[(]", beginning)[0].replace("\\", "")
        shapes.setdefault(hint, []).append((kind, beginning, rest))
    for hint, parts in shapes.items():
        yield hint, tuple(parts)


def rarest(word: str) -> str:
    """Return the character of a word that is the rarest in texts.

    Where it is missing, so is the word. Looking for one character takes a fiftieth of the time of a word.
    """
    return min(word, key=_FROM_RARE_TO_COMMON.find)


def with_rarest(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return words, each behind its rarest character; of an empty one, that is empty, too."""
    return tuple((rarest(word) if word else "", word) for word in words)


_FROM_RARE_TO_COMMON = "zqxjkvbpygfwmculdrhsnioate "  # what is not among these is rarer


def _by_rarest() -> Iterator[tuple[str, str, tuple[tuple[str, str, str], ...]]]:
    """Yield the same, each behind the character that is looked for first."""
    for hint, shapes in _by_hint():
        yield rarest(hint), hint, shapes


# A text without a hint has no such token. Searching the hints is far cheaper than trying the patterns.
_SHAPES = tuple(_by_rarest())


# What is recognised by characters in the middle.
_INNER_SHAPES = (
    ("Q~", "azure-secret", re.compile(r"[0-9]Q~[A-Za-z0-9_~.-]{31,}+")),
    ("code=", "code", re.compile(r"(?<=[?&]code=)(?=[^&\s]{0,60}[0-9])(?=[^&\s]{0,60}[A-Z])[\w./%~-]{20,}+")),
    (
        "Private-Lines:",
        "private-key",
        re.compile(r"(?<=Private-Lines: )\d{1,4}\s(?:[A-Za-z0-9+/=]{16,64}\s?)++"),
    ),
    # A search for a pattern that begins with a few characters skips all others.
    (
        "",
        "wallet-key",
        re.compile(rf"[5KL](?<!{_WORD}[5KL])(?:(?<=5)|(?<=[KL]){_BASE58}){_BASE58}{{50}}(?!{_WORD})"),
    ),
    (":AA", "telegram-token", re.compile(rf"(?<=[0-9]{{8}}):AA{_WORD}{{33}}(?!{_WORD})")),
)
_IN_DOCUMENTATION = re.compile(r"([xX0*.#-])\1{7}|EXAMPLE|(?i:your[-_]|abcdef123456|example)")
MOST_JUDGED_CHARS = 200
"""So much of a value is looked at to judge whether it is a secret."""


TOKEN_SIGNS = r"[A-Za-z0-9_-]{14}|://|KEY|['\"][^@'\"\s]{4,270}@"  # noqa: S105 - a pattern
"""Pattern without which a short text has no token."""

SHORT_CHARS = 300
"""A shorter text is searched for signs first."""

_SIGNS = re.compile(TOKEN_SIGNS)


def find_tokens(text: str) -> list[Secret]:
    """Return the tokens of known shapes in a text, in no particular order."""
    found: list[Secret] = []
    if len(text) < SHORT_CHARS and _SIGNS.search(text) is None:
        return found
    for rare, hint, shapes in _SHAPES:
        if rare in text and hint in text:
            for kind, beginning, rest in shapes:
                found += [
                    Secret(*match.span(), kind)
                    for match in _compile(beginning, rest).finditer(text)
                    if _IN_DOCUMENTATION.search(match[0][:MOST_JUDGED_CHARS]) is None
                ]
    for hint, kind, pattern in _INNER_SHAPES:
        if hint in text:
            found += [Secret(*match.span(), kind) for match in pattern.finditer(text)]
    if "PRIVATE KEY" in text:
        found += _find_private_keys(text)
    if "://" in text:
        found += _find_passwords_in_urls(text)
    if "@" in text:
        found += _find_passwords_of_hosts(text)
    return found


# ---- private keys

# Lines of base64 and the headers between them, also with line ends that are escaped, quoted or indented.
_KEY_LINES = r"(?:[A-Za-z0-9+/=\s>#|*]|\\{1,8}[nrt]|(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\]{0,100})*+"
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,18}?PRIVATE KEY(?: BLOCK)?-----"
    rf"(?P<lines>{_KEY_LINES})(?P<end>-----END [A-Z0-9 ]{{0,40}}+-----)?"
)
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,18}?PRIVATE KEY(?: BLOCK)?-----")
_LEAST_KEY_CHARS = 16
_MOST_TAIL_CHARS = 16_384
_KEY_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\n\r\\"


_KEY_LINE = re.compile(r"[\s>#|*+]*+(?:[A-Za-z0-9+/=]*+|(?:Proc-Type|DEK-Info|Version|Comment):.*+)\s*+")


def begins_private_key(line: str) -> bool:
    """Return whether a private key begins in this line and does not end there."""
    return "-----BEGIN " in line and "PRIVATE KEY" in line and not ends_private_key(line)


def ends_private_key(line: str) -> bool:
    """Return whether a private key ends in this line."""
    return "-----END " in line


def is_private_key_line(line: str) -> bool:
    """Return whether a line may be one of those inside of a private key, or its last."""
    return _KEY_LINE.fullmatch(line) is not None or ends_private_key(line)


def _find_private_keys(text: str) -> Iterator[Secret]:
    """Yield private keys, also those of which the beginning or the end was cut off."""
    seen = 0
    for match in _PRIVATE_KEY.finditer(text):
        if len(match["lines"]) >= (1 if match["end"] else _LEAST_KEY_CHARS):
            yield Secret(*match.span(), "private-key")
        seen = match.end()
    for match in _PRIVATE_KEY_END.finditer(text):
        if match.start() < seen:
            continue
        tail = text[max(match.start() - _MOST_TAIL_CHARS, seen) : match.start()]
        start = match.start() - (len(tail) - len(tail.rstrip(_KEY_CHARS)))
        if match.start() - start >= _LEAST_KEY_CHARS:
            yield Secret(start, match.end(), "private-key")
        seen = match.end()


# ---- addresses with a password

_URL_PASSWORD = re.compile(r"""://[^\s/:@"'<>`]{0,200}+:(?P<password>[^\s/@"'<>`]++)@""")
_URL_TOKEN = re.compile(rf"://(?P<password>{_WORD}{{20,}}+)@")


def _find_passwords_in_urls(text: str) -> Iterator[Secret]:
    for match in _URL_PASSWORD.finditer(text):
        if not is_placeholder(match["password"]):
            yield Secret(*match.span("password"), "password")
    for match in _URL_TOKEN.finditer(text):
        if looks_random(match["password"]):
            yield Secret(*match.span("password"), "token")


# Quoted without the scheme, as exceptions and parsed addresses show them: a pattern of what stands before it.
_HOST = r"@[A-Za-z0-9][A-Za-z0-9.-]{0,253}(?::\d{1,5})?[/'\"?#]"
_HOST_PASSWORD = re.compile(
    r"""(?<=['"])(?!(?:mailto|sips?|xmpp|acct|tel|urn|cid):)"""
    r"""[\w.+%-]{1,64}+:(?P<password>[^\s/@:'"<>`]{4,200}+)""" + _HOST
)
_PORT_PASSWORD = re.compile(
    r"""(?:base 10|port|integer value as)\W{1,4}['"](?P<password>[^\s@:'"<>`]{4,200}+)""" + _HOST
)


def _find_passwords_of_hosts(text: str) -> Iterator[Secret]:
    for pattern in (_HOST_PASSWORD, _PORT_PASSWORD):
        for match in pattern.finditer(text):
            if not is_placeholder(match["password"]) and not match["password"].isalpha():
                yield Secret(*match.span("password"), "password")


# ---- values that are no secrets

_PLACEHOLDER = re.compile(
    r"""
      (?: \[redacted | [<$%{(\[] | .{0,40}?<[^<>]{0,60}+> | .{0,40}?\$[{(] ).*+ # <token>, $TOKEN, {{ token }}
    | [\W_]*+ | .{0,40}?(?:\.\.\.|…)                                           # ***, -----, sk-...
    | ([xX0.*\#-])\1{2,}+
    | .{0,20}?(?:your|insert|enter|put|paste|replace|change)[-_ ]?(?:own[-_ ]?)?
      (?:api|key|token|secret|pass|pw|auth|access|client|value|real|with|me\b|here|this|it\b|one|email|personal)
      [\w. -]{0,80}+
    | (?:my|the|some|a|new|old|this|that|user|db|test|admin|root|bot)?[-_]?
      (?:pass(?:word|wd|phrase|code)?|pwd|pw|secrets?|tokens?|key|auth|creds?|credentials?|sid|session|sig
      |api[-_]?(?:key|token)|access[-_]?(?:key|token)|client[-_]?secret|secret[-_]?key)
      [-_]?(?:here|value|goes[-_]?here|name|str|text|data)?
    | .{0,40}?(?:example|placeholder|changeme|changeit|redacted|masked|dummy|not[-_ ]?set|todo|fixme|xxxx)
      .{0,40}+
    | (?:none|null|nil|undefined|true|false|yes|no|on|off|empty|unset|missing|required|optional|invalid
      |incorrect|wrong|expired|forgot|forgotten|vergessen|vergeten|failed|error|unknown|default|string|str|text|int|integer|bytes|bool|boolean|object|array
      |varchar|char|number|any|auto|basic|bearer|digest|include|omit|same-origin|local|file|env|prompt|input|ask
      |stdin|enabled|disabled|value|ok|set|type|name|field|hash|hidden|random|generated|sample|passwort|kennwort
      |contrase[nñ]a|senha|wachtwoord|m[o]t\ de\ passe|пароль|密码|パスワード)[.!?:]?
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_CAPITALS = re.compile("[A-Z][A-Z_]*+")


def is_placeholder(value: str) -> bool:
    """Return whether a value stands for a secret, in documentation or as a variable, or cannot be one."""
    value = value.strip()[:MOST_JUDGED_CHARS]
    return (_PLACEHOLDER.fullmatch(value) or _CAPITALS.fullmatch(value)) is not None


_RUN = re.compile(r"[A-Za-z0-9]++")
_RANDOM = re.compile(r"[A-Za-z0-9_+/=.~%:-]++")
_LEAST_RANDOM_CHARS = 16
_LEAST_RUN_CHARS = 8


def looks_random(value: str) -> bool:
    """Return whether a value looks like made by a machine: letters and digits mixed, without words."""
    value = value[:MOST_JUDGED_CHARS]
    if len(value) < _LEAST_RANDOM_CHARS or _RANDOM.fullmatch(value) is None or is_placeholder(value):
        return False
    return any(len(run) >= _LEAST_RUN_CHARS and changes(run) >= 2 for run in _RUN.findall(value))


def changes(run: str) -> int:
    """Return how often letters and digits, or small letters and capitals within a word, take turns."""
    kinds = ["d" if char.isdigit() else "u" if char.isupper() else "l" for char in run]
    return sum(one != other and (one, other) != ("u", "l") for one, other in pairwise(kinds))
