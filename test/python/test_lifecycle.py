"""The extension lives as long as its DuckDB instance, and not a moment longer."""

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from support import (
    EXTENSION,
    FACTS,
    TIMEOUT,
    connect,
    contents,
    count,
    environment,
    facts,
    insert,
    one,
    rows,
    run,
    start,
    states,
    value,
)

QUESTION, ANSWER = FACTS[0][3], FACTS[0][2]


def use_nothing(connection):
    pass


def use_retrieve(connection):
    assert contents(connection, QUESTION, 1, "learn := false") == [ANSWER]


def use_learning(connection):
    for *_, question in FACTS[:3]:
        contents(connection, question, 5, "learn := true")
    assert count(connection, "retrievals") == 3


def use_add(connection):
    rows(connection, "FROM memory_add('The boiler was repaired in June', session := 's9')")


def use_search(connection):
    sql = "SELECT unnest(memory_search(q, 2)) FROM (VALUES ('who plays the cello?'), ('peanuts')) t(q)"
    assert len(rows(connection, sql)) == 4


def use_error(connection):
    for call in [
        "memory_retrieve('x', 1, stores := 'nowhere')",
        "memory_retrieve('x', -1)",
        "memory_forget()",
        "memory_retrieve('x', 1, filter := 'nonsense +')",
    ]:
        with pytest.raises(duckdb.Error):
            connection.execute(f"FROM {call}")


def use_half_a_result(connection):
    assert connection.execute("FROM memory_retrieve(?, 12)", [QUESTION]).fetchone() is not None


def use_open_transaction(connection):
    connection.execute("BEGIN; UPDATE lethe.turns SET content = 'never committed'")
    contents(connection, QUESTION, 5, "learn := true")


USES = [
    use_nothing,
    use_retrieve,
    use_learning,
    use_add,
    use_search,
    use_error,
    use_half_a_result,
    use_open_transaction,
]


@pytest.mark.parametrize("use", USES)
def test_closing_releases_the_file_to_the_same_process(store_file, use):
    connection = connect(store_file)
    use(connection)
    connection.close()
    again = connect(store_file)
    assert contents(again, QUESTION, 1) == [ANSWER]
    again.execute("INSERT INTO lethe.turns (content) VALUES ('written after reopening')")
    again.close()
    # Another instance, not one kept alive somewhere: it has never seen the extension.
    bare = duckdb.connect(str(store_file))
    with pytest.raises(duckdb.Error):
        bare.execute("FROM memory_version()")
    bare.close()


OPEN_ELSEWHERE = """
    connection = duckdb.connect(args[0])
    connection.execute("INSERT INTO lethe.turns (content) VALUES ('from elsewhere')")
    tell(count(connection, 'turns'))
"""


@pytest.mark.parametrize("use", USES)
def test_closing_releases_the_file_to_another_process(store_file, use):
    connection = connect(store_file)
    use(connection)
    turns = count(connection, "turns")
    connection.close()
    assert not Path(str(store_file) + ".wal").exists()
    assert run(OPEN_ELSEWHERE, store_file) == turns + 1


def test_an_open_connection_keeps_the_file(store):
    """Without this, the tests above would prove nothing."""
    path = value(store, "SELECT path FROM duckdb_databases() WHERE NOT internal")
    process = start(OPEN_ELSEWHERE, path)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0 and "lock" in errors


def test_a_process_that_ends_without_closing_leaves_a_file_that_opens(store_file):
    run(
        """
        connection = connect(args[0])
        contents(connection, 'who plays the cello?', 3, 'learn := true')
        rows(connection, "FROM memory_add('The boiler was repaired in June')")
    """,
        store_file,
    )
    connection = connect(store_file)
    assert count(connection, "turns") == len(FACTS) + 1 and count(connection, "retrievals") == 1
    connection.close()


ASK = """
    connection = connect(args[0])
    connection.execute("CALL memory_create(learning := 'rank_gap')")
    connection.execute("SET lethe_cluster_after = 6; SET lethe_clusters = 2")
    for session, speaker, content, question in FACTS[:7]:
        rows(connection, "FROM memory_retrieve(?, 12)", [question])
    tell({
        'suppression': [[str(r['turn_id']), r['cue_cluster'], r['score'], r['hits']] for r in
                        rows(connection, 'FROM memory_suppression()')],
        'cues': rows(connection, 'SELECT cluster_id, centroid, queries FROM lethe.cues ORDER BY ALL'),
        'stats': {k: v for k, v in one(connection, 'FROM memory_stats()').items()},
        'score': rows(connection, 'FROM memory_retrieve(?, 12, learn := false)', [FACTS[0][3]])[0]['score'],
    })
"""


def test_what_was_learned_is_alive_in_another_process(store_file):
    told = run(ASK, store_file)
    assert told["suppression"] and len(told["cues"]) == 2
    connection = connect(store_file)
    found = rows(connection, "FROM memory_suppression()")
    assert [[str(r["turn_id"]), r["cue_cluster"], r["score"], r["hits"]] for r in found] == told["suppression"]
    assert rows(connection, "SELECT cluster_id, centroid, queries FROM lethe.cues ORDER BY ALL") == told["cues"]
    contents(connection, FACTS[0][3])  # has the index made, as it is in the other process
    stats = one(connection, "FROM memory_stats()")
    assert stats == told["stats"]
    assert (stats["retrievals"], stats["clusters"], stats["generation"], stats["encoded"]) == (7, 2, 1, len(FACTS))
    # Nothing is encoded again, and a question gets the same score.
    assert one(connection, "FROM memory_sync()")["encoded"] == 0
    answer = rows(connection, "FROM memory_retrieve(?, 12, learn := false)", [QUESTION])[0]
    assert (answer["content"], answer["score"]) == (ANSWER, pytest.approx(told["score"], abs=1e-6))
    # It goes on where the other process stopped: the same question again raises what the first one raised.
    hits = {(str(turn), cluster): hits for turn, cluster, _, hits in told["suppression"]}
    asked = rows(connection, "FROM memory_retrieve(?, 12, explain := true)", [QUESTION])
    assert count(connection, "retrievals") == 8
    assert any(row["suppression"] > 0 for row in asked)
    after = {(str(r["turn_id"]), r["cue_cluster"]): r["hits"] for r in rows(connection, "FROM memory_suppression()")}
    assert any(after[key] == hits[key] + 1 for key in hits if key in after)
    connection.close()


# The command line ---------------------------------------------------------------------------------


@pytest.fixture
def shell():
    """The native DuckDB command line, from the package duckdb-cli: 1.5.6, the newest there is, whatever duckdb this Python has."""
    binary = Path(sys.executable).parent / "duckdb"
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    assert told.startswith("v1.5.6"), told
    return str(binary)


SCRIPT = f"""
LOAD '{EXTENSION}';
CALL memory_create();
FROM memory_add(['The boiler was repaired in June', 'The cat sleeps in the boiler room'], session := 's1');
FROM memory_retrieve('when was the boiler repaired?', 1);
INSERT INTO lethe.turns (content) VALUES ('The piano was tuned in July');
SELECT content FROM memory_retrieve('when was the piano tuned?', 1);
"""


@pytest.mark.parametrize("ending", ["", ".exit\n", "SELECT error('the last statement fails');\n"])
def test_the_command_line_leaves_no_log_behind(shell, tmp_path, ending):
    path = tmp_path / "shell.db"
    done = subprocess.run(
        [shell, "-unsigned", "-csv", str(path)],
        input=SCRIPT + ending,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    assert (done.returncode == 0) == ("error" not in ending), done.stderr
    assert "The piano was tuned in July" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["shell.db"]
    connection = duckdb.connect(str(path), read_only=True)
    assert count(connection, "turns") == 3 and count(connection, "states") == 3 and count(connection, "retrievals") == 2
    connection.close()


# Instances and threads ----------------------------------------------------------------------------


def contents_of(connection, **options):
    return set(contents(connection, "what happened?", 100, **options))


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_two_instances_in_one_process_do_not_mix(tmp_path, kind):
    paths = [tmp_path / "a.db", tmp_path / "b.db"] if kind == "files" else [":memory:", ":memory:"]
    a, b = map(connect, paths)
    for connection, sessions in [(a, ("s1",)), (b, ("s2", "s3"))]:
        connection.execute("CALL memory_create()")
        insert(connection, facts(sessions))
    told = {
        name: {fact[2] for fact in FACTS if fact[0] in sessions}
        for name, sessions in [("a", ("s1",)), ("b", ("s2", "s3"))]
    }
    for _ in range(2):
        assert contents_of(a) == told["a"] and contents_of(b) == told["b"]
    assert contents_of(a, options="stores := '*'") == told["a"]
    # Settings, learning and removal stay on their side.
    a.execute("SET lethe_candidates = 7")
    assert value(b, "SELECT current_setting('lethe_candidates')") == 300
    assert count(a, "retrievals") == 1 and count(b, "retrievals") == 0
    rows(a, "FROM memory_forget(filter := 'true')")
    assert contents_of(a) == set() and contents_of(b) == told["b"]
    a.close()
    assert contents_of(b) == told["b"]
    c = connect(paths[0])
    assert contents_of(b) == told["b"]
    c.close()
    b.close()


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_any_number_of_threads(store, threads):
    store.execute(f"SET threads = {threads}")
    for *_, answer, question in FACTS[:3]:
        assert contents(store, question, 1, "learn := true") == [answer]
    assert len(rows(store, "FROM memory_add('One more', session := 's1')")) == 1
    many = rows(
        store,
        """
        SELECT q.i, h.content FROM (SELECT i, 'who plays the cello?' AS text FROM range(5) r(i)) q,
               unnest(memory_search(q.text, 1)) t(h)""",
    )
    assert [row["content"] for row in many] == ["My sister plays the cello in an orchestra"] * 5


TOGETHER = """
    import threading
    connection = connect(args[0])
    failures, added, asked = [], [], []

    def work(number):
        cursor = connection.cursor()
        try:
            for round in range(3):
                content = f'Parcel {number}{round} weighs {7 * number + round + 100} grams'
                added.append((content, str(rows(cursor, 'FROM memory_add(?, session := ?)', [content, f't{number}'])[0]['turn_id'])))
                found = rows(cursor, 'FROM memory_retrieve(?, 1)', [content])
                asked.append(str(found[0]['retrieval_id']))
                if found[0]['content'] != content:
                    failures.append(f'asked for {content}, got {found[0]}')
                session, speaker, answer, question = FACTS[(number + 4 * round) % len(FACTS)]
                found = rows(cursor, 'FROM memory_retrieve(?, 2)', [question])
                asked.append(str(found[0]['retrieval_id']))
                if found[0]['content'] != answer:
                    failures.append(f'asked {question}, got {found[0]}')
        except Exception as error:
            failures.append(f'{type(error).__name__}: {error}')

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    note = one(connection, 'FROM memory_stats()')['note']
    connection.close()
    tell({'failures': failures, 'added': added, 'asked': asked, 'note': note})
"""


def test_many_threads_retrieve_and_add_at_once(store_file):
    told = run(TOGETHER, store_file)
    assert told["failures"] == []
    connection = connect(store_file)
    stored = {str(r["turn_id"]): r["content"] for r in rows(connection, "SELECT turn_id, content FROM lethe.turns")}
    assert len(told["added"]) == 18 and len(stored) == len(FACTS) + 18
    assert all(stored[turn] == content for content, turn in told["added"])
    assert {str(turn) for turn in states(connection)} == set(stored)
    assert one(connection, "FROM memory_sync()")["encoded"] == 0
    connection.close()


def test_every_answer_of_many_threads_is_remembered(store_file):
    """Every answer carries a retrieval_id, and memory_feedback must know it, whoever asked at the same time."""
    told = run(TOGETHER, store_file)
    connection = connect(store_file)
    known = {str(r["retrieval_id"]) for r in rows(connection, "SELECT retrieval_id FROM lethe.retrievals")}
    lost = [retrieval for retrieval in told["asked"] if retrieval not in known]
    assert (len(lost), told["note"]) == (0, None)
    connection.close()


AT_ONCE = """
    import threading
    connection = connect(args[0])
    connection.execute("CALL memory_create(learning := 'uniform')")
    connection.execute('SET GLOBAL lethe_cluster_after = 4; SET GLOBAL lethe_clusters = 3')
    told = []
    for attempt in range(12):
        connection.execute('DELETE FROM lethe.suppression; DELETE FROM lethe.cues; DELETE FROM lethe.retrievals')
        ready = threading.Barrier(6)

        def work(number):
            cursor = connection.cursor()
            ready.wait()
            rows(cursor, 'FROM memory_retrieve(?, 12)', [FACTS[0][3]])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        told.append({
            'retrievals': count(connection, 'retrievals'),
            'entries': value(connection, 'SELECT count(*) - count(DISTINCT (turn_id, cluster_id)) FROM lethe.suppression'),
            'cues': value(connection, 'SELECT count(*) - count(DISTINCT cluster_id) FROM lethe.cues'),
        })
    connection.close()
    tell(told)
"""


def test_what_many_threads_learn_at_once(store_file):
    """No retrieval is lost; one entry a turn and cluster, one cue a cluster: no PRIMARY KEY sees to that."""
    for told in run(AT_ONCE, store_file):
        assert told == {"retrievals": 6, "entries": 0, "cues": 0}


# Attached files -----------------------------------------------------------------------------------


def other_file(path, content):
    """A store of one turn."""
    connection = connect(path)
    connection.execute("CALL memory_create()")
    rows(connection, "FROM memory_add(?)", [content])
    connection.close()
    return path


def test_another_file_under_the_same_name(store_file, tmp_path):
    other = other_file(tmp_path / "other.db", "Only this is known here")
    connection = connect()
    for _ in range(2):
        connection.execute(f"ATTACH '{store_file}' AS m")
        assert contents(connection, QUESTION, 1, "stores := 'm'") == [ANSWER]
        assert len(contents(connection, QUESTION, 100, "stores := 'm'")) == len(FACTS)
        connection.execute("DETACH m")
        connection.execute(f"ATTACH '{other}' AS m")
        assert contents(connection, QUESTION, 100, "stores := 'm'") == ["Only this is known here"]
        connection.execute("DETACH m")
    with pytest.raises(duckdb.Error, match="no database 'm' is attached"):
        contents(connection, QUESTION, 1, "stores := 'm'")
    connection.close()


def test_an_older_copy_under_the_same_name(store_file, tmp_path):
    """A copy has the store_id of its original: only its tables tell them apart."""
    copy = shutil.copy(store_file, tmp_path / "copy.db")
    connection = connect()
    connection.execute(f"ATTACH '{store_file}' AS m; USE m")
    connection.execute("UPDATE lethe.turns SET content = 'The tomatoes were lost to frost' WHERE content = ?", [ANSWER])
    connection.execute("DELETE FROM lethe.turns WHERE session_id = 's3'")
    rows(connection, "FROM memory_add('A turn the copy does not have', session := 's1')")
    now = set(contents(connection, "what happened?", 100))
    assert "The tomatoes were lost to frost" in now and len(now) == 9
    connection.execute(f"USE memory; DETACH m; ATTACH '{copy}' AS m; USE m")
    assert set(contents(connection, "what happened?", 100)) == {fact[2] for fact in FACTS}
    assert one(connection, "FROM memory_sync()")["encoded"] == 0
    connection.execute(f"USE memory; DETACH m; ATTACH '{store_file}' AS m; USE m")
    assert set(contents(connection, "what happened?", 100)) == now
    assert set(map(str, states(connection))) == {
        str(r["turn_id"]) for r in rows(connection, "SELECT turn_id FROM lethe.turns")
    }
    connection.close()


def test_a_copy_that_was_never_encoded_under_the_same_name(tmp_path):
    """Its states are made and stored, although the process knows the same turns from the original."""
    original, copy = tmp_path / "original.db", tmp_path / "copy.db"
    connection = connect(original)
    connection.execute("CALL memory_create()")
    insert(connection, facts(("s1",)))
    connection.close()
    shutil.copy(original, copy)
    connection = connect()
    connection.execute(f"ATTACH '{original}' AS m; CALL memory_sync(store := 'm')")
    connection.execute(f"DETACH m; ATTACH '{copy}' AS m")
    assert contents(connection, QUESTION, 1, "stores := 'm'") == [ANSWER]
    connection.execute("CALL memory_sync(store := 'm')")
    assert count(connection, "states", "m") == 4
    connection.close()


def test_a_copy_attached_beside_its_original(store_file, tmp_path):
    copy = shutil.copy(store_file, tmp_path / "copy.db")
    connection = connect()
    connection.execute(f"ATTACH '{store_file}' AS m1; ATTACH '{copy}' AS m2")
    both = rows(connection, "FROM memory_retrieve(?, 100, stores := ['m1', 'm2'])", [QUESTION])
    assert len(both) == 2 * len(FACTS)
    assert {(row["store"], row["content"]) for row in both[:2]} == {("m1", ANSWER), ("m2", ANSWER)}
    assert both[0]["score"] == pytest.approx(both[1]["score"], abs=1e-9)
    # They part ways.
    connection.execute("DELETE FROM m2.lethe.turns WHERE session_id <> 's1'")
    connection.execute("INSERT INTO m2.lethe.turns (session_id, content) VALUES ('s9', 'Only in the copy')")
    found = rows(connection, "FROM memory_retrieve('what happened?', 100, stores := '*', learn := false)")
    assert {r["content"] for r in found if r["store"] == "m1"} == {fact[2] for fact in FACTS}
    assert {r["content"] for r in found if r["store"] == "m2"} == {f[2] for f in FACTS[:4]} | {"Only in the copy"}
    assert count(connection, "states", "m1") == 12 and count(connection, "states", "m2") == 5
    # What is learned is learned on both sides, each about its own turns.
    for store in ("m1", "m2"):
        turns = f"SELECT turn_id FROM {store}.lethe.turns"
        assert value(connection, f"SELECT count(*) FROM {store}.lethe.suppression WHERE turn_id NOT IN ({turns})") == 0
        assert count(connection, "retrievals", store) == 1
    connection.close()
