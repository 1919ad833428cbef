"""Algorithm 1 of the lethe paper, by hand, on a small pool.

Before reranking every candidate pays for what it did to questions of that kind:   s̃ = s − α · unit · suppression
After it every member of the pool's first P adds to its suppression, by one of
    uniform    Δ = η (1 − r_init / P) σ(−s)
    rank_gap   Δ = η max(0, r_final − r_init) / P · σ(−s)
where r_init is its rank after the penalty (pool_rank), r_final its rank after reranking (rank), and s, without a
cross-encoder, the final score in standard deviations of the pool.
"""

import math
import shutil
from datetime import timedelta

import numpy as np
import pytest
from support import MODELS, START, connect, count, insert, one, rows, turn_id, value
from test_models import DEFAULT, cross_encoder
from tokenizers import Tokenizer

#: Six turns that share words, so that words, vectors and token evidence disagree about their order.
TURNS = [
    "the cat sat on the piano while the cellist slept",
    "the cello was tuned before the concert on Friday",
    "a concert ticket costs forty euros on Friday",
    "my sister practises her instrument with the bow every morning",
    "Friday is the day of the concert, the piano is out of tune",
    "we ate soup",
]
QUESTION = "on which Friday is the cello concert?"
OTHER = "what did we eat?"
ETA, POOL = 0.1, len(TURNS)
#: What else lethe learns, and the watch over it, are left out: six turns are soon saturated.
ALGORITHM_ALONE = "SET lethe_precedent_bonus = 0; SET lethe_watch = false"


@pytest.fixture(scope="module")
def turns_file(tmp_path_factory):
    """A store with the turns, encoded, and never asked. Copy it, do not open it."""
    path = tmp_path_factory.mktemp("algorithm") / "turns.db"
    connection = connect(path)
    connection.execute("CALL memory_create()")
    insert(connection, [(turn_id(n), "s", None, START + timedelta(hours=n), text) for n, text in enumerate(TURNS)])
    connection.execute("CALL memory_sync()")
    connection.close()
    return path


def made(file, folder, learning):
    connection = connect(shutil.copy(file, folder / "turns.db"))
    connection.execute(f"CALL memory_create(learning := '{learning}')")
    connection.execute(ALGORITHM_ALONE)
    return connection


class Learner:
    """A connection with the rule it learns by."""

    def __init__(self, file, folder, rule):
        self.connection, self.rule = made(file, folder, rule), rule

    def __getattr__(self, name):
        return getattr(self.connection, name)


@pytest.fixture(params=["uniform", "rank_gap"])
def learner(request, turns_file, tmp_path):
    learner = Learner(turns_file, tmp_path, request.param)
    yield learner
    learner.close()


def ask(connection, question=QUESTION, k=POOL, learn="true"):
    return rows(connection, f"FROM memory_retrieve(?, ?, explain := true, learn := {learn})", [question, k])


def suppression(connection):
    return {(r["turn_id"], r["cluster_id"]): r["score"] for r in rows(connection, "FROM lethe.suppression")}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def blame(rule, asked, depth=None, eta=ETA):
    """Δ of every turn that is blamed, from the columns of explain; `asked` is the whole pool."""
    depth = min(depth or len(asked), len(asked))
    scores = np.array([row["score"] for row in asked])
    logits = (scores - scores.mean()) / scores.std()
    found = {}
    for row, logit in zip(asked, logits):
        initial, final = row["pool_rank"], min(row["rank"], depth)
        if initial > depth:
            continue
        share = 1 - initial / depth if rule == "uniform" else max(0, final - initial) / depth
        if share > 0:
            found[row["turn_id"]] = eta * share * sigmoid(-logit)
    return found


def close(got, want, tolerance=1e-6):
    assert set(got) == set(want)
    for key in want:
        assert got[key] == pytest.approx(want[key], abs=tolerance), key


# The penalty and what is learned ------------------------------------------------------------------


def test_a_sheet_of_paper():
    """The formulas above against numbers worked out by pencil, so that a slip in `blame` is not taken for the truth.

    Scores 3, 2, 1, 0 have mean 1.5 and standard deviation √1.25 = 1.1180340, so logits 1.3416408, .4472136, −.4472136,
    −1.3416408; σ of their negatives: .2072334, .3900224, .6099776, .7927666. P = 4, η = .1.
    """
    asked = [
        {"turn_id": t, "score": s, "rank": r, "pool_rank": p}
        for t, s, r, p in [("a", 3, 1, 3), ("b", 2, 2, 4), ("c", 1, 3, 1), ("d", 0, 4, 2)]
    ]
    close(
        blame("uniform", asked),
        {"a": 0.1 * 1 / 4 * 0.2072334, "c": 0.1 * 3 / 4 * 0.6099776, "d": 0.1 * 2 / 4 * 0.7927666},
    )
    close(blame("rank_gap", asked), {"c": 0.1 * 2 / 4 * 0.6099776, "d": 0.1 * 2 / 4 * 0.7927666})


def test_the_first_retrieval(learner):
    asked = ask(learner)
    assert [row["rank"] for row in asked] == list(range(1, POOL + 1))
    assert sorted(row["pool_rank"] for row in asked) == list(range(1, POOL + 1))
    assert {(row["suppression"], row["cue_cluster"]) for row in asked} == {(0.0, 0)}
    expected = blame(learner.rule, asked)
    assert 1 <= len(expected) < POOL, "a pool in which nobody fell, or all did, would show nothing"
    close(suppression(learner), {(turn, 0): delta for turn, delta in expected.items()}, 1e-7)
    shown = rows(learner, "FROM memory_suppression()")
    assert {(r["turn_id"], r["cue_cluster"], r["hits"], r["store"]) for r in shown} == {
        (turn, 0, 1, "turns") for turn in expected
    }
    close({r["turn_id"]: r["score"] for r in shown}, expected, 1e-7)
    close({r["turn_id"]: r["counts_now"] for r in shown}, expected)
    assert [r["score"] for r in shown] == sorted((r["score"] for r in shown), reverse=True)


def test_later_retrievals_add_up(learner):
    total, hits = {}, {}
    for question in [QUESTION, QUESTION, OTHER, QUESTION]:
        asked = ask(learner, question)
        close(
            {row["turn_id"]: row["suppression"] for row in asked},
            {row["turn_id"]: total.get(row["turn_id"], 0) for row in asked},
        )
        for turn, delta in blame(learner.rule, asked).items():
            total[turn], hits[turn] = total.get(turn, 0) + delta, hits.get(turn, 0) + 1
        close(suppression(learner), {(turn, 0): score for turn, score in total.items()})
    assert {r["turn_id"]: r["hits"] for r in rows(learner, "FROM memory_suppression()")} == hits


@pytest.mark.parametrize("pool, depth", [(4, 30), (6, 3), (4, 2), (5, 5)])
def test_only_the_pool_and_its_first_are_learned_from(learner, pool, depth):
    learner.execute(f"SET lethe_pool = {pool}; SET lethe_learning_depth = {depth}; SET lethe_eta = 0.5")
    whole = {row["turn_id"]: row["fused_score"] for row in ask_all(learner)}
    asked = ask(learner, k=pool)
    assert len(asked) == pool
    assert {row["turn_id"] for row in asked} == set(sorted(whole, key=whole.get, reverse=True)[:pool])
    close(suppression(learner), {(t, 0): d for t, d in blame(learner.rule, asked, depth, 0.5).items()}, 1e-7)


def ask_all(connection):
    """The pool uncut, without learning."""
    cursor = connection.cursor()
    return rows(cursor, "FROM memory_retrieve(?, ?, explain := true, learn := false)", [QUESTION, POOL])


def test_the_pool_is_never_smaller_than_what_is_asked_for(learner):
    learner.execute("SET lethe_pool = 2")
    asked = ask(learner, k=5)
    assert len(asked) == 5
    close(suppression(learner), {(t, 0): d for t, d in blame(learner.rule, asked).items()}, 1e-7)


def test_how_many_are_asked_for_changes_nothing_that_is_learned(learner):
    asked = ask(learner, learn="false")
    assert suppression(learner) == {}
    ask(learner, k=1)
    close(suppression(learner), {(t, 0): d for t, d in blame(learner.rule, asked).items()}, 1e-7)


@pytest.mark.parametrize(
    "off", ["SET lethe_learn = false", "CALL memory_create(learning := 'off')", "learn := false", "eta 0"]
)
def test_learning_is_off(learner, off):
    if off.startswith(("SET", "CALL")):
        learner.execute(off)
    if off == "eta 0":
        learner.execute("SET lethe_eta = 0")
    ask(learner, learn="false" if off == "learn := false" else "true")
    assert suppression(learner) == {}
    assert count(learner, "retrievals") == (1 if off == "eta 0" else 0)


def test_the_cap(learner):
    first = blame(learner.rule, ask(learner))
    cap = (min(first.values()) + max(first.values())) / 2 if len(first) > 1 else 0.9 * max(first.values())
    learner.execute(f"CALL memory_reset(); SET lethe_suppression_cap = {cap}")
    ask(learner)
    close(suppression(learner), {(turn, 0): min(delta, cap) for turn, delta in first.items()}, 1e-7)
    for _ in range(4):
        ask(learner)
    scores = suppression(learner).values()
    assert max(scores) == pytest.approx(cap, abs=1e-6) and max(scores) <= cap


@pytest.fixture(scope="module")
def judged(turns_file, tmp_path_factory):
    """A store for tests that set the suppression by hand and learn nothing."""
    connection = made(turns_file, tmp_path_factory.mktemp("judged"), "rank_gap")
    yield connection
    connection.close()


HELD = [(0, 0.9), (1, 0.5), (2, 0.05), (4, 1.0)]


@pytest.fixture
def held(judged):
    judged.execute("DELETE FROM lethe.suppression")
    for number, score in HELD:
        judged.execute("INSERT INTO lethe.suppression VALUES (?, 0, ?, 3, now()::TIMESTAMP)", [turn_id(number), score])
    # Of a cluster the question is not in.
    judged.execute("INSERT INTO lethe.suppression VALUES (?, 1, 1, 3, now()::TIMESTAMP)", [turn_id(5)])
    judged.execute("UPDATE lethe.suppression SET updated_at = timezone('UTC', now())")
    yield judged
    for setting in ["penalty", "suppression_alpha", "fusion", "half_life", "pool"]:
        judged.execute(f"RESET lethe_{setting}")


@pytest.mark.parametrize("fusion", ["rrf", "zscore"])
@pytest.mark.parametrize(
    "penalty, alpha", [("spread", 0.3), ("spread", 2.0), ("raw", 0.3), ("raw", 0.001), ("raw", 0.0)]
)
def test_the_penalty(held, penalty, alpha, fusion):
    held.execute("SET lethe_suppression_alpha = 0")
    held.execute(f"SET lethe_fusion = '{fusion}'")
    before = {row["turn_id"]: row for row in ask(held, learn="false")}
    held.execute(f"SET lethe_penalty = '{penalty}'; SET lethe_suppression_alpha = {alpha}")
    asked = ask(held, learn="false")
    expected = {str(turn_id(number)): score for number, score in HELD}
    close(
        {str(row["turn_id"]): row["suppression"] for row in asked},
        {str(row["turn_id"]): expected.get(str(row["turn_id"]), 0.0) for row in asked},
        1e-5,
    )
    fused = np.array([row["fused_score"] for row in asked])
    assert fused == pytest.approx([before[row["turn_id"]]["fused_score"] for row in asked], abs=1e-12), (
        "shown without the penalty"
    )
    unit = fused.std() if penalty == "spread" else 1.0
    penalised = [row["fused_score"] - alpha * unit * expected.get(str(row["turn_id"]), 0.0) for row in asked]
    order = sorted(range(POOL), key=lambda i: (-penalised[i], asked[i]["turn_id"].int))
    assert [asked[i]["pool_rank"] for i in order] == list(range(1, POOL + 1))
    moved = [row["pool_rank"] != before[row["turn_id"]]["pool_rank"] for row in asked]
    assert any(moved) or alpha in (0.0, 0.001, 0.3), "a penalty that moves nobody would show nothing"
    # It decides who is in the pool, not how the pool is judged.
    assert [row["turn_id"] for row in asked] == [
        row["turn_id"] for row in sorted(before.values(), key=lambda r: r["rank"])
    ]


def test_a_penalty_keeps_out_of_a_small_pool(held):
    held.execute("SET lethe_pool = 3; SET lethe_suppression_alpha = 0")
    best = min(ask(held, k=3, learn="false"), key=lambda row: row["pool_rank"])
    held.execute("RESET lethe_suppression_alpha; SET lethe_penalty = 'raw'")
    assert best["turn_id"] in {turn for turn, _ in suppression(held)}, "the first of the pool is one that is held down"
    assert best["turn_id"] not in {row["turn_id"] for row in ask(held, k=3, learn="false")}


# Fading -------------------------------------------------------------------------------------------


def test_a_suppression_fades_by_half_in_its_half_life(learner):
    before = blame(learner.rule, ask(learner))
    learner.execute("UPDATE lethe.suppression SET updated_at = updated_at - INTERVAL 30 DAY")

    def now():
        return {r["turn_id"]: r["counts_now"] for r in rows(learner, "FROM memory_suppression()")}

    close(now(), {turn: score / 2 for turn, score in before.items()})
    assert {r["turn_id"]: r["score"] for r in rows(learner, "FROM memory_suppression()")} == pytest.approx(
        before, abs=1e-9
    )
    learner.execute("SET lethe_half_life = 10")
    close(now(), {turn: score / 8 for turn, score in before.items()})
    learner.execute("SET lethe_half_life = 0")
    close(now(), before)
    learner.execute("RESET lethe_half_life")
    # A retrieval counts what is left, and adds to that.
    asked = ask(learner)
    close(
        {row["turn_id"]: row["suppression"] for row in asked},
        {row["turn_id"]: before.get(row["turn_id"], 0) / 2 for row in asked},
    )
    added = blame(learner.rule, asked)
    stored = suppression(learner)
    for turn in added:
        assert stored[turn, 0] == pytest.approx(before.get(turn, 0) / 2 + added[turn], abs=1e-6)
    for turn in set(before) - set(added):
        assert stored[turn, 0] == pytest.approx(before[turn], abs=1e-9), "not touched, so still as old as it was"


def test_a_clock_that_runs_backwards_raises_nothing(held):
    held.execute("UPDATE lethe.suppression SET updated_at = updated_at + INTERVAL 300 DAY")
    shown = rows(held, "FROM memory_suppression()")
    assert [r["counts_now"] for r in shown] == pytest.approx([r["score"] for r in shown], abs=1e-12)


# Kinds of question --------------------------------------------------------------------------------

MUSIC = [
    "on which Friday is the cello concert?",
    "when is the concert with the cello?",
    "is the cello concert on Friday?",
]
FOOD = ["what soup did we eat?", "did we eat soup for dinner?", "which soup was eaten?"]


def clustered(connection, after=6, clusters=2):
    connection.execute(f"SET lethe_cluster_after = {after}; SET lethe_clusters = {clusters}")
    for question in [q for pair in zip(MUSIC, FOOD) for q in pair]:
        before = suppression(connection)
        asked = ask(connection, question)
    return before, asked


def test_the_first_clustering(learner):
    before, asked = clustered(learner)
    assert {cluster for _, cluster in before} == {0}
    one_cluster = {turn: score for (turn, _), score in before.items()}
    for turn, delta in blame(learner.rule, asked).items():
        one_cluster[turn] = one_cluster.get(turn, 0) + delta
    # Cues: one a kind of question, each the middle of its questions, which are now theirs.
    cues = rows(learner, "FROM lethe.cues ORDER BY cluster_id")
    assert [(c["generation"], c["cluster_id"], c["queries"]) for c in cues] == [(1, 0, 3), (1, 1, 3)]
    retrievals = rows(learner, "FROM lethe.retrievals")
    groups = {kind: {r["cluster_id"] for r in retrievals if r["query"] in kind} for kind in (tuple(MUSIC), tuple(FOOD))}
    assert all(len(group) == 1 for group in groups.values()) and groups[tuple(MUSIC)] != groups[tuple(FOOD)]
    for cue in cues:
        members = np.array([r["embedding"] for r in retrievals if r["cluster_id"] == cue["cluster_id"]])
        mean = members.mean(0)
        np.testing.assert_allclose(cue["centroid"], mean / np.linalg.norm(mean), atol=1e-4)
    # What was learned before there were kinds counts for every kind: nothing changes by clustering alone.
    close(suppression(learner), {(turn, c): s for turn, s in one_cluster.items() for c in (0, 1)}, 1e-5)


def test_a_question_belongs_to_the_nearest_cue_and_is_learned_for_that_kind_only(learner):
    clustered(learner)
    for question in [
        MUSIC[0],
        FOOD[0],
        "a question about nothing of the kind",
        "when do the cellist and the cat sleep?",
    ]:
        before = suppression(learner)
        asked = ask(learner, question)
        stored = one(learner, "FROM lethe.retrievals WHERE retrieval_id = ?", [asked[0]["retrieval_id"]])
        centroids = np.array([c["centroid"] for c in rows(learner, "FROM lethe.cues ORDER BY cluster_id")])
        cluster = int(np.argmax(centroids @ np.array(stored["embedding"])))
        assert {row["cue_cluster"] for row in asked} == {cluster}
        assert (stored["cluster_id"], stored["query"]) == (cluster, question)
        close(
            {row["turn_id"]: row["suppression"] for row in asked},
            {row["turn_id"]: before.get((row["turn_id"], cluster), 0) for row in asked},
            1e-5,
        )
        expected = dict(before)
        for turn, delta in blame(learner.rule, asked).items():
            expected[turn, cluster] = expected.get((turn, cluster), 0) + delta
        close(suppression(learner), expected, 1e-5)


def test_clusters_are_fitted_again_when_the_questions_have_doubled(learner):
    clustered(learner)
    for asked, question in enumerate(MUSIC + FOOD, start=7):
        before = suppression(learner)
        ask(learner, question)
        assert value(learner, "SELECT max(generation) FROM lethe.cues") == (2 if asked >= 12 else 1), asked
    assert value(learner, "SELECT sum(queries) FROM lethe.cues") == 12
    # The old kinds are the new ones, whatever their numbers: what was learned about each is kept, and the last question's added.
    after = suppression(learner)
    assert {turn for turn, _ in after} >= {turn for turn, _ in before}
    assert one(learner, "FROM memory_stats()")["generation"] == 2


def test_one_cluster_for_all(learner):
    clustered(learner, clusters=1)
    assert value(learner, "SELECT count(*) FROM lethe.cues") == 1
    assert {cluster for _, cluster in suppression(learner)} == {0}
    assert {row["cue_cluster"] for question in (MUSIC[0], FOOD[0]) for row in ask(learner, question)} == {0}


def test_the_same_question_over_and_over_is_one_kind(learner):
    """More clusters than different questions: k-means has nothing to part."""
    learner.execute("SET lethe_cluster_after = 3; SET lethe_clusters = 30")
    for _ in range(7):
        assert ask(learner)[0]["rank"] == 1
    assert one(learner, "FROM memory_stats()")["note"] is None
    assert value(learner, "SELECT max(generation) FROM lethe.cues") == 2
    clusters = {r["cluster_id"] for r in rows(learner, "SELECT DISTINCT cluster_id FROM lethe.retrievals")}
    assert clusters == {ask(learner)[0]["cue_cluster"]}


def test_recluster_when_asked_to(learner):
    for question in MUSIC + FOOD:
        ask(learner, question)
    learner.execute("SET lethe_clusters = 2")
    told = rows(learner, "FROM memory_recluster()")
    assert [(t["generation"], t["cue_cluster"], t["queries"]) for t in told] == [(1, 0, 3), (1, 1, 3)]


def test_reset_and_feedback(learner):
    clustered(learner)
    asked = ask(learner, MUSIC[1])
    cluster = asked[0]["cue_cluster"]
    before = suppression(learner)
    held = {turn: score for (turn, c), score in before.items() if c == cluster}
    ignored = asked[0]["turn_id"]
    used = next(turn for turn in held if turn != ignored and (turn, 1 - cluster) in before)
    told = rows(
        learner,
        "FROM memory_feedback(?, used := ?, ignored := ?)",
        [str(asked[0]["retrieval_id"]), [str(used)], [str(ignored)]],
    )
    noted = {r["turn_id"]: (r["verdict"], r["cue_cluster"]) for r in told}
    assert noted == {used: ("used", cluster), ignored: ("ignored", cluster)}
    after = suppression(learner)
    assert (used, cluster) not in after
    assert after[ignored, cluster] == pytest.approx(held.get(ignored, 0) + 0.5, abs=1e-5)
    assert (used, 1 - cluster) in after, "what it did to other questions stands"
    left = sum(c != cluster for _, c in after)
    assert one(learner, f"FROM memory_reset(cluster := {cluster})")["removed"] == len(after) - left
    assert len(suppression(learner)) == left
    learner.execute("CALL memory_reset()")
    assert suppression(learner) == {}


def test_feedback_takes_the_ids_that_a_retrieval_gave(learner):
    """As they come out of the driver: UUID, not text."""
    asked = ask(learner)
    told = rows(learner, "FROM memory_feedback(?, ignored := ?)", [asked[0]["retrieval_id"], [asked[0]["turn_id"]]])
    assert [r["turn_id"] for r in told] == [asked[0]["turn_id"]]
    assert rows(learner, "FROM memory_forget(turn_ids := ?)", [[asked[0]["turn_id"]]])[0]["removed"] == 1


# Every number by hand -------------------------------------------------------------------------------

#: Of four turns of three words each, asked for "apple pear plum". By words alone (weight 1 in z-score fusion) the more and rarer
#: words a turn shares, the higher it stands; the last shares none, which counts as much as the least that was found, and equal
#: scores go by turn_id. So r_init is 1, 2, 3, 4.
#:
#: The reranker's logit is 3 + the sum over shared words of  apple −2, pear −1, plum −2:
#:
#:     apple pear plum   3 − 2 − 1 − 2 = −2    r_final 4
#:     apple pear fig    3 − 2 − 1     =  0    r_final 3
#:     apple fig fig     3 − 2         =  1    r_final 2
#:     fig fig fig       3             =  3    r_final 1
#:
#: With η = .1 and P = 4, and σ(2) = 1 / (1 + e^−2) = .880797, σ(0) = .5, σ(−1) = 1 / (1 + e) = .268941:
#:
#:     rank_gap   .1 · (4 − 1)/4 · .880797 = .0660598    .1 · (3 − 2)/4 · .5 = .0125    0 (it rose)    0 (it rose)
#:     uniform    .1 · (1 − 1/4) · .880797 = .0660598    .1 · (1 − 2/4) · .5 = .025
#:                .1 · (1 − 3/4) · .268941 = .00672353   .1 · (1 − 4/4) · σ(−3) = 0
#:
#: Asked again, each pays α = .3 of its suppression in standard deviations of the pool, which is far less than what is between them.
#: But under the uniform rule the third pays too, and so falls behind the fourth, which has the same score: now it is the
#: fourth that adds .1 · (1 − 3/4) · σ(−3) = .025 · .0474259 = .00118565, and the third nothing.
FRUIT = ["apple pear plum", "apple pear fig", "apple fig fig", "fig fig fig"]
WORTH = {"apple": -2.0, "pear": -1.0, "plum": -2.0}
BY_HAND = {"rank_gap": [0.0660598, 0.0125], "uniform": [0.0660598, 0.025, 0.00672353]}
TWICE = {"rank_gap": [0.1321196, 0.025], "uniform": [0.1321196, 0.05, 0.00672353, 0.00118565]}


@pytest.mark.parametrize("rule", ["rank_gap", "uniform"])
def test_every_number_by_hand(tmp_path, rule):
    tokenizer = Tokenizer.from_file(str(MODELS / DEFAULT / "tokenizer.json"))
    table = np.zeros(tokenizer.get_vocab_size(), np.float32)
    for word, worth in WORTH.items():
        table[tokenizer.token_to_id(word)] = worth
    folder = cross_encoder(tmp_path / "reranker", table=table, bias=3.0)
    connection = connect()
    connection.execute(ALGORITHM_ALONE)
    connection.execute(f"CALL memory_create(learning := '{rule}', template := 'plain')")
    connection.execute(f"SET lethe_reranker_directory = '{folder}'; SET lethe_fusion = 'zscore'; SET lethe_word_weight = 1")
    insert(connection, [(turn_id(n), None, None, None, text) for n, text in enumerate(FRUIT)])
    asked = ask(connection, "apple pear plum", k=4)
    assert [(r["content"], r["pool_rank"], r["reranker_score"]) for r in asked] == [
        ("fig fig fig", 4, 3.0),
        ("apple fig fig", 3, 1.0),
        ("apple pear fig", 2, 0.0),
        ("apple pear plum", 1, -2.0),
    ]
    assert_learned(connection, BY_HAND[rule])
    ask(connection, "apple pear plum", k=4)
    assert_learned(connection, TWICE[rule])
    connection.close()


def assert_learned(connection, by_hand):
    learned = {(str(turn), cluster): score for (turn, cluster), score in suppression(connection).items()}
    close(learned, {(turn_id(n), 0): score for n, score in enumerate(by_hand)})
