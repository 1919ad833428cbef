"""Whatever is committed is seen by the next retrieval, also where nothing had changed for a while and nobody looked closer."""

import threading

import pytest
from support import connect, contents, facts, insert, one, rows, turn_id, value

STORES = {
    "file": "ATTACH '{folder}/a.db' AS mine",
    "memory": "ATTACH ':memory:' AS mine",
    "no log": "ATTACH '{folder}/a.db' AS mine (RECOVERY_MODE no_wal_writes)",
    "encrypted": "ATTACH '{folder}/a.db' AS mine (ENCRYPTION_KEY 'secret')",
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    connection = connect()
    # Random numbers of DuckDB's own, so that the test needs no other extension.
    connection.execute("SET force_mbedtls_unsafe = 'true'")
    connection.execute(STORES[request.param].format(folder=tmp_path))
    connection.execute("USE mine")
    connection.execute("CALL memory_create(context := 0, template := 'plain')")
    insert(connection, facts())
    connection.execute("CALL memory_sync()")
    yield connection
    connection.close()


def ask(connection, learn):
    return contents(connection, "what is new about the harp?", 1, f"learn := {learn}")[0]


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("between", ["", "CHECKPOINT mine", "CREATE OR REPLACE TABLE other AS SELECT 1"])
def test_changes_one_after_another(store, learn, between):
    """After each the same question is asked twice: the second time nothing has changed."""
    harp = turn_id(700)
    insert(store, [(harp, "h", "Ana", None, "The harp is new: version 0")])
    for version in range(8):
        for _ in range(2):
            assert ask(store, learn) == f"The harp is new: version {version}"
            store.execute(between)
        content = f"The harp is new: version {version + 1}"
        store.execute("UPDATE lethe.turns SET content = ? WHERE turn_id = ?", [content, harp])
    store.execute("DELETE FROM lethe.turns WHERE turn_id = ?", [harp])
    assert "harp" not in ask(store, learn)


def test_a_change_of_the_same_size(store):
    """The log grows by as many bytes, and back."""
    harp = turn_id(700)
    insert(store, [(harp, "h", "Ana", None, "The harp is new: a")])
    for letter in "abababab":
        store.execute("UPDATE lethe.turns SET content = ? WHERE turn_id = ?", [f"The harp is new: {letter}", harp])
        assert ask(store, False) == f"The harp is new: {letter}"
        store.execute("CHECKPOINT mine")
        assert ask(store, False) == f"The harp is new: {letter}"


def test_what_a_store_says_of_itself_is_seen(store):
    assert ask(store, False)
    store.execute("UPDATE lethe.store SET value = 'off' WHERE key = 'learning'")
    before = value(store, "SELECT count(*) FROM lethe.retrievals")
    assert ask(store, True)
    assert value(store, "SELECT count(*) FROM lethe.retrievals") == before, "it no longer learns"
    store.execute("UPDATE lethe.store SET value = 'rank_gap' WHERE key = 'learning'")
    assert ask(store, True)
    assert value(store, "SELECT count(*) FROM lethe.retrievals") == before + 1


def test_clusters_that_were_fitted_meanwhile_are_used(store):
    for question in ("harp", "dog", "kitchen", "Lisbon"):
        rows(store, "FROM memory_retrieve(?, 3)", [question])
    assert ask(store, False)
    generation = one(store, "SELECT max(generation) AS g FROM memory_recluster()")["g"]
    assert value(store, "SELECT generation FROM memory_stats()") == generation
    questions = ("harp", "dog", "kitchen", "Lisbon")
    answers = [one(store, "FROM memory_retrieve(?, 1, explain := true)", [question]) for question in questions]
    clusters = {answer["cue_cluster"] for answer in answers}
    assert len(clusters) > 1, "questions of different kinds are told apart now"


def test_a_writer_beside_two_readers(store):
    """A turn that was committed before a question was asked is among its answers, whoever else writes and learns meanwhile."""
    committed, failures, done = [], [], threading.Event()

    def write():
        mine = store.cursor()
        mine.execute("USE mine")
        for number in range(60):
            insert(mine, [(turn_id(1000 + number), f"w{number % 7}", "Ana", None, f"The harp has string {number}")])
            committed.append(number)
        done.set()

    def read(learn):
        mine = store.cursor()
        mine.execute("USE mine")
        while not done.is_set():
            known = len(committed)
            found = contents(mine, "which string has the harp?", 200, f"learn := {learn}")
            missing = {f"The harp has string {number}" for number in range(known)} - set(found)
            if missing:
                failures.append(missing)

    threads = [threading.Thread(target=write)]
    threads += [threading.Thread(target=read, args=(learn,)) for learn in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert done.is_set() and not failures, failures[:1]
