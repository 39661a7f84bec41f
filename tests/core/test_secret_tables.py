"""Secrets in the columns of tables, line by line and in whole texts."""

from __future__ import annotations

import time

import pytest

from aisotools.core import secret_tables
from aisotools.core.redaction import LineRedactor, redact, redact_text
from aisotools.core.secret_tables import SecretColumns, find_in_tables

SECRET = "Zq81mmZaPpX"

TABLES = {
    "commas": f"user,password\nbob,{SECRET}\nann,{SECRET}\n",
    "quotes": f'"id";"passwd"\n"7";"{SECRET}"\n',
    "tabs": f"name\tapi_key\nbob\t{SECRET}{SECRET}\n",
    "bars": f"| user | password |\n|------|----------|\n| bob  | {SECRET} |\n",
    "a data frame": f"  user     password\n0  bob  {SECRET}\n1  ann  {SECRET}\n",
    "a word alone": f"password\n{SECRET}\n",
}
INNOCENT = (
    "user,password_strength\nbob,strong1\n",
    "name,token,count\nthe,DET1,12\n",
    "tokens,count\nthe,1200\n",
    "epochs  token_acc\n1  0.8123\n",
    "The columns are user, password and role.\nSee page 12b, please, now.\n",
    "user,password\nbob,\nann,none\n",
    "a,b\n1,x9y8z7w6v5\n",
)


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_secrets_of_a_column_are_masked(text: str) -> None:
    assert SECRET not in redact_text(text)
    assert [text[found.start : found.end].strip("Zq81mPpXa") for found in find_in_tables(text)].count("") >= 1
    redactor = LineRedactor()
    assert SECRET not in "".join(map(redactor.finish, text.splitlines(keepends=True)))


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_the_control_without_a_header_stays(text: str) -> None:
    rows = text.split("\n", 1)[1]
    assert SECRET in "".join(map(LineRedactor().finish, rows.splitlines(keepends=True)))


@pytest.mark.parametrize("text", INNOCENT)
def test_tables_without_secrets_stay(text: str) -> None:
    assert redact_text(text) == text
    redactor = LineRedactor()
    assert "".join(map(redactor.finish, text.splitlines(keepends=True))) == text


def test_a_table_ends_with_the_first_line_that_is_no_row() -> None:
    columns = SecretColumns()
    columns.advance("user,password\n")
    assert [*columns.find(f"bob,{SECRET}\n")]
    columns.advance("that is all\n")
    assert not [*columns.find(f"bob,{SECRET}\n")]


def test_wide_and_long_tables_are_looked_at_in_linear_time() -> None:
    hostile = ("user,password\n" + "," + " " * 4_000 + "x\n") * 200 + "password " * 20_000 + "\n"
    began_s = time.process_time()
    redact_text(hostile)
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize(
    "value",
    [
        {"headers": [["Authorization", f"Bearer {SECRET}{SECRET}"]]},
        {"argv": ["sshpass", "-p", SECRET, "ssh", "h"]},
        {"passwords": [SECRET, SECRET]},
        {"auth": ["bob", SECRET]},
        {f"ghp_{SECRET * 4}": 1},
        {"pin": "48151623"},
        {"pin": 48151623},
    ],
    ids=str,
)
def test_secrets_of_lists_and_keys_are_masked(value: dict[str, object]) -> None:
    shown = str(redact(value))
    assert SECRET not in shown
    assert "48151623" not in shown


@pytest.mark.parametrize(
    "value",
    [
        {"headers": [["Accept", "text/html"]]},
        {"argv": ["docker", "run", "-p", "8080:80", "nginx"]},
        {"auth": ["bob", "ann"], "pin": 13, "names": ["key", "value"]},
        {"credentials": ["include", "omit", "same-origin"]},
    ],
    ids=str,
)
def test_lists_and_keys_without_secrets_stay(value: dict[str, object]) -> None:
    assert redact(value) == value


@pytest.mark.parametrize("name", ["PASSWORD", "pa\u017f\u017fword", "api_\u212aey", "Senha", "Kennwort"])
def test_a_header_is_found_in_any_case_and_in_letters_that_count_as_the_same(name: str) -> None:
    assert secret_tables._has_column_sign(f"user,{name}\nbob,x\n")
    assert not secret_tables._has_column_sign("user,p\nbob,x\n")
