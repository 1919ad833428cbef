"""Stores to test with. Encoding is what takes time, so a store is encoded once and copied for each test."""

import os
import shutil
import tempfile

import pytest
from support import EXTENSION, connect, facts, insert


# Indexes are saved where they go with the tests. Before the first connection: the default is read then.
CACHE = tempfile.TemporaryDirectory(prefix="lethe-test-")
os.environ["XDG_CACHE_HOME"] = CACHE.name


def pytest_report_header():
    import duckdb

    return f"lethe: {EXTENSION}, DuckDB {duckdb.__version__}"


@pytest.fixture(scope="session")
def facts_file(tmp_path_factory):
    """A store with the facts, encoded, and never asked. Copy it, do not open it."""
    path = tmp_path_factory.mktemp("facts") / "facts.db"
    connection = connect(path)
    connection.execute("CALL memory_create()")
    insert(connection, facts())
    connection.execute("CALL memory_sync()")
    connection.close()
    return path


@pytest.fixture
def store_file(facts_file, tmp_path):
    """A file with the facts, to do anything with."""
    return shutil.copy(facts_file, tmp_path / "store.db")


@pytest.fixture
def store(store_file):
    """A connection to a file with the facts."""
    connection = connect(store_file)
    yield connection
    connection.close()


@pytest.fixture
def memory():
    """A connection to an empty store in memory."""
    connection = connect()
    connection.execute("CALL memory_create()")
    yield connection
    connection.close()
