"""The grammar of SQL, as sqlite3 reads it."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.languages.sql import read_sql


@pytest.mark.parametrize(
    "program",
    [
        "select 1",
        "SELECT count(*), max(a) FROM t WHERE b = 'x''y' GROUP BY 1",
        "with x as (select 1) select * from x",
        "with x(a, b) as (select 1, 2), y(c) as (select 3) select * from x, y",
        "explain query plan select 1",
        "pragma table_info(t)",
        "pragma main.user_version",
        "values (1), (2)",
        "select replace(a, 'x', 'y') from t",
        "select case when a then 1 else 2 end",
        "select 1; select 2;",
        'select "a b" from [t] -- end',
        "select json_extract(a, '$.b') from t",
        "",
    ],
)
def test_plain_programs_are_read_whole(program: str) -> None:
    assert read_sql(program).doubt == ""


@pytest.mark.parametrize(
    "program",
    [
        "insert into t values (1)",
        "select writefile('a', 1)",
        "select \"writefile\"('a', 1)",
        "select [edit](1)",
        "select `load_extension`('x')",
        "select 1, writefile(a) as (b)",
        "with x as (select 1) delete from x",
        "vacuum",
        "pragma journal_mode = wal",
        "pragma table_info(t); drop table t",
        "select 'x'('y')",
        "select ?1",
        "select (1",
        "select 1)",
        "attach 'x' as y",
        "explain delete from t",
        "begin",
        "replace into t values (1)",
        "with x(a) as (select edit(1)) select 1",
        "select '",
    ],
)
def test_a_program_that_may_do_more_is_doubted(program: str) -> None:
    assert read_sql(program).doubt
