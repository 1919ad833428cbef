"""What a call sees and does inside the caller's transaction: it reads what is committed, and commits by itself."""

import hashlib
import json
import re
import shutil
import time
from pathlib import Path

import duckdb
import pytest
from support import FACTS, connect, contents, count, facts, insert, one, rows, run, states, turn_id, value

QUESTION, ANSWER = FACTS[0][3], FACTS[0][2]
NEW = "The piano was tuned in July"
ABOUT_NEW = "when was the piano tuned?"


# What is seen -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending, seen", [("ROLLBACK", False), ("COMMIT", True)])
def test_an_uncommitted_insert_is_not_seen(store, ending, seen):
    store.execute("BEGIN")
    store.execute("INSERT INTO lethe.turns (session_id, content) VALUES ('s9', ?)", [NEW])
    assert NEW not in contents(store, ABOUT_NEW, 100)
    assert one(store, "FROM memory_sync()")["added"] == 0
    assert value(store, "SELECT count(*) FROM lethe.turns WHERE content = ?", [NEW]) == 1, (
        "the caller's own is still there"
    )
    store.execute(ending)
    assert (NEW in contents(store, ABOUT_NEW, 1)) == seen
    assert count(store, "states") == len(FACTS) + seen


@pytest.mark.parametrize("ending, seen", [("ROLLBACK", False), ("COMMIT", True)])
@pytest.mark.parametrize(
    "change, before, after",
    [
        (
            "UPDATE lethe.turns SET content = 'The tomatoes were lost to frost' WHERE content = ?",
            ANSWER,
            "The tomatoes were lost to frost",
        ),
        ("DELETE FROM lethe.turns WHERE content = ?", ANSWER, None),
    ],
)
def test_an_uncommitted_change_is_not_seen(store, change, before, after, ending, seen):
    store.execute("BEGIN")
    store.execute(change, [ANSWER])
    found = contents(store, QUESTION, 100)
    assert before in found and after not in found
    store.execute(ending)
    found = set(contents(store, QUESTION, 100))
    assert (before in found) == (not seen) and (after is None or (after in found) == seen)


def test_a_retrieval_sees_what_others_commit_after_begin(store):
    other = store.cursor()
    store.execute("BEGIN")
    turns = count(store, "turns")
    other.execute("INSERT INTO lethe.turns (content) VALUES (?)", [NEW])
    assert contents(store, ABOUT_NEW, 1) == [NEW]
    assert count(store, "turns") == turns, "the caller's own transaction still reads its snapshot"
    store.execute("COMMIT")


# What is done -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
def test_memory_add_commits_by_itself(store, ending):
    store.execute("BEGIN")
    added = rows(store, "FROM memory_add(?, session := 's9')", [NEW])
    assert contents(store, ABOUT_NEW, 1) == [NEW]
    assert value(store.cursor(), "SELECT count(*) FROM lethe.turns WHERE content = ?", [NEW]) == 1
    store.execute(ending)
    assert value(store, "SELECT turn_id FROM lethe.turns WHERE content = ?", [NEW]) == added[0]["turn_id"]
    assert added[0]["turn_id"] in states(store)


def test_learning_forgetting_and_feedback_survive_a_rollback(store):
    store.execute("CALL memory_create(learning := 'rank_gap')")
    store.execute("BEGIN")
    asked = rows(store, "FROM memory_retrieve(?, 12)", [QUESTION])
    noted = rows(
        store, "FROM memory_feedback(?, ignored := ?)", [str(asked[0]["retrieval_id"]), [str(asked[1]["turn_id"])]]
    )
    rows(store, "FROM memory_forget(session := 's3')")
    store.execute("ROLLBACK")
    assert value(store, "SELECT retrieval_id FROM lethe.retrievals") == asked[0]["retrieval_id"]
    assert value(store, "SELECT verdict FROM lethe.feedback") == "ignored"
    assert noted[0]["suppression"] == pytest.approx(
        value(store, "SELECT score FROM lethe.suppression WHERE turn_id = ?", [asked[1]["turn_id"]])
    )
    assert count(store, "turns") == 8


def test_a_store_made_in_a_transaction_survives_its_rollback():
    connection = connect()
    connection.execute("BEGIN")
    rows(connection, "FROM memory_create()")
    connection.execute("ROLLBACK")
    assert count(connection, "turns") == 0
    connection.close()


def test_an_aborted_transaction_is_not_used(store):
    store.execute("BEGIN")
    with pytest.raises(duckdb.Error):
        store.execute("SELECT error('x')")
    with pytest.raises(duckdb.Error, match="aborted"):
        rows(store, "FROM memory_add(?)", [NEW])
    store.execute("ROLLBACK")
    assert contents(store, QUESTION, 1) == [ANSWER] and count(store, "turns") == len(FACTS)


# Conflicts: in a process of their own, so that a hang is seen as one ------------------------------

FORGET = f"FROM memory_forget(turn_ids := ['{turn_id(0)}'])"
RETRIEVE = f"FROM memory_retrieve('{QUESTION}', 12)"
UPDATE = f"UPDATE lethe.turns SET content = 'x' WHERE turn_id = '{turn_id(0)}'"
FORGETTING = [
    UPDATE,
    f"DELETE FROM lethe.turns WHERE turn_id = '{turn_id(0)}'",
    f"DELETE FROM lethe.states WHERE turn_id = '{turn_id(0)}'",
    "ALTER TABLE lethe.turns ADD COLUMN mood VARCHAR",
]
RETRIEVING = [
    UPDATE,
    "DELETE FROM lethe.suppression",
    "UPDATE lethe.suppression SET score = 1",
    "DELETE FROM lethe.retrievals",
    "DELETE FROM lethe.states",
    "ALTER TABLE lethe.retrievals ADD COLUMN mood VARCHAR",
    "DROP SCHEMA lethe CASCADE",
]
ENCODING = ["FROM memory_sync()", "FROM memory_retrieve('frost', 12)", "FROM memory_add('another', session := 's1')"]
FROST = "UPDATE lethe.turns SET content = 'frost' WHERE session_id = 's1'"
#: What another connection commits before, what the caller changes and does not commit, and what is called then.
CASES = (
    [("", change, FORGET) for change in FORGETTING]
    + [("", change, RETRIEVE) for change in RETRIEVING]
    + [(FROST, "DELETE FROM lethe.states", call) for call in ENCODING]
)


@pytest.fixture(scope="module")
def conflicts(facts_file, tmp_path_factory):
    told = run(
        """
        import shutil
        outcomes = []
        for number, (before, change, call) in enumerate(json.loads(args[2])):
            print('case', number, change, call, flush=True)
            connection = connect(shutil.copy(args[0], f'{args[1]}/{number}.db'))
            contents(connection, FACTS[1][3], 12, 'learn := true')
            connection.execute(before) if before else None
            connection.execute('BEGIN')
            connection.execute(change)
            try:
                outcome, said = 'done', rows(connection, call)
            except duckdb.Error as error:
                outcome, said = 'error', str(error)
            try:
                connection.execute('ROLLBACK')
            except duckdb.Error:
                pass
            note = one(connection, 'FROM memory_stats()')['note']
            after = contents(connection, FACTS[0][3], 20)
            again = len(rows(connection, call))
            stats = one(connection, 'FROM memory_stats()')
            outcomes.append({'outcome': outcome, 'said': said, 'note': note, 'after': after, 'again': again,
                             'turns': stats['turns'], 'encoded': stats['encoded']})
            connection.close()
        tell(outcomes)
    """,
        facts_file,
        tmp_path_factory.mktemp("conflicts"),
        json.dumps(CASES),
    )
    return dict(zip(CASES, told))


#: DuckDB's words for it.
CLEAN = "memory_[a-z]*: .*([Cc]onflict|another transaction)"


@pytest.mark.parametrize("change", FORGETTING)
def test_forgetting_what_the_caller_has_changed(conflicts, change):
    told = conflicts["", change, FORGET]
    assert told["outcome"] == "done" or re.search(CLEAN, told["said"]), told
    assert (ANSWER in told["after"]) == (told["outcome"] == "error"), "all of it is forgotten, or nothing"
    assert told["again"] == 4 and told["turns"] == len(FACTS) - 1


@pytest.mark.parametrize("change", RETRIEVING)
def test_a_retrieval_is_answered_whatever_the_caller_has_changed(conflicts, change):
    """Learning may not be possible; then the answers stand, and memory_stats says why."""
    told = conflicts["", change, RETRIEVE]
    assert told["outcome"] == "done", told
    assert len(told["said"]) == 12 and told["said"][0]["content"] == ANSWER
    assert told["note"] is None or "not learned from" in told["note"]
    assert len(told["after"]) == 12 and told["encoded"] == 12


@pytest.mark.parametrize("call", ENCODING)
def test_encoding_what_the_caller_holds(conflicts, call):
    """The states that must be made anew are held by the caller's uncommitted DELETE."""
    told = conflicts[FROST, "DELETE FROM lethe.states", call]
    assert told["outcome"] == "done" or re.search(CLEAN, told["said"]), told
    assert told["after"].count("frost") == 4 and told["encoded"] == told["turns"]


def test_a_checkpoint_that_is_due_does_not_wait_for_the_caller(store_file):
    told = run(
        """
        connection = connect(args[0])
        connection.execute("SET checkpoint_threshold = '1KB'")
        connection.execute("BEGIN; INSERT INTO lethe.turns (content) SELECT 'filler ' || i FROM range(2000) t(i)")
        connection.execute("UPDATE lethe.store SET value = value")
        added = rows(connection, "FROM memory_add('The piano was tuned in July')")
        found = contents(connection, 'when was the piano tuned?', 1, 'learn := true')
        connection.execute('ROLLBACK')
        tell([len(added), found, count(connection, 'turns')])
    """,
        store_file,
    )
    assert told == [1, [NEW], len(FACTS) + 1]


# Once, and only when executed ---------------------------------------------------------------------


def test_a_cte_used_twice_runs_once(store):
    sql = "WITH m AS (FROM memory_retrieve(?, 3)) SELECT a.content FROM m a JOIN m b USING (turn_id) ORDER BY a.rank"
    assert rows(store, sql, [QUESTION])[0]["content"] == ANSWER
    assert count(store, "retrievals") == 1
    sql = "WITH a AS (FROM memory_add(?)) SELECT (SELECT count(*) FROM a) AS n, (SELECT turn_id FROM a) AS id"
    assert one(store, sql, [NEW])["n"] == 1
    assert value(store, "SELECT count(*) FROM lethe.turns WHERE content = ?", [NEW]) == 1


def test_create_table_as(store):
    store.execute(f"CREATE TABLE kept AS FROM memory_retrieve('{QUESTION}', 5)")
    kept = rows(store, "FROM kept ORDER BY rank")
    assert [r["rank"] for r in kept] == [1, 2, 3, 4, 5] and kept[0]["content"] == ANSWER
    assert value(store, "SELECT retrieval_id FROM lethe.retrievals") == kept[0]["retrieval_id"]
    store.execute(f"INSERT INTO kept FROM memory_retrieve('{FACTS[1][3]}', 2)")
    store.execute("CREATE TABLE added AS FROM memory_add(['one', 'two'])")
    assert count(store, "turns") == len(FACTS) + 2 and value(store, "SELECT count(*) FROM kept") == 7
    store.execute("CREATE TABLE searched AS SELECT memory_search(?, 2) AS found", [QUESTION])
    assert value(store, "SELECT found[1].content FROM searched") == ANSWER
    with pytest.raises(duckdb.Error):
        store.execute(f"CREATE TABLE kept AS FROM memory_retrieve('{QUESTION}', 5)")
    assert count(store, "retrievals") == 3


def test_prepared_with_parameters(store):
    store.execute("PREPARE ask AS SELECT rank, content FROM memory_retrieve($1, $2)")
    for _, _, answer, question in FACTS[:4]:
        found = rows(store, f"EXECUTE ask('{question}', 2)")
        assert [r["rank"] for r in found] == [1, 2] and found[0]["content"] == answer
    assert len(rows(store, f"EXECUTE ask('{QUESTION}', 7)")) == 7
    assert rows(store, "EXECUTE ask(NULL, 7)") == [] and rows(store, f"EXECUTE ask('{QUESTION}', NULL)") == []
    assert count(store, "retrievals") == 5
    with pytest.raises(duckdb.Error, match="k is -1"):
        store.execute(f"EXECUTE ask('{QUESTION}', -1)")
    assert len(rows(store, f"EXECUTE ask('{QUESTION}', 1)")) == 1


def test_prepared_without_parameters_runs_anew_each_time(store):
    store.execute(f"PREPARE ask AS SELECT content, retrieval_id FROM memory_retrieve('{ABOUT_NEW}', 1)")
    assert count(store, "retrievals") == 0
    before = rows(store, "EXECUTE ask")
    store.execute("INSERT INTO lethe.turns (content) VALUES (?)", [NEW])
    after = rows(store, "EXECUTE ask")
    assert before[0]["content"] != NEW and after[0]["content"] == NEW
    assert before[0]["retrieval_id"] != after[0]["retrieval_id"] and count(store, "retrievals") == 2


def test_a_prepared_memory_add_adds_each_time(store):
    """And each turn is said when it is added, not when the statement was prepared."""
    store.execute(f"PREPARE note AS FROM memory_add('{NEW}')")
    time.sleep(1.1)
    assert count(store, "turns") == len(FACTS)
    began = value(store, "SELECT epoch_us(now())")
    ids = [rows(store, "EXECUTE note")[0]["turn_id"] for _ in range(2)]
    assert len(set(ids)) == 2
    said = [value(store, "SELECT epoch_us(said_at) FROM lethe.turns WHERE turn_id = ?", [id]) for id in ids]
    assert began - 10_000 <= said[0] < said[1]


def snapshot(connection):
    tables = ["turns", "states", "retrievals", "suppression", "cues", "feedback", "store", "encoders"]
    return {table: rows(connection, f"FROM lethe.{table} ORDER BY ALL") for table in tables}


@pytest.mark.parametrize(
    "call",
    [
        "FROM memory_retrieve('who plays the cello?', 3)",
        "SELECT memory_search('who plays the cello?', 3)",
        "SELECT memory_search(content, 3) FROM lethe.turns",
        "FROM memory_add('never')",
        "FROM memory_forget(filter := 'true')",
        "FROM memory_sync()",
        "FROM memory_create(learning := 'off')",
        "FROM memory_reset()",
        "FROM memory_recluster()",
        "FROM memory_feedback('{retrieval}', ignored := ['{turn}'])",
    ],
)
@pytest.mark.parametrize("way", ["EXPLAIN {}", "DESCRIBE {}", "PREPARE p AS {}", "CREATE VIEW v AS {}"])
def test_looking_at_a_statement_does_nothing(store_with_everything, way, call):
    store, retrieval, turn = store_with_everything
    before = snapshot(store)
    store.execute("BEGIN")
    store.execute(way.format(call.format(retrieval=retrieval, turn=turn))).fetchall()
    store.execute("ROLLBACK")
    if way.startswith("PREPARE"):
        store.execute("DEALLOCATE p")
    assert snapshot(store) == before


@pytest.fixture(scope="module")
def store_with_everything(facts_file, tmp_path_factory):
    """Rows in every table, and a turn that is not encoded yet. For tests that change nothing."""
    connection = connect(shutil.copy(facts_file, tmp_path_factory.mktemp("everything") / "store.db"))
    connection.execute("SET lethe_cluster_after = 2")
    for *_, question in FACTS[:3]:
        asked = rows(connection, "FROM memory_retrieve(?, 12)", [question])
    retrieval, turn = asked[0]["retrieval_id"], asked[1]["turn_id"]
    rows(connection, "FROM memory_feedback(?, used := ?)", [str(retrieval), [str(turn)]])
    connection.execute("INSERT INTO lethe.turns (content) VALUES (?)", [NEW])
    yield connection, retrieval, turn
    connection.close()


def test_explain_analyze_executes(store):
    """As DuckDB has it: EXPLAIN ANALYZE runs the statement."""
    store.execute(f"EXPLAIN ANALYZE FROM memory_retrieve('{QUESTION}', 3)").fetchall()
    assert count(store, "retrievals") == 1


# READ_ONLY ----------------------------------------------------------------------------------------


def fingerprint(path):
    folder = Path(path).parent
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in folder.iterdir()
    }


@pytest.fixture
def pending_file(store_file):
    """Some turns are not encoded, and some states are of turns that are no more."""
    connection = duckdb.connect(str(store_file))
    connection.execute(
        "INSERT INTO lethe.turns (session_id, speaker, said_at, content) VALUES ('s1', 'Ana', '2024-03-01', ?)", [NEW]
    )
    connection.execute("DELETE FROM lethe.turns WHERE session_id = 's3'")
    connection.close()
    return store_file


READS = [
    "FROM memory_retrieve('{question}', 1)",
    "FROM memory_retrieve('{question}', 1, explain := true, learn := true)",
    "SELECT h.* FROM (SELECT unnest(memory_search('{question}', 1)) AS h)",
]


@pytest.mark.parametrize("attached", [False, True])
def test_a_read_only_store_answers_and_is_not_written(pending_file, attached):
    before = fingerprint(pending_file)
    if attached:
        connection = connect()
        connection.execute(f"ATTACH '{pending_file}' AS store (READ_ONLY); USE store")
    else:
        connection = connect(pending_file, read_only=True)
    for _ in range(2):
        for read in READS:
            assert rows(connection, read.format(question=ABOUT_NEW))[0]["content"] == NEW
            assert rows(connection, read.format(question=QUESTION))[0]["content"] == ANSWER
    assert len(contents(connection, "what happened?", 100)) == 9
    stats = one(connection, "FROM memory_stats()")
    assert (stats["read_only"], stats["turns"], stats["retrievals"], stats["note"]) == (True, 9, 0, None)
    for call in [
        "memory_add('x')",
        "memory_forget(session := 's1')",
        "memory_create(learning := 'off')",
        "memory_reset()",
        "memory_recluster()",
    ]:
        with pytest.raises(duckdb.Error, match=f"{call.split('(')[0]}: database 'store' is attached READ_ONLY"):
            connection.execute(f"FROM {call}")
    try:
        connection.execute("FROM memory_sync()")
    except duckdb.Error as error:
        assert "READ_ONLY" in str(error)
    connection.close()
    assert fingerprint(pending_file) == before


def test_a_read_only_store_beside_one_that_learns(pending_file, tmp_path):
    connection = connect(tmp_path / "own.db")
    before = fingerprint(pending_file)
    connection.execute(f"CALL memory_create(); ATTACH '{pending_file}' AS other (READ_ONLY)")
    insert(connection, facts(("s3",)))
    files = {name: print for name, print in fingerprint(pending_file).items() if not name.startswith("own.db")}
    found = rows(connection, "FROM memory_retrieve(?, 3, stores := '*')", [ABOUT_NEW])
    assert (found[0]["store"], found[0]["content"]) == ("other", NEW)
    assert count(connection, "retrievals") == 1
    with pytest.raises(duckdb.Error, match="store"):
        rows(
            connection,
            "FROM memory_feedback(?, used := ?)",
            [str(found[0]["retrieval_id"]), [str(found[0]["turn_id"])]],
        )
    connection.close()
    after = {name: print for name, print in fingerprint(pending_file).items() if not name.startswith("own.db")}
    assert files == after == {name: print for name, print in before.items() if not name.startswith("own.db")}
