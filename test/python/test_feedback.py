"""Feedback on a question moves the answers to questions like it, at once, and no others.

An answer gains bonus · σ · (the highest likeness of a question it was used for, less the highest of one it was ignored for), σ being
the standard deviation of the scores of the pool. What was found for like questions (test_precedents.py) is left out.
"""

import shutil

import numpy as np
import pytest
from support import FACTS, connect, contents, count, likeness, one, rows, turn_id, value

DENTIST = turn_id(2)
DOG = turn_id(8)
ASKED = "when is the dentist appointment?"
LIKE_IT = "when is my appointment at the dentist?"
UNLIKE_IT = "what is the name of the dog?"


def scores(store, question, options=""):
    """The score of every turn: the pool holds all of them."""
    found = rows(store, f"FROM memory_retrieve(?, {len(FACTS)}, learn := false{options})", [question])
    assert len(found) == len(FACTS)
    return {str(row["turn_id"]): row["score"] for row in found}


def remember(store, question):
    """Asks so that feedback can be given. Returns the id of the retrieval."""
    return str(rows(store, "FROM memory_retrieve(?, 1)", [question])[0]["retrieval_id"])


def say(store, retrieval, used=(), ignored=()):
    lists = [", ".join(f"'{turn}'" for turn in turns) for turns in (used, ignored)]
    store.execute(f"CALL memory_feedback('{retrieval}', used := [{lists[0]}]::UUID[], ignored := [{lists[1]}]::UUID[])")


def expected(before, worth, bonus=3.0):
    deviation = np.std(list(before.values()))
    return {turn: score + bonus * deviation * worth.get(turn, 0.0) for turn, score in before.items()}


def close(got, want):
    np.testing.assert_allclose([got[turn] for turn in want], list(want.values()), atol=2e-5)


@pytest.fixture
def asked(store):
    """A store in which three questions are kept, two of them much alike."""
    store.execute("SET GLOBAL lethe_precedent_bonus = 0")
    for question in (ASKED, LIKE_IT, UNLIKE_IT):
        remember(store, question)
    assert 0.05 < likeness(store, ASKED, LIKE_IT, 0.5) < 0.95 and likeness(store, ASKED, UNLIKE_IT, 0.5) == 0.0
    return store


def test_used_lifts_the_answer_to_like_questions(asked):
    before = {question: scores(asked, question) for question in (ASKED, LIKE_IT, UNLIKE_IT)}
    say(asked, remember(asked, ASKED), used=[DOG])
    close(scores(asked, ASKED), expected(before[ASKED], {DOG: 1.0}))
    close(scores(asked, LIKE_IT), expected(before[LIKE_IT], {DOG: likeness(asked, ASKED, LIKE_IT, 0.5)}))
    assert scores(asked, UNLIKE_IT) == before[UNLIKE_IT]


def test_ignored_lowers_it(asked):
    before = scores(asked, LIKE_IT)
    say(asked, remember(asked, ASKED), ignored=[DENTIST])
    close(scores(asked, LIKE_IT), expected(before, {DENTIST: -likeness(asked, ASKED, LIKE_IT, 0.5)}))


def test_the_likest_question_decides_on_either_side(asked):
    before = scores(asked, LIKE_IT)
    say(asked, remember(asked, ASKED), used=[DOG], ignored=[DENTIST])
    say(asked, remember(asked, LIKE_IT), ignored=[DOG], used=[DENTIST])
    like = likeness(asked, ASKED, LIKE_IT, 0.5)
    close(scores(asked, LIKE_IT), expected(before, {DOG: like - 1.0, DENTIST: 1.0 - like}))


def test_the_last_verdict_on_a_question_counts(asked):
    """However often the question was asked meanwhile."""
    before = scores(asked, ASKED)
    say(asked, remember(asked, ASKED), used=[DOG])
    say(asked, remember(asked, ASKED), ignored=[DOG])
    close(scores(asked, ASKED), expected(before, {DOG: -1.0}))


def test_settings_say_how_much_and_how_alike(asked):
    before = scores(asked, LIKE_IT)
    say(asked, remember(asked, ASKED), used=[DOG])
    asked.execute("SET lethe_feedback_bonus = 1; SET lethe_feedback_likeness = 0.8; SET lethe_shared_words = 0.25")
    worth = likeness(asked, ASKED, LIKE_IT, 0.8, 0.25)
    assert worth != pytest.approx(likeness(asked, ASKED, LIKE_IT, 0.5), abs=0.05)
    close(scores(asked, LIKE_IT), expected(before, {DOG: worth}, bonus=1))
    asked.execute("SET lethe_feedback_bonus = 0")
    assert scores(asked, LIKE_IT) == before


def test_what_was_used_is_found_where_no_source_finds_it(asked):
    """Words and vectors bring one candidate each; what was used comes beside them, if it passes the filter."""
    asked.execute("SET lethe_candidates = 1")
    found = "FROM memory_retrieve(?, 1, learn := false, explain := true{})"
    say(asked, remember(asked, ASKED), used=[DOG])
    asked.execute("SET lethe_feedback_bonus = 100")
    row = one(asked, found.format(""), [ASKED])
    assert str(row["turn_id"]) == DOG and row["feedback"] == pytest.approx(1.0, abs=1e-5)
    assert row["word_rank"] is None and row["vector_rank"] is None
    assert str(one(asked, found.format(", speaker := 'Ana'"), [ASKED])["turn_id"]) == DENTIST


def test_it_lasts(asked, tmp_path):
    """Over close and reopen, in a store attached READ_ONLY, and beyond the retrievals that are kept."""
    asked.execute("SET lethe_retrievals_kept = 2")
    say(asked, remember(asked, ASKED), used=[DOG])
    want = scores(asked, ASKED)
    for number in range(6):
        remember(asked, f"question number {number} about the weather")
    assert count(asked, "retrievals") <= 4
    assert value(asked, "SELECT count(*) FROM lethe.retrievals WHERE query = ?", [ASKED]) >= 1
    close(scores(asked, ASKED), want)
    path = value(asked, "SELECT path FROM duckdb_databases() WHERE database_name = current_database()")
    asked.close()
    reopened = connect()
    reopened.execute("SET lethe_precedent_bonus = 0")
    reopened.execute(f"ATTACH '{path}' AS again (READ_ONLY); USE again")
    close(scores(reopened, ASKED), want)
    reopened.close()


def test_a_turn_that_is_forgotten_takes_its_feedback_along(asked):
    say(asked, remember(asked, ASKED), used=[DOG])
    asked.execute(f"CALL memory_forget(turn_ids := ['{DOG}'])")
    assert count(asked, "feedback") == 0
    assert "Our dog is called Biscuit" not in contents(asked, ASKED, len(FACTS))


def test_every_store_has_its_own(asked, facts_file, tmp_path):
    """What was said in one store moves nothing in another that holds the same turns."""
    other = shutil.copy(facts_file, tmp_path / "other.db")
    asked.execute(f"ATTACH '{other}' AS other")
    say(asked, remember(asked, ASKED), used=[DOG])
    mine = value(asked, "SELECT current_database()")
    both = f"FROM memory_retrieve(?, {2 * len(FACTS)}, learn := false, explain := true, stores := ['{mine}', 'other'])"
    worth = {(row["store"], str(row["turn_id"])): row["feedback"] for row in rows(asked, both, [ASKED])}
    assert worth[mine, DOG] == pytest.approx(1.0, abs=1e-5) and worth["other", DOG] == 0.0
