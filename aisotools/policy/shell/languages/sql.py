"""The SQL statements that certainly only read, as the sqlite3 program reads them, and those of DuckDB.

A text is taken apart into tokens as SQLite does it: a name in quotes of any kind is the same name, also that
of a function. Statements must begin as queries do, hold no word that begins another kind, and call no
function that is not listed.

DuckDB reads the texts of a smaller grammar alike: without names in brackets, texts with escapes, comments in
comments, or statements that change a setting. There a name or a text may be a file that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.languages.reading import MAX_PROGRAM_CHARS, NotPlain, ProgramReading

_TOKEN = re.compile(
    r"(?P<blank>[ \t\n\f\r]+|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)"
    r"|(?P<string>[xX]?'(?:[^']|'')*')"
    r"|(?P<quoted>\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\])"
    r"|(?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)"
    r"|(?P<number>(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?![A-Za-z0-9_$]))"
    r"|(?P<operator>->>|->|\|\||<<|>>|<=|>=|<>|==|!=|[-+*/%&|<>=~.,;()])"
)
_QUERY = frozenset(("select", "values", "with"))
_CHANGES = name_set(
    "insert update delete into attach detach create drop alter vacuum reindex analyze begin commit end "
    "rollback "
    "savepoint release pragma returning"
)
_BEFORE_PARENTHESIS = name_set(
    "in values as over exists and or not on using select from when then else case where having filter by "
    "join union "
    "all except intersect limit offset like glob between is distinct partition set with materialized "
    "window any "
    "cross left inner outer natural escape collate"
)
_FUNCTIONS = name_set(
    "abs avg bm25 cast ceil ceiling changes char coalesce concat concat_ws count cume_dist current_date "
    "current_time current_timestamp date datetime degrees dense_rank exp first_value floor format glob "
    "group_concat hex highlight ifnull iif instr json json_array json_array_length json_each "
    "json_error_position "
    "json_extract json_group_array json_group_object json_object json_patch json_pretty json_quote "
    "json_remove "
    "json_replace json_set json_insert json_tree json_type json_valid julianday lag last_insert_rowid "
    "last_value "
    "lead length like likely ln log log10 log2 lower ltrim max median min mod nth_value ntile nullif "
    "octet_length "
    "percent_rank percentile pi pow power printf quote radians random randomblob rank regexp replace round "
    "row_number rtrim sign sin cos tan asin acos atan atan2 snippet soundex sqlite_source_id "
    "sqlite_version sqrt "
    "strftime string_agg substr substring sum time timediff total total_changes trim trunc typeof unhex "
    "unicode "
    "unistr unixepoch unlikely upper zeroblob generate_series pragma_table_info pragma_table_list "
    "pragma_table_xinfo pragma_index_list pragma_index_info pragma_foreign_key_list pragma_database_list "
    "pragma_function_list pragma_compile_options stddev variance"
)
_READS_FILES = name_set(
    "read_csv read_csv_auto read_parquet parquet_scan read_json read_json_auto read_ndjson"
)
_DUCKDB_FUNCTIONS = (
    _FUNCTIONS
    - name_set("glob changes total_changes last_insert_rowid randomblob zeroblob")
    - frozenset(name for name in _FUNCTIONS if name.startswith(("pragma_", "sqlite_")))
) | (
    _READS_FILES
    | name_set(
        "approx_count_distinct approx_quantile arg_max arg_min argmax argmin bool_and bool_or contains corr "
        "covar_pop covar_samp date_diff date_part date_trunc datediff datepart datetrunc day dayofweek "
        "decode ends_with entropy epoch extract first greatest histogram hour isnan kurtosis last least "
        "len levenshtein list mad md5 median minute mode month monthname now quantile quantile_cont "
        "quantile_disc quarter range regexp_extract regexp_matches regexp_replace regr_slope repeat reverse "
        "row second skewness split_part starts_with stddev_pop stddev_samp string_split strlen strptime "
        "struct_pack to_timestamp today try_cast unnest var_pop var_samp week year"
    )
)
_BEFORE_TEXT = name_set(
    "select from join in and or not like ilike between when then else case where having on by as is values "
    "limit offset glob similar to escape interval date timestamp time distinct all union except intersect "
    "with using set describe summarize table"
)
_SCHEME = re.compile(r"^[a-z][a-z0-9+]+:|://", re.IGNORECASE)
_PRAGMAS_WITH_VALUE = name_set(
    "table_info table_xinfo index_list index_info index_xinfo foreign_key_list foreign_key_check "
    "integrity_check "
    "quick_check table_list"
)
_PRAGMAS = _PRAGMAS_WITH_VALUE | name_set(
    "database_list compile_options collation_list function_list module_list pragma_list user_version "
    "schema_version application_id page_count page_size encoding journal_mode foreign_keys freelist_count "
    "cache_size auto_vacuum synchronous busy_timeout data_version max_page_count query_only"
)
_NAMES = frozenset(("name", "quoted"))
_MAX_DEPTH = 100


class _SqlToken(NamedTuple):
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The text in lower case if it may be a keyword, else ''."""
        return self.text.lower() if self.kind == "name" else ""

    @property
    def name(self) -> str:
        """The name in lower case, without quotes."""
        return (self.text if self.kind == "name" else self.text[1:-1]).lower()


def read_sql(text: str, functions: frozenset[str] = frozenset()) -> ProgramReading:
    """Return what SQL statements do. Raises nothing.

    Args:
        text: One or more statements.
        functions: Names of further functions that only compute.
    """
    try:
        for statement in _statements(text):
            _check_statement(statement, _FUNCTIONS | functions)
    except NotPlain as reason:
        return ProgramReading(str(reason))
    return ProgramReading()


def read_duckdb(text: str) -> ProgramReading:
    """Return what SQL statements do in DuckDB. Raises nothing.

    Args:
        text: One or more statements.
    """
    files: list[str] = []
    try:
        for statement in _statements(text, has_comments=False):
            tokens = _without_description(statement)
            files += _files_of(tokens)
            if tokens and tokens[0].word == "pragma":
                raise NotPlain("pragma, which may change a setting")
            _check_statement(tokens, _DUCKDB_FUNCTIONS)
    except NotPlain as reason:
        return ProgramReading(str(reason))
    return ProgramReading(reads=tuple(dict.fromkeys(files)))


def _without_description(statement: Sequence[_SqlToken]) -> Sequence[_SqlToken]:
    """Return the query in a statement that describes one, or that begins with `from`."""
    words = [token.word for token in statement[:2]]
    if words[:1] == ["show"] and words[1:] in (["tables"], ["databases"], []):
        return ()
    if words[:1] in (["describe"], ["summarize"]):
        statement = statement[1:]
        if words[1:] and words[1] not in _QUERY:
            return [_SqlToken("name", "select"), _SqlToken("name", "from"), *statement]
    elif words[:1] == ["from"]:
        return [_SqlToken("name", "select"), *statement]
    return statement


def _files_of(tokens: Sequence[_SqlToken]) -> Iterator[str]:
    """Yield what may be a file among the texts and names of a statement: DuckDB reads `from data.csv`.

    Raises:
        NotPlain: The text may be another for DuckDB, or what it opens lies elsewhere, or is computed.
    """
    chain: list[str] = []  # names with dots between them
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else _SqlToken("", "")
        if token.text[0] in "[`" or (token.kind == "string" and token.text[0] != "'"):
            raise NotPlain(f"{token.text[:10]!r}, which is another text for DuckDB")
        if token.kind == "name" and following.kind == "string" and token.word not in _BEFORE_TEXT:
            raise NotPlain(f"{token.text[:10]!r} before a text, which may have escapes")
        if token.kind in _NAMES:
            chain.append(token.text if token.kind == "name" else token.text[1:-1].replace('""', '"'))
            if token.name in _READS_FILES and following.text == "(":
                yield _only_file(token.name, tokens[index + 2 : index + 4])
        elif token.kind == "string":
            chain = [token.text[1:-1].replace("''", "'")]
        if following.text == "." or (token.text == "." and following.kind in _NAMES):
            continue
        text, chain = ".".join(chain), []
        if _SCHEME.search(text):
            raise NotPlain(f"{text[:40]}, which lies elsewhere")
        if "." in text or "/" in text:
            yield text


def _only_file(function: str, arguments: Sequence[_SqlToken]) -> str:
    """Return the first argument of a function that reads a file.

    Raises:
        NotPlain: It is not a text alone.
    """
    if len(arguments) < 2 or arguments[0].kind != "string" or arguments[1].text not in {")", ","}:
        raise NotPlain(f"{function}() of a file that is computed")
    return arguments[0].text[1:-1].replace("''", "'")


def _statements(text: str, *, has_comments: bool = True) -> Iterator[list[_SqlToken]]:
    """Yield the tokens of each statement.

    Raises:
        NotPlain: Something is not a token, or the text is too long.
    """
    if len(text) > MAX_PROGRAM_CHARS:
        raise NotPlain("a statement that is too long to read")
    statement: list[_SqlToken] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotPlain(f"{text[position : position + 10]!r}, which is not plain SQL")
        position = match.end()
        token = _SqlToken(match.lastgroup or "", match[0])
        # Case: `/* /* */ ' */` is a whole comment for DuckDB, but not for SQLite, and would hide a quote.
        if token.text.startswith("/*") and not has_comments:
            raise NotPlain("a comment that may have others in it")
        if token.text == ";":
            yield statement
            statement = []
        elif token.kind != "blank":
            statement.append(token)
    yield statement


def _check_statement(statement: Sequence[_SqlToken], functions: frozenset[str]) -> None:
    """Check that a statement only reads.

    Raises:
        NotPlain: It may do more.
    """
    tokens = list(statement)
    if tokens and tokens[0].word == "explain":
        del tokens[: 3 if [token.word for token in tokens[1:3]] == ["query", "plan"] else 1]
    if not tokens:
        return
    if tokens[0].word == "pragma":
        _check_pragma(tokens[1:])
        return
    if tokens[0].word not in _QUERY:
        raise NotPlain(f"{tokens[0].text[:20]!r}, which is not a query")
    cases = 0
    opened: list[int] = []
    calls: dict[int, str] = {}  # where the parenthesis after an unknown name stands
    for index, token in enumerate(tokens):
        word = token.word
        cases += word == "case"
        if word == "end" and cases:
            cases -= 1
        elif word == "replace" and tokens[index + 1 : index + 2] != [_SqlToken("operator", "(")]:
            raise NotPlain("replace, which changes the database")
        elif word in _CHANGES:
            raise NotPlain(f"{word}, which may change the database")
        if token.text == "(" and token.kind == "operator":
            if unknown := _called(tokens, index, functions):
                calls[index] = unknown
            opened.append(index)
            if len(opened) > _MAX_DEPTH:
                raise NotPlain("something that is nested too deeply")
        elif token.text == ")" and token.kind == "operator":
            if not opened:
                raise NotPlain("a parenthesis that closes nothing")
            start = opened.pop()
            if start in calls and not _is_column_list(tokens, start, index):
                raise NotPlain(f"{calls[start]}(), which is unknown")
    if opened:
        raise NotPlain("a parenthesis that is never closed")


def _called(tokens: Sequence[_SqlToken], index: int, functions: frozenset[str]) -> str:
    """Return the name before the parenthesis at `index` if it is that of a function that is not listed."""
    before = tokens[index - 1]
    if before.kind == "string":
        raise NotPlain("a text that is called")
    if before.kind not in _NAMES or before.word in _BEFORE_PARENTHESIS or before.name in functions:
        return ""
    return before.name[:40] or "''"


def _is_column_list(tokens: Sequence[_SqlToken], start: int, end: int) -> bool:
    """Return whether the parentheses hold the columns of a table that `with` defines."""
    inner = tokens[start + 1 : end]
    is_list = all(token.kind in _NAMES if i % 2 == 0 else token.text == "," for i, token in enumerate(inner))
    before = tokens[start - 2]
    introduced = before.word in {"with", "recursive"} or (before.text == "," and tokens[0].word == "with")
    following = [token.text.lower() for token in tokens[end + 1 : end + 5]]
    defines = [text for text in following if text not in {"not", "materialized"}][:2] == ["as", "("]
    return is_list and introduced and defines


def _check_pragma(tokens: Sequence[_SqlToken]) -> None:
    """Check the words after `pragma`.

    Raises:
        NotPlain: It may change something.
    """
    words = list(tokens)
    if len(words) > 2 and words[1].text == ".":
        del words[:2]
    name = words[0].word if words else ""
    is_plain = name in _PRAGMAS and len(words) == 1
    has_value = (
        name in _PRAGMAS_WITH_VALUE and len(words) == 4 and words[1].text == "(" and words[3].text == ")"
    )
    if not (is_plain or has_value):
        raise NotPlain(f"pragma {name}, which may change something")
