"""What a conversation adds to the token evidence, computed again in numpy from the tables alone.

With best_i(m) = max_j ⟨h_i, h_{m,j}⟩, raised to the floor where the rule has one, and m − 1 the turn before m in its session, by
(said_at with NULL first, turn_id):

    R_i(m) = best_i(m) + a · max(0, best_i(m − 1) − best_i(m)) if m − 1 ends in a question mark, else best_i(m)
    N_i(m) = max of best_i over m and the two turns before and after it in its session
    score(m) = Σ_i w_i ((1 − β) R_i(m) + β N_i(m)) / Σ_i w_i − q [m asks] + p [its speaker is named] + t [its month is named]
"""

import random
import re
from datetime import datetime, timedelta

import numpy as np
import pytest
from support import EVIDENCE_ALONE, connect, insert, one, rows, states, turn_id, value
from test_ranking_oracle import RULES, Encoder, Oracle, column, mixed, standardised

CLOSE = 1e-4
TURNS = 48
DEFAULTS = {
    "answer_weight": 0.5,
    "neighbour_weight": 0.3,
    "asking_malus": 0.02,
    "speaker_bonus": 0.02,
    "month_bonus": 0.035,
}
QUESTIONS = [
    "who saw the old bridge near the house?",
    "What did Ana say about Verdi in March 2024?",
    "When did grandma Ilse go swimming, in May or in Dec?",
    "apples, apples from Ortiz's greengrocer!",
    "x",
]
MONTHS = "January February March April May June July August September October November December".split()
MONTHS = {name: n for n, month in enumerate(MONTHS, 1) for name in (month, month[:3])}


# The formula --------------------------------------------------------------------------------------


def words(text):
    return re.findall(r"[^\W_]+", text)


def asks(content):
    return re.search(r"""[?？؟][\s"'”’»)\]]*$""", content) is not None


def is_named(question, speaker):
    return bool({word.lower() for word in words(speaker or "")} & {word.lower() for word in words(question)})


def is_dated(question, said_at):
    months = {MONTHS[word] for word in words(question) if word in MONTHS}
    years = {int(word) for word in words(question) if re.fullmatch("(19|20)[0-9]{2}", word)}
    return said_at is not None and said_at.month in months and (not years or said_at.year in years)


def neighbours(turns):
    """For each turn the one before it, and those at most two away, in its session."""
    before, around = {}, {}
    for session in {row["session_id"] for row in turns} - {None}:
        told = [row for row in turns if row["session_id"] == session]
        told.sort(key=lambda row: (row["said_at"] or datetime.min, row["turn_id"].int))
        told = [row["turn_id"] for row in told]
        for place, turn in enumerate(told):
            before[turn] = told[place - 1] if place else None
            around[turn] = told[max(0, place - 2) : place] + told[place + 1 : place + 3]
    return before, around


class Conversation:
    """A store, read from its tables, or several as one."""

    def __init__(self, encoder, connection, stores=(None,)):
        self.stored, self.turns, self.before, self.around = {}, {}, {}, {}
        for store in stores:
            prefix = f"{store}." if store else ""
            turns = rows(connection, f"SELECT turn_id, session_id, speaker, said_at, content FROM {prefix}lethe.turns")
            self.turns |= {row["turn_id"]: row for row in turns}
            self.stored |= states(connection, store)
            for mine, theirs in zip((self.before, self.around), neighbours(turns)):
                mine |= theirs
        self.oracle = Oracle(encoder, self.stored)

    def best(self, question, rule, k=64):
        """best_i of every turn, and the weights of the tokens."""
        weighted, floored = RULES[rule]
        pieces, _, query = self.oracle.encoder(question)
        met = {turn: query @ row["states"].T for turn, row in self.stored.items()}
        best = {turn: similarities.max(1) for turn, similarities in met.items()}
        if floored:
            every = np.sort(np.concatenate(list(met.values()), 1), axis=1)
            floor = np.maximum(every[:, -k], 0) if k <= every.shape[1] else 0
            best = {turn: np.maximum(b, floor) for turn, b in best.items()}
        return best, self.oracle.weights(pieces) if weighted else np.ones(len(pieces))

    def evidence(self, question, rule="idf"):
        best, w = self.best(question, rule)
        return {turn: float(w @ b / w.sum()) for turn, b in best.items()}

    def scores(self, question, weights=DEFAULTS, rule="idf", looked_around=None):
        """`looked_around`: the turns whose neighbours are heard; None: all."""
        best, w = self.best(question, rule)
        a, share = weights["answer_weight"], weights["neighbour_weight"]
        scores = {}
        for turn, row in self.turns.items():
            looks = looked_around is None or turn in looked_around
            before, around = (self.before.get(turn), self.around.get(turn, [])) if looks else (None, [])
            meant = best[turn]
            if before and asks(self.turns[before]["content"]):
                meant = meant + a * np.maximum(0, best[before] - meant)
            highest = np.max([best[near] for near in (turn, *around)], axis=0)
            score = w @ ((1 - share) * meant + share * highest) / w.sum()
            score -= weights["asking_malus"] * asks(row["content"])
            score += weights["speaker_bonus"] * is_named(question, row["speaker"])
            score += weights["month_bonus"] * is_dated(question, row["said_at"])
            scores[turn] = float(score)
        return scores


# The stores ---------------------------------------------------------------------------------------


def said(seed, n=TURNS, first=0):
    """Small talk: some turns ask, some lack a session, a speaker or a date, and some were said at the same time."""
    rng = random.Random(seed)
    vocabulary = (
        "we saw the old bridge near my house yesterday and it rained so nobody went swimming although Tom wanted apples from "
        "the greengrocer before Tuesday's rehearsal of Verdi; grandmother laughed in March or in May 2024"
    ).split()
    days = [datetime(2023, 12, 30) + timedelta(days=6 * rng.randrange(60)) for _ in range(n // 2)]
    # The order of the ids is not that in which it was said.
    ids = rng.sample(range(first, first + 4 * n), n)
    end = ["?", "?)", "？", "? ”", "? Yes.", ".", "!", "", "", ""]
    return [
        (
            turn_id(number),
            rng.choice([None, "c0", "c1", "c1", "c2", "c2", "c2"]),
            rng.choice([None, "Ana", "Ben Ortiz", "Grandma Ilse", "Cem"]),
            rng.choice([None, *9 * [rng.choice(days)]]),
            " ".join(rng.choice(vocabulary) for _ in range(rng.randint(1, 12))) + rng.choice(end),
        )
        for number in ids
    ]


@pytest.fixture(scope="module")
def encoder():
    return Encoder()


@pytest.fixture(scope="module", params=[1, 2, 3])
def made(request, encoder):
    connection = connect()
    connection.execute("CALL memory_create(learning := 'off')")
    insert(connection, said(request.param))
    connection.execute("CALL memory_sync()")
    yield connection, Conversation(encoder, connection)
    connection.close()


@pytest.fixture
def told(made):
    connection, conversation = made
    yield connection, conversation
    reset(connection)


@pytest.fixture
def empty():
    connection = connect()
    connection.execute("CALL memory_create(learning := 'off', template := 'plain', context := 0)")
    yield connection
    connection.close()


def reset(connection):
    for row in rows(connection, "SELECT name FROM duckdb_settings() WHERE name LIKE 'lethe_%'"):
        if row["name"] != "lethe_threads":
            connection.execute(f"RESET {row['name']}")


def weigh(connection, weights):
    for name, weight in weights.items():
        connection.execute(f"SET lethe_{name} = {weight}")


def ask(connection, question, k=1000, options=""):
    return rows(connection, f"FROM memory_retrieve(?, ?, explain := true{options})", [question, k])


def assert_scores(found, expected, tolerance=CLOSE):
    """Every turn has the expected score, and they stand in its order; of equal scores the older id is first."""
    got = column(found, "score")
    assert set(got) == set(expected)
    np.testing.assert_allclose([got[turn] for turn in expected], list(expected.values()), rtol=0, atol=tolerance)
    assert [row["rank"] for row in found] == list(range(1, len(found) + 1))
    keys = [(-row["score"], row["turn_id"].int) for row in found]
    assert keys == sorted(keys)


# Every score --------------------------------------------------------------------------------------


def test_the_stores_hold_all_that_matters(made):
    """Or what follows would say little."""
    _, conversation = made
    turns = conversation.turns.values()
    assert len({row["session_id"] for row in turns} - {None}) == 3
    assert all(any(row[name] is None for row in turns) for name in ("session_id", "speaker", "said_at"))
    asking = [turn for turn, before in conversation.before.items() if before and asks(conversation.turns[before]["content"])]
    assert 3 < len(asking) < TURNS / 2
    times = [(row["session_id"], row["said_at"]) for row in turns if row["session_id"]]
    assert len(set(times)) < len(times), "some were said at the same time"
    for question in QUESTIONS[1:3]:
        assert any(is_named(question, row["speaker"]) for row in turns)
        assert 0 < sum(is_dated(question, row["said_at"]) for row in turns) < TURNS


def test_by_default(told):
    connection, conversation = told
    for question in QUESTIONS:
        found = ask(connection, question)
        assert_scores(found, conversation.scores(question))
        evidence = conversation.evidence(question)
        assert column(found, "token_score") == pytest.approx(evidence, abs=CLOSE), "what it is added to is shown as it is"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_with_any_weights(told, rule, seed):
    connection, conversation = told
    rng = random.Random(seed)
    weights = {name: rng.choice([0, 1, rng.random()]) for name in DEFAULTS}
    weigh(connection, weights)
    connection.execute(f"SET lethe_token_rule = '{rule}'")
    for question in QUESTIONS:
        assert_scores(ask(connection, question), conversation.scores(question, weights, rule))


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_weight_by_itself_moves_something(told, name):
    connection, conversation = told
    weights = {**dict.fromkeys(DEFAULTS, 0), name: 0.7}
    weigh(connection, weights)
    moved = 0
    for question in QUESTIONS:
        found = ask(connection, question)
        assert_scores(found, conversation.scores(question, weights))
        moved += sum(abs(row["score"] - row["token_score"]) > 0.01 for row in found)
    assert moved > 0


def test_all_weights_zero_leave_the_evidence(told):
    connection, _ = told
    connection.execute(EVIDENCE_ALONE)
    for question in QUESTIONS:
        assert all(row["score"] == row["token_score"] for row in ask(connection, question))


def test_mixed_with_the_vectors(told):
    """α z(vector) + (1 − α) z(score in its conversation)."""
    connection, conversation = told
    connection.execute("SET lethe_vector_alpha = 0.4")
    for question in QUESTIONS:
        scores, vectors = conversation.scores(question), conversation.oracle.vectors(question)
        spread = min(np.std(list(scores.values())), np.std(list(vectors.values())))
        assert_scores(ask(connection, question), mixed(vectors, scores, 0.4), CLOSE / spread)


# Who is a neighbour -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option, passes",
    [
        ("session := 'c1'", lambda row: row["session_id"] == "c1"),
        ("speaker := 'Ana'", lambda row: row["speaker"] == "Ana"),
        ("since := TIMESTAMP '2024-05-01'", lambda row: row["said_at"] and row["said_at"] >= datetime(2024, 5, 1)),
        ("until := TIMESTAMP '2024-05-01'", lambda row: row["said_at"] and row["said_at"] < datetime(2024, 5, 1)),
        ("filter := 'content NOT LIKE ''%?%'''", lambda row: "?" not in row["content"]),
    ],
)
def test_a_filter_takes_no_neighbour_away(told, option, passes):
    """Whoever passes has the score it has without the filter, though its neighbours may not pass."""
    connection, conversation = told
    for question in QUESTIONS:
        whole = column(ask(connection, question), "score")
        found = column(ask(connection, question, options=f", {option}"), "score")
        passing = {turn for turn, row in conversation.turns.items() if passes(row)}
        assert set(found) == passing and 0 < len(passing) < TURNS
        assert found == pytest.approx({turn: whole[turn] for turn in passing}, abs=1e-6)


def test_read_off_a_question_of_one_wordpiece(empty):
    """Its token_score is best_1, so that the formula can be read off the rows.

    Four of one session, in the order they were said, and one by itself between them.
    """
    texts = ["Where is the bridge?", "Over there", "So I went", "It rained all day"]
    turns = [(turn_id(9 - n), "s", None, datetime(2024, 3, 1 + n), text) for n, text in enumerate(texts)]
    insert(empty, [*turns, (turn_id(50), None, None, datetime(2024, 3, 2, 12), "The bridge at last")])
    weigh(empty, {"answer_weight": 0.5, "neighbour_weight": 0.25, "asking_malus": 0.1})
    found = {row["content"]: row for row in ask(empty, "bridge")}
    best = {text: row["token_score"] for text, row in found.items()}
    asked, there, went, rained = (best[text] for text in texts)
    assert asked > max(there, went, rained)
    expected = {
        # Asks, and is the best of its neighbourhood.
        "Where is the bridge?": asked - 0.1,
        # The answer: half of what its question has more, and a quarter for the neighbourhood, in which that is the best.
        "Over there": 0.75 * (there + 0.5 * (asked - there)) + 0.25 * asked,
        # Two turns away: only the neighbourhood.
        "So I went": 0.75 * went + 0.25 * asked,
        # Three turns away: the best of what it reaches is not the question.
        "It rained all day": 0.75 * rained + 0.25 * max(there, went, rained),
        # Without a session nobody is near, whenever it was said.
        "The bridge at last": best["The bridge at last"],
    }
    assert {text: row["score"] for text, row in found.items()} == pytest.approx(expected, abs=1e-6)


def test_what_comes_between_later_counts(encoder, tmp_path):
    """Inserted, moved, corrected and deleted turns; and after close and reopen."""
    path = tmp_path / "store.db"
    connection = connect(path)
    connection.execute("CALL memory_create(learning := 'off')")
    turns = said(4, 24)
    insert(connection, turns[:12])
    changes = [
        lambda: insert(connection, turns[12:]),
        lambda: connection.execute("UPDATE lethe.turns SET said_at = said_at + INTERVAL 40 DAY WHERE speaker = 'Ana'"),
        lambda: connection.execute("UPDATE lethe.turns SET content = content || ' Is it?' WHERE speaker = 'Cem'"),
        lambda: connection.execute("UPDATE lethe.turns SET session_id = 'c2' WHERE session_id = 'c1'"),
        lambda: connection.execute("DELETE FROM lethe.turns WHERE speaker = 'Ben Ortiz'"),
    ]
    for change in [lambda: None, *changes]:
        change()
        found = {question: ask(connection, question) for question in QUESTIONS[:3]}
        conversation = Conversation(encoder, connection)
        for question, answers in found.items():
            assert_scores(answers, conversation.scores(question))
    connection.close()
    connection = connect(path)
    for question in QUESTIONS[:3]:
        assert_scores(ask(connection, question), conversation.scores(question))
    connection.close()


def test_a_turn_whose_time_is_over_is_still_a_neighbour(empty):
    """It is not ranked any more, but what came after it was said after it."""
    turns = [(turn_id(1), "s", None, datetime(2024, 3, 1), "Where is the bridge?"),
             (turn_id(2), "s", None, datetime(2024, 3, 2), "Over there")]  # fmt: skip
    insert(empty, turns)
    before = column(ask(empty, "bridge"), "score")
    empty.execute("UPDATE lethe.turns SET valid_until = TIMESTAMP '2024-03-03' WHERE content = 'Where is the bridge?'")
    row = one(empty, "FROM memory_retrieve('bridge', 9)")
    assert row["content"] == "Over there" and row["score"] == pytest.approx(before[row["turn_id"]], abs=1e-6)


def test_sessions_of_the_same_name_in_two_stores_are_two(told, encoder):
    connection, _ = told
    connection.execute("ATTACH ':memory:' AS other; CALL memory_create(store := 'other', learning := 'off')")
    insert(connection, said(7, 20, first=500), "other")
    connection.execute("CALL memory_sync(store := 'other')")
    both = Conversation(encoder, connection, ("memory", "other"))
    assert len(both.turns) == TURNS + 20
    for question in QUESTIONS:
        assert_scores(ask(connection, question, options=", stores := ['memory', 'other']"), both.scores(question))
    connection.execute("DETACH other")


def test_only_the_best_look_around(encoder, empty):
    """The best 100 by their own evidence, and as many as are asked for; the others are scored as if nobody was near."""
    insert(empty, said(5, 140))
    weights = {**dict.fromkeys(DEFAULTS, 0), "answer_weight": 1, "neighbour_weight": 1}
    weigh(empty, weights)
    empty.execute("CALL memory_sync()")
    conversation = Conversation(encoder, empty)
    for question in QUESTIONS[:3]:
        assert_scores(ask(empty, question, 140), conversation.scores(question, weights))
        # What others are asked for shows whom they looked around for: by the same question, the evidence of all.
        own = column(ask(empty, question, 140), "token_score")
        best = sorted(own, key=lambda turn: (-own[turn], turn.int))[:100]
        expected = conversation.scores(question, weights, looked_around=set(best))
        found = ask(empty, question, 100)
        everywhere = conversation.scores(question, weights)
        assert_scores(found, {row["turn_id"]: expected[row["turn_id"]] for row in found})
        lowest = found[-1]["score"]
        assert all(score < lowest + CLOSE for turn, score in expected.items() if turn not in column(found, "score"))
        assert sum(abs(expected[turn] - everywhere[turn]) > CLOSE for turn in expected) > 5


# What a question says of who said it, and when ----------------------------------------------------


@pytest.mark.parametrize(
    "question, speaker, so",
    [
        ("What did Ana cook?", "Ana", True),
        ("what did ANA cook?", "ana", True),
        ("Ana's soup", "Ana", True),
        ("What did grandma cook?", "Grandma Ilse", True),
        ("Did Tomás cook?", "Tomás", True),
        ("Did Tomas cook?", "Tomás", False),
        ("What did Anabel cook?", "Ana", False),
        ("What did she cook?", "Ana", False),
        ("What did she cook?", None, False),
        ("What did she cook?", "", False),
        ("(((", ")))", False),
    ],
)
def test_a_speaker_is_named_by_a_word_of_the_name(empty, question, speaker, so):
    """Whole words, in upper or lower case, accents as they are written."""
    insert(empty, [(turn_id(1), None, speaker, None, "Soup")])
    empty.execute(f"{EVIDENCE_ALONE}; SET lethe_speaker_bonus = 10")
    row = one(empty, "FROM memory_retrieve(?, 1, explain := true)", [question])
    assert row["score"] - row["token_score"] == pytest.approx(10 * so)


@pytest.mark.parametrize(
    "question, day, so",
    [
        ("What did we eat in May?", "2026-05-01", True),
        ("What did we eat in May?", "2025-05-31", True),
        ("What did we eat in May?", "2026-06-01", False),
        ("What did we eat in May 2026?", "2026-05-31", True),
        ("What did we eat in May 2026?", "2025-05-31", False),
        ("And on 3 September?", "2026-09-30", True),
        ("And in Sep?", "2026-09-30", True),
        ("And in DECEMBER?", "2026-12-24", True),
        ("In March or in June?", "2026-03-02", True),
        ("In March or in June?", "2026-06-02", True),
        ("In March or in June?", "2026-05-02", False),
        ("What may I march for?", "2026-05-02", False),
        ("Maybe on a Marching day", "2026-05-02", False),
        ("What did we eat in 2026?", "2026-05-02", False),
        ("On 2026-05-02?", "2026-05-02", False),
        ("What did we eat in May?", None, False),
    ],
)
def test_a_month_is_named_in_english_with_or_without_its_year(empty, question, day, so):
    insert(empty, [(turn_id(1), None, None, day, "Soup")])
    empty.execute(f"{EVIDENCE_ALONE}; SET lethe_month_bonus = 10")
    row = one(empty, "FROM memory_retrieve(?, 1, explain := true)", [question])
    assert row["score"] - row["token_score"] == pytest.approx(10 * so)


@pytest.mark.parametrize(
    "content, so",
    [
        ("Shall we?", True),
        ("Shall we? ", True),
        ("(“Shall we?”)", True),
        ("Shall we?!", False),
        ("Why? Because.", False),
        ("好吗？", True),
        ("هل أنت هنا؟", True),
        ("I ask", False),
        ("?", True),
    ],
)
def test_a_turn_asks_that_ends_in_a_question_mark(empty, content, so):
    """Of whatever script, and whatever closes behind it."""
    insert(empty, [(turn_id(1), None, None, None, content)])
    empty.execute(f"{EVIDENCE_ALONE}; SET lethe_asking_malus = 10")
    row = one(empty, "FROM memory_retrieve('shall we?', 1, explain := true)")
    assert row["score"] - row["token_score"] == pytest.approx(-10 * so)


def test_it_decides_who_is_first_and_memory_search_agrees(told):
    connection, conversation = told
    changed = 0
    for question in QUESTIONS:
        found = ask(connection, question)
        evidence = conversation.evidence(question)
        changed += found[0]["turn_id"] != max(evidence, key=evidence.get)
        searched = value(connection, "SELECT memory_search(?, 1000)", [question])
        assert [(r["turn_id"], r["score"]) for r in searched] == [(r["turn_id"], r["score"]) for r in found]
    assert changed > 0
