"""functions.json against the extension: what LOAD registers is pinned by test/sql/functions.test, what it returns here."""
import json
from pathlib import Path

import pytest

from engine import connect

FUNCTIONS = json.loads((Path(__file__).parents[2] / "extension_config" / "functions.json").read_text())["functions"]
TABLE_FUNCTIONS = [function for function in FUNCTIONS if function["kind"] == "table"]


def columns(statement: str) -> list[tuple[str, str]]:
    """Name and type of each column. Binds only: nothing is executed, and no store is needed."""
    with connect() as connection:
        return [(name, kind) for name, kind, *_ in connection.execute(f"DESCRIBE {statement}").fetchall()]


@pytest.mark.parametrize("function", TABLE_FUNCTIONS, ids=lambda function: function["name"])
def test_an_example_has_the_columns_that_are_documented(function):
    documented = [(column["name"], column["type"]) for column in function["columns"] if "with" not in column]
    assert columns(function["example"]) == documented


@pytest.mark.parametrize("argument", ["explain", "rerank"])
def test_some_arguments_add_the_columns_that_are_documented(argument):
    (retrieve,) = (function for function in FUNCTIONS if function["name"] == "memory_retrieve")
    documented = [(c["name"], c["type"]) for c in retrieve["columns"] if argument in c.get("with", argument).split()]
    assert columns(f"FROM memory_retrieve('?', 1, {argument} := true)") == documented


def test_the_scalars_example_binds():
    (search,) = (function for function in FUNCTIONS if function["kind"] == "scalar")
    with connect() as connection:
        connection.execute("CREATE TABLE questions (id INTEGER, text VARCHAR)")
        described = connection.execute(f"DESCRIBE {search['example']}").fetchall()
    assert f"STRUCT({', '.join(f'{name} {kind}' for name, kind, *_ in described[1:])})[]" == search["returns"].replace('"', "")
