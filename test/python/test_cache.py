"""The index that is saved: a new process reads it, nothing depends on it, and nothing that was forgotten stays in it."""

import shutil
import stat
import time
from pathlib import Path

import duckdb
import numpy as np
import pytest
from support import (
    assert_same_answers,
    chatter,
    connect,
    count,
    insert,
    kill,
    one,
    rows,
    run,
    start,
    turn_id,
    value,
)

TURNS = 700
QUERIES = ["who went swimming near the old bridge?", "postgres connections timed out", "Verdi rehearsal on Tuesday"]
SECRET = "quixotry"


def turns(n=TURNS):
    return [
        (id, session, speaker, said_at, f"{text} {SECRET}" if number == 5 else text)
        for number, (id, session, speaker, said_at, text) in enumerate(chatter(n, 23, sessions=40, words=(2, 4)))
    ]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """A store of enough turns to be worth saving, encoded, and where its index was saved. Copy both."""
    folder = tmp_path_factory.mktemp("encoded")
    connection = open_store(folder)
    connection.execute("CALL memory_create(context := 4, template := 'plain', learning := 'off')")
    insert(connection, turns())
    assert one(connection, "FROM memory_sync()")["encoded"] == TURNS
    connection.close()
    return folder


@pytest.fixture
def folder(encoded, tmp_path):
    return shutil.copytree(encoded, tmp_path / "copy")


def open_store(folder, name="store.db", read_only=False):
    connection = connect(folder / name, read_only)
    connection.execute(f"SET lethe_cache_directory = '{folder / 'cache'}'")
    return connection


def files(folder):
    """The saved segments, and the manifest."""
    return sorted((folder / "cache").rglob("*.segment")), next((folder / "cache").rglob("manifest"))


def answers(connection, k=40):
    return [rows(connection, "FROM memory_retrieve(?, ?)", [query, k]) for query in QUERIES]


def same(got, want):
    for one_got, one_want in zip(got, want, strict=True):
        assert_same_answers(one_got, one_want)


@pytest.fixture(scope="module")
def expected(encoded, tmp_path_factory):
    """The answers of a process that has nothing saved."""
    folder = shutil.copytree(encoded, tmp_path_factory.mktemp("expected") / "copy")
    shutil.rmtree(folder / "cache")
    connection = open_store(folder)
    yield answers(connection)
    connection.close()


def blank_states(connection):
    """Takes the sense out of the stored token states, behind the extension's back: who answers as before did not read them."""
    connection.execute("UPDATE lethe.states SET codes = repeat('\\x00'::BLOB, octet_length(codes)::INTEGER)")


def test_a_new_process_reads_what_was_saved(folder, expected):
    told = run(
        """
        from test_cache import *
        folder = Path(args[0])
        connection = open_store(folder)
        blank_states(connection)
        told = answers(connection), one(connection, "FROM memory_stats()")
        tell([told[0], told[1]['index_segments'], told[1]['index_bytes'], told[1]['note']])
        """,
        folder,
    )
    for got, want in zip(told[0], expected, strict=True):
        assert [row["turn_id"] for row in got] == [str(row["turn_id"]) for row in want]
    assert told[1] >= 1 and told[2] > TURNS * 400 and told[3] is None


def test_without_it_the_tables_answer(folder, expected):
    connection = open_store(folder)
    shutil.rmtree(folder / "cache")
    same(answers(connection), expected)
    assert files(folder)[0], "it is saved again"
    connection.close()

    shutil.rmtree(folder / "cache")
    connection = open_store(folder)
    blank_states(connection)
    scores = [row["score"] for found in answers(connection) for row in found]
    assert max(scores) < 0.01, "without a saved index it is the stored states that are read"
    connection.close()


def test_it_may_be_deleted_while_it_is_used(folder, expected):
    connection = open_store(folder)
    same(answers(connection), expected)
    shutil.rmtree(folder / "cache")
    same(answers(connection), expected)
    insert(connection, [(turn_id(9000), "new", "Ana", None, "a zebra crossed")])
    assert rows(connection, "FROM memory_retrieve('zebra', 1)")[0]["content"] == "a zebra crossed"
    connection.close()


def test_nobody_else_can_read_it(folder):
    for path in (folder / "cache").rglob("*"):
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


BREAKAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "head": lambda data: b"X" + data[1:],
    "body": lambda data: flip(data, 40),
    "middle": lambda data: flip(data, len(data) // 2),
    "end": lambda data: flip(data, len(data) - 1),
    "longer": lambda data: data + b"x",
}


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


@pytest.mark.parametrize("which", ["segment", "manifest"])
@pytest.mark.parametrize("how", BREAKAGE)
def test_what_is_broken_is_found_out_and_made_anew(folder, expected, which, how):
    segments, manifest = files(folder)
    target = segments[0] if which == "segment" else manifest
    target.write_bytes(BREAKAGE[how](target.read_bytes()))
    connection = open_store(folder)
    same(answers(connection, TURNS), [found for found in whole(connection, expected)])
    note = value(connection, "SELECT note FROM memory_stats()")
    assert "is made anew from the tables" in note, note
    connection.close()
    connection = open_store(folder)
    same(answers(connection), expected)
    assert value(connection, "SELECT note FROM memory_stats()") is None, "it was saved again, whole"
    connection.close()


def whole(connection, expected):
    """The expected answers to all turns, of which `expected` are the first: asked of a store in memory with the same states."""
    connection.execute("ATTACH ':memory:' AS reference")
    connection.execute("CALL memory_create(store := 'reference', context := 4, template := 'plain', learning := 'off')")
    for table in ("turns", "states"):
        connection.execute(f"INSERT INTO reference.lethe.{table} FROM lethe.{table}")
    found = [
        rows(connection, f"FROM memory_retrieve(?, {TURNS}, stores := ['reference'])", [query]) for query in QUERIES
    ]
    for all_of_them, first in zip(found, expected, strict=True):
        assert_same_answers(all_of_them[: len(first)], first)
    connection.execute("DETACH reference")
    return found


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO lethe.turns (session_id, content) VALUES ('c3', 'the zebra crossed the bridge')",
        "UPDATE lethe.turns SET content = 'swimming is forbidden' WHERE turn_id IN (SELECT turn_id FROM lethe.turns LIMIT 3)",
        "UPDATE lethe.turns SET session_id = 'moved' WHERE session_id = 'c4'",
        "UPDATE lethe.turns SET valid_until = TIMESTAMP '2001-01-01' WHERE session_id = 'c5'",
        "DELETE FROM lethe.turns WHERE session_id IN ('c1', 'c2')",
        "DELETE FROM lethe.turns",
        "DELETE FROM lethe.states WHERE turn_id IN (SELECT turn_id FROM lethe.turns LIMIT 9)",
    ],
)
def test_what_changed_between_two_processes_is_seen(folder, change):
    plain = duckdb.connect(str(folder / "store.db"))
    plain.execute(change)
    plain.close()
    connection = open_store(folder)
    saved = answers(connection)
    connection.close()
    shutil.rmtree(folder / "cache")
    connection = open_store(folder)
    same(saved, answers(connection))
    assert count(connection, "states") == count(connection, "turns")
    connection.close()


def holds(folder, words):
    """The files of the saved index in which the wordpieces of a turn stand."""
    return [path for path in (folder / "cache").rglob("*") if path.is_file() and words in path.read_bytes()]


@pytest.mark.parametrize("asked", [False, True], ids=["not asked before", "asked before"])
def test_forgotten_words_are_in_no_file(folder, asked):
    connection = open_store(folder)
    [(pieces,)] = connection.execute(
        f"SELECT token_ids FROM lethe.states JOIN lethe.turns USING (turn_id) WHERE content LIKE '%{SECRET}%'"
    ).fetchall()
    words = np.array(pieces, "<u4").tobytes()
    assert holds(folder, words), "they are there to be found"
    if asked:
        assert SECRET in rows(connection, f"FROM memory_retrieve('{SECRET}', 1)")[0]["content"]
    connection.execute(f"CALL memory_forget(filter := $$content LIKE '%{SECRET}%'$$)")
    assert not holds(folder, words)
    found = rows(connection, f"FROM memory_retrieve('{SECRET}', {2 * TURNS}, explain := true)")
    assert len(found) == TURNS - 1
    assert not any(row["word_rank"] for row in found), "no text with the word is left in the word index"
    connection.close()
    assert not holds(folder, words)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE lethe.turns SET content = 'rewritten' WHERE turn_id = (SELECT min(turn_id) FROM lethe.turns)",
        f"CALL memory_forget(filter := $$content LIKE '%{SECRET}%'$$)",
    ],
    ids=["changed", "forgotten"],
)
def test_a_broken_file_that_has_to_be_rewritten(folder, change):
    """The turn beside the broken record is changed, so the record is read to be written elsewhere."""
    [segment], _ = files(folder)
    segment.write_bytes(flip(segment.read_bytes(), segment.stat().st_size - 1))
    connection = open_store(folder)
    connection.execute("FROM memory_sync()")
    connection.execute(change)
    found = answers(connection, TURNS)
    assert "is made anew from the tables" in value(connection, "SELECT note FROM memory_stats()")
    connection.close()
    assert segment not in files(folder)[0]
    connection = open_store(folder)
    same(answers(connection, TURNS), found)
    connection.close()


def test_another_encoding_leaves_nothing_behind(folder):
    connection = open_store(folder)
    answers(connection)
    before, _ = files(folder)
    connection.execute("CALL memory_create(code_bits := 8)")
    answers(connection)
    after, _ = files(folder)
    assert after and not set(before) & set(after)
    connection.close()


def test_without_a_directory_nothing_is_written(folder, expected):
    shutil.rmtree(folder / "cache")
    connection = open_store(folder)
    connection.execute("SET lethe_cache_directory = ''")
    same(answers(connection), expected)
    assert not (folder / "cache").exists()
    assert value(connection, "SELECT index_bytes FROM memory_stats()") is None
    connection.close()


def test_a_directory_that_cannot_be_written_is_said(folder, expected):
    shutil.rmtree(folder / "cache")
    (folder / "cache").write_text("in the way")
    connection = open_store(folder)
    same(answers(connection), expected)
    assert str(folder / "cache") in value(connection, "SELECT note FROM memory_stats()")
    connection.close()


def test_two_processes_read_one(folder, expected):
    """READ_ONLY, as DuckDB allows; one of them begins while the other has it open."""
    code = """
        from test_cache import *
        connection = open_store(Path(args[0]), read_only=True)
        print('open', flush=True)
        tell([[str(row['turn_id']) for row in found] for found in answers(connection) for _ in range(1)])
    """
    shutil.rmtree(folder / "cache")
    both = [start(code, folder) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
    told = run(code, folder)
    assert told == [[str(row["turn_id"]) for row in found] for found in expected]


def test_a_read_only_store_that_was_never_encoded_is_encoded_once(folder, expected):
    plain = duckdb.connect(str(folder / "store.db"))
    plain.execute("DELETE FROM lethe.states")
    plain.close()
    shutil.rmtree(folder / "cache")
    connection = open_store(folder, read_only=True)
    assert one(connection, "FROM memory_sync()")["encoded"] == TURNS
    connection.close()
    connection = open_store(folder, read_only=True)
    report = one(connection, "FROM memory_sync()")
    assert (report["encoded"], report["added"]) == (0, 0), "the states are in the saved index"
    same(answers(connection), expected)
    connection.close()


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_killed_while_it_is_saved(folder, expected, delay):
    """The next process answers as if nothing had happened, whatever was on its way to the disk."""
    shutil.rmtree(folder / "cache")
    process = start(
        """
        from test_cache import *
        folder = Path(args[0])
        connection = open_store(folder)
        print('ready', flush=True)
        while True:
            answers(connection)
            connection.execute('UPDATE lethe.turns SET metadata = NULL, content = content || chr(46) WHERE random() < 0.9')
            answers(connection)
            connection.execute("UPDATE lethe.turns SET content = rtrim(content, '.')")
        """,
        folder,
    )
    assert process.stdout.readline().strip() == "ready"
    time.sleep(delay)
    kill(process)
    connection = open_store(folder)
    connection.execute("UPDATE lethe.turns SET content = rtrim(content, '.')")
    same(answers(connection), expected)
    assert count(connection, "states") == TURNS
    connection.close()
