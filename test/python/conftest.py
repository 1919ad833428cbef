"""Stores to test with. Encoding is what takes time, so a store is encoded once and copied for each test."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

# What follows is set before the first connection, and before the tests look for the models: defaults are read then.
HOME = tempfile.TemporaryDirectory(prefix="lethe-test-")
INSTALLED = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "lethe"
ADAPTER = "lethe_adapter.safetensors"


def without_adapter(home):
    """The installed models but for their query adapters, so that a question's states are the encoder's."""
    for file in (file for file in INSTALLED.rglob("*") if file.is_file() and file.name != ADAPTER):
        link = home / "lethe" / file.relative_to(INSTALLED)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return home


# Indexes are saved where they go with the tests.
os.environ["XDG_CACHE_HOME"] = HOME.name
os.environ["XDG_DATA_HOME"] = str(without_adapter(Path(HOME.name, "data")))

from support import EXTENSION, connect, facts, insert  # noqa: E402


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
