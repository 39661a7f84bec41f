"""Commands of bash itself: variables, options, tests, jobs."""

from __future__ import annotations

import re
from itertools import pairwise

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, name_set
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    Words,
    option_verdict,
    parse_options,
)
from aisotools.policy.shell.variables import (
    is_harmless_for_programs,
    is_harmless_in_shell,
    is_variable_name,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    has_effect,
    merge,
    uncertain,
)

_PRINTF_STORES = re.compile(r"%[-+ #0-9.*'hlLjzt]*n")
_SET_LETTERS = frozenset("euxfvnCb")
_SET_NAMES = name_set("errexit nounset xtrace pipefail noglob verbose noclobber noexec notify")
_SHOPT_NAMES = name_set(
    "nullglob dotglob globstar nocaseglob nocasematch failglob inherit_errexit globskipdots"
)
_CHANGES_PARSING = "it changes how the shell reads what follows"


def _assignment_verdict(word: Word, *, for_programs: bool = False) -> CommandVerdict:
    """Return the verdict on a word that names a variable to set, perhaps with `=value`."""
    name, equals, value = word.prefix.partition("=")
    is_plain = (
        is_variable_name(name)
        and (equals or word.text is not None)
        and not value.startswith("(")
        and not word.may_split
    )
    is_harmless = is_harmless_for_programs if for_programs else is_harmless_in_shell
    # The shell itself sets `_` with each command: what it is set to, here or with a loop, means nothing.
    is_discarded = name == "_" and not for_programs
    return (
        NO_EFFECT
        if is_plain and (is_discarded or is_harmless(name))
        else uncertain(f"it sets {word.display}")
    )


def _classify_printf(words: Words) -> CommandVerdict:
    rest = list(words[1:])
    verdicts = []
    if rest and rest[0].text == "-v":
        if len(rest) > 1 and rest[1].text is not None:
            verdicts.append(_assignment_verdict(rest[1]))
        else:
            verdicts.append(uncertain("it sets a variable"))
        rest = rest[2:]
    elif rest and rest[0].text == "--":
        rest = rest[1:]
    elif rest and rest[0].may_be_option:
        return uncertain(f"{rest[0].display} may be an option")
    # %n stores a number in the variable that its argument names.
    if rest and (rest[0].text is None or _PRINTF_STORES.search(rest[0].text.replace("%%", ""))):
        verdicts.append(uncertain("a format can set variables"))
    return merge(verdicts)


def _classify_read(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-rs -a: -d: -n: -N: -p: -t: -u:")
    array = parsed.value("-a")
    variables = [*parsed.operands, array] if array is not None else parsed.operands
    return merge([option_verdict(parsed), *map(_assignment_verdict, variables)])


def _classify_mapfile(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-t -d: -n: -O: -s: -u: -C:x -c:")
    return merge([option_verdict(parsed), *map(_assignment_verdict, parsed.operands)])


def _classify_declare(words: Words) -> CommandVerdict:
    exports = words[0].text == "export"
    parsed = parse_options(words, "-pnaAr" if exports else "-aAprglufFx")
    if parsed.has("-p") and not any("=" in word.display for word in parsed.operands):
        return option_verdict(parsed)
    for_programs = exports or parsed.has("-x")
    assignments = [_assignment_verdict(word, for_programs=for_programs) for word in parsed.operands]
    return merge([option_verdict(parsed), *assignments])


def _classify_unset(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-v")
    variables = [word for word in parsed.operands if "=" not in word.prefix]
    return merge([option_verdict(parsed), *map(_assignment_verdict, variables)])


def _classify_set(words: Words) -> CommandVerdict:
    rest = list(words[1:])
    while rest and (rest[0].text or "").startswith(("-", "+")) and rest[0].text not in {"--", "-"}:
        letters = rest.pop(0).display[1:]
        name = rest.pop(0) if letters.endswith("o") and rest else None
        if not set(letters.rstrip("o")) <= _SET_LETTERS or (name is not None and name.text not in _SET_NAMES):
            return uncertain(_CHANGES_PARSING)
    if rest and rest[0].may_be_option and rest[0].text not in {"--", "-"}:
        return uncertain(f"{rest[0].display} may be an option")
    return NO_EFFECT


def _classify_shopt(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-supqo")
    asks = not parsed.has("-s", "-u") and not any(word.may_split for word in parsed.operands)
    all_harmless = asks or all(word.text in _SHOPT_NAMES for word in parsed.operands)
    return merge([option_verdict(parsed), NO_EFFECT if all_harmless else uncertain(_CHANGES_PARSING)])


def _shows_with(options: str, *, operands: str = ".", needs: str = "", alone: bool = True) -> Classifier:
    """Return a classifier for builtins that only print with these options, and with `needs` among them.

    Args:
        options: The options with which the builtin prints.
        operands: `-` if it has another effect on operands.
        needs: The option without which it does something else.
        alone: Whether it prints without any argument, too.
    """

    def classify(words: Words) -> CommandVerdict:
        parsed = parse_options(words, options)
        name = words[0].display
        shows = (not needs or parsed.has(needs)) and not (operands == "-" and parsed.operands)
        is_alone = len(words) == 1
        doubt = (
            NO_EFFECT
            if (alone if is_alone else shows and parsed.options)
            else uncertain(f"{name} changes how commands are read")
        )
        return merge([option_verdict(parsed), doubt])

    return classify


def _classify_alias(words: Words) -> CommandVerdict:
    lists = len(words) < 2 or words[1].text == "-p"
    return NO_EFFECT if lists else uncertain("it changes what command names mean")


def _classify_hash(words: Words) -> CommandVerdict:
    return option_verdict(parse_options(words, "-rlt -p:u -d!u"))


def _classify_history(words: Words) -> CommandVerdict:
    if len(words) < 2 or (words[1].text or "").isdecimal():
        return NO_EFFECT
    if words[1].prefix.startswith(("-c", "-d")):
        return has_effect(Effect.DESTRUCTIVE, "it deletes the history")
    return uncertain("history can write files")


def _classify_test(words: Words) -> CommandVerdict:
    rest = list(words[1:])
    if words[0].text == "[" and (not rest or rest.pop().text != "]"):
        return uncertain("a test that is never closed")
    if any(word.may_split for word in rest):
        return uncertain("a test with words that may become several")
    # -v and -R evaluate the subscript of their operand, with any command substitution in it. So what is or
    # may be one of them must be followed by a plain name.
    for word, operand in pairwise(rest):
        evaluates = word.text in {"-v", "-R"} or (word.text is None and word.may_be_option)
        if evaluates and (operand.text is None or "[" in operand.text):
            return uncertain("a test that evaluates its words can run commands")
    return NO_EFFECT


def _classify_getopts(words: Words) -> CommandVerdict:
    if len(words) < 3:
        return uncertain("getopts needs a name")
    return _assignment_verdict(words[2])


def _classify_jobs(words: Words) -> CommandVerdict:
    return option_verdict(parse_options(words, "-lpnrs -x!x"))


def _classify_wait(words: Words) -> CommandVerdict:
    return option_verdict(parse_options(words, "-nf -p:u"))


# Most builtins know no --help, or would take it for a name; so nothing is assumed about it. Builtins that are
# missing here (let, ...) can run commands or change what names mean.
COMMANDS = (
    CommandSpec(names="cd pushd popd", options="-LPe@n", operands=".", allow_dynamic=True),
    CommandSpec(names="dirs", options="-lpv -#", operands=".", info_arguments=""),
    CommandSpec(names="enable", classify=_shows_with("-anps", operands="-"), info_arguments=""),
    CommandSpec(names="complete", classify=_shows_with("-p", needs="-p"), info_arguments=""),
    CommandSpec(names="bind", classify=_shows_with("-lpPsSvVX -q:", operands="-"), info_arguments=""),
    CommandSpec(names="fc", classify=_shows_with("-lnr -#", needs="-l", alone=False), info_arguments=""),
    CommandSpec(names="printf", classify=_classify_printf),
    CommandSpec(names="read", classify=_classify_read, info_arguments=""),
    CommandSpec(names="mapfile readarray", classify=_classify_mapfile, info_arguments=""),
    CommandSpec(names="declare typeset local readonly export", classify=_classify_declare, info_arguments=""),
    CommandSpec(names="unset", classify=_classify_unset, info_arguments=""),
    CommandSpec(names="set", classify=_classify_set, info_arguments=""),
    CommandSpec(names="shopt", classify=_classify_shopt, info_arguments=""),
    CommandSpec(names="alias", classify=_classify_alias, info_arguments=""),
    CommandSpec(names="hash", classify=_classify_hash, info_arguments=""),
    CommandSpec(names="history", classify=_classify_history, info_arguments=""),
    CommandSpec(names="test [", classify=_classify_test, info_arguments=""),
    CommandSpec(names="getopts", classify=_classify_getopts, info_arguments=""),
    CommandSpec(names="jobs", classify=_classify_jobs, info_arguments=""),
    CommandSpec(names="wait", classify=_classify_wait, info_arguments=""),
    CommandSpec(
        names="exit return break continue shift logout times caller help umask ulimit fg bg disown",
        options="*",
        operands=".",
        allow_dynamic=True,
        info_arguments="",
    ),
)
