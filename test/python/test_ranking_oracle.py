"""The ranking, computed again in numpy from the tables alone: codes are decoded and questions encoded here.

What a conversation adds to the token evidence is left out; test_conversation_oracle.py has it.
"""

import math
import re
from collections import Counter

import numpy as np
import onnxruntime
import pytest
from support import EVIDENCE_ALONE, MODELS, chatter, connect, insert, rows, states, turn_id
from tokenizers import Tokenizer

TURNS = 60
QUESTIONS = [
    "who saw the old bridge near the house?",
    "Did Verdi rehearse unbelievably in 1851?",
    "apples, apples from Jürgen's greengrocer!",
    "東京 photosynthesis",
    "x",
]
RULES = {"idf": (True, False), "maxsim": (False, False), "floor": (False, True), "floor_idf": (True, True)}
CLOSE = 1e-3


class Encoder:
    """all-MiniLM-L6-v2 by ONNX Runtime in Python: unit states of a question's own wordpieces, and their unit mean."""

    def __init__(self):
        folder = MODELS / "all-MiniLM-L6-v2"
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"), options)

    def __call__(self, text):
        own = self.tokenizer.encode(text, add_special_tokens=False).ids
        ids = np.array([[101, *own, 102]], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        hidden = self.session.run(None, {i.name: feeds[i.name] for i in self.session.get_inputs()})[0][0, 1:-1]
        mean = hidden.mean(0)
        return own, mean / np.linalg.norm(mean), hidden / np.linalg.norm(hidden, axis=1, keepdims=True)


class Oracle:
    """What a question is worth against a store, or several; read from their tables."""

    def __init__(self, encoder, stored):
        self.encoder, self.stored = encoder, stored
        self.holding = Counter(piece for row in stored.values() for piece in set(row["token_ids"]))

    def weights(self, pieces):
        n = len(self.stored)
        return np.array([math.log(1 + (n - self.holding[p] + 0.5) / (self.holding[p] + 0.5)) for p in pieces])

    def vectors(self, question):
        """By the vectors as the index holds them: eight bits a value, the largest 127."""
        _, embedding, _ = self.encoder(question)
        return {turn: float(eight_bits(row["embedding"]) @ embedding) for turn, row in self.stored.items()}

    def evidence(self, question, pool, rule, k=64):
        """Σ w_i max(best_i, t_i) / Σ w_i; t_i is the k-th highest similarity over all tokens of the pool, but at least 0."""
        weighted, floored = RULES[rule]
        pieces, _, query = self.encoder(question)
        weights = self.weights(pieces) if weighted else np.ones(len(pieces))
        met = {turn: query @ self.stored[turn]["states"].T for turn in pool}
        every = np.sort(np.concatenate(list(met.values()), 1), axis=1)[:, ::-1]
        floor = np.maximum(every[:, k - 1], 0) if k <= every.shape[1] else np.zeros(len(pieces))
        best = {turn: similarities.max(1) for turn, similarities in met.items()}
        if floored:
            best = {turn: np.maximum(b, floor) for turn, b in best.items()}
        return {turn: float(weights @ b / weights.sum()) for turn, b in best.items()}


def eight_bits(vector):
    scale = np.abs(vector).max() / 127
    return np.round(vector / scale) * scale


def standardised(scores):
    values = np.array(list(scores.values()))
    return dict(zip(scores, (values - values.mean()) / (values.std() + 1e-9)))


def mixed(vectors, evidence, alpha):
    """The seed's α z(s_pool) + (1 − α) z(s_sparse), over the pool; the evidence itself where α is 0."""
    if alpha == 0:
        return evidence
    v, e = standardised({turn: vectors[turn] for turn in evidence}), standardised(evidence)
    return {turn: alpha * v[turn] + (1 - alpha) * e[turn] for turn in evidence}


def column(found, name):
    return {row["turn_id"]: row[name] for row in found}


def compare(got, want, tolerance=CLOSE):
    assert set(got) == set(want)
    np.testing.assert_allclose([got[turn] for turn in want], list(want.values()), atol=tolerance)


@pytest.fixture(scope="module")
def encoder():
    return Encoder()


@pytest.fixture(scope="module", params=[4, 8], ids=["4 bits", "8 bits"])
def made(request, encoder):
    connection = connect()
    connection.execute(f"CALL memory_create(code_bits := {request.param}, learning := 'off')")
    insert(connection, chatter(TURNS, 5))
    connection.execute("CALL memory_sync()")
    yield connection, Oracle(encoder, states(connection))
    connection.close()


@pytest.fixture
def ranked(made):
    connection, oracle = made
    connection.execute(EVIDENCE_ALONE)
    yield connection, oracle
    for row in rows(
        connection, "SELECT name FROM duckdb_settings() WHERE name LIKE 'lethe_%' AND name <> 'lethe_threads'"
    ):
        connection.execute(f"RESET {row['name']}")


def ask(connection, question, k=TURNS, **options):
    settings = "".join(f", {name} := '{text}'" for name, text in options.items())
    return rows(connection, f"FROM memory_retrieve(?, ?, explain := true{settings})", [question, k])


def test_token_states_are_what_the_model_gives(ranked):
    """The codes of a turn that stands by itself, against the model's own output."""
    connection, oracle = ranked
    alone = rows(connection, "SELECT turn_id, speaker, said_at, content FROM lethe.turns WHERE session_id IS NULL")
    assert alone
    for row in alone:
        date = row["said_at"] and f"({row['said_at'].day} {row['said_at']:%B, %Y})"
        front = " ".join(filter(None, [row["speaker"], date]))
        pieces, embedding, hidden = oracle.encoder(f"{front}: {row['content']}" if front else row["content"])
        stored = oracle.stored[row["turn_id"]]
        assert stored["token_ids"] == pieces
        np.testing.assert_allclose(stored["embedding"], embedding, atol=1e-5)
        # Half a step of the codes: the largest value of a state, over 7 or 127.
        step = np.abs(hidden).max(1, keepdims=True) / (7 if len(stored["codes"]) == len(pieces) * 192 else 127)
        assert (np.abs(stored["states"] - hidden) <= 0.51 * step).all()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rule", RULES)
def test_scores(ranked, rule, alpha):
    connection, oracle = ranked
    connection.execute(f"SET lethe_token_rule = '{rule}'; SET lethe_vector_alpha = {alpha}")
    for question in QUESTIONS:
        found = ask(connection, question)
        vectors, evidence = oracle.vectors(question), oracle.evidence(question, oracle.stored, rule)
        compare(column(found, "vector_score"), vectors)
        compare(column(found, "token_score"), evidence)
        expected = mixed(vectors, evidence, alpha)
        # Errors of standardised scores are those of the scores over their deviation. With a floor few turns differ, so that is small.
        # A value of a vector that lies between two of its codes may be rounded to either: that is up to 1e-4 of a cosine.
        spreads = [np.std(list(evidence.values())) / 1e-5, np.std(list(vectors.values())) / 1e-4]
        compare(column(found, "score"), expected, CLOSE if alpha == 0 else max(CLOSE, 1 / min(spreads)))
        assert [row["rank"] for row in found] == list(range(1, TURNS + 1))
        scores = [row["score"] for row in found]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("k", [1, 7, 64, 500, 1_000_000])
def test_the_floor_is_the_kth_similarity(ranked, k):
    connection, oracle = ranked
    connection.execute(f"SET lethe_token_rule = 'floor'; SET lethe_token_k = {k}")
    for question in QUESTIONS[:3]:
        compare(column(ask(connection, question), "token_score"), oracle.evidence(question, oracle.stored, "floor", k))


@pytest.mark.parametrize("rule", RULES)
def test_a_cut_pool_competes_among_itself(ranked, rule):
    connection, oracle = ranked
    connection.execute(f"SET lethe_pool = 9; SET lethe_token_rule = '{rule}'; SET lethe_vector_alpha = 0.5")
    for question in QUESTIONS[:3]:
        found = ask(connection, question, k=9)
        assert sorted(row["pool_rank"] for row in found) == list(range(1, 10))
        evidence = oracle.evidence(question, [row["turn_id"] for row in found], rule)
        compare(column(found, "token_score"), evidence)
        expected = mixed(oracle.vectors(question), evidence, 0.5)
        compare(column(found, "score"), expected, max(CLOSE, 1e-5 / np.std(list(evidence.values()))))


def test_a_filter_cuts_the_candidates_and_not_what_is_rare(ranked):
    """N and df are counted over the whole store, so a score does not depend on the filter."""
    connection, oracle = ranked
    for question in QUESTIONS:
        found = ask(connection, question, session="c1")
        pool = [row["turn_id"] for row in rows(connection, "SELECT turn_id FROM lethe.turns WHERE session_id = 'c1'")]
        compare(column(found, "token_score"), oracle.evidence(question, pool, "idf"))


def test_ranks_of_the_sources(ranked):
    connection, _ = ranked
    for question in QUESTIONS:
        found = ask(connection, question)
        for source in ("word", "vector"):
            listed = [row for row in found if row[f"{source}_rank"] is not None]
            listed.sort(key=lambda row: row[f"{source}_rank"])
            assert [row[f"{source}_rank"] for row in listed] == list(range(1, len(listed) + 1))
            keys = [(-row[f"{source}_score"], row["turn_id"].int) for row in listed]
            assert keys == sorted(keys)
            assert all(row[f"{source}_score"] is None for row in found if row[f"{source}_rank"] is None)
        assert all(row["vector_rank"] for row in found)


def test_words_are_bm25(ranked):
    """k₁ = 1.2, b = .75, over the lower-cased runs of letters and digits of the text that was encoded."""
    connection, _ = ranked

    def words(text):
        return re.findall(r"[^\W_]+", text.lower())

    documents = {}
    for row in rows(connection, "SELECT turn_id, speaker, said_at, content FROM lethe.turns"):
        date = row["said_at"] and f"{row['said_at'].day} {row['said_at']:%B, %Y}"
        documents[row["turn_id"]] = words(f"{row['speaker'] or ''} {date or ''} {row['content']}")
    average = sum(map(len, documents.values())) / len(documents)
    containing = Counter(word for text in documents.values() for word in set(text))
    for question in QUESTIONS:
        expected = {}
        for turn, text in documents.items():
            assert len(text) < 40, "longer lengths are kept approximately"
            for word in set(words(question)) & set(text):
                tf, df = text.count(word), containing[word]
                idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
                expected[turn] = expected.get(turn, 0) + idf * tf * 2.2 / (
                    tf + 1.2 * (0.25 + 0.75 * len(text) / average)
                )
        found = {
            turn: score for turn, score in column(ask(connection, question), "word_score").items() if score is not None
        }
        compare(found, expected)


@pytest.mark.parametrize("candidates", [300, 10])
@pytest.mark.parametrize("k", [60.0, 0.0, 7.5])
def test_reciprocal_rank_fusion(ranked, k, candidates):
    connection, _ = ranked
    connection.execute(f"SET lethe_rrf_k = {k}; SET lethe_candidates = {candidates}")
    for question in QUESTIONS:
        found = ask(connection, question, k=10)
        for row in found:
            ranks = [row["word_rank"], row["vector_rank"]]
            assert row["fused_score"] == pytest.approx(sum(1 / (k + rank) for rank in ranks if rank), abs=1e-12)
            assert all(rank is None or rank <= candidates for rank in ranks)
        order = sorted(found, key=lambda row: (-row["fused_score"], row["turn_id"].int))
        positions = [row["pool_rank"] for row in order]
        assert positions == sorted(positions), (
            "nothing is suppressed, so the pool stands in the order of the fused scores"
        )


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_weighted_z_fusion(ranked, weight):
    """Each list is standardised by itself; who is not in it scores as its last."""
    connection, _ = ranked
    connection.execute(f"SET lethe_fusion = 'zscore'; SET lethe_word_weight = {weight}")
    for question in QUESTIONS:
        found = ask(connection, question)
        expected = dict.fromkeys(column(found, "rank"), 0.0)
        for source, share in (("word", weight), ("vector", 1 - weight)):
            scores = {turn: score for turn, score in column(found, f"{source}_score").items() if score is not None}
            if scores:
                z = standardised(scores)
                for turn in expected:
                    expected[turn] += share * z.get(turn, min(z.values()))
        compare(column(found, "fused_score"), expected, 1e-6)


def test_two_stores_are_scored_as_one(ranked, encoder):
    """N, df, floor and standardisation are of the union."""
    connection, oracle = ranked
    connection.execute("ATTACH ':memory:' AS other; CALL memory_create(store := 'other')")
    extra = [(turn_id(500 + n), *turn[1:]) for n, turn in enumerate(chatter(15, 6))]
    insert(connection, extra, "other")
    bits = rows(connection, "SELECT code_bits FROM lethe.encoders")[0]["code_bits"]
    connection.execute(f"CALL memory_create(store := 'other', code_bits := {bits}); CALL memory_sync(store := 'other')")
    both = Oracle(encoder, {**oracle.stored, **states(connection, "other")})
    sql = "FROM memory_retrieve(?, 100, stores := ['memory', 'other'], explain := true)"
    for rule in RULES:
        connection.execute(f"SET lethe_token_rule = '{rule}'; SET lethe_vector_alpha = 0.5")
        for question in QUESTIONS[:3]:
            found = rows(connection, sql, [question])
            assert len(found) == TURNS + 15 and {row["store"] for row in found} == {"memory", "other"}
            evidence = both.evidence(question, both.stored, rule)
            compare(column(found, "token_score"), evidence)
            compare(
                column(found, "score"),
                mixed(both.vectors(question), evidence, 0.5),
                max(CLOSE, 1e-5 / np.std(list(evidence.values()))),
            )
    connection.execute("DETACH other")
