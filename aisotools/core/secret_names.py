"""Values that are secrets because of the name in front of them: variables, keys, headers, flags, prose.

A name is looked at once, with a bounded part of what stands around it, so that the work grows with the text.
A name counts as strong, medium or weak; the weaker, the more its value must look like a secret itself. What
stands for a value in documentation or code is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache

from aisotools.core.secret_shapes import (
    MARK_BEGINNING,
    MOST_JUDGED_CHARS,
    Secret,
    changes,
    is_placeholder,
    looks_random,
    with_rarest,
)


class Strength(IntEnum):
    """How much a name says about the value behind it."""

    WEAK = 1
    """As `token`: the value is a secret if it looks random."""
    MEDIUM = 2
    """As `access_token`: the value is a secret unless it is a word."""
    STRONG = 3
    """As `password`: the value is a secret unless it stands for one."""


NAME_SIGNS = (
    "pass",
    "pwd",
    "psk",
    "kennwort",
    "secret",
    "token",
    "key",
    "auth",
    "bearer",
    "credential",
    "cookie",
    "jwt",
    "sig",
    "sess",
    "sid",
    "appid",
    "_pat",
    "pw",
    "senha",
    "wachtwoord",
)
"""Parts of names of secrets, in small letters: a text without any of them has no value behind such a name."""

_RARE_AND_STEM = with_rarest(NAME_SIGNS)

_NAME_REST = re.compile(r"(?:[a-z0-9_-]|\.(?=[a-z]))*+")
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyz0123456789_-."
_MOST_NAME_CHARS = 64
_BARE_CHARS = 12
"""What is shorter, below `authorization`, is the name of a role or of a user."""

_SUFFIX = re.compile(
    r"[-_.]?(?:\d{1,3}|prod|production|stag(?:e|ing)|dev|test|live|old|new|current|prev|primary|secondary|main|read"
    r"|confirm(?:ation|ed)?|repeat(?:ed)?|again|write|admin|root|value|b64|base64|hash|text|plain|raw|encoded)$"
)
_STRONG_NAME = re.compile(
    r"(?:contrase[nñ]a|mot[_-]de[_-]passe|пароль|密码|密碼|パスワード|(?:seed|recovery)[-_.]?phrase|mnemonic"
    r"|passw(?:or)?d|passwrd|(?:^|[-_.])psk|passphrase|passcode|pwd|kennwort|passwort|senha|wachtwoord|secret|authorization"
    r"|(?:api|access|secret|private|account|auth|master|encrypt(?:ion)?|signing|shared|storage|service|deploy"
    r"|subscription|app|application|client|consumer|admin|hmac|webhook|license|server|bot|ingest|sharedaccess|security"
    r"|fernet|aes|hashing|preshared|pre[-_]shared)[-_.]?key(?:base)?|secret_key_base|auth[-_]?token|_password|_secret)$"
)
_MEDIUM_NAME = re.compile(
    r"(?:(?:access|refresh|id|session|api|bearer|security|personal|private|csrf|xsrf|bot|oauth|oauth2|github|gh|gitlab"
    r"|slack|hf|npm|pypi|vault|deploy|service|identity|push|device|reset|verification|login|user|admin|app|client|upload"
    r"|registry|job|runner|discord|telegram|consul|nomad|jwt|csrfmiddleware)[-_.]?token"
    r"|(?:^|[-_.])otp|(?:^|[-_.])pass|(?:^|[-_.])pw|^-{1,2}[a-z-]{0,20}pass|jwt[-_.]signing|private_key_id|(?:user|db|smtp|store|become|root|admin|ftp|mail|bind|sudo|ssh|require)[-_]?pass|masterauth|^[a-z_]{1,40}_pat$|credentials?|^-{1,2}token|^x-[a-z-]{0,30}(?:token|key)|_auth)$"
)
_WEAK_NAME = re.compile(
    r"(?:token|auth|sig|signature|sid|session|sess(?:ion)?[-_]?id|jwt|bearer|key|appid|secret[-_.]?id)$"
)
_NO_KEY = re.compile(
    r"(?:public|pub|primary|foreign|partition|sort|cache|row|hash|range|group|idempotency|natural|composite|unique"
    r"|surrogate|join|dict|map|object|s3|bucket|redis|storage_path|first|last|next|any|host|monkey|turkey|hockey|turn"
    r"|whiskey|donkey|jockey|key)[-_.]?key$"
)


@lru_cache(maxsize=2048)
def strength_of(name: str) -> Strength | None:
    """Return how much a name says about its value, such as that of a variable, a header, a key or a flag."""
    name = name[-_MOST_NAME_CHARS:]
    if not name.islower():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    name = name.replace(" ", "_")
    name = name.strip("_. ") if not name.startswith("-") else name.rstrip("_. -")
    short = _SUFFIX.sub("", name)
    for one in dict.fromkeys((name, short)):
        if _STRONG_NAME.search(one):
            return Strength.STRONG
        if _MEDIUM_NAME.search(one):
            return Strength.MEDIUM
        if _WEAK_NAME.search(one) and not _NO_KEY.search(one):
            return Strength.WEAK
    return None


@lru_cache(maxsize=2048)
def purpose_of(name: str) -> str:
    """Return in one word what a name of a secret is for."""
    name = name.lower()
    for kind, stems in (
        ("password", ("passw", "passphrase", "passcode", "pwd", "kennwort")),
        ("cookie", ("cookie",)),
        ("authorization", ("authorization",)),
        ("token", ("token", "bearer", "jwt")),
        ("secret", ("secret",)),
        ("key", ("key",)),
        ("signature", ("sig",)),
        ("session", ("sess", "sid")),
        ("password", ("pass", "pw", "senha", "wachtwoord")),
    ):
        if any(stem in name for stem in stems):
            return kind
    return "secret"


_Q = r"""\\{0,7}+["'`]"""
_SEPARATOR = re.compile(
    rf"""(?P<close>{_Q})?\]?[ \t]*+
    (?: # password: str = "..."
        (?::[ \t]*+|(?<=[ \t])(?=string|\[\]byte|str))[A-Za-z_\[\]][\w.\[\]|]{{0,40}}+[ \t]*+=[ \t]*+
        (?=[rbfu]{{0,2}}["'])
      # name: PASSWORD, value: ...
      | (?:</\w{{1,20}}>\s{{0,40}}<(?=value>)|,?\s{{0,40}}+(?:{_Q})?)value(?:{_Q})?[ \t]*+
        (?P<pair>[:=>])[ \t]*+
      # In YAML: password:, and the value in the next line
      | (?P<block>:[ \t]*+(?:!\w[\w-]{{0,20}}+[ \t]*+)?(?:[|>][+-]?[0-9]?[ \t]*+)?\r?\n[ \t]++)
      # password = ..., password [none]: ...
      | (?:[\[(][^\])\n]{{0,40}}[\])][ \t]*+)?(?P<op>:=|=>|={{1,3}}|:(?![:/]|[ \t]*+\r?\n))[ \t]*+
      # password%3D..., password <<< ...
      | (?P<encoded>%3[Dd]) | (?P<here><<<[ \t]*+)
      # <password>...</password>
      | (?P<tag>>)(?=[^<>\n]{{1,200}}</)
      # set("password", "..."), Token("...")
      | (?(close),\s{{0,40}}(?P<item>(?={_Q}))|(?!))
      | (?P<call>\()(?={_Q})
      # | password | ... |
      | (?P<cell>(?<=[ \t])\|[ \t]++)
      # token for me: ...
      | (?P<far>(?:(?<=[ \t])[^\n:="'|]{{1,40}})?:[ \t]*+(?:\r?\n[ \t]*+)?)(?=[\w.+/=~-]{{16}})
      # password is ..., password ...
      | (?P<prose>(?<=[ \t])(?:(?:(?:for|of|für)[ ](?:the[ ])?[\w.@-]{{1,40}}+[ ]++)?
        (?:is|was|lautet|set[ ]to|is[ ]set[ ]to|to)\b[ \t]*+:?[ \t]*+)?)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_FLAG_SEPARATOR = re.compile(rf"(?:=|{_Q}[ \t]*+,\s{{0,40}}+(?={_Q})|[ \t]++)")
_OPENING = re.compile(r"""(?P<prefix>[rbfuRBFU]{0,2}+)(?P<slashes>\\{0,7}+)(?P<quote>["'`])""")
_QUOTED = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)*+") for quote in "\"'`"}
_IN_ESCAPED = re.compile(r"""[^"'`\\\n]*+""")
_UNQUOTED = re.compile(r"""(?:[^\s"'`,;&\\<>]|\\(?![nrtu"'`\\]))*+""")
_LINE = re.compile(r"""[^\n\r"'`\\]*+""")
_WHOLE_LINE = re.compile(r"[^\n\r\\]*+")
_CREDENTIAL_MEMBERS = re.compile(
    r"""(?:[\w-]{1,40}=(?:\\?"[^"\\\n]{0,300}\\?"|[^\s,"'\\]{0,300})(?:,[ ]?)?)*+"""
)
_SCHEME = re.compile(
    r"(?i)(?:bearer|basic|token|digest|apikey|api-key|negotiate|bot|jwt|key|oauth|ssws|hawk|ntlm|aws4-hmac-sha256"
    r"|sharedkey|discogs|genie ?key|snyk|splunk|client-id)[ \t]++"
)
_CODE = re.compile(r"[A-Za-z_](?:\w|(?:\.|->|::)(?=[A-Za-z_]))*+(?:[(\[]|\?\.|!\.)")
_DOTTED = re.compile(r"(?=[^.]{1,200}\.)[A-Za-z_](?:[A-Za-z_]|\.(?=[A-Za-z_]))*+")
_VARIABLE = re.compile(r"[A-Za-z_]\w*+")
_HEX = re.compile(r"[0-9a-fA-F]*+")
_DIGEST = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{32,}+(?![0-9A-Za-z])")
_PATH = re.compile(r"[A-Za-z_-]*+(?:[./][A-Za-z_-]*+){1,20}")
_COOKIE = re.compile(r"[!#$%&*+.^_|~A-Za-z0-9-]{1,80}+=[^\s;]")
_ENDS_WORD = re.compile(r"""[ \t]*+(?:[\n\r"'`;&<]|\\|\Z|[\w.-]{1,40}+=)""")
_GOES_ON = re.compile(r"[ ,)\]};+%.]|\\n")
_ENDS_LINE = re.compile(r"""[ \t]*+(?:[\n\r,;})\]"'`<]|\\[nr]|\Z)""")


_FIRST_WORD = re.compile(r"(?:api|access|secret|private|account|auth|session|refresh|bearer|client) \Z")
_MOST_FIRST_CHARS = 9


def find_named(text: str) -> Iterator[Secret]:
    """Yield the values in a text that stand behind a name such as `password`, in order."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters become two
        lowered = "".join(char.lower() if char.isascii() else char for char in text)
    position = 0
    for stem in _places_of(lowered):
        if stem < position:
            continue
        window = lowered[max(stem - _MOST_NAME_CHARS, position) : stem]
        start = stem - (len(window) - len(window.rstrip(_NAME_CHARS)))
        if start and text[start - 1] == "\\" and lowered[start] in "nrt":
            start += 1
        end = position = _NAME_REST.match(lowered, stem).end()  # type: ignore[union-attr]  # matches nothing too
        if text.endswith(f"{MARK_BEGINNING}: ", 0, start):
            continue
        first = _FIRST_WORD.search(lowered, max(start - _MOST_FIRST_CHARS, 0), start)
        if first is not None:
            start = first.start()
        found = _value_of(text, start, end)
        if found is not None:
            yield found
            position = found.end


def _places_of(lowered: str) -> list[int]:
    """Return where names of secrets may be, in order."""
    places = []
    for rare, stem in _RARE_AND_STEM:
        place = lowered.find(stem) if rare in lowered else -1
        while place >= 0:
            places.append(place)
            place = lowered.find(stem, place + 1)
    places.sort()
    return places


def _value_of(text: str, start: int, end: int) -> Secret | None:
    """Return the secret that is the value of the name between two places, if there is one."""
    name = text[start:end]
    if text.endswith("${", 0, start) or name == "OLDPWD":
        return None
    if name == "PWD":  # the working folder, except in an address of a database
        return _member_of(text, start, end)
    if "cookie" in name.lower():
        return _cookies_of(text, start, end)
    strength = strength_of(name)
    if strength is None:
        return None
    is_flag = name.startswith("-")
    separator = (_FLAG_SEPARATOR.match(text, end) if is_flag else None) or _SEPARATOR.match(text, end)
    if separator is None:
        return _bearer_of(text, start, end)
    begin = separator.end()
    groups = separator.groupdict()
    operator = groups.get("op") or groups.get("pair") or "="
    is_prose = groups.get("prose") is not None
    opening = _OPENING.match(text, begin)
    if opening is not None:
        begin = opening.end()
        value_end = _end_of(_value_pattern(opening), text, begin)
        value = text[begin:value_end]
        if _GOES_ON.match(value) and not looks_random(value):
            return None  # the quote before it closed a text that ended with the name
    else:
        value_end = _end_of(_UNQUOTED, text, begin)
        value = text[begin:value_end]
    scheme = _SCHEME.match(text, begin)
    if name.lower().endswith("authorization"):
        return _authorization_of(text, begin, value_end, scheme, opening)
    if (is_prose or groups.get("item") is not None) and start and text[start - 1] == "/":
        is_secret = False  # /etc/passwd
    elif groups.get("item") is not None and not (start and text[start - 1] in "\"'`"):
        is_secret = False
    elif groups.get("far") is not None:
        is_secret = _is_random_token(value, strength, name)
    elif groups.get("block") is not None:
        is_alone = _ENDS_LINE.match(text, value_end + (opening is not None)) is not None
        is_secret = is_alone and not value.endswith(":") and _is_secret_alone(value, strength, name)
    elif groups.get("call") is not None:
        is_long = len(value) >= 24 and not _HEX.fullmatch(value)
        is_secret = is_long and _is_random_token(value, strength, name)
        is_secret = is_secret or _is_password(value, strength, name)
    elif groups.get("cell") is not None:
        is_secret = strength is Strength.STRONG and looks_mixed(value)
    elif is_prose:
        is_alone = _starts_line(text, start) and _ENDS_LINE.match(text, value_end) is not None
        is_secret = _is_secret_in_prose(value.rstrip(".,;:!?)") or value, strength, name)
        if "pass" in name.lower() and strength > Strength.WEAK:
            is_secret = is_secret or (is_alone and looks_mixed(value))
            is_quoted = opening is not None and opening["quote"] != "`" and " " not in value
            is_secret = is_secret or (
                is_quoted and strength is Strength.STRONG and _is_quoted_secret(value, strength)
            )
    elif groups.get("item") is not None:
        is_secret = (
            looks_mixed(value) if strength > Strength.WEAK else _is_random_token(value, strength, name)
        )
    elif opening is not None:
        is_secret = _is_quoted_secret(value, strength)
    else:
        spaced = text[separator.end() - 1] in " \t"
        is_secret = _is_bare_secret(
            text, begin, value_end, strength, name=name, operator=operator, is_flag=is_flag, spaced=spaced
        )
    return Secret(begin, _whole_end(text, begin, value_end, opening), purpose_of(name)) if is_secret else None


_MEMBER = re.compile(r"=(?P<value>[^\s;/~$\"'=]{4,200}+)")


def _member_of(text: str, start: int, end: int) -> Secret | None:
    """Return the value of a name in a list such as `SERVER=h;UID=app;PWD=...`."""
    found = _MEMBER.match(text, end) if start and text[start - 1] == ";" else None
    return Secret(*found.span("value"), "password") if found and not is_placeholder(found["value"]) else None


# Names that are not written in ASCII, or in several words.
_FOREIGN = re.compile(
    r"(?i:contrase[nñ]a|m[o]t de passe|пароль|hasło|lösenord|şifre|密码|密碼|パスワード|비밀번호)"
    r"[\"']?[ \t]{0,4}(?:[:=\uff1a]|(?:es|is|est|это|是)\b)[ \t]{0,4}[\"']?(?P<value>[^\s\"',;&<>]{1,200}+)"
)
FOREIGN_SIGNS = ("contrase", " de passe")
"""The same as `NAME_SIGNS`, for other languages; a text with other letters is never taken for plain."""


def find_foreign(text: str) -> Iterator[Secret]:
    """Yield the values behind names in other languages, in order."""
    if text.isascii():
        lowered = text.lower()  # far cheaper than the pattern
        if not any(sign in lowered for sign in FOREIGN_SIGNS):
            return
    for match in _FOREIGN.finditer(text):
        if looks_mixed(match["value"]):
            yield Secret(*match.span("value"), "password")


_DIGITS = re.compile(
    r"(?i:\b(?:pin|otp|totp|tan|(?:2fa|mfa|sms|login|access|one[ -]time|verification|security|confirmation"
    r"|authentication)[ _-](?:pass)?code|one[ -]time[ -]password))"
    r"(?:[:=]| (?:is|was|lautet)\b:?|(?<=fa code))[ \t]{0,4}[\"']?"
    r"(?P<value>[0-9]{4,8}+)(?![\w-]|[.,:][0-9])"
)
DIGITS_SIGNS = (
    *(f"{name}{sign}" for name in ("pin", "otp", "tan", "code", "word") for sign in (":", "=", " is")),
    " was",
    " lautet",
    "fa code ",
)
"""The same as `NAME_SIGNS`, for codes that are digits alone."""


def find_digits(text: str) -> Iterator[Secret]:
    """Yield PINs and one-time codes, in order: digits that nothing but their name tells from a number."""
    lowered = text.lower()
    for match in _DIGITS.finditer(text) if any(sign in lowered for sign in DIGITS_SIGNS) else ():
        yield Secret(*match.span("value"), "code")


def _is_random_token(value: str, strength: Strength, name: str) -> bool:
    is_any_key = strength is Strength.WEAK and name.lower().endswith("key")
    return looks_random(value) and not (is_any_key and (len(value) < 32 or _DIGEST.search(value)))


def _is_secret_alone(value: str, strength: Strength, name: str) -> bool:
    """Return whether a value that has a line of its own is a secret."""
    if strength is Strength.WEAK:
        return _is_random_token(value, strength, name)
    return looks_mixed(value) and " " not in value


def _is_password(value: str, strength: Strength, name: str) -> bool:
    """Return whether the only argument of a function such as `set_password` is a password."""
    if strength is not Strength.STRONG or "pass" not in name.lower() or " " in value:
        return False
    return len(value) >= 8 and changes(value) >= 1 and looks_mixed(value)


def _starts_line(text: str, start: int) -> bool:
    return start == 0 or text[start - 1] == "\n"


def _is_secret_in_prose(value: str, strength: Strength, name: str) -> bool:
    """Return whether a word is a secret that follows the name of one, as in `with password ...`."""
    if looks_random(value):
        return strength > Strength.WEAK or not name.lower().endswith("key")
    if strength is not Strength.STRONG or "pass" not in name.lower():
        return False
    return len(value) >= 8 and changes(value) >= 1 and any(map(str.isdigit, value)) and looks_mixed(value)


def _end_of(pattern: re.Pattern[str], text: str, begin: int, most_chars: int = MOST_JUDGED_CHARS) -> int:
    """Return where what `pattern` matches ends, at most so many characters later."""
    return pattern.match(text, begin, begin + most_chars).end()  # type: ignore[union-attr]  # matches nothing too


def _value_pattern(opening: re.Match[str] | None) -> re.Pattern[str]:
    """Return the pattern of a value up to its end: a quote that is escaped as often as the one before it."""
    if opening is None:
        return _UNQUOTED
    return _IN_ESCAPED if opening["slashes"] else _QUOTED[opening["quote"]]


def _whole_end(text: str, begin: int, end: int, opening: re.Match[str] | None) -> int:
    """Return where a secret ends of which only the beginning was judged."""
    return (
        end if end - begin < MOST_JUDGED_CHARS else _end_of(_value_pattern(opening), text, begin, len(text))
    )


def _cookies_of(text: str, start: int, end: int) -> Secret | None:
    if not text[start:end].lower().endswith("cookie"):
        return None
    is_flag = text.startswith("-", start)
    separator = (_FLAG_SEPARATOR.match(text, end) if is_flag else None) or _SEPARATOR.match(text, end)
    if separator is None:
        return None
    begin = separator.end()
    opening = _OPENING.match(text, begin)
    if opening is not None:
        begin = opening.end()
    if _COOKIE.match(text, begin) is None:
        return None
    is_quoted = opening is not None or (start > 0 and text[start - 1] in "\"'`")
    line = _LINE if is_quoted else _WHOLE_LINE
    value = text[begin : _end_of(line, text, begin)].partition("=")[2]
    return None if is_placeholder(value) else Secret(begin, _end_of(line, text, begin, len(text)), "cookie")


def _authorization_of(
    text: str, begin: int, end: int, scheme: re.Match[str] | None, opening: re.Match[str] | None
) -> Secret | None:
    if scheme is None:
        is_secret = looks_random(text[begin:end])
        return Secret(begin, _whole_end(text, begin, end, opening), "authorization") if is_secret else None
    begin, pattern = scheme.end(), _value_pattern(opening)
    name = scheme[0].strip().lower()
    if opening is None and name not in {"bearer", "basic", "token"} and "=" in text[begin : begin + 40]:
        pattern = _CREDENTIAL_MEMBERS
    value = text[begin : _end_of(pattern, text, begin)]
    if len(value) < 6 or is_placeholder(value) or "{" in value or value[0] == "+":
        return None
    if value.isalpha() and value.islower():  # prose
        return None
    return Secret(begin, _end_of(pattern, text, begin, len(text)), f"{name}-credentials")


def _bearer_of(text: str, start: int, end: int) -> Secret | None:
    """Return a credential that stands behind `Bearer` alone."""
    if text[start:end].lower() != "bearer" or not text.startswith(" ", end):
        return None
    begin = end + 1
    value_end = _end_of(_UNQUOTED, text, begin)
    is_secret = looks_random(text[begin:value_end])
    return Secret(begin, _whole_end(text, begin, value_end, None), "token") if is_secret else None


_SHORT_TOKEN = re.compile("(?=[^a-z]{0,15}[a-z])(?=[^A-Z]{0,15}[A-Z])[A-Za-z0-9]{12,15}")


def _is_short_token(value: str) -> bool:
    """Return whether a quoted value is too short to look random by itself, and no word either."""
    return _SHORT_TOKEN.fullmatch(value) is not None and changes(value) >= 3


def _is_quoted_secret(value: str, strength: Strength) -> bool:
    if strength is Strength.WEAK:
        return looks_random(value) or _is_short_token(value)
    if not value or is_placeholder(value) or ("{" in value and "}" in value):
        return False
    head = value[:MOST_JUDGED_CHARS]
    if " " in head.strip():
        words = head.split()
        if len(words) >= 3 and (head[0].isupper() or head[-1] in ".?!:"):
            return False
        if any(stem in head.lower() for stem in ("passw", "secret", "token", "key")):
            return False
    return strength is Strength.STRONG or looks_mixed(value)


def looks_mixed(value: str) -> bool:
    """Return whether a value is not a word: letters beside digits or signs, or very long."""
    value = value[:MOST_JUDGED_CHARS]
    if len(value) < 6 or is_placeholder(value) or _CODE.match(value) or _DOTTED.fullmatch(value):
        return False
    has_letter, has_digit = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    return (
        (has_letter and has_digit)
        or len(value) >= 40
        or (has_letter and re.search(r"[^\w./:-]", value) is not None)
    )


def _is_bare_secret(
    text: str,
    begin: int,
    end: int,
    strength: Strength,
    *,
    name: str,
    operator: str,
    is_flag: bool,
    spaced: bool,
) -> bool:
    """Return whether a value without quotes is a secret, and neither code nor prose."""
    value = text[begin : min(end, begin + MOST_JUDGED_CHARS)]
    if strength is Strength.WEAK:
        is_parameter = text.startswith(("?", "&"), max(begin - len(name) - 2, 0))
        if not (name.isupper() or is_flag or is_parameter):
            return _is_random_token(value, strength, name)
        return looks_random(value)
    if is_placeholder(value) or (is_flag and value.startswith(("id=", "src=", "type=", "env=", "source="))):
        return False
    value = value.rstrip(")]}.:!?") or value
    if (
        is_placeholder(value)
        or _CODE.match(value)
        or _DOTTED.fullmatch(value)
        or value.startswith(("./", "~/", "-"))
    ):
        return False
    if value.startswith("/") and not looks_random(value):
        return False
    if strength is Strength.MEDIUM and not looks_mixed(value):
        return False
    is_word = _VARIABLE.fullmatch(value) is not None and not any(map(str.isdigit, value))
    if operator == ":":
        if is_word:
            return (
                len(value) >= 5
                and value.islower()
                and _ENDS_LINE.match(text, end) is not None
                and not _is_like_a_name(value)
            )
        if not any(map(str.isalpha, value)):
            return len(value) >= 4 and value.isdigit() and _ENDS_LINE.match(text, end) is not None
        return len(value) >= 4 and _PATH.fullmatch(value) is None
    if is_word:
        if name.isupper() and not spaced:  # as in a file of environment variables
            return len(value) >= 4
        if _is_like_a_name(value) or (text.startswith((",", ")"), end) and not is_flag):
            return False
        return len(value) >= 4 and (is_flag or (not spaced and _ENDS_WORD.match(text, end) is not None))
    if spaced and not is_flag and _VARIABLE.fullmatch(value) and (len(value) < 6 or _is_like_a_name(value)):
        return False
    return len(value) >= 3


def _is_like_a_name(value: str) -> bool:
    lowered = value.lower()
    return any(stem in lowered for stem in ("pass", "pw", "token", "secret", "key", "cred", "auth"))


def is_secret_value(name: str, value: str) -> bool:
    """Return whether a text that is the value of a name, as in a mapping, is a secret."""
    if "cookie" in name.lower():
        return _COOKIE.match(value) is not None and not is_placeholder(value.partition("=")[2])
    strength = strength_of(name)
    if strength is None:
        return False
    if name.lower().endswith("authorization"):
        scheme = _SCHEME.match(value)
        found = _authorization_of(value, 0, len(value), scheme, None)
        is_bare = scheme is None and " " not in value and len(value) >= _BARE_CHARS
        return found is not None or (is_bare and looks_mixed(value))
    if strength is Strength.WEAK and name.lower().endswith("key"):
        return False
    return _is_quoted_secret(value, strength)
