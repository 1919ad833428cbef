"""Whatever was done to `lethe.turns`, and in whatever order: the states are those of a fresh store with the same turns."""

import random
import shutil
import threading
import time
from datetime import timedelta

import pytest
from support import (
    MODELS,
    START,
    assert_same_answers,
    assert_same_states,
    chatter,
    connect,
    count,
    insert,
    one,
    rows,
    states,
    turn_id,
    value,
)
from tokenizers import Tokenizer

QUERIES = [
    "who went swimming near the old bridge?",
    "postgres connections",
    "Verdi in 1851",
    "apples 東京",
    "grandmother",
]
COLUMNS = "turn_id, session_id, speaker, said_at, content, metadata, valid_until"


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = Tokenizer.from_file(str(MODELS / "all-MiniLM-L6-v2" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def inputs(connection, tokenizer, template, context):
    """What each turn is encoded from: its own wordpieces, behind the last `context` of those said before it in its session,
    in the order (said_at, turn_id), the unknown dates first. Earlier turns are read without their dates."""
    turns = rows(connection, "SELECT turn_id, session_id, speaker, said_at, content FROM lethe.turns")
    turns.sort(key=lambda t: (t["session_id"] or "", t["said_at"] is not None, t["said_at"] or START, t["turn_id"].int))

    def pieces(text):
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    found, before, session = {}, (), None
    for turn in turns:
        if turn["session_id"] is None or turn["session_id"] != session:
            before, session = (), turn["session_id"]
        said = turn["content"]
        who = turn["speaker"] if template != "plain" else None
        named = f"{who}: {said}" if who else said
        date = turn["said_at"] if template == "dated" else None
        day = f"{date.day} {date:%B, %Y}" if date else None
        text = f"{who} ({day}): {said}" if who and day else f"({day}): {said}" if day else named
        found[turn["turn_id"]] = (before, pieces(text))
        before = (before + pieces(named))[-context:] if context else ()
    return found


def turns_by_id(connection):
    found = rows(connection, "SELECT turn_id, session_id, speaker, said_at, content FROM lethe.turns")
    return {row["turn_id"]: row for row in found}


def fresh(connection, **options):
    """A store into which the same turns were put at once."""
    other = connect()
    settings = ", ".join(f"{name} := {value!r}" for name, value in options.items())
    other.execute(f"CALL memory_create({settings})")
    final = [tuple(row.values()) for row in rows(connection, f"SELECT {COLUMNS} FROM lethe.turns ORDER BY turn_id")]
    other.executemany(f"INSERT INTO lethe.turns ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", final)
    other.execute("CALL memory_sync()")
    return other


def answers(connection, query):
    options = "learn := false, explain := true"
    return rows(connection, f"FROM memory_retrieve(?, 100, {options})", [query])


def assert_as_fresh(connection, **options):
    other = fresh(connection, **options)
    assert_same_states(states(connection), states(other))
    for query in QUERIES:
        got, want = answers(connection, query), answers(other, query)
        assert_same_answers(got, want)
        words = [{row["turn_id"]: row["word_score"] for row in found} for found in (got, want)]
        assert words[0] == pytest.approx(words[1], abs=1e-4)
    other.close()


class Change:
    """Random changes, the same for the same seed; each is SQL a user could write."""

    def __init__(self, connection, seed):
        self.connection, self.random, self.next = connection, random.Random(seed), 1000
        self.texts = [turn[4] for turn in chatter(200, seed + 1)]

    def pick(self, n=1):
        ids = [row["turn_id"] for row in rows(self.connection, "SELECT turn_id FROM lethe.turns ORDER BY turn_id")]
        return self.random.sample(ids, min(n, len(ids)))

    def moment(self):
        return self.random.choice([None] + [START + timedelta(minutes=self.random.randrange(-2000, 3000))] * 9)

    def insert(self):
        for _ in range(self.random.choice([1, 1, 3])):
            self.next += 1
            session = self.random.choice(["c0", "c0", "c1", "c2", None])
            insert(
                self.connection,
                [
                    (
                        turn_id(self.next),
                        session,
                        self.random.choice(["Ana", "Zoë", None]),
                        self.moment(),
                        self.random.choice(self.texts),
                    )
                ],
            )

    def update(self, column, what):
        for turn in self.pick(self.random.choice([1, 1, 2])):
            self.connection.execute(f"UPDATE lethe.turns SET {column} = ? WHERE turn_id = ?", [what, turn])

    def content(self):
        self.update("content", self.random.choice(self.texts))

    def speaker(self):
        self.update("speaker", self.random.choice(["Ben", "Zoë", None]))

    def said_at(self):
        self.update("said_at", self.moment())

    def session(self):
        self.update("session_id", self.random.choice(["c0", "c1", "c9", None]))

    def metadata(self):
        self.update("metadata", '{"a": 1}')

    def delete(self):
        for turn in self.pick(self.random.choice([1, 2])):
            self.connection.execute("DELETE FROM lethe.turns WHERE turn_id = ?", [turn])

    def rename(self):
        self.connection.execute("UPDATE lethe.turns SET session_id = 'c8' WHERE session_id = 'c1'")

    def forget(self):
        rows(
            self.connection,
            "FROM memory_forget(turn_ids := ?)",
            [[str(id) for id in self.pick(self.random.choice([1, 2]))]],
        )

    def add(self):
        rows(
            self.connection,
            "FROM memory_add(?, session := 'c0', speaker := 'Ana', said_at := ?)",
            [self.random.choice(self.texts), self.moment()],
        )

    KINDS = (
        [insert] * 3
        + [content] * 3
        + [speaker, said_at, said_at, session, metadata, delete, delete, rename, forget, add]
    )


@pytest.mark.parametrize(
    "seed, options",
    [
        (1, {}),
        (2, {"context": 24, "code_bits": 8}),
        (3, {"context": 48, "template": "speaker"}),
        (4, {"context": 0, "template": "plain"}),
    ],
    ids=["default", "context 24", "context 48", "context 0"],
)
def test_random_changes(tmp_path, tokenizer, seed, options):
    template, context = options.get("template", "dated"), options.get("context", 96)
    path = tmp_path / "store.db"
    connection = connect(path)
    settings = ", ".join(f"{name} := {value!r}" for name, value in options.items())
    connection.execute(f"CALL memory_create({settings})")
    insert(connection, chatter(20, seed))
    known, stood = {}, {}
    change = Change(connection, seed)
    history, missing = [], []
    for step in range(24):
        if step == 12:
            connection.close()
            connection = change.connection = connect(path)
        kinds = [change.random.choice(Change.KINDS) for _ in range(change.random.choice([1, 1, 1, 3]))] if step else []
        for kind in kinds:
            kind(change)
            history.append(kind.__name__)
        report = one(connection, "FROM memory_sync()")
        now, want = turns_by_id(connection), inputs(connection, tokenizer, template, context)
        encoded = sum(known.get(turn) != want[turn] for turn in want)
        # What memory_add and memory_forget did, they did before this report.
        if not {Change.add, Change.forget} & set(kinds):
            assert report["encoded"] == encoded, (step, history)
            assert step == 12 or report["added"] == len(set(now) - set(stood)), (step, history)
        if set(states(connection)) != set(now):
            missing.append((step, [kind.__name__ for kind in kinds], len(set(now) - set(states(connection)))))
        known, stood = want, now
    assert not missing, "after every synchronisation there is one state a turn"
    assert {tuple(row["token_ids"]) for row in states(connection).values()} == {own for _, own in known.values()}
    assert_as_fresh(connection, **options)
    # And nothing is left to do for another process.
    connection.close()
    connection = connect(path)
    assert one(connection, "FROM memory_sync()")["encoded"] == 0
    connection.close()


# One change at a time -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talk_file(tmp_path_factory):
    """Session c of twelve turns, of about fifteen wordpieces each, half an hour apart; and a short session d. Encoded."""
    path = tmp_path_factory.mktemp("talk") / "talk.db"
    connection = connect(path)
    connection.execute("CALL memory_create()")
    turns = [
        (turn_id(n), "c", "Ana" if n % 2 else "Ben", START + timedelta(hours=n / 2), text)
        for n, (*_, text) in enumerate(chatter(12, 7, words=(9, 10)))
    ]
    insert(connection, turns + [(turn_id(50 + n), "d", "Cem", START, f"short {n}") for n in range(3)])
    connection.execute("CALL memory_sync()")
    connection.close()
    return path


@pytest.fixture
def talk(talk_file, tmp_path):
    """A connection to a copy of it, that knows what is there."""
    connection = connect(shutil.copy(talk_file, tmp_path / "talk.db"))
    connection.execute("CALL memory_sync()")
    yield connection
    connection.close()


def changed(connection, tokenizer, sql, parameters=None):
    """Runs the change; returns what memory_sync reports, and how many turns have another input than before."""
    before = inputs(connection, tokenizer, "dated", 96)
    connection.execute(sql, parameters)
    after = inputs(connection, tokenizer, "dated", 96)
    return one(connection, "FROM memory_sync()"), sum(before.get(turn) != after[turn] for turn in after)


SET = "UPDATE lethe.turns SET {} WHERE turn_id = '{}'"
ONE_CHANGE = [
    # what, (added, updated, removed), how many are encoded; None: as many as the rule says, more than one and not all
    (SET.format("content = 'quite another thing'", turn_id(11)), (0, 1, 0), 1),
    (SET.format("content = 'quite another thing'", turn_id(0)), (0, 1, 0), None),
    (SET.format("speaker = 'Zoë'", turn_id(11)), (0, 1, 0), 1),
    (SET.format("speaker = 'Zoë'", turn_id(5)), (0, 1, 0), None),
    # Another hour of the same day in the same place changes no text; another day changes its own text alone.
    (SET.format("said_at = said_at + INTERVAL 1 MINUTE", turn_id(5)), (0, 1, 0), 0),
    (SET.format("said_at = said_at + INTERVAL 1 DAY", turn_id(11)), (0, 1, 0), 1),
    (SET.format("said_at = said_at - INTERVAL 1 DAY", turn_id(0)), (0, 1, 0), 1),
    (SET.format("said_at = said_at + INTERVAL 1 DAY", turn_id(0)), (0, 1, 0), None),
    (SET.format("session_id = 'd'", turn_id(11)), (0, 1, 0), 1),
    (SET.format("session_id = 'd'", turn_id(0)), (0, 1, 0), None),
    (SET.format("session_id = NULL", turn_id(11)), (0, 1, 0), 1),
    (SET.format("metadata = '{}', valid_until = TIMESTAMP '2999-01-01'", turn_id(3)), (0, 0, 0), 0),
    (f"DELETE FROM lethe.turns WHERE turn_id = '{turn_id(11)}'", (0, 0, 1), 0),
    (f"DELETE FROM lethe.turns WHERE turn_id = '{turn_id(2)}'", (0, 0, 1), None),
    ("DELETE FROM lethe.turns WHERE session_id = 'c'", (0, 0, 12), 0),
    ("INSERT INTO lethe.turns (session_id, said_at, content) VALUES ('c', '2025-01-01', 'the latest')", (1, 0, 0), 1),
    ("INSERT INTO lethe.turns (session_id, said_at, content) VALUES ('c', '2020-01-01', 'the first')", (1, 0, 0), None),
    ("INSERT INTO lethe.turns (session_id, content) VALUES ('c', 'nobody knows when')", (1, 0, 0), None),
    ("INSERT INTO lethe.turns (content) VALUES ('by itself')", (1, 0, 0), 1),
    ("UPDATE lethe.turns SET session_id = 'renamed' WHERE session_id = 'c'", (0, 12, 0), 0),
]


@pytest.mark.parametrize("sql, reported, encoded", ONE_CHANGE, ids=[change[0][:60] for change in ONE_CHANGE])
def test_only_what_the_change_reaches_is_encoded_again(talk, tokenizer, sql, reported, encoded):
    report, expected = changed(talk, tokenizer, sql)
    assert (report["added"], report["updated"], report["removed"]) == reported
    assert report["encoded"] == expected
    assert expected == encoded if encoded is not None else 1 < expected < 15, expected
    assert set(states(talk)) == set(turns_by_id(talk))
    assert one(talk, "FROM memory_sync()")["encoded"] == 0


def test_forgetting_leaves_a_state_for_every_other_turn(talk):
    rows(talk, "FROM memory_forget(turn_ids := ?)", [[turn_id(2)]])
    talk.execute("CALL memory_sync()")
    assert set(states(talk)) == set(turns_by_id(talk)) and count(talk, "turns") == 14
    assert_as_fresh(talk)


def test_a_forgotten_word_lives_in_no_state(talk):
    """The states of the turns behind it are gone with it, before anything is synchronised."""
    before = states(talk)
    rows(talk, "FROM memory_forget(turn_ids := ?)", [[turn_id(2)]])
    left = states(talk)
    talk.execute("CALL memory_sync()")
    after = states(talk)
    for turn in left:
        assert left[turn]["content_hash"] == after[turn]["content_hash"] == before[turn]["content_hash"]


def test_a_turn_forgotten_while_it_is_being_encoded_lives_in_no_state(memory):
    """When both calls have returned, no state was computed from the forgotten turn, whichever of them came first."""
    memory.execute("CALL memory_create(context := 12)")
    turns = [(turn_id(n), "c", "Ana", START + timedelta(minutes=n), text) for n, (*_, text) in enumerate(chatter(150, 9))]
    insert(memory, turns)
    syncing = threading.Thread(target=lambda cursor: cursor.execute("CALL memory_sync()"), args=[memory.cursor()])
    syncing.start()
    time.sleep(0.2)
    rows(memory, "FROM memory_forget(turn_ids := ?)", [[turn_id(n) for n in range(0, 150, 10)]])
    syncing.join()
    stored, other = states(memory), fresh(memory, context=12)
    wanted = states(other)
    other.close()
    assert set(stored) <= set(wanted) and len(wanted) == 135
    stale = [str(turn) for turn, row in stored.items() if row["content_hash"] != wanted[turn]["content_hash"]]
    assert stale == []


def test_a_change_made_before_the_process_began_is_an_update(store_file):
    connection = connect(store_file)
    connection.execute("UPDATE lethe.turns SET content = 'changed' WHERE turn_id = ?", [turn_id(11)])
    connection.close()
    connection = connect(store_file)
    report = one(connection, "FROM memory_sync()")
    assert {key: report[key] for key in ("added", "updated", "removed", "encoded")} == {
        "added": 0,
        "updated": 1,
        "removed": 0,
        "encoded": 1,
    }
    connection.close()


def test_removed_counts_turns(store):
    """Not the rows derived from them."""
    store.execute("CALL memory_create(learning := 'rank_gap')")
    for question in ["who plays the cello?", "when is the wedding?", "what does the bicycle need?"]:
        rows(store, "FROM memory_retrieve(?, 12)", [question])
    gone = rows(store, "SELECT DISTINCT turn_id FROM lethe.suppression LIMIT 2")
    assert len(gone) == 2
    for row in gone:
        store.execute("DELETE FROM lethe.turns WHERE turn_id = ?", [row["turn_id"]])
    assert one(store, "FROM memory_sync()")["removed"] == 2
    assert (
        value(store, "SELECT count(*) FROM lethe.suppression WHERE turn_id NOT IN (SELECT turn_id FROM lethe.turns)")
        == 0
    )


def test_states_taken_away_are_made_again(store):
    """Tables are the truth: what is missing in `states` is missing, whatever the process remembers."""
    store.execute("CALL memory_sync()")
    store.execute("DELETE FROM lethe.states WHERE turn_id = ?", [turn_id(3)])
    store.execute("CALL memory_sync()")
    assert count(store, "states") == count(store, "turns")
