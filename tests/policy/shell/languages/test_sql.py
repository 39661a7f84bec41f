"""The grammar of SQL, as sqlite3 reads it."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.languages.sql import read_duckdb, read_sql


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


@pytest.mark.parametrize(
    ("program", "files"),
    [
        ("select 1", ()),
        ("select count(*) from 'a.parquet'", ("a.parquet",)),
        ("from 'd/*.csv' limit 3", ("d/*.csv",)),
        ("describe select * from 'a.csv'", ("a.csv",)),
        ('summarize "a.csv"', ("a.csv",)),
        ("show tables", ()),
        ("describe t", ()),
        ("select a from data.csv", ("data.csv",)),
        ("select a from x.tar.csv", ("x.tar.csv",)),
        ('select a from "secrets/x".csv', ("secrets/x.csv",)),
        ("select * from read_csv('key', header = true)", ("key",)),
        ("with x as (select 1) select * from x; select 2", ()),
        ("select median(a), arg_max(a, b) from t group by all", ()),
        ("select a -- end", ()),
    ],
)
def test_duckdb_reads_the_files_that_are_named(program: str, files: tuple[str, ...]) -> None:
    reading = read_duckdb(program)
    assert reading.doubt == ""
    assert reading.reads == files


@pytest.mark.parametrize(
    "program",
    [
        "copy (select 1) to 'x'",
        "select 1; copy (select 1) to 'x'",
        "explain analyze copy t to 'x'",
        "export database 'x'",
        "attach 'x' as y",
        "install x",
        "load 'x'",
        "set threads = 1",
        "pragma database_size",
        "create table t as select 1",
        "describe copy t to 'x'; copy t to 'x'",
        "show tables; drop table t",
        "from t; delete from t",
        "select E'\\''; copy (select 1) to 'x' --'",
        "select e'\\''; copy (select 1) to 'x' --'",
        "select /* /* */ ' */ 1; copy (select 1) to '||'x' --'",
        "select $$'$$; copy (select 1) to 'x' --'",
        "select [getenv('x')]",
        "select `copy`",
        "select x'41'",
        "select * from 'https://x.example/a.csv'",
        "select * from 's3://x/a.csv'",
        'select * from "hf://x".csv',
        "select * from read_csv('a' || 'b')",
        "select * from read_csv(['a', 'b'])",
        "select * from read_csv(x)",
        "select * from read_text('a')",
        "select * from query('copy t to x')",
        "select getenv('HOME')",
        "select 'a'.getenv()",
    ],
)
def test_a_program_that_may_do_more_in_duckdb_is_doubted(program: str) -> None:
    assert read_duckdb(program).doubt
