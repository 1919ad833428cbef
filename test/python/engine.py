"""A fresh DuckDB with the extension loaded, for tests; run as a program, it takes a statement a line.

In:   {"sql": "SELECT 1"}
Out:  {"columns": ["I"], "rows": [["1"]]}  or  {"error": "…"}

Columns are T (text), I (whole numbers) or R (other numbers). NULL is NULL, an empty text (empty), and lists and structs are
written as DuckDB writes them.
"""
from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from typing import Any

import duckdb

WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}


def connect(database: str = ":memory:", **config: Any) -> duckdb.DuckDBPyConnection:
    """A connection with the extension named by LETHE_EXTENSION loaded."""
    connection = duckdb.connect(database, config={"allow_unsigned_extensions": True, **config})
    extension = os.path.abspath(os.environ["LETHE_EXTENSION"]).replace("'", "''")
    connection.execute(f"LOAD '{extension}'")
    return connection


def column(kind: str) -> str:
    if kind in WHOLE:
        return "I"
    return "R" if re.match(r"(FLOAT|DOUBLE|DECIMAL)\b(?!.*\[)", kind) else "T"


def text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {text(item)}' for key, item in value.items())}}}"
    return str(value) or "(empty)"


def run(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    try:
        result = connection.execute(sql)
        rows = [[text(value) for value in row] for row in result.fetchall()]
        return {"columns": [column(str(described[1])) for described in result.description or []], "rows": rows}
    except duckdb.Error as error:
        return {"error": str(error)}


def main() -> None:
    # Standard output is for answers only: whatever a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    connection = connect()
    with tempfile.TemporaryDirectory(prefix="lethe-test-") as folder:
        os.chdir(folder)
        for line in sys.stdin:
            print(json.dumps(run(connection, json.loads(line)["sql"])), file=answers, flush=True)
        connection.close()
        os.chdir("/")


if __name__ == "__main__":
    main()
