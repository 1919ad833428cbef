"""Stores to evaluate: made from conversations through SQL as a user would, kept for the next run, and asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import duckdb

from datasets import Conversation, Question, identifier, literal
from evaluation import DEPTH, Hit

ROWS = 20_000
"""Turns that are inserted by one statement."""
QUESTIONS = 200
"""Questions that are asked by one statement."""

T = TypeVar("T")
Settings = dict[str, str | int | float]


def turn_id(place: int) -> UUID:
    """Ids in the order of the turns: equal scores are ordered by id, so every run ranks them alike."""
    return UUID(int=place + 1)


def open_duckdb(extension: Path, model: str | None, indexes: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB with lethe, which learns nothing. Indexes are saved in that folder, or not at all."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD {literal(str(extension))}")
    # An evaluation must not learn from its own questions.
    connection.execute("SET lethe_learn = false")
    connection.execute(f"SET lethe_cache_directory = {literal(str(indexes or ''))}")
    if model:
        connection.execute(f"SET lethe_model_directory = {literal(model)}")
    return connection


def set_all(connection: duckdb.DuckDBPyConnection, settings: Settings, others: Iterable[str] = ()) -> None:
    """Sets the settings, and puts those of `others` that are not among them back to their defaults."""
    for name in others:
        if name not in settings:
            connection.execute(f"RESET {name}")
    for name, value in settings.items():
        connection.execute(f"SET {name} = {literal(value)}")


def fill(connection: duckdb.DuckDBPyConnection, file: Path, conversation: Conversation, create: str) -> float | None:
    """Makes the conversation a store and the current database. Returns the turns encoded a second.

    The turns are inserted all or none, and what was encoded stays: a store whose making was stopped is finished.
    """
    store = identifier(file.stem)
    connection.execute(f"ATTACH {literal(str(file))} AS {store}; USE {store}; CALL memory_create({create})")
    if not connection.execute("SELECT count(*) FROM lethe.turns").fetchall()[0][0]:
        connection.execute("BEGIN")
        for rows in batches(_rows(conversation), ROWS):
            connection.execute(
                "INSERT INTO lethe.turns (turn_id, session_id, speaker, said_at, content, metadata) "
                "SELECT unnest(?::UUID[]), unnest(?::VARCHAR[]), unnest(?::VARCHAR[]), unnest(?::TIMESTAMP[]), "
                "unnest(?::VARCHAR[]), unnest(?::VARCHAR[])",
                [list(column) for column in zip(*rows)],
            )
        connection.execute("COMMIT")
    return connection.execute("SELECT turns_per_second FROM memory_sync()").fetchall()[0][0]


def batches(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """The rows, up to `size` at a time."""
    rest = iter(rows)
    while some := list(islice(rest, size)):
        yield some


def _rows(conversation: Conversation) -> Iterator[tuple]:
    for place, turn in enumerate(conversation.turns):
        yield str(turn_id(place)), turn.session, turn.speaker, turn.said_at, turn.content, json.dumps({"id": turn.id})


def ask(
    connection: duckdb.DuckDBPyConnection,
    questions: Sequence[Question],
    told: Callable[[int], None] = lambda _: None,
    depth: int = DEPTH,
) -> dict[str, list[Hit]]:
    """The best `depth` turns of the current database for each question. `told` hears how many have been asked."""
    found: dict[str, list[Hit]] = {}
    for some in batches(questions, QUESTIONS):
        answers = connection.execute(
            f"SELECT q.id, list(hit.turn_id ORDER BY hit.rank), list(hit.score ORDER BY hit.rank) "
            f"FROM (SELECT unnest(?) AS id, unnest(?) AS question) q, unnest(memory_search(q.question, {depth})) AS t(hit) "
            f"GROUP BY q.id",
            [[question.id for question in some], [question.text for question in some]],
        )
        for id, turns, scores in answers.fetchall():
            found[id] = [Hit(turn.int - 1, score) for turn, score in zip(turns, scores)]
        told(len(found))
    return found


class Shelf:
    """A folder of stores that are kept from run to run, each under the hash of all that decides what is in it: the turns, what
    memory_create makes of its arguments with the encoder at hand, and lethe's version."""

    def __init__(self, folder: Path, connection: duckdb.DuckDBPyConnection, create: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.connection, self.create = folder, connection, create
        connection.execute("ATTACH ':memory:' AS probe; USE probe")
        made = connection.execute(f"SELECT * EXCLUDE (store, created) FROM memory_create({create})")
        self.made = dict(zip([column[0] for column in made.description], made.fetchall()[0]))
        """What a new store says of itself."""
        connection.execute("USE memory; DETACH probe")
        self.versions: dict[str, str | None] = dict(connection.execute("FROM memory_version()").fetchall())

    def file(self, conversation: Conversation) -> Path:
        digest = hashlib.sha256(json.dumps([self.made, self.versions["lethe"], self.versions["schema"]]).encode())
        for row in _rows(conversation):
            digest.update(json.dumps(row, default=str).encode())
        return self.folder / f"{digest.hexdigest()[:24]}.db"

    @contextmanager
    def opened(self, conversation: Conversation) -> Iterator[None]:
        """The store of a conversation as the current database, read-only; made or finished first if need be."""
        file = self.file(conversation)
        if not file.exists():
            self._make(file, conversation)
        self.connection.execute(f"ATTACH {literal(str(file))} AS kept (READ_ONLY); USE kept")
        try:
            yield
        finally:
            self.connection.execute("USE memory; DETACH kept")

    def _make(self, file: Path, conversation: Conversation) -> None:
        """Under another name, which it loses when it is whole."""
        unfinished = file.with_name(f"unfinished-{file.name}")
        fill(self.connection, unfinished, conversation, self.create)
        store = identifier(unfinished.stem)
        self.connection.execute(f"CHECKPOINT {store}; USE memory; DETACH {store}")
        unfinished.rename(file)
