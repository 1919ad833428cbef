"""A store made, filled and asked: whether the extension works at all with the duckdb of this Python, and no more.

Once in memory, and once in a DuckLake, whose extension comes as a Python package for this version of DuckDB.
"""

import tempfile
from importlib.resources import files
from pathlib import Path

import duckdb
from engine import connect


def try_store(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CALL memory_create()")
    for content in ["The tomatoes went in on 3 May", "The dentist moved the appointment"]:
        connection.execute("CALL memory_add(?, session := 's', speaker := 'Ana')", [content])
    question = "SELECT content FROM memory_retrieve('when did we plant the tomatoes?', 1)"
    assert connection.execute(question).fetchall() == [("The tomatoes went in on 3 May",)]
    connection.execute("UPDATE lethe.turns SET content = 'The tomatoes are ripe' WHERE content LIKE '%tomatoes%'")
    assert connection.execute(question).fetchall() == [("The tomatoes are ripe",)]
    connection.execute("CALL memory_forget(filter := 'content LIKE ''%tomatoes%''')")
    assert connection.execute(question).fetchall() == [("The dentist moved the appointment",)]


with connect() as connection:
    try_store(connection)

ducklake = Path(str(files("duckdb_extension_ducklake"))) / f"extensions/v{duckdb.__version__}/ducklake.duckdb_extension"
with tempfile.TemporaryDirectory() as folder, connect() as connection:
    connection.execute(f"LOAD '{ducklake}'")
    connection.execute(f"ATTACH 'ducklake:{folder}/catalog' AS lake (DATA_PATH '{folder}/data')")
    connection.execute("USE lake")
    try_store(connection)

print(f"duckdb {duckdb.__version__}: loaded, created, added, retrieved, updated and forgot, in memory and in a DuckLake")
