"""What was found for a question is evidence for questions like it, and what was learned is left out where it does harm.

With z the final score of a turn in standard deviations of its pool, p the likest question asked before and put otherwise, and f the
lowest of p's thirty best z, a turn gains likeness · max(0, z_p − f) standard deviations, with its present z where p's thirty do not
have it (src/rank/precedent.rs).
"""

import shutil

import numpy as np
import pytest
from support import (
    FACTS,
    connect,
    count,
    insert,
    likeness,
    one,
    rows,
    run,
    turn_id,
    value,
)

DENTIST, WALL, DOG = turn_id(2), turn_id(3), turn_id(8)
ASKED = "when is the dentist appointment?"
LIKE_IT = "remind me, the dentist appointment is when?"
UNLIKE_IT = "what is the name of the dog?"


def ask(store, question, learn=False, k=len(FACTS), options=""):
    """The rows of an answer by turn; by default all turns, so that the pool is there."""
    found = rows(store, f"FROM memory_retrieve(?, {k}, learn := {learn}, explain := true{options})", [question])
    return {str(row["turn_id"]): row for row in found}


def scores(answer):
    return {turn: row["score"] for turn, row in answer.items()}


def standardised(plain):
    values = np.array(list(plain.values()))
    return dict(zip(plain, (values - values.mean()) / values.std()))


def close(got, want, tolerance=2e-5):
    assert set(got) == set(want)
    np.testing.assert_allclose([got[turn] for turn in want], list(want.values()), atol=tolerance)


def moved(plain, past, alike, bonus=1.0):
    """The scores `plain`, moved by the scores `past` of a question that is so much alike."""
    past, now, deviation = standardised(past), standardised(plain), np.std(list(plain.values()))
    floor = sorted(past.values(), reverse=True)[:30][-1]
    worth = {turn: alike * max(0.0, past.get(turn, now[turn]) - floor) for turn in plain}
    return {turn: score + bonus * deviation * worth[turn] for turn, score in plain.items()}


def alike(store, a=ASKED, b=LIKE_IT):
    """Their likeness; both are kept for a moment, to have their vectors."""
    copy = "CREATE OR REPLACE TEMP TABLE kept AS FROM lethe.retrievals"
    store.execute(copy)
    for question in (a, b):
        ask(store, question, learn=True, k=1)
    found = likeness(store, a, b, 0.7)
    store.execute("DELETE FROM lethe.retrievals; INSERT INTO lethe.retrievals FROM kept")
    assert 0.05 < found < 0.95
    return found


def test_a_like_question_borrows_the_scores(store):
    plain = {question: scores(ask(store, question)) for question in (ASKED, LIKE_IT, UNLIKE_IT)}
    w = alike(store)
    ask(store, ASKED, learn=True)
    now = ask(store, LIKE_IT)
    close(scores(now), moved(plain[LIKE_IT], plain[ASKED], w))
    deviation = np.std(list(plain[LIKE_IT].values()))
    close(
        {turn: row["precedent"] for turn, row in now.items()},
        {turn: (row["score"] - plain[LIKE_IT][turn]) / deviation for turn, row in now.items()},
    )
    # Itself it tells nothing new, and another question nothing at all.
    for question in (ASKED, UNLIKE_IT):
        answer = ask(store, question)
        assert scores(answer) == plain[question]
        assert {row["precedent"] for row in answer.values()} == {0.0}


def test_nothing_feeds_on_itself(store):
    """What is kept of a question that borrowed is what it would score without."""
    plain = {question: scores(ask(store, question)) for question in (ASKED, LIKE_IT)}
    w = alike(store)
    ask(store, ASKED, learn=True)
    for _ in range(3):
        ask(store, LIKE_IT, learn=True)
    members = value(store, "SELECT pool FROM lethe.retrievals WHERE query = ? ORDER BY asked_at DESC LIMIT 1", [LIKE_IT])
    close({str(member["turn_id"]): member["plain"] for member in members}, standardised(plain[LIKE_IT]))
    learned = moved(plain[LIKE_IT], plain[ASKED], w)
    mean, deviation = np.mean(list(plain[LIKE_IT].values())), np.std(list(plain[LIKE_IT].values()))
    close(
        {str(member["turn_id"]): member["learned"] for member in members},
        {turn: (score - mean) / deviation for turn, score in learned.items()},
        1e-4,
    )
    assert [member["learned"] for member in members] == sorted((m["learned"] for m in members), reverse=True)
    close(scores(ask(store, ASKED)), moved(plain[ASKED], plain[LIKE_IT], w))


def test_a_turn_that_came_since_is_not_held_back(store):
    ask(store, ASKED, learn=True)
    past = scores(ask(store, ASKED))
    w = alike(store)
    new = turn_id(50)
    insert(store, [(new, "s9", "Ana", None, "My dentist appointment was moved to Monday")])
    store.execute("SET lethe_precedent_bonus = 0")
    plain = scores(ask(store, LIKE_IT, k=len(FACTS) + 1))
    store.execute("RESET lethe_precedent_bonus")
    now = scores(ask(store, LIKE_IT, k=len(FACTS) + 1))
    close(now, moved(plain, past, w))
    assert now[new] > plain[new]


def test_the_likest_question_is_borrowed_from(store):
    """Of two that are alike; the thresholds say from where on questions are alike, the bonus how much is borrowed."""
    other = "what about the appointment?"
    plain = {question: scores(ask(store, question)) for question in (ASKED, LIKE_IT, other)}
    ask(store, other, learn=True)
    ask(store, ASKED, learn=True)
    w = alike(store)
    store.execute("SET lethe_precedent_bonus = 0.5")
    close(scores(ask(store, LIKE_IT)), moved(plain[LIKE_IT], plain[ASKED], w, bonus=0.5))
    for threshold in ("lethe_precedent_likeness", "lethe_shared_words"):
        store.execute(f"SET {threshold} = 1")
        assert scores(ask(store, LIKE_IT)) == plain[LIKE_IT]
        store.execute(f"RESET {threshold}")


def test_what_a_filter_left_is_no_precedent(store):
    plain = scores(ask(store, LIKE_IT))
    rows(store, "FROM memory_retrieve(?, 3, session := 's2')", [ASKED])
    assert value(store, "SELECT pool FROM lethe.retrievals") == []
    assert scores(ask(store, LIKE_IT)) == plain


def test_a_forgotten_turn_leaves_what_was_found(store):
    for question in (ASKED, UNLIKE_IT):
        ask(store, question, learn=True)
    member = "SELECT unnest(pool).turn_id::VARCHAR AS turn FROM lethe.retrievals"
    before = {row["turn"] for row in rows(store, member)}
    store.execute(f"CALL memory_forget(turn_ids := ['{DENTIST}'])")
    assert {row["turn"] for row in rows(store, member)} == before - {DENTIST}
    # Whoever deletes it: by the next synchronisation.
    store.execute(f"DELETE FROM lethe.turns WHERE turn_id = '{DOG}'; CALL memory_sync()")
    assert {row["turn"] for row in rows(store, member)} == before - {DENTIST, DOG}
    assert count(store, "retrievals") == 2


def test_another_process_and_read_only(store, store_file):
    ask(store, ASKED, learn=True)
    here = {turn: row["precedent"] for turn, row in ask(store, LIKE_IT).items()}
    assert any(here.values())
    store.close()
    code = """
        reopened = connect()
        reopened.execute(f"ATTACH '{args[0]}' AS again (READ_ONLY); USE again")
        found = rows(reopened, "FROM memory_retrieve(?, ?, learn := false, explain := true)", [args[1], 12])
        tell({str(row["turn_id"]): row["precedent"] for row in found})
    """
    close(run(code, store_file, LIKE_IT), here)


def test_stores_asked_together_lend_together(store, facts_file, tmp_path):
    """A question asked of two stores is one precedent; of one store it moves both alike."""
    other = shutil.copy(facts_file, tmp_path / "other.db")
    store.execute(f"ATTACH '{other}' AS other")
    mine = value(store, "SELECT current_database()")
    both = f", stores := ['{mine}', 'other']"

    def worth():
        found = rows(store, f"FROM memory_retrieve(?, 24, learn := false, explain := true{both})", [LIKE_IT])
        return {(row["store"], str(row["turn_id"])): row["precedent"] for row in found}

    rows(store, f"FROM memory_retrieve(?, 24{both})", [ASKED])
    together = worth()
    # The stores hold the same turns, so they are worth the same.
    assert len(together) == 24 and any(together.values())
    close({turn: w for (name, turn), w in together.items() if name == mine}, {turn: w for (name, turn), w in together.items() if name == "other"})
    store.execute("DELETE FROM other.lethe.retrievals")
    alone = worth()
    # What the other store's turns scored is not known any more: they are taken to score as they do now.
    assert alone[mine, DENTIST] == pytest.approx(together[mine, DENTIST], abs=1e-5)
    assert alone["other", DENTIST] > 0


# The watch ----------------------------------------------------------------------------------------


def told(store, verdicts, turn=WALL, question="question {} about nothing"):
    """Retrievals whose first place somebody else has without what was learned, with so many verdicts on that turn, written by
    hand."""
    for number, verdict in enumerate(verdicts):
        pool = f"[{{'turn_id': '{turn}', 'plain': 2.0, 'learned': 1.0}}, {{'turn_id': '{DOG}', 'plain': 1.0, 'learned': 2.0}}]"
        store.execute(
            f"INSERT INTO lethe.retrievals SELECT uuidv7(), now()::TIMESTAMP, ?, [], 0, {pool}", [question.format(number)]
        )
        store.execute(
            f"INSERT INTO lethe.feedback SELECT max(retrieval_id), '{turn}', '{verdict}', now()::TIMESTAMP FROM lethe.retrievals"
        )


def watched(store):
    return one(store, "SELECT order_judged, order_gain, pool_judged, pool_gain, note FROM memory_stats()")


def test_what_does_harm_is_left_out_and_said_so(store):
    plain = scores(ask(store, LIKE_IT))
    ask(store, ASKED, learn=True)
    better = scores(ask(store, LIKE_IT))
    assert better != plain
    told(store, ["used"] * 19)
    assert scores(ask(store, LIKE_IT)) == better
    assert watched(store) == {"order_judged": 19, "order_gain": -0.5, "pool_judged": 0, "pool_gain": None, "note": None}
    told(store, ["used"])
    assert scores(ask(store, LIKE_IT)) == plain
    assert watched(store)["note"] == (
        "what is known of like questions is not applied: over the last 20 verdicts on answers that it moved, "
        "it cost 0.500 ± 0.000 each"
    )
    # Whoever knows better says so.
    store.execute("SET lethe_watch = false")
    assert scores(ask(store, LIKE_IT)) == better
    assert watched(store)["note"] is None
    store.execute("SET lethe_watch = true")
    # It is measured all the same, and comes back when it does better.
    told(store, ["ignored"] * 20, question="other {}")
    assert watched(store)["order_gain"] == pytest.approx(0.0)
    assert scores(ask(store, LIKE_IT)) == better


def test_a_verdict_is_a_test_before_it_is_a_lesson(store):
    """What was used stood at rank 1 with what was learned, and would have stood lower without."""
    first = rows(store, "FROM memory_retrieve(?, 1)", [ASKED])[0]["retrieval_id"]
    store.execute(f"CALL memory_feedback('{first}', used := ['{WALL}'])")
    assert watched(store)["order_judged"] == 0, "nothing had been learned when it was asked"
    answer = ask(store, ASKED, learn=True)
    assert answer[WALL]["rank"] == 1
    store.execute("SET lethe_feedback_bonus = 0")
    rank = ask(store, ASKED)[WALL]["rank"]
    assert rank > 1
    store.execute("RESET lethe_feedback_bonus")
    store.execute(f"CALL memory_feedback('{answer[WALL]['retrieval_id']}', used := ['{WALL}'])")
    found = watched(store)
    assert found["order_judged"] == 1 and found["order_gain"] == pytest.approx(1 - 1 / rank)
    store.execute(f"CALL memory_feedback('{answer[WALL]['retrieval_id']}', ignored := ['{DENTIST}'])")
    ranks = {"with": answer[DENTIST]["rank"]}
    store.execute("SET lethe_feedback_bonus = 0")
    ranks["without"] = ask(store, ASKED)[DENTIST]["rank"]
    lost = 1 / ranks["with"] - 1 / ranks["without"]
    assert lost < 0, ranks
    assert watched(store)["order_gain"] == pytest.approx((1 - 1 / rank - lost) / 2)


def suppress(store, turns, score=1.0):
    values = ", ".join(f"('{turn}', 0, {score}, 1, now()::TIMESTAMP)" for turn in turns)
    store.execute(f"INSERT INTO lethe.suppression VALUES {values}")


@pytest.fixture
def forgetful(store):
    """A pool of four, in which a suppressed turn has no place: 100 standard deviations are more than any lead."""
    store.execute("CALL memory_create(learning := 'rank_gap')")
    store.execute("SET lethe_pool = 4; SET lethe_suppression_alpha = 100; SET lethe_eta = 0; SET lethe_precedent_bonus = 0")
    return store


def test_the_reranker_judges_what_was_kept_out(forgetful):
    plain = ask(forgetful, ASKED, k=4)
    suppress(forgetful, [DENTIST])
    answer = ask(forgetful, ASKED, k=4, learn=True)
    assert DENTIST not in answer and len(answer) == 4
    pool = {str(m["turn_id"]): m for m in value(forgetful, "SELECT pool FROM lethe.retrievals")}
    (brought,) = set(answer) - set(plain)
    assert set(pool) == set(plain) | {brought}
    assert pool[DENTIST]["learned"] is None and pool[DENTIST]["plain"] == max(m["plain"] or 0 for m in pool.values())
    assert pool[brought]["plain"] is None and pool[brought]["learned"] is not None
    # Of the reranker's best, all five, either pool has four.
    assert watched(forgetful)["pool_judged"] == 0


def test_suppression_that_does_harm_is_left_out(forgetful):
    """Where the reranker would have chosen whoever was kept out. Written by hand: of its first ten, one pool has all, the other nine."""
    kept_out = ", ".join(
        f"{{'turn_id': '{turn_id(number)}', 'plain': {20 - number}.0, 'learned': {20 - number if number else 'NULL'}}}"
        for number in range(10)
    )
    suppress(forgetful, [DENTIST])
    for number in range(20):
        forgetful.execute(
            f"INSERT INTO lethe.retrievals SELECT uuidv7(), now()::TIMESTAMP, 'question {number}', [], 0, [{kept_out}]"
        )
        if number < 19:
            assert number % 6 or DENTIST not in ask(forgetful, ASKED, k=4)
    assert DENTIST in ask(forgetful, ASKED, k=4)
    found = watched(forgetful)
    assert (found["pool_judged"], found["pool_gain"]) == (20, pytest.approx(-0.1))
    assert found["note"] == (
        "suppression is not applied: over the last 20 pools that it changed, of the reranker's first ten it cost 0.100 ± 0.000 each"
    )
    forgetful.execute("SET lethe_watch = false")
    assert DENTIST not in ask(forgetful, ASKED, k=4)


def test_suppression_of_most_turns_says_nothing(forgetful):
    suppress(forgetful, [turn_id(number) for number in range(6)])
    assert DENTIST not in ask(forgetful, ASKED, k=4)
    suppress(forgetful, [turn_id(6)])
    assert DENTIST in ask(forgetful, ASKED, k=4)
    assert watched(forgetful)["note"] == (
        "suppression is not applied for 1 kind of question: more than half of the turns are suppressed there"
    )


# The schema ---------------------------------------------------------------------------------------


def test_a_store_of_the_first_version_is_brought_up_to_date(store, store_file):
    """Which kept no pools."""
    ask(store, ASKED, learn=True)
    store.execute("ALTER TABLE lethe.retrievals DROP COLUMN pool; UPDATE lethe.store SET value = '1' WHERE key = 'schema_version'")
    store.close()
    store = connect(store_file)
    with pytest.raises(Exception, match="schema version 1.*memory_create"):
        ask(store, ASKED)
    store.execute("CALL memory_create()")
    assert value(store, "SELECT value FROM lethe.store WHERE key = 'schema_version'") == "2"
    assert one(store, "SELECT query, pool FROM lethe.retrievals") == {"query": ASKED, "pool": None}
    plain = scores(ask(store, LIKE_IT))
    ask(store, ASKED, learn=True)
    assert value(store, "SELECT len(pool) FROM lethe.retrievals WHERE pool IS NOT NULL") == len(FACTS)
    assert scores(ask(store, LIKE_IT)) != plain
    store.close()
