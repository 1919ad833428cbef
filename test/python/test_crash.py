"""A process that is killed: what was committed is there, and what was left undone is done by the next."""

import shutil
import signal
import time

import pytest
from support import (
    assert_same_answers,
    assert_same_states,
    chatter,
    connect,
    contents,
    count,
    insert,
    kill,
    one,
    rows,
    run,
    start,
    states,
    value,
)

TURNS, GROUP = 600, 256
QUERIES = ["who went swimming near the old bridge?", "postgres connections timed out", "Verdi rehearsal on Tuesday"]


@pytest.fixture(scope="module")
def pending_file(tmp_path_factory):
    """A store of 600 short turns, none of them encoded."""
    path = tmp_path_factory.mktemp("pending") / "pending.db"
    connection = connect(path)
    connection.execute("CALL memory_create(context := 4, template := 'plain')")
    insert(connection, chatter(TURNS, 11, sessions=40, words=(2, 4)))
    connection.close()
    return path


@pytest.fixture(scope="module")
def whole(pending_file, tmp_path_factory):
    """The same store, encoded without interruption."""
    connection = connect(shutil.copy(pending_file, tmp_path_factory.mktemp("whole") / "whole.db"))
    assert one(connection, "FROM memory_sync()")["encoded"] == TURNS
    yield connection
    connection.close()


def lines(process):
    """What the other process prints, line by line; an error if it ends."""
    for line in process.stdout:
        yield line.strip()
    raise AssertionError(f"it ended: {process.stderr.read()}")


SYNC = """
    import threading
    connection = connect(args[0])
    watching = connection.cursor()

    def watch():
        seen = -1
        while True:
            stored = count(watching, 'states')
            if stored != seen:
                print(stored, flush=True)
                seen = stored
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    rows(connection, {call!r})
    print('done', flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("call", ["FROM memory_sync()", "FROM memory_retrieve('anything', 3)"])
def test_killed_in_the_middle_of_encoding(pending_file, whole, tmp_path, call):
    path = shutil.copy(pending_file, tmp_path / "store.db")
    process = start(SYNC.replace("{call!r}", repr(call)), path)
    seen = next(int(line) for line in lines(process) if line == "done" or int(line) > 0)
    kill(process)
    assert seen == GROUP, "whole groups become visible, one at a time"
    connection = connect(path)
    stored = count(connection, "states")
    assert stored in (GROUP, 2 * GROUP) and stored >= seen, "what was seen is there, and no part of a group"
    assert count(connection, "turns") == TURNS
    assert value(connection, "SELECT count(DISTINCT turn_id) FROM lethe.states") == stored
    assert one(connection, "FROM memory_sync()")["encoded"] == TURNS - stored
    assert one(connection, "FROM memory_sync()")["encoded"] == 0
    assert_same_states(states(connection), states(whole))
    for query in QUERIES:
        sql = "FROM memory_retrieve(?, 20, learn := false)"
        assert_same_answers(rows(connection, sql, [query]), rows(whole, sql, [query]))
    connection.close()


def test_killed_right_after_memory_add_returned(store_file):
    process = start(
        """
        connection = connect(args[0])
        for number in range(1000):
            content = f'Parcel {number} weighs {number + 100} grams'
            print(rows(connection, 'FROM memory_add(?, session := ?)', [content, 's9'])[0]['turn_id'], content, flush=True)
    """,
        store_file,
    )
    told, printed = lines(process), {}
    while len(printed) < 5:
        turn, content = next(told).split(" ", 1)
        printed[turn] = content
    kill(process)
    connection = connect(store_file)
    stored = {str(r["turn_id"]): r["content"] for r in rows(connection, "SELECT turn_id, content FROM lethe.turns")}
    assert printed.items() <= stored.items()
    # A returned memory_add has stored the state as well; at most the one that was under way has not.
    assert set(printed) <= {str(turn) for turn in states(connection)}
    assert one(connection, "FROM memory_sync()")["encoded"] <= 1
    for content in printed.values():
        assert contents(connection, content, 1) == [content]
    assert count(connection, "states") == count(connection, "turns")
    connection.close()


def test_killed_while_learning(store_file):
    process = start(
        """
        connection = connect(args[0])
        connection.execute("CALL memory_create(learning := 'rank_gap')")
        connection.execute('SET lethe_cluster_after = 4; SET lethe_clusters = 3')
        for number in range(1000):
            for *_, question in FACTS:
                print(rows(connection, 'FROM memory_retrieve(?, 3)', [question])[0]['retrieval_id'], flush=True)
    """,
        store_file,
    )
    told = lines(process)
    printed = {next(told) for _ in range(9)}
    kill(process)
    connection = connect(store_file)
    assert printed <= {str(r["retrieval_id"]) for r in rows(connection, "SELECT retrieval_id FROM lethe.retrievals")}
    cues = rows(connection, "FROM lethe.cues ORDER BY cluster_id")
    assert [c["cluster_id"] for c in cues] == [0, 1, 2] and len({c["generation"] for c in cues}) == 1
    pairs = rows(connection, "SELECT turn_id, cluster_id FROM lethe.suppression")
    assert len(pairs) == len({(r["turn_id"], r["cluster_id"]) for r in pairs}) > 0
    assert contents(connection, "who plays the cello?", 1, "learn := true") == [
        "My sister plays the cello in an orchestra"
    ]
    # In a store of twelve turns more than half of them are soon suppressed, which would be noted.
    connection.execute("SET lethe_watch = false")
    assert one(connection, "FROM memory_stats()")["note"] is None
    connection.close()


def test_killed_while_forgetting_loses_all_of_a_session_or_nothing(store_file):
    process = start(
        """
        connection = connect(args[0])
        print('ready', flush=True)
        rows(connection, "FROM memory_forget(session := 's1')")
        print('done', flush=True)
        time.sleep(60)
    """,
        store_file,
    )
    next(lines(process))
    time.sleep(0.005)
    kill(process)
    connection = connect(store_file)
    left = value(connection, "SELECT count(*) FROM lethe.turns WHERE session_id = 's1'")
    assert left in (0, 4)
    connection.execute("CALL memory_sync()")
    assert count(connection, "states") == count(connection, "turns") == 8 + left
    connection.close()


def test_ctrl_c_keeps_what_was_encoded(pending_file, whole, tmp_path):
    """The call ends with an error soon after, what was stored stays, and the next call does the rest."""
    path = shutil.copy(pending_file, tmp_path / "store.db")
    told = run(
        """
        import os, signal, threading
        # A handler of the host's. It does nothing, so that only lethe ends the call.
        signal.signal(signal.SIGINT, lambda *_: None)
        connection = connect(args[0])
        watching = connection.cursor()

        def interrupt():
            while count(watching, 'states') == 0:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            connection.execute('CALL memory_sync()')
            tell('not interrupted')
        except duckdb.Error as error:
            tell(str(error))
        """,
        path,
    )
    connection = connect(path)
    stored = count(connection, "states")
    assert 0 < stored < TURNS and stored % GROUP == 0
    assert f"memory_sync: interrupted: {stored} of {TURNS} turns are encoded" in told
    assert one(connection, "FROM memory_sync()")["encoded"] == TURNS - stored
    assert_same_states(states(connection), states(whole))
    connection.close()


def test_ctrl_c_ends_a_process_that_does_not_handle_it(pending_file, tmp_path):
    """As before lethe was loaded, and after it has encoded. What was encoded is there."""
    path = shutil.copy(pending_file, tmp_path / "store.db")
    process = start(
        """
        import os, signal, threading
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        connection = connect(args[0])
        connection.execute('CALL memory_sync()')
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        """,
        path,
    )
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT
    connection = connect(path)
    assert count(connection, "states") == TURNS
    connection.close()
